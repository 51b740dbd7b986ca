(* Chapter 6: biases. They move with their weights; the key bias is idle under *)
(* softmax; of the value biases only the pooled one shows.                     *)

From mathcomp Require Import all_ssreflect all_algebra.
From attnid Require Import basics ch02_invariance ch05_heads.

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
(* two_tokens elements: with D = E = L = 1, W_Q = W_K = b_Q = X = 1, b_K = 0 and S =  *)
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

(* From the outputs back to the products. The map e is as the real exponential *)
(* is: it takes sums to products and is nowhere zero, it is injective, and no  *)
(* two of its values add to zero.                                              *)
Section Determined.
Variables (F : fieldType) (E : nat) (e : F -> F).
Hypothesis e_exp : exponential e.
Hypothesis e_inj : injective e.
Hypothesis e_sum : forall x y, e x + e y != 0.

(* Causal attention: query l sees the keys up to l.                            *)
Definition causal (L : nat) : rel 'I_L := fun m l => (m <= l)%N.

(* The outputs of one causal head with all four biases.                        *)
Definition head (D C L : nat) (W_Q W_K : 'M[F]_(D, E)) (b_Q b_K : 'cV[F]_D)
    (W_V : 'M[F]_(C, E)) (b_V : 'cV[F]_C) (W_O : 'M[F]_(E, C)) (b_O : 'cV[F]_E)
    (X : 'M[F]_(E, L)) : 'M[F]_(E, L) :=
  W_O *m (W_V *m X + b_V^1T) *m attention e (@causal L) (scores W_Q b_Q W_K b_K X) + b_O^1T.

Definition two_tokens (y x : 'cV[F]_E) : 'M[F]_(E, 2) := \matrix_(i, j) (if j == 0 then y i 0 else x i 0).

Lemma sum_two (f : 'I_2 -> F) : \sum_(i < 2) f i = f 0 + f 1.
Proof. by rewrite big_ord_recl big_ord1; congr (_ + f _); apply: val_inj. Qed.

Lemma col_two0 y x : col 0 (two_tokens y x) = y.
Proof. by apply/colP=> i; rewrite !mxE. Qed.

Lemma col_two1 y x : col 1 (two_tokens y x) = x.
Proof. by apply/colP=> i; rewrite !mxE. Qed.

Section One.
Variables (D C : nat) (W_Q W_K : 'M[F]_(D, E)) (b_Q b_K : 'cV[F]_D).
Variables (W_V : 'M[F]_(C, E)) (b_V : 'cV[F]_C) (W_O : 'M[F]_(E, C)) (b_O : 'cV[F]_E).
Let N := W_O *m W_V.
Let M := W_K^T *m W_Q.
Let c := W_K^T *m b_Q.
Let b := W_O *m b_V + b_O.

Lemma head_column (L : nat) (X : 'M[F]_(E, L)) (l : 'I_L) :
    let A := attention e (@causal L) (scores W_Q b_Q W_K b_K X) in
    \sum_m A m l = 1 ->
  col l (head W_Q W_K b_Q b_K W_V b_V W_O b_O X) = N *m X *m col l A + b.
Proof.
move=> A sum1; rewrite /head -/A !colE /repeat_columns /b; clearbody A; set d := delta_mx l 0.
have ones : (const_mx 1 : 'rV[F]_L) *m d = 1%:M.
  by apply/rowP=> i; rewrite -colE !mxE ord1 eqxx.
have onesA : (const_mx 1 : 'rV[F]_L) *m A *m d = 1%:M.
  apply/rowP=> i; rewrite -colE !mxE ord1 eqxx; transitivity (\sum_m A m l).
    by apply: eq_bigr => m _; rewrite mxE mul1r.
  by rewrite sum1.
rewrite mulmxDl mulmxDr !mulmxDl !mulmxA -[b_O *m _ *m d]mulmxA ones mulmx1.
by rewrite -[_ *m b_V *m _ *m A]mulmxA -[_ *m b_V *m _ *m d]mulmxA onesA mulmx1 -addrA.
Qed.

Lemma head_at_one (x : 'cV[F]_E) : head W_Q W_K b_Q b_K W_V b_V W_O b_O x = N *m x + b.
Proof.
set A := attention e (@causal 1) (scores W_Q b_Q W_K b_K x).
have A1 : A 0 0 = 1.
  rewrite mxE /softmax /causal leqnn (big_pred1 0) => [|j]; last by rewrite ord1.
  by rewrite divff // (proj2 e_exp).
have colx (v : 'cV[F]_E) : col 0 v = v by apply/colP=> i; rewrite !mxE.
rewrite -[LHS]colx head_column -/A ?big_ord1 //; congr (_ + _).
have -> : col 0 A = 1%:M by apply/colP=> i; rewrite mxE !ord1 A1 mxE eqxx.
by rewrite mulmx1.
Qed.

(* p is the weight that x gives itself in the sequence (y, x). *)
Lemma head_at_two (y x : 'cV[F]_E) :
  exists q r, let p := e q / (e r + e q) in
    col 1 (head W_Q W_K b_Q b_K W_V b_V W_O b_O (two_tokens y x)) = N *m y + p *: (N *m (x - y)) + b
    /\ (q - r)%:M = (x - y)^T *m (M *m x + c).
Proof.
set s := scores W_Q b_Q W_K b_K (two_tokens y x); set A := attention e (@causal 2) s.
have Am m : A m 1 = e (s m 1) / (e (s 0 1) + e (s 1 1)).
  have seen (j : 'I_2) : causal j 1 by rewrite /causal -ltnS ltn_ord.
  by rewrite mxE /softmax seen; under eq_bigl do rewrite seen; rewrite sum_two.
have nz : e (s 0 1) + e (s 1 1) != 0 by [].
have sum1 : A 0 1 + A 1 1 = 1 by rewrite !Am -mulrDl divff.
exists (s 1 1), (s 0 1); rewrite -Am; split.
  rewrite head_column ?sum_two // -/s -/A; congr (_ + _).
  have XA : two_tokens y x *m col 1 A = A 0 1 *: y + A 1 1 *: x.
    by apply/colP=> i; rewrite !mxE sum_two !mxE /= mulrC [X in _ + X]mulrC.
  rewrite -mulmxA XA scalemxAr -mulmxDr; congr (_ *m _).
  have -> : A 0 1 = 1 - A 1 1 by rewrite -sum1 addrK.
  by rewrite scalerBl scale1r scalerBr addrAC addrA.
have col1 m : s m 1 = ((W_K *m col m (two_tokens y x) + b_K)^T *m (W_Q *m x + b_Q)) 0 0.
  rewrite /s /scores -(col_two1 y x) [RHS]mxE [LHS]mxE; apply: eq_bigr => k _.
  by rewrite !mxE !big_ord1 !mxE !mulr1; congr ((_ + _) * (_ + _)); apply: eq_bigr => j _; rewrite !mxE.
rewrite !col1 col_two0 col_two1; apply/matrixP=> i j; rewrite !ord1 mxE eqxx mulr1n.
transitivity (((W_K *m x + b_K)^T *m (W_Q *m x + b_Q) - (W_K *m y + b_K)^T *m (W_Q *m x + b_Q)) 0 0).
  by rewrite [RHS]mxE [X in _ = _ + X]mxE.
congr (fun_of_matrix _ _ _); rewrite -mulmxBl -linearB opprD addrACA subrr addr0 -mulmxBr /M /c.
by rewrite /= trmx_mul -!mulmxA -mulmxDr.
Qed.

End One.

(* The outputs of one head determine its products. If two causal heads, of any *)
(* inner widths, the first with W_O W_V not zero, have the same outputs on all *)
(* sequences of one and two tokens, then W_O W_V, M = W_K^T W_Q,               *)
(* c = W_K^T b_Q and W_O b_V + b_O are the same. No more can be seen, by the   *)
(* theorems above.                                                             *)
Theorem outputs_determine_products (D C D' C' : nat)
    (W_Q W_K : 'M[F]_(D, E)) (b_Q b_K : 'cV[F]_D)
    (W_V : 'M[F]_(C, E)) (b_V : 'cV[F]_C) (W_O : 'M[F]_(E, C)) (b_O : 'cV[F]_E)
    (W_Q' W_K' : 'M[F]_(D', E)) (b_Q' b_K' : 'cV[F]_D')
    (W_V' : 'M[F]_(C', E)) (b_V' : 'cV[F]_C') (W_O' : 'M[F]_(E, C')) (b_O' : 'cV[F]_E) :
    W_O *m W_V != 0 ->
    (forall L (X : 'M[F]_(E, L)), (L <= 2)%N ->
       head W_Q' W_K' b_Q' b_K' W_V' b_V' W_O' b_O' X = head W_Q W_K b_Q b_K W_V b_V W_O b_O X) ->
  [/\ W_O' *m W_V' = W_O *m W_V, W_K'^T *m W_Q' = W_K^T *m W_Q,
      W_K'^T *m b_Q' = W_K^T *m b_Q & W_O' *m b_V' + b_O' = W_O *m b_V + b_O].
Proof.
move=> N0 same; set N := W_O *m W_V in N0 *.
have one x : W_O' *m W_V' *m x + (W_O' *m b_V' + b_O') = N *m x + (W_O *m b_V + b_O).
  by have := same 1%N x isT; rewrite !head_at_one.
have beta : W_O' *m b_V' + b_O' = W_O *m b_V + b_O by have := one 0; rewrite !mulmx0 !add0r.
have by_columns (m n : nat) (P Q : 'M[F]_(m, n)) : (forall x : 'cV_n, P *m x = Q *m x) -> P = Q.
  by move=> PQ; apply/matrixP=> i j; have /colP/(_ i) := PQ (delta_mx j 0); rewrite -!colE !mxE.
have NN : W_O' *m W_V' = N by apply: by_columns => x; have := one x; rewrite beta => /addIr.
pose f (u x : 'cV[F]_E) := u^T *m (W_K^T *m W_Q *m x + W_K^T *m b_Q).
pose f' (u x : 'cV[F]_E) := u^T *m (W_K'^T *m W_Q' *m x + W_K'^T *m b_Q').
have seen u x : N *m u != 0 -> f' u x = f u x.
  move=> Nu; have [q [r [hd]]] := head_at_two W_Q W_K b_Q b_K W_V b_V W_O b_O (x - u) x.
  have [q' [r' [hd']]] := head_at_two W_Q' W_K' b_Q' b_K' W_V' b_V' W_O' b_O' (x - u) x.
  have xu : x - (x - u) = u by rewrite opprB addrCA subrr addr0.
  rewrite xu in hd hd' *; rewrite -/(f u x) -/(f' u x) => <- <-.
  have := congr1 (col 1) (same 2%N (two_tokens (x - u) x) isT); rewrite hd hd' NN beta => /addIr/addrI.
  move/eqP; rewrite -subr_eq0 -scalerBl scaler_eq0 (negPf Nu) orbF subr_eq0.
  rewrite eqr_div // !mulrDr [e q * e q']mulrC (inj_eq (addIr _)) -!(proj1 e_exp) => /eqP/e_inj qr.
  by congr (_%:M); apply/eqP; rewrite subr_eq addrAC eq_sym subr_eq -qr.
have [v Nv] : exists v : 'cV_E, N *m v != 0.
  have [/existsP [j Nj] | none] := boolP [exists j, N *m delta_mx j 0 != 0 :> 'cV_E].
    by exists (delta_mx j 0).
  case/eqP: N0; apply/matrixP=> i j; move: none; rewrite negb_exists => /forallP /(_ j).
  by rewrite negbK -colE => /eqP /colP /(_ i); rewrite !mxE.
have all_u u x : f' u x = f u x.
  have [Nu | /seen //] := eqVneq (N *m u) 0.
  have Nuv : N *m (u + v) != 0 by rewrite mulmxDr Nu add0r.
  have eq : f' u x + f' v x = f u x + f v x.
    by have := seen _ x Nuv; rewrite /f /f' [(u + v)^T]linearD /= !mulmxDl.
  by apply: (addIr (f v x)); rewrite -eq (seen _ x Nv).
have right x : W_K'^T *m W_Q' *m x + W_K'^T *m b_Q' = W_K^T *m W_Q *m x + W_K^T *m b_Q.
  apply: trmx_inj; apply: by_columns => u; apply: trmx_inj; rewrite !trmx_mul !trmxK.
  exact: all_u.
have cc : W_K'^T *m b_Q' = W_K^T *m b_Q by have := right 0; rewrite !mulmx0 !add0r.
by split=> //; apply: by_columns => x; have := right x; rewrite cc => /addIr.
Qed.

(* The outputs of one head determine its weights up to two changes of basis.   *)
(* If two causal heads of the same inner widths, the first with W_Q, W_K, W_V  *)
(* and W_O of full rank D and C and with W_O W_V not zero, have the same       *)
(* outputs on all sequences of one and two tokens, then they differ by exactly *)
(* one nonsingular S of queries and keys and one of values and outputs.        *)
Theorem outputs_determine_weights (D C : nat)
    (W_Q W_K W_Q' W_K' : 'M[F]_(D, E)) (b_Q b_K b_Q' b_K' : 'cV[F]_D)
    (W_V W_V' : 'M[F]_(C, E)) (b_V b_V' : 'cV[F]_C) (W_O W_O' : 'M[F]_(E, C)) (b_O b_O' : 'cV[F]_E) :
    row_free W_Q -> row_free W_K -> \rank W_O = C -> \rank W_V = C -> W_O *m W_V != 0 ->
    (forall L (X : 'M[F]_(E, L)), (L <= 2)%N ->
       head W_Q' W_K' b_Q' b_K' W_V' b_V' W_O' b_O' X = head W_Q W_K b_Q b_K W_V b_V W_O b_O X) ->
  (exists! S, [/\ S \in unitmx, W_Q' = S *m W_Q, b_Q' = S *m b_Q & W_K' = invmx S^T *m W_K]) /\
  (exists! S, [/\ S \in unitmx, W_O' = W_O *m invmx S & W_V' = S *m W_V]).
Proof.
move=> fQ fK rO rV N0 /(outputs_determine_products N0) [NN MM cc _].
split; last exact: (iffLR (value_output_orbit _ _ rO rV) NN).
have [S [[uS QS KS] one]] := iffLR (orbit_is_fibre _ _ fQ fK) MM.
exists S; split=> [|S' [uS' QS' _ KS']]; last by apply: one.
split=> //; have cancel_K : injective (@mulmx F E D 1 W_K^T).
  by apply: row_full_inj; rewrite /row_full mxrank_tr.
move: cc; rewrite KS trmx_mul -trmx_inv trmxK -mulmxA => /cancel_K <-.
by rewrite mulKVmx.
Qed.

End Determined.
