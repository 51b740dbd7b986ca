(* Chapter 6: biases. They move with their weights; the key bias is idle under *)
(* softmax; of the value biases only the pooled one shows.                     *)

From mathcomp Require Import all_ssreflect all_algebra.
From attnid Require Import basics ch02_invariance.

Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Import GRing.Theory.
Local Open Scope ring_scope.

(* The same vector b in each of L columns: b 1^T.                              *)
Definition repeat_columns (F : fieldType) (n : nat) (b : 'cV[F]_n) (L : nat) : 'M[F]_(n, L) :=
  b *m (const_mx 1 : 'rV[F]_L).
Notation "b ^1T" := (repeat_columns b _) (at level 2, format "b ^1T") : ring_scope.

Section JointAction.
Variables (F : fieldType) (D E L : nat).
Implicit Types (W_Q W_K : 'M[F]_(D, E)) (b_Q b_K : 'cV[F]_D) (S : 'M[F]_D) (X : 'M[F]_(E, L)).

(* Scores with biases, K(X)^T Q(X): rows belong to keys, columns to queries.   *)
Definition scores W_Q b_Q W_K b_K X : 'M[F]_L :=
  (W_K *m X + b_K^1T)^T *m (W_Q *m X + b_Q^1T).

(* Weights and biases move together: with (S W_Q, S b_Q, S^-T W_K, S^-T b_K)   *)
(* the scores are the same, for every input.                                   *)
Theorem joint_action W_Q b_Q W_K b_K S X :
    S \in unitmx ->
  scores (S *m W_Q) (S *m b_Q) (invmx S^T *m W_K) (invmx S^T *m b_K) X
    = scores W_Q b_Q W_K b_K X.
Proof.
move=> uS; rewrite /scores /repeat_columns -!mulmxA -!mulmxDr.
exact: invariance.
Qed.

(* If only the weights move, the scores change by                              *)
(* X^T W_K^T (S^-1 - I) b_Q 1^T + 1 b_K^T (S - I) W_Q X.                       *)
Theorem weights_alone W_Q b_Q W_K b_K S X :
    S \in unitmx ->
  scores (S *m W_Q) b_Q (invmx S^T *m W_K) b_K X - scores W_Q b_Q W_K b_K X
    = (X^T *m W_K^T *m (invmx S - 1%:M) *m b_Q)^1T
      + (b_K^1T : 'M_(D, L))^T *m (S - 1%:M) *m W_Q *m X.
Proof.
move=> uS; have expand V b V' b' : scores V b V' b' X
    = (X^T *m V'^T *m V *m X + (X^T *m V'^T *m b)^1T)
      + ((b'^1T : 'M_(D, L))^T *m V *m X + (b'^1T : 'M_(D, L))^T *m (b^1T : 'M_(D, L))).
  rewrite /scores [(_ + _)^T]linearD /= mulmxDl !mulmxDr trmx_mul /repeat_columns.
  by rewrite !mulmxA.
rewrite !expand.
have -> : X^T *m (invmx S^T *m W_K)^T *m (S *m W_Q) *m X = X^T *m W_K^T *m W_Q *m X.
  by rewrite -[_ *m _ *m (S *m _)]mulmxA invariance // !mulmxA.
have -> : (invmx S^T *m W_K)^T = W_K^T *m invmx S by rewrite trmx_mul -trmx_inv trmxK.
rewrite opprD [LHS]addrACA; congr (_ + _).
  rewrite opprD addrACA subrr add0r /repeat_columns.
  by rewrite mulmxBr mulmx1 !mulmxBl !mulmxA.
by rewrite opprD addrACA subrr addr0 mulmxBr mulmx1 !mulmxBl !mulmxA.
Qed.

End JointAction.

(* A witness that weights must not move alone, over any field with more than   *)
(* two elements: with D = E = L = 1, W_Q = W_K = b_Q = X = 1, b_K = 0 and S =  *)
(* s other than 0 and 1 the scores are not the same.                           *)
Theorem weights_alone_change_scores (F : fieldType) (s : F) :
    s != 0 -> s != 1 ->
  let S := s%:M : 'M[F]_1 in let I := 1%:M : 'M[F]_1 in
  scores (S *m I) I (invmx S^T *m I) 0 I <> scores I I I (0 : 'cV[F]_1) I.
Proof.
move=> s0 s1 S I same; have uS : S \in unitmx by rewrite unitmxE det_scalar1 unitfE.
have := weights_alone I (I : 'cV_1) I 0 I uS; rewrite same subrr.
rewrite /repeat_columns mul0mx trmx0 !mul0mx addr0 trmx1 !mul1mx mulmx1.
move/(congr1 (fun M : 'M[F]_1 => M 0 0)); rewrite /S invmx_scalar -raddfB /= mul_scalar_mx !mxE.
rewrite mulr1 => /esym/eqP; rewrite subr_eq0 => /eqP si.
by move/eqP: s1; apply; rewrite -[s]invrK si invr1.
Qed.

Section KeyBias.
Variable F : fieldType.

(* The softmax of the scores u_j of those keys j that the mask lets through,   *)
(* with any map e in place of the exponential.                                 *)
Definition softmax (e : F -> F) (L : nat) (mask : pred 'I_L) (u : 'I_L -> F) (i : 'I_L) : F :=
  if mask i then e (u i) / \sum_(j | mask j) e (u j) else 0.

(* e is the exponential of a field: it takes sums to products and is nowhere 0. *)
Definition exponential (e : F -> F) : Prop :=
  (forall x y, e (x + y) = e x * e y) /\ (forall x, e x != 0).

(* Fact 4.7. The softmax ignores a shift common to all keys, under any mask    *)
(* and with any map e in place of the exponential that takes sums to products  *)
(* and is nowhere zero.                                                        *)
Theorem softmax_ignores_shifts e L (mask : pred 'I_L) (u : 'I_L -> F) (c : F) (i : 'I_L) :
  exponential e -> softmax e mask (fun j => u j + c) i = softmax e mask u i.
Proof.
case=> eD e0; rewrite /softmax; case: ifP => // _; rewrite eD.
under eq_bigr do rewrite eD.
by rewrite -mulr_suml -mulf_div divff // mulr1.
Qed.

Variables (D E L : nat).
Implicit Types (W_Q W_K : 'M[F]_(D, E)) (b_Q b_K : 'cV[F]_D) (X : 'M[F]_(E, L)).

(* The attention weights: the softmax of each column of the scores, over the   *)
(* keys that the query may see.                                                *)
Definition attention e (mask : rel 'I_L) (s : 'M[F]_L) : 'M[F]_L :=
  \matrix_(m, l) softmax e (mask^~ l) (s^~ l) m.

Lemma attention_shift e mask (s : 'M[F]_L) (c : 'rV[F]_L) :
  exponential e -> attention e mask (s + const_mx 1 *m c) = attention e mask s.
Proof.
move=> exp; apply/matrixP=> m l; rewrite ![attention _ _ _ _ _]mxE.
rewrite -(softmax_ignores_shifts (mask^~ l) (s^~ l) (c 0 l) m exp) /softmax.
have shifted j : (s + const_mx 1 *m c) j l = s j l + c 0 l.
  by rewrite !mxE big_ord1 !mxE mul1r.
by rewrite shifted; under eq_bigr do rewrite shifted.
Qed.

(* The key bias is idle: the attention weights, and so the outputs, are those  *)
(* of b_K = 0, under any mask.                                                 *)
Theorem key_bias_is_idle e mask W_Q b_Q W_K b_K X :
    exponential e ->
  attention e mask (scores W_Q b_Q W_K b_K X) = attention e mask (scores W_Q b_Q W_K 0 X).
Proof.
move=> exp; rewrite -[RHS](attention_shift mask _ (b_K^T *m (W_Q *m X + b_Q^1T)) exp).
congr attention; rewrite /scores [repeat_columns 0 L]mul0mx addr0 [(_ + _)^T]linearD /= mulmxDl; congr (_ + _).
by rewrite /repeat_columns trmx_mul trmx_const mulmxA.
Qed.

(* Queries and keys act through M = W_K^T W_Q and c = W_K^T b_Q alone.         *)
Theorem queries_and_keys_act_through_two e mask X W_Q b_Q W_K b_K
    (W_Q' W_K' : 'M[F]_(D, E)) (b_Q' b_K' : 'cV[F]_D) :
    exponential e ->
    W_K'^T *m W_Q' = W_K^T *m W_Q -> W_K'^T *m b_Q' = W_K^T *m b_Q ->
  attention e mask (scores W_Q' b_Q' W_K' b_K' X) = attention e mask (scores W_Q b_Q W_K b_K X).
Proof.
move=> exp M c; rewrite !(key_bias_is_idle _ _ _ _ _ _ exp); congr attention.
rewrite /scores ![repeat_columns 0 L]mul0mx !addr0 !mulmxDr /repeat_columns !trmx_mul.
by rewrite !mulmxA -!(mulmxA X^T) M c.
Qed.

End KeyBias.

Section PooledBias.
Variables (F : fieldType) (H C E L : nat).
Variables (W_V : 'I_H -> 'M[F]_(C, E)) (W_O : 'I_H -> 'M[F]_(E, C)).
Implicit Types (b_V : 'I_H -> 'cV[F]_C) (b_O : 'cV[F]_E) (A : 'I_H -> 'M[F]_L).

(* The outputs of a layer whose heads have the attention weights A h; column l *)
(* of A h holds the weights of query l.                                        *)
Definition outputs b_V b_O A (X : 'M[F]_(E, L)) : 'M[F]_(E, L) :=
  \sum_h W_O h *m (W_V h *m X + (b_V h)^1T) *m A h + b_O^1T.

(* The pooled value bias.                                                      *)
Definition pooled b_V b_O : 'cV[F]_E := \sum_h W_O h *m b_V h + b_O.

(* If the weights of each query sum to one, 1^T A = 1^T, the value biases and  *)
(* the output bias act only through sum_h W_O^h b_V^h + b_O.                   *)
Theorem only_the_pooled_bias_shows b_V b_O A X :
    (forall h, const_mx 1 *m A h = const_mx 1 :> 'rV[F]_L) ->
  outputs b_V b_O A X
    = \sum_h W_O h *m W_V h *m X *m A h + (pooled b_V b_O)^1T.
Proof.
move=> sum1; rewrite /outputs /pooled /repeat_columns mulmxDl mulmx_suml addrA -big_split /=.
congr (_ + _); apply: eq_bigr => h _; rewrite mulmxDr mulmxDl !mulmxA; congr (_ + _).
by rewrite -[LHS]mulmxA sum1.
Qed.

(* The attention weights of softmax do sum to one for each query, when the sum *)
(* that they are divided by is not zero, as with the real exponential and a    *)
(* query that sees at least one key.                                           *)
Theorem softmax_sums_to_one (e : F -> F) (mask : rel 'I_L) (s : 'M[F]_L) :
    (forall l, \sum_(j | mask j l) e (s j l) != 0) ->
  const_mx 1 *m attention e mask s = const_mx 1 :> 'rV[F]_L.
Proof.
move=> nz; apply/rowP=> l; rewrite !mxE.
under eq_bigr do rewrite !mxE mul1r /softmax.
by rewrite -big_mkcond /= -mulr_suml divff.
Qed.

(* If the weights of each query sum to one, all value biases can be moved into *)
(* the output bias.                                                            *)
Theorem value_biases_can_be_moved b_V b_O A X :
    (forall h, const_mx 1 *m A h = const_mx 1 :> 'rV[F]_L) ->
  outputs b_V b_O A X = outputs (fun=> 0) (pooled b_V b_O) A X.
Proof.
move=> sum1; rewrite !only_the_pooled_bias_shows //; congr (_ + _ ^1T).
by rewrite [in RHS]/pooled big1 ?add0r // => h _; rewrite mulmx0.
Qed.

End PooledBias.
