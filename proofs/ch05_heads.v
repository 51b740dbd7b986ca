(* Chapter 5: the value-output circuit, and many heads.                        *)

From mathcomp Require Import all_ssreflect all_algebra.
From attnid Require Import basics ch01_products ch02_invariance ch04_directions.

Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Import GRing.Theory.
Local Open Scope ring_scope.

Section ValueOutput.
Variables (F : fieldType) (C E : nat).
Implicit Types (W_O : 'M[F]_(E, C)) (W_V : 'M[F]_(C, E)) (S T : 'M[F]_C).

(* Value-output invariance. (W_O S^-1, S W_V) has the same product W_O W_V.    *)
Theorem value_output_invariance W_O W_V S :
  S \in unitmx -> (W_O *m invmx S) *m (S *m W_V) = W_O *m W_V.
Proof. by move=> uS; rewrite mulmxA mulmxKV. Qed.

(* For W_O and W_V of rank C, the weights with the same product W_O W_V are    *)
(* (W_O S^-1, S W_V), each with exactly one nonsingular S.                     *)
Theorem value_output_orbit W_O W_V (W_O' : 'M[F]_(E, C)) (W_V' : 'M[F]_(C, E)) :
    \rank W_O = C -> \rank W_V = C ->
  W_O' *m W_V' = W_O *m W_V <->
  exists! S, [/\ S \in unitmx, W_O' = W_O *m invmx S & W_V' = S *m W_V].
Proof.
move=> rO rV; have fO : row_free W_O^T by rewrite /row_free mxrank_tr rO.
have fV : row_free W_V by rewrite /row_free rV.
have := orbit_is_fibre W_V' W_O'^T fV fO; rewrite !trmxK => ->.
have same S : W_O'^T = invmx S^T *m W_O^T <-> W_O' = W_O *m invmx S.
  by rewrite -trmx_inv -trmx_mul; split=> [/trmx_inj -> | ->].
split=> -[S [[uS V O] one]]; exists S; split=> [|S' [uS' x y]].
- by split=> //; apply/same.
- by apply: one; split=> //; apply/same.
- by split=> //; apply/same.
by apply: one; split=> //; apply/same.
Qed.

(* The first-order change of W_O W_V, and the direction (-W_O T, T W_V).       *)
Definition dvalue_output W_O W_V (dW : 'M[F]_(E, C) * 'M[F]_(C, E)) : 'M[F]_E :=
  W_O *m dW.2 + dW.1 *m W_V.

Lemma dvalue_output_is_linear W_O W_V : linear (dvalue_output W_O W_V).
Proof.
move=> a u v; rewrite /dvalue_output /= mulmxDr mulmxDl -scalemxAr -scalemxAl.
by rewrite scalerDr addrACA.
Qed.
Canonical dvalue_output_linear W_O W_V := Linear (dvalue_output_is_linear W_O W_V).

Definition value_output_direction W_O W_V T : 'M[F]_(E, C) * 'M[F]_(C, E) :=
  (- (W_O *m T), T *m W_V).

Lemma value_output_direction_is_linear W_O W_V : linear (value_output_direction W_O W_V).
Proof.
move=> a S T; rewrite /value_output_direction mulmxDr mulmxDl -scalemxAr -scalemxAl opprD.
by rewrite -scalerN.
Qed.
Canonical value_output_direction_linear W_O W_V :=
  Linear (value_output_direction_is_linear W_O W_V).

(* Along (-W_O T, T W_V) the product W_O W_V has derivative zero, for every T, *)
(* singular or not.                                                            *)
Theorem value_output_directions_are_null W_O W_V T :
  dvalue_output W_O W_V (value_output_direction W_O W_V T) = 0.
Proof. by rewrite /dvalue_output /= mulNmx !mulmxA subrr. Qed.

(* For W_O and W_V of rank C there are no other null directions of W_O W_V.    *)
Theorem no_other_value_output_directions W_O W_V (dW : 'M[F]_(E, C) * 'M[F]_(C, E)) :
    \rank W_O = C -> \rank W_V = C ->
  dvalue_output W_O W_V dW = 0 <-> exists T, dW = value_output_direction W_O W_V T.
Proof.
move=> rO rV; have fO : row_free W_O^T by rewrite /row_free mxrank_tr rO.
have fV : row_free W_V by rewrite /row_free rV.
split=> [|[T ->]]; last exact: value_output_directions_are_null.
case: dW => dO dV null; have := no_other_null_directions dV dO^T fV fO.
rewrite /dproduct /= !trmxK => /iffLR /(_ null) [T [-> eO]]; exists T; congr pair.
by apply: trmx_inj; rewrite eO linearN /= trmx_mul.
Qed.

