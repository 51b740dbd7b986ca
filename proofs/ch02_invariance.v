(* Chapter 2: the scores fix queries and keys up to one change of basis.       *)

From mathcomp Require Import all_ssreflect all_algebra.
From attnid Require Import basics.

Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Import GRing.Theory.
Local Open Scope ring_scope.

Section Invariance.
Variables (F : fieldType) (D m n : nat).
Implicit Types (W_Q : 'M[F]_(D, m)) (W_K : 'M[F]_(D, n)) (S : 'M[F]_D).

(* Query-key invariance. For every nonsingular S the weights (S W_Q, S^-T W_K) *)
(* have the same score product W_K^T W_Q. Nothing is asked of sizes or ranks.  *)
Theorem invariance W_Q W_K S :
    S \in unitmx ->
  (invmx S^T *m W_K)^T *m (S *m W_Q) = W_K^T *m W_Q.
Proof. by move=> uS; rewrite trmx_mul -trmx_inv trmxK !mulmxA mulmxKV. Qed.

(* So all inputs have the same scores K^T Q under (S W_Q, S^-T W_K) as under   *)
(* (W_Q, W_K). (X and Y are the same for self-attention.)                      *)
Theorem invariance_of_scores W_Q W_K S (L : nat) (X : 'M[F]_(m, L)) (Y : 'M[F]_(n, L)) :
    S \in unitmx ->
  (invmx S^T *m W_K *m Y)^T *m (S *m W_Q *m X) = (W_K *m Y)^T *m (W_Q *m X).
Proof.
move=> uS; transitivity (Y^T *m ((invmx S^T *m W_K)^T *m (S *m W_Q)) *m X).
  by rewrite [in LHS]trmx_mul !mulmxA.
by rewrite invariance // [in RHS]trmx_mul !mulmxA.
Qed.

(* Different S give different weights, when W_Q has full row rank.             *)
Theorem different_S_different_weights W_Q S S' :
  row_free W_Q -> S *m W_Q = S' *m W_Q -> S = S'.
Proof. by move=> /row_free_inj; apply. Qed.

(* The orbit is the whole fibre. Let W_Q and W_K have rank D. Every pair of    *)
(* weights with the same score product is (S W_Q, S^-T W_K) for exactly one    *)
(* nonsingular S, and for these pairs alone the product is the same.           *)
Theorem orbit_is_fibre W_Q W_K (W_Q' : 'M[F]_(D, m)) (W_K' : 'M[F]_(D, n)) :
    row_free W_Q -> row_free W_K ->
  W_K'^T *m W_Q' = W_K^T *m W_Q <->
  exists! S, [/\ S \in unitmx, W_Q' = S *m W_Q & W_K' = invmx S^T *m W_K].
Proof.
move=> fQ fK; split=> [same | [S [[uS -> ->] _]]]; last exact: invariance.
have [Q' QQ'] := row_freeP fQ; have [K' KK'] := row_freeP fK.
have K'K : K'^T *m W_K^T = 1%:M by rewrite -trmx_mul KK' trmx1.
pose S := W_Q' *m Q'; pose S' := K'^T *m W_K'^T.
have S'S : S' *m S = 1%:M.
  by rewrite /S /S' mulmxA -(mulmxA K'^T) same mulmxA K'K mul1mx.
have [uS' uS] : S' \in unitmx /\ S \in unitmx by apply: mulmx1_unit.
have KS : W_K'^T *m S = W_K^T by rewrite /S mulmxA same -mulmxA QQ' mulmx1.
have QS : W_Q' = S *m W_Q.
  have -> : W_Q = S' *m W_Q' by rewrite /S' -mulmxA same mulmxA K'K mul1mx.
  by rewrite mulmxA (mulmx1C S'S) mul1mx.
exists S; split=> [|T [uT QT _]]; last by apply: (row_free_inj fQ); rewrite -QS.
split=> //; rewrite -trmx_inv; apply: trmx_inj.
by rewrite trmx_mul trmxK -KS mulmxK.
Qed.

End Invariance.
