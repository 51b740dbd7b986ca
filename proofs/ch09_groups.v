(* Chapter 9: grouped queries. One key map, several query maps.                *)

From mathcomp Require Import all_ssreflect all_algebra.
From attnid Require Import basics ch01_products ch02_invariance ch04_directions ch08_rotary.

Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Import GRing.Theory.
Local Open Scope ring_scope.

Section Group.
Variables (F : fieldType) (D E J : nat).
Implicit Types (W_Q : {ffun 'I_J -> 'M[F]_(D, E)}) (W_K : 'M[F]_(D, E)) (S T : 'M[F]_D).

(* The stack [W_Q^1 ... W_Q^J] of the query maps of a group, D x J E.          *)
Definition stack W_Q : 'M[F]_(D, \sum_(j < J) E) := \mxrow_(j < J) W_Q j.

Lemma same_products W_Q W_Q' W_K W_K' :
  (forall j, W_K'^T *m W_Q' j = W_K^T *m W_Q j) <-> W_K'^T *m stack W_Q' = W_K^T *m stack W_Q.
Proof. by rewrite !mul_mxrow; split=> [|/eq_mxrowP //]; apply: eq_mxrow. Qed.

(* Grouped queries. Let the key map W_K have rank D, and the stack of the      *)
(* query maps as well. Other weights of the group have the same J products     *)
(* W_K^T W_Q^j if and only if they are (S W_Q^j, S^-T W_K) with one            *)
(* nonsingular S for the whole group; it is unique.                            *)
Theorem group_orbit W_Q W_Q' W_K W_K' :
    row_free W_K -> row_free (stack W_Q) ->
  (forall j, W_K'^T *m W_Q' j = W_K^T *m W_Q j) <->
  exists! S, [/\ S \in unitmx, (forall j, W_Q' j = S *m W_Q j) & W_K' = invmx S^T *m W_K].
Proof.
move=> fK fQ; rewrite same_products (orbit_is_fibre _ _ fQ fK).
have same S : stack W_Q' = S *m stack W_Q <-> (forall j, W_Q' j = S *m W_Q j).
  by rewrite mul_mxrow; split=> [/eq_mxrowP //|]; apply: eq_mxrow.
split=> -[S [[uS Q K] one]]; exists S; split=> [|S' [uS' x y]].
- by split=> //; apply/same.
- by apply: one; split=> //; apply/same.
- by split=> //; apply/same.
by apply: one; split=> //; apply/same.
Qed.

(* The first-order changes of the J products of a group.                       *)
Definition dgroup W_Q W_K (dW : {ffun 'I_J -> 'M[F]_(D, E)} * 'M[F]_(D, E)) :
    {ffun 'I_J -> 'M[F]_E} :=
  [ffun j => dproduct (W_Q j) W_K (dW.1 j, dW.2)].

Lemma dgroup_is_linear W_Q W_K : linear (dgroup W_Q W_K).
Proof.
move=> a u v; apply/ffunP=> j; rewrite !ffunE.
exact: (linearP [linear of dproduct (W_Q j) W_K] a (u.1 j, u.2) (v.1 j, v.2)).
Qed.
Canonical dgroup_linear W_Q W_K := Linear (dgroup_is_linear W_Q W_K).

(* The direction (T W_Q^1, ..., T W_Q^J, -T^T W_K).                            *)
Definition group_direction W_Q W_K T : {ffun 'I_J -> 'M[F]_(D, E)} * 'M[F]_(D, E) :=
  ([ffun j => T *m W_Q j], - (T^T *m W_K)).

Lemma group_direction_is_linear W_Q W_K : linear (group_direction W_Q W_K).
Proof.
move=> a S T; rewrite /group_direction linearD linearZ /= mulmxDl -scalemxAl opprD -scalerN.
by congr pair; apply/ffunP=> j; rewrite !ffunE mulmxDl scalemxAl.
Qed.
Canonical group_direction_linear W_Q W_K := Linear (group_direction_is_linear W_Q W_K).

(* With W_K and the stack of the W_Q^j of rank D, the null directions of a     *)
(* group are (T W_Q^1, ..., T W_Q^J, -T^T W_K) alone: one T for the whole      *)
(* group.                                                                      *)
Theorem group_null_directions W_Q W_K (dW : {ffun 'I_J -> 'M[F]_(D, E)} * 'M[F]_(D, E)) :
    row_free W_K -> row_free (stack W_Q) ->
  dgroup W_Q W_K dW = 0 <-> exists T, dW = group_direction W_Q W_K T.
Proof.
move=> fK fQ; case: dW => dQ dK.
have -> : dgroup W_Q W_K (dQ, dK) = 0 <-> dproduct (stack W_Q) W_K (stack dQ, dK) = 0.
  rewrite /dproduct /= !mul_mxrow -mxrowD -(@mxrow0 _ _ (fun=> E)).
  split=> [/ffunP null | /eq_mxrowP null].
    by apply: eq_mxrow => j; have := null j; rewrite !ffunE.
  by apply/ffunP=> j; rewrite !ffunE; apply: null.
rewrite (no_other_null_directions _ _ fQ fK); split=> -[T].
  rewrite /direction /stack mul_mxrow.
  by case=> /eq_mxrowP eQ ->; exists T; congr pair; apply/ffunP=> j; rewrite ffunE eQ.
case=> -> ->; exists T; rewrite /direction /stack mul_mxrow; congr pair.
by apply: eq_mxrow => j; rewrite ffunE.
Qed.

(* With W_K and the stack of the W_Q^j of rank D, the null directions of a     *)
(* group form a space of dimension D^2, and different T give different ones.   *)
Theorem group_dimension W_Q W_K :
    row_free W_K -> row_free (stack W_Q) ->
  (forall T, group_direction W_Q W_K T = 0 -> T = 0) /\
  nullity [linear of dgroup W_Q W_K] = (D ^ 2)%N.
Proof.
move=> fK fQ; have inj T : group_direction W_Q W_K T = 0 -> T = 0.
  case=> _ /eqP; rewrite oppr_eq0 => /eqP TK; apply/trmx_inj/(row_free_inj fK).
  by rewrite TK trmx0 mul0mx.
split=> //; rewrite -mulnn.
apply: (@nullity_by_parameters _ _ _ _ _ [linear of group_direction W_Q W_K]) => // dW.
exact: group_null_directions.
Qed.

End Group.

(* A layer of G groups, each with weights of its own, W_K and the stack of     *)
(* rank D in each, loses G D^2.                                                *)
Theorem layer_of_groups (F : fieldType) (D E J G : nat)
    (W_Q : 'I_G -> {ffun 'I_J -> 'M[F]_(D, E)}) (W_K : 'I_G -> 'M[F]_(D, E)) :
    (forall i, row_free (W_K i)) -> (forall i, row_free (stack (W_Q i))) ->
  nullity [linear of each (fun i => [linear of dgroup (W_Q i) (W_K i)])] = (G * D ^ 2)%N.
Proof.
move=> fK fQ; rewrite -[X in (X * _)%N]card_ord -mulnn.
apply: (nullity_of_each (g := fun i => [linear of group_direction (W_Q i) (W_K i)])) => i /= u.
  by have [inj _] := group_dimension (fK i) (fQ i); apply: inj.
exact: group_null_directions.
Qed.

Section Values.
Variables (F : fieldType) (C E J : nat).
Implicit Types (W_O : {ffun 'I_J -> 'M[F]_(E, C)}) (W_V : 'M[F]_(C, E)) (S : 'M[F]_C).

(* Grouped values. Let the value map W_V have rank C, and the stack of the     *)
(* transposed output maps as well. Other weights of the group have the same J  *)
(* products W_O^j W_V if and only if they are (S W_V, W_O^j S^-1) with one     *)
(* nonsingular S for the whole group; it is unique.                            *)
Theorem group_value_output_orbit W_O W_O' W_V W_V' :
    row_free W_V -> row_free (stack [ffun j => (W_O j)^T]) ->
  (forall j, W_O' j *m W_V' = W_O j *m W_V) <->
  exists! S, [/\ S \in unitmx, (forall j, W_O' j = W_O j *m invmx S) & W_V' = S *m W_V].
Proof.
move=> fV fO; pose W_Q' := [ffun j => (W_O' j)^T]; pose W_Q := [ffun j => (W_O j)^T].
have -> : (forall j, W_O' j *m W_V' = W_O j *m W_V)
    <-> (forall j, W_V'^T *m W_Q' j = W_V^T *m W_Q j).
  by split=> eq j; have := eq j; rewrite !ffunE -!trmx_mul; [move=> -> | move/trmx_inj].
rewrite (group_orbit _ _ fV fO).
pose f (S : 'M[F]_C) := invmx S^T; have fK : involutive f.
  by move=> S; rewrite /f -trmx_inv invmxK trmxK.
have same S : [/\ S \in unitmx, (forall j, W_Q' j = S *m W_Q j) & W_V' = invmx S^T *m W_V]
    <-> [/\ f S \in unitmx, (forall j, W_O' j = W_O j *m invmx (f S)) & W_V' = f S *m W_V].
  rewrite /f unitmx_inv unitmx_tr invmxK; split=> -[uS O ->]; split=> // j; have := O j.
    by rewrite !ffunE => eq; apply: trmx_inj; rewrite eq trmx_mul trmxK.
  by rewrite !ffunE => ->; rewrite trmx_mul trmxK.
split=> -[S [PS one]]; exists (f S); split.
- exact: (iffLR (same S) PS).
- by move=> S' QS'; rewrite (one (f S')) ?fK //; apply: (iffRL (same _)); rewrite fK.
- by apply: (iffRL (same _)); rewrite fK.
by move=> S' PS'; rewrite (one (f S')) ?fK //; apply: (iffLR (same _)).
Qed.

End Values.

(* Groups with rotary positions. Let the key map and the stack of the query    *)
(* maps have rank D, and let the offsets Delta contain two neighbours. Other   *)
(* weights of the group have the same products at all offsets of Delta if and  *)
(* only if they are (A W_Q^j, A^-T W_K) with one nonsingular A for the group   *)
(* that commutes with the rotation R; it is unique.                            *)
Theorem group_rotary_orbit (F : fieldType) (d' E J : nat) (R : 'M[F]_d'.+1) (Delta : int -> Prop)
    (W_Q W_Q' : {ffun 'I_J -> 'M[F]_(d'.+1, E)}) (W_K W_K' : 'M[F]_(d'.+1, E)) :
    R \in unitmx -> row_free W_K -> row_free (stack W_Q) ->
    (exists d, Delta d /\ Delta (d + 1)) ->
  (forall d, Delta d -> forall j, W_K'^T *m R ^ d *m W_Q' j = W_K^T *m R ^ d *m W_Q j) <->
  exists! A, [/\ A \in unitmx, A *m R = R *m A, (forall j, W_Q' j = A *m W_Q j)
               & W_K' = invmx A^T *m W_K].
Proof.
move=> uR fK fQ neighbours.
have -> : (forall d, Delta d -> forall j, W_K'^T *m R ^ d *m W_Q' j = W_K^T *m R ^ d *m W_Q j)
    <-> (forall d, Delta d -> W_K'^T *m R ^ d *m stack W_Q' = W_K^T *m R ^ d *m stack W_Q).
  split=> same d inD; have := same d inD; rewrite /stack !mul_mxrow; first exact: eq_mxrow.
  by move/eq_mxrowP.
rewrite (rotary_orbit uR _ _ fQ fK neighbours).
have same A : stack W_Q' = A *m stack W_Q <-> (forall j, W_Q' j = A *m W_Q j).
  by rewrite mul_mxrow; split=> [/eq_mxrowP //|]; apply: eq_mxrow.
split=> -[A [[uA AR Q K] one]]; exists A; split=> [|A' [uA' AR' x y]].
- by split=> //; apply/same.
- by apply: one; split=> //; apply/same.
- by split=> //; apply/same.
by apply: one; split=> //; apply/same.
Qed.

Section GroupRotaryDirections.
Variables (F : fieldType) (d' E J : nat) (R : 'M[F]_d'.+1) (d : int).
Hypothesis R_unit : R \in unitmx.
Implicit Types (W_Q dW_Q : {ffun 'I_J -> 'M[F]_(d'.+1, E)}) (W_K dW_K : 'M[F]_(d'.+1, E)).

(* Its null directions at two neighbouring offsets are (S W_Q^j, -S^T W_K)     *)
(* with one S that commutes with R.                                            *)
Theorem group_rotary_null_directions W_Q W_K dW_Q dW_K :
    row_free W_K -> row_free (stack W_Q) ->
  (forall j e, e = d \/ e = d + 1 ->
     W_K^T *m R ^ e *m dW_Q j + dW_K^T *m R ^ e *m W_Q j = 0) <->
  exists S, S *m R = R *m S /\ (dW_Q, dW_K) = group_direction W_Q W_K S.
Proof.
move=> fK fQ; pose Delta e := e = d \/ e = d + 1.
have neighbours : exists e, Delta e /\ Delta (e + 1) by exists d; split; [left | right].
have [to back] := rotary_null_directions R_unit (stack dW_Q) dW_K fQ fK neighbours.
split=> [null | [S [SR [-> ->]]] j e _].
  have [e inD|S [SR]] := to.
    rewrite /stack !mul_mxrow -mxrowD -(@mxrow0 _ _ (fun=> E)); apply: eq_mxrow => j.
    exact: null.
  rewrite /direction /stack mul_mxrow => -[/eq_mxrowP eQ ->]; exists S; split=> //.
  by congr pair; apply/ffunP=> j; rewrite ffunE eQ.
rewrite ffunE linearN /= trmx_mul trmxK !mulNmx -!mulmxA [R ^ e *m (S *m _)]mulmxA.
by rewrite -(commutes_with_powers e SR) !mulmxA subrr.
Qed.

End GroupRotaryDirections.