(* For W_O and W_V of rank C the directions (-W_O T, T W_V) are different for  *)
(* different T, and the null space that they fill has dimension C^2.           *)
Theorem value_output_dimension W_O W_V :
    \rank W_O = C -> \rank W_V = C ->
  (forall T, value_output_direction W_O W_V T = 0 -> T = 0) /\
  nullity [linear of dvalue_output W_O W_V] = (C ^ 2)%N.
Proof.
move=> rO rV; have inj T : value_output_direction W_O W_V T = 0 -> T = 0.
  case=> _ TV; have fV : row_free W_V by rewrite /row_free rV.
  by apply: (row_free_inj fV); rewrite TV mul0mx.
split=> //; rewrite -mulnn.
apply: (@nullity_by_parameters _ _ _ _ _ [linear of value_output_direction W_O W_V]) => // u.
exact: no_other_value_output_directions.
Qed.

End ValueOutput.

(* Many heads, head h with weights of its own. The directions in which all     *)
(* products W_K^h^T W_Q^h keep still to first order form a space of dimension  *)
(* H D^2; those in which all products W_O^h W_V^h do, one of dimension H C^2.  *)
Theorem whole_layer (F : fieldType) (H D C E : nat)
    (W_Q W_K : 'I_H -> 'M[F]_(D, E)) (W_O : 'I_H -> 'M[F]_(E, C)) (W_V : 'I_H -> 'M[F]_(C, E)) :
    (forall h, \rank (W_Q h) = D /\ \rank (W_K h) = D) ->
    (forall h, \rank (W_O h) = C /\ \rank (W_V h) = C) ->
  nullity [linear of each (fun h => [linear of dproduct (W_Q h) (W_K h)])] = (H * D ^ 2)%N /\
  nullity [linear of each (fun h => [linear of dvalue_output (W_O h) (W_V h)])] = (H * C ^ 2)%N.
Proof.
move=> rQK rOV; split; rewrite -[X in (X * _)%N]card_ord -mulnn.
  apply: (nullity_of_each (g := fun h => [linear of direction (W_Q h) (W_K h)])) => h /= u.
    have [rQ _] := rQK h; move=> u0; apply: (@different_T_different_directions _ _ _ _ (W_Q h) (W_K h)).
      by rewrite /row_free rQ eqxx.
    by rewrite u0 [RHS]linear0.
  have [rQ rK] := rQK h; case: u => dQ dK.
  by apply: no_other_null_directions; rewrite /row_free ?rQ ?rK.
apply: (nullity_of_each (g := fun h => [linear of value_output_direction (W_O h) (W_V h)])) => h /= u.
  by have [rO rV] := rOV h; have [inj _] := value_output_dimension rO rV; apply: inj.
by have [rO rV] := rOV h; apply: no_other_value_output_directions.
Qed.

(* More heads, larger share. With E = H D, of the 2 H D E = 2 E^2 query and    *)
(* key weights H D^2 are unidentified: the identified share, over the          *)
(* rationals, is 1 - 1/(2 H). And H D^2 + H D^2 of the 4 E^2 weights of the    *)
(* whole layer leave the same share.                                           *)
Theorem share_identified (H D : nat) :
    (0 < H)%N -> (0 < D)%N ->
  let E := (H * D)%N in
  [/\ (2 * H * D * E = 2 * E ^ 2)%N,
      1 - (H * D ^ 2)%:R / (2 * E ^ 2)%:R = 1 - (2 * H)%:R^-1 :> rat
    & 1 - (H * D ^ 2 + H * D ^ 2)%:R / (4 * E ^ 2)%:R = 1 - (2 * H)%:R^-1 :> rat].
Proof.
move=> H0 D0 E; have nz n : (0 < n)%N -> n%:R != 0 :> rat by rewrite Num.Theory.pnatr_eq0 -lt0n.
have pos : (0 < H * D ^ 2)%N by rewrite muln_gt0 H0 expn_gt0 D0.
have E2 : (E ^ 2 = H * (H * D ^ 2))%N by rewrite /E expnMn -mulnn mulnA.
have cancel k : (0 < k)%N -> (k * (H * D ^ 2))%:R / (2 * k * E ^ 2)%:R = (2 * H)%:R^-1 :> rat.
  move=> k0; have -> : (2 * k * E ^ 2 = 2 * H * (k * (H * D ^ 2)))%N by rewrite E2 mulnACA.
  by rewrite [in X in _ / X]natrM invfM mulrCA divff ?mulr1 // nz // muln_gt0 k0.
split; first by rewrite -!mulnA -mulnn /E !mulnA.
  by rewrite -(cancel 1%N) // mul1n.
by rewrite -(cancel 2%N) // mul2n -addnn.
Qed.
