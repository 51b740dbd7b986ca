(* What all chapters use: a product of two maps, its differential, and the     *)
(* dimension of what a linear map sends to zero.                               *)
(*                                                                             *)
(* Conventions of Mathematical Components:                                     *)
(*   'M[F]_(D, E)    D x E matrices over the field F;  'M[F]_D is D x D        *)
(*   'cV[F]_E        column vectors of size E;  'rV[F]_E row vectors           *)
(*   A *m B, A^T     product and transpose;  a%:M is a times the identity      *)
(*   \rank A         the rank;  S \in unitmx says that S is nonsingular        *)
(*   invmx S         the inverse of a nonsingular S                            *)
(*   x *: A          A scaled by x;  {ffun I -> T} is a family indexed by I    *)

From mathcomp Require Import all_ssreflect all_algebra.

Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Import GRing.Theory.
Local Open Scope ring_scope.

(* The product that the scores see, M = W_K^T W_Q. The two maps need not have  *)
(* equally many columns: in a group of heads, W_Q is the stack of its query    *)
(* maps.                                                                       *)
Definition product (F : fieldType) (D m n : nat)
    (W : 'M[F]_(D, m) * 'M[F]_(D, n)) : 'M[F]_(n, m) :=
  W.2^T *m W.1.

(* Its first-order change at (W_Q, W_K) in the direction (dW_Q, dW_K).         *)
Definition dproduct (F : fieldType) (D m n : nat)
    (W_Q : 'M[F]_(D, m)) (W_K : 'M[F]_(D, n))
    (dW : 'M[F]_(D, m) * 'M[F]_(D, n)) : 'M[F]_(n, m) :=
  W_K^T *m dW.1 + dW.2^T *m W_Q.

(* The dimension of the null space of a linear map, and of its image.          *)
Definition nullity (F : fieldType) (U V : vectType F) (f : {linear U -> V}) : nat :=
  \dim (lker (linfun f)).

Definition rank_of (F : fieldType) (U V : vectType F) (f : {linear U -> V}) : nat :=
  \dim (limg (linfun f)).

Section Linear.
Variables (F : fieldType) (D m n : nat).
Variables (W_Q : 'M[F]_(D, m)) (W_K : 'M[F]_(D, n)).

Lemma dproduct_is_linear : linear (dproduct W_Q W_K).
Proof.
move=> a u v; rewrite /dproduct /= mulmxDr -scalemxAr linearD linearZ /= mulmxDl.
by rewrite -scalemxAl scalerDr addrACA.
Qed.
Canonical dproduct_linear := Linear dproduct_is_linear.

End Linear.

Section Dimension.
Variable F : fieldType.

Lemma rank_nullity (U V : vectType F) (f : {linear U -> V}) :
  (nullity f + rank_of f)%N = Vector.dim U.
Proof. by have := limg_ker_dim (linfun f) fullv; rewrite capfv dimvf. Qed.

(* A null space that has an injective parametrisation has its dimension.       *)
Lemma nullity_by_parameters (P U V : vectType F) (f : {linear U -> V}) (g : {linear P -> U}) :
    (forall t, g t = 0 -> t = 0) ->
    (forall u, f u = 0 <-> exists t, u = g t) ->
  nullity f = Vector.dim P.
Proof.
move=> g_inj f_g; rewrite -dimvf -(@limg_dim_eq _ _ _ (linfun g)); last first.
  apply/eqP; rewrite capfv -subv0; apply/subvP=> t.
  by rewrite memv_ker lfunE memv0 => /eqP /g_inj ->.
rewrite /nullity; congr (\dim _); apply/vspaceP=> u; rewrite memv_ker lfunE /=.
apply/eqP/memv_imgP => [/f_g [t ->] | [t _ ->]].
  by exists t; rewrite ?memvf // lfunE.
by apply/f_g; exists t; rewrite lfunE.
Qed.

