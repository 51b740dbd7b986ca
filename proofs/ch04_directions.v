(* Chapter 4: the directions along which the scores do not change.             *)

From mathcomp Require Import all_ssreflect all_algebra.
From attnid Require Import basics ch01_products.

Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Import GRing.Theory.
Local Open Scope ring_scope.

Section Directions.
Variables (F : fieldType) (D m n : nat).
Implicit Types (W_Q : 'M[F]_(D, m)) (W_K : 'M[F]_(D, n)) (T : 'M[F]_D).

(* The direction (T W_Q, -T^T W_K).                                            *)
Definition direction W_Q W_K T : 'M[F]_(D, m) * 'M[F]_(D, n) :=
  (T *m W_Q, - (T^T *m W_K)).

Lemma direction_is_linear W_Q W_K : linear (direction W_Q W_K).
Proof.
move=> a S T; rewrite /direction linearD linearZ /= !mulmxDl -!scalemxAl opprD.
by rewrite -scalerN.
Qed.
Canonical direction_linear W_Q W_K := Linear (direction_is_linear W_Q W_K).

(* Null directions. Along (T W_Q, -T^T W_K) the product W_K^T W_Q has          *)
(* derivative zero, for every T, invertible or not, whatever the ranks.        *)
Theorem directions_are_null W_Q W_K T : dproduct W_Q W_K (direction W_Q W_K T) = 0.
Proof.
rewrite /dproduct /direction /= linearN /= trmx_mul trmxK mulNmx mulmxA.
by rewrite subrr.
Qed.

(* Different T give different directions (T W_Q, -T^T W_K), if W_Q or W_K has  *)
(* rank D.                                                                     *)
Theorem different_T_different_directions W_Q W_K T T' :
  row_free W_Q || row_free W_K -> direction W_Q W_K T = direction W_Q W_K T' -> T = T'.
Proof.
move=> /orP [fr|fr] [eqQ eqK]; first exact: (row_free_inj fr).
by apply/trmx_inj/(row_free_inj fr)/oppr_inj.
Qed.

(* Completeness. For W_Q and W_K of rank D there are no other null directions: *)
(* W_K^T dW_Q + dW_K^T W_Q = 0 only for dW_Q = T W_Q, dW_K = -T^T W_K.         *)
Theorem no_other_null_directions W_Q W_K (dW_Q : 'M[F]_(D, m)) (dW_K : 'M[F]_(D, n)) :
    row_free W_Q -> row_free W_K ->
  dproduct W_Q W_K (dW_Q, dW_K) = 0 <-> exists T, (dW_Q, dW_K) = direction W_Q W_K T.
Proof.
move=> fQ fK; split=> [|[T ->]]; last exact: directions_are_null.
have [Q' QQ'] := row_freeP fQ; have [K' KK'] := row_freeP fK; rewrite /dproduct /= => null.
pose T := dW_Q *m Q'; have dK : dW_K^T = - (W_K^T *m T).
  move/(congr1 (mulmx^~ Q')): null; rewrite mulmxDl -!mulmxA QQ' mulmx1 mul0mx.
  by move/eqP; rewrite addrC addr_eq0 => /eqP.
exists T; congr pair; last by rewrite -[LHS]trmxK dK linearN /= trmx_mul trmxK.
have cancel_K : injective (@mulmx F n D m W_K^T) by apply: row_full_inj; rewrite /row_full mxrank_tr.
apply: cancel_K; move/eqP: null; rewrite addr_eq0 dK mulNmx opprK => /eqP ->.
by rewrite mulmxA.
Qed.

(* Dimension. For W_Q and W_K of rank D the null directions form a space of    *)
(* dimension D^2.                                                              *)
Theorem null_directions_have_dimension W_Q W_K :
    row_free W_Q -> row_free W_K ->
  nullity [linear of dproduct W_Q W_K] = (D ^ 2)%N.
Proof.
move=> fQ fK; rewrite -mulnn; apply: (@nullity_by_parameters _ _ _ _ _ [linear of direction W_Q W_K]) => /= [T T0 | [dQ dK]].
  apply: (@different_T_different_directions W_Q W_K); rewrite ?fQ //.
  by rewrite [RHS]linear0.
exact: no_other_null_directions.
Qed.

(* One up, one down: (W_Q, -W_K) is null. It is the direction (T W_Q, -T^T     *)
(* W_K) of T = I.                                                              *)
Theorem one_up_one_down W_Q W_K :
  dproduct W_Q W_K (W_Q, - W_K) = 0 /\ (W_Q, - W_K) = direction W_Q W_K 1%:M.
Proof.
have -> : (W_Q, - W_K) = direction W_Q W_K 1%:M by rewrite /direction trmx1 !mul1mx.
by rewrite directions_are_null.
Qed.

(* The second order. Along the straight line in the direction (T W_Q, -T^T     *)
(* W_K) the score product changes by exactly -t^2 W_K^T T^2 W_Q.               *)
Theorem second_order W_Q W_K T (t : F) :
  (W_K + t *: (direction W_Q W_K T).2)^T *m (W_Q + t *: (direction W_Q W_K T).1) - W_K^T *m W_Q
    = - (t ^+ 2 *: (W_K^T *m (T *m T) *m W_Q)).
Proof.
have := product_along_a_line W_Q (direction W_Q W_K T).1 W_K (direction W_Q W_K T).2 t.
rewrite /product [dproduct _ _ _](directions_are_null W_Q W_K T) scaler0 addr0 /= => ->.
rewrite addrC addKr -scalerN; congr (_ *: _).
by rewrite linearN /= trmx_mul trmxK mulNmx !mulmxA.
Qed.

(* For W_Q and W_K of rank D the score product stays the same all along the    *)
(* straight line in the direction (T W_Q, -T^T W_K) if and only if T^2 = 0.    *)
Theorem constant_along_the_line W_Q W_K T :
    row_free W_Q -> row_free W_K ->
  (forall t, (W_K + t *: (direction W_Q W_K T).2)^T *m (W_Q + t *: (direction W_Q W_K T).1)
     = W_K^T *m W_Q) <-> T *m T = 0.
Proof.
move=> fQ fK; split=> [const | T0 t]; last first.
  by apply/eqP; rewrite -subr_eq0 second_order T0 mulmx0 mul0mx scaler0 oppr0.
have := second_order W_Q W_K T 1; rewrite const subrr expr1n scale1r => /esym /eqP.
rewrite oppr_eq0 => /eqP K0; have KT : W_K^T *m (T *m T) = 0.
  by apply: (row_free_inj fQ); rewrite K0 mul0mx.
have cancel_K : injective (@mulmx F n D D W_K^T) by apply: row_full_inj; rewrite /row_full mxrank_tr.
by apply: cancel_K; rewrite KT mulmx0.
Qed.

(* The paper's form, by singular values. Let W_Q = U_Q Sigma_Q V_Q^T and       *)
(* W_K = U_K Sigma_K V_K^T with orthogonal U_Q, U_K and nonsingular diagonal   *)
(* Sigma_Q, Sigma_K. For every S the direction                                 *)
(* (U_K Sigma_K^-1 S V_Q^T, -U_Q Sigma_Q^-1 S^T V_K^T) is that of              *)
(* T = U_K Sigma_K^-1 S Sigma_Q^-1 U_Q^T, hence null; and back,                *)
(* S = Sigma_K U_K^T T U_Q Sigma_Q.                                            *)
Theorem directions_by_singular_values (sigma_Q sigma_K : 'rV[F]_D) (U_Q U_K S : 'M[F]_D)
    (V_Q : 'M[F]_(m, D)) (V_K : 'M[F]_(n, D)) :
    let Sigma_Q := diag_mx sigma_Q in let Sigma_K := diag_mx sigma_K in
    U_Q^T *m U_Q = 1%:M -> U_K^T *m U_K = 1%:M ->
    Sigma_Q \in unitmx -> Sigma_K \in unitmx ->
  let W_Q := U_Q *m Sigma_Q *m V_Q^T in let W_K := U_K *m Sigma_K *m V_K^T in
  let dW_Q := U_K *m invmx Sigma_K *m S *m V_Q^T in
  let dW_K := - (U_Q *m invmx Sigma_Q *m S^T *m V_K^T) in
  let T := U_K *m invmx Sigma_K *m S *m invmx Sigma_Q *m U_Q^T in
  [/\ (dW_Q, dW_K) = direction W_Q W_K T, dproduct W_Q W_K (dW_Q, dW_K) = 0
    & S = Sigma_K *m U_K^T *m T *m U_Q *m Sigma_Q].
Proof.
move=> Sigma_Q Sigma_K UQ UK uQ uK W_Q W_K dW_Q dW_K T.
have symQ : (invmx Sigma_Q)^T = invmx Sigma_Q by rewrite trmx_inv tr_diag_mx.
have symK : (invmx Sigma_K)^T = invmx Sigma_K by rewrite trmx_inv tr_diag_mx.
have same : (dW_Q, dW_K) = direction W_Q W_K T.
  rewrite /direction /dW_Q /dW_K /T /W_Q /W_K; congr (_, - _).
    by rewrite !mulmxA -(mulmxA _ U_Q^T) UQ mulmx1 mulmxKV.
  rewrite !trmx_mul trmxK symQ symK !mulmxA -(mulmxA _ U_K^T) UK mulmx1.
  by rewrite mulmxKV.
split; rewrite ?same ?directions_are_null // /T !mulmxA -(mulmxA _ U_K^T) UK mulmx1.
by rewrite mulmxV // mul1mx -(mulmxA _ U_Q^T) UQ mulmx1 mulmxKV.
Qed.

(* Deficient ranks. With W_Q of rank p and W_K of rank q, the directions       *)
(* (T W_Q, -T^T W_K) alone form a space of dimension D^2 - (D - p)(D - q).     *)
(* That of all null directions is counted in chapter 1, for any ranks.         *)
Theorem dimension_of_directions W_Q W_K (p q : nat) :
    \rank W_Q = p -> \rank W_K = q ->
  (rank_of [linear of direction W_Q W_K] + (D - p) * (D - q) = D ^ 2)%N.
Proof.
move=> rQ rK; pose A := kermx W_K; pose B := kermx W_Q.
have : (_ = D * D)%N := rank_nullity [linear of direction W_Q W_K].
rewrite mulnn addnC => <-; congr (_ + _)%N.
have [rA rB] : \rank A^T = (D - q)%N /\ \rank B = (D - p)%N.
  by rewrite mxrank_tr !mxrank_ker rQ rK.
have [BQ AK] : B *m W_Q = 0 /\ A *m W_K = 0 by rewrite !mulmx_ker.
have inB (Z : 'M[F]_D) : Z *m W_Q = 0 -> (Z <= B)%MS by move/sub_kermxP.
have inA (Z : 'M[F]_D) : Z *m W_K = 0 -> (Z <= A)%MS by move/sub_kermxP.
clearbody A B.
rewrite mulnC -rA -rB -rank_sandwich /nullity /rank_of; congr (\dim _); apply/vspaceP=> T.
rewrite memv_ker lfunE; apply/memv_imgP/eqP => [[Z _ ->] | [TQ /eqP TK]].
  rewrite lfunE /= /sandwich /direction -!mulmxA BQ !mulmx0.
  by rewrite !trmx_mul trmxK -!mulmxA AK !mulmx0 oppr0.
have TB := inB _ TQ.
have /submxP [Y TY] : (T^T <= A)%MS by apply/inA/eqP; rewrite -oppr_eq0.
exists (Y^T *m pinvmx B); rewrite ?memvf // lfunE /= /sandwich.
by rewrite -[LHS](mulmxKpV TB) [A^T *m (_ *m _)]mulmxA -trmx_mul -TY trmxK.
Qed.

End Directions.