(* So has one whose parameters are the null space of another map.              *)
Lemma nullity_by_null_space (P P' U V : vectType F) (f : {linear U -> V})
    (h : {linear P -> P'}) (g : {linear P -> U}) :
    (forall t, g t = 0 -> t = 0) ->
    (forall u, f u = 0 <-> exists t, h t = 0 /\ u = g t) ->
  nullity f = nullity h.
Proof.
move=> g_inj f_g; rewrite /nullity -[RHS](@limg_dim_eq _ _ _ (linfun g)); last first.
  apply/eqP; rewrite -subv0; apply/subvP=> t; rewrite memv_cap => /andP [_].
  by rewrite memv_ker lfunE memv0 => /eqP /g_inj ->.
congr (\dim _); apply/vspaceP=> u; rewrite memv_ker lfunE /=.
apply/eqP/memv_imgP => [/f_g [t [ht ->]] | [t]].
  by exists t; rewrite ?lfunE // memv_ker lfunE /= ht.
by rewrite memv_ker !lfunE => /eqP ht ->; apply/f_g; exists t.
Qed.

(* Maps of their own for each i of a family: the null space of the whole has   *)
(* the dimension of one for each i.                                            *)
Definition each (I : finType) (U V : vectType F) (f : I -> U -> V) (u : {ffun I -> U}) :
    {ffun I -> V} := [ffun i => f i (u i)].

Lemma each_is_linear (I : finType) (U V : vectType F) (f : I -> {linear U -> V}) :
  linear (each f).
Proof. by move=> a u v; apply/ffunP=> i; rewrite !ffunE linearP. Qed.
Canonical each_linear I U V f := Linear (@each_is_linear I U V f).

Lemma nullity_of_each (I : finType) (P U V : vectType F) (f : I -> {linear U -> V})
    (g : I -> {linear P -> U}) :
    (forall i t, g i t = 0 -> t = 0) ->
    (forall i u, f i u = 0 <-> exists t, u = g i t) ->
  nullity [linear of each f] = (#|I| * Vector.dim P)%N.
Proof.
move=> g_inj f_g; apply: (@nullity_by_parameters _ _ _ _ [linear of each g]).
  move=> t /ffunP t0; apply/ffunP=> i; rewrite [RHS]ffunE; apply: (g_inj i).
  by have := t0 i; rewrite !ffunE.
move=> u; split=> [/ffunP u0 | [t ->]].
  have /fin_all_exists [t ut] : forall i, exists t, u i = g i t.
    by move=> i; apply/f_g; have := u0 i; rewrite !ffunE.
  by exists [ffun i => t i]; apply/ffunP=> i; rewrite !ffunE.
by apply/ffunP=> i; rewrite !ffunE; apply/f_g; exists (t i).
Qed.

(* All matrices A Z B have as many dimensions as the ranks of A and B multiply *)
(* to.                                                                         *)
Definition sandwich (k l m n : nat) (A : 'M[F]_(k, m)) (B : 'M[F]_(n, l)) (Z : 'M[F]_(m, n)) :=
  A *m Z *m B.

Lemma sandwich_is_linear k l m n A B : linear (@sandwich k l m n A B).
Proof. by move=> a u v; rewrite /sandwich mulmxDr mulmxDl -scalemxAr -scalemxAl. Qed.
Canonical sandwich_linear k l m n A B := Linear (@sandwich_is_linear k l m n A B).

Lemma rank_sandwich k l m n (A : 'M[F]_(k, m)) (B : 'M[F]_(n, l)) :
  rank_of [linear of sandwich A B] = (\rank A * \rank B)%N.
Proof.
have inj : (fullv :&: lker (linfun (sandwich (col_base A) (row_base B))) = 0)%VS.
  apply/eqP; rewrite capfv -subv0; apply/subvP=> Z.
  rewrite memv_ker lfunE /= memv0 /sandwich => /eqP Z0.
  have ZA : col_base A *m Z = 0.
    by apply: (row_free_inj (row_base_free B)); rewrite Z0 mul0mx.
  by apply/eqP; apply: (row_full_inj (col_base_full A)); rewrite ZA mulmx0.
transitivity (\dim (limg (linfun (sandwich (col_base A) (row_base B))))); last first.
  by rewrite (limg_dim_eq inj) dimvf.
have /row_freeP [A' AA'] := row_base_free A; have /row_fullP [B' B'B] := col_base_full B.
rewrite /rank_of; congr (\dim _); apply/vspaceP=> Y.
apply/memv_imgP/memv_imgP => - [Z _ ->].
  exists (row_base A *m Z *m col_base B); rewrite ?memvf // !lfunE /= /sandwich.
  transitivity ((col_base A *m row_base A) *m Z *m (col_base B *m row_base B)).
    by rewrite !mulmx_base.
  by rewrite !mulmxA.
exists (A' *m Z *m B'); rewrite ?memvf // !lfunE /= /sandwich.
have AC : A *m A' = col_base A.
  transitivity (col_base A *m row_base A *m A'); first by rewrite mulmx_base.
  by rewrite -(mulmxA (col_base A)) AA' mulmx1.
have CB : B' *m B = row_base B.
  transitivity (B' *m (col_base B *m row_base B)); first by rewrite mulmx_base.
  by rewrite (mulmxA B') B'B mul1mx.
by rewrite !mulmxA AC -!mulmxA CB.
Qed.

End Dimension.

(* Two maps side by side have as null space that of the one beside that of the *)
(* other.                                                                      *)
Section SideBySide.
Variables (F : fieldType) (U U' V V' : vectType F) (f : {linear U -> V}) (f' : {linear U' -> V'}).

Definition side_by_side (u : U * U') : V * V' := (f u.1, f' u.2).

Lemma side_by_side_is_linear : linear side_by_side.
Proof. by move=> a u v; rewrite /side_by_side /= !linearP. Qed.
Canonical side_by_side_linear := Linear side_by_side_is_linear.

Lemma nullity_side_by_side : nullity [linear of side_by_side] = (nullity f + nullity f')%N.
Proof.
pose in1 (u : U) : U * U' := (u, 0); pose in2 (u : U') : U * U' := (0, u).
have lin1 : linear in1 by move=> a u v; rewrite /in1; congr pair; rewrite /= scaler0 addr0.
have lin2 : linear in2 by move=> a u v; rewrite /in2; congr pair; rewrite /= scaler0 addr0.
pose g1 := linfun (Linear lin1); pose g2 := linfun (Linear lin2).
have e1 u : g1 u = (u, 0) by rewrite lfunE.
have e2 u : g2 u = (0, u) by rewrite lfunE.
have k1 : \dim (g1 @: lker (linfun f)) = nullity f.
  by apply: limg_dim_eq; apply/eqP; rewrite -subv0; apply/subvP=> u;
     rewrite memv_cap !memv_ker e1 memv0 => /andP [_] /eqP [->].
have k2 : \dim (g2 @: lker (linfun f')) = nullity f'.
  by apply: limg_dim_eq; apply/eqP; rewrite -subv0; apply/subvP=> u;
     rewrite memv_cap !memv_ker e2 memv0 => /andP [_] /eqP [->].
rewrite -k1 -k2 -dimv_disjoint_sum; last first.
  apply/eqP; rewrite -subv0; apply/subvP=> u; rewrite memv_cap memv0.
  by move=> /andP [/memv_imgP [v _ ->] /memv_imgP [w _]]; rewrite e1 e2 => -[-> _].
rewrite /nullity; congr (\dim _); apply/vspaceP=> -[u u']; rewrite memv_ker lfunE /=.
apply/eqP/memv_addP => [[fu fu'] | [v /memv_imgP [w]]].
  exists (u, 0); first by apply/memv_imgP; exists u; rewrite ?e1 // memv_ker lfunE /= fu.
  exists (0, u'); first by apply/memv_imgP; exists u'; rewrite ?e2 // memv_ker lfunE /= fu'.
  by congr pair; rewrite /= ?addr0 ?add0r.
rewrite memv_ker lfunE e1 => /eqP fw -> [v' /memv_imgP [w']].
rewrite memv_ker lfunE e2 => /eqP fw' -> [-> ->].
by rewrite /side_by_side /= addr0 add0r fw fw'.
Qed.

End SideBySide.
