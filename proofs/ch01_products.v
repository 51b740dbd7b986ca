(* Chapter 1: what is identified. What a product loses.                        *)

From mathcomp Require Import all_ssreflect all_algebra.
From attnid Require Import basics.

Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Import GRing.Theory.
Local Open Scope ring_scope.

(* The differential deserves its name: along a straight line the product W_K^T *)
(* W_Q changes by t times its differential, and by t^2 times a product of the  *)
(* two directions. This is how these proofs speak of derivatives without a     *)
(* limit.                                                                      *)
Theorem product_along_a_line (F : fieldType) (D m n : nat)
    (W_Q dW_Q : 'M[F]_(D, m)) (W_K dW_K : 'M[F]_(D, n)) (t : F) :
  product (W_Q + t *: dW_Q, W_K + t *: dW_K)
    = product (W_Q, W_K) + t *: dproduct W_Q W_K (dW_Q, dW_K) + t ^+ 2 *: product (dW_Q, dW_K).
Proof.
rewrite /product /dproduct /=; have -> : (W_K + t *: dW_K)^T = W_K^T + t *: dW_K^T.
  by rewrite linearD linearZ.
rewrite mulmxDl !mulmxDr -!scalemxAl -!scalemxAr.
by rewrite scalerA -expr2 scalerDr !addrA.
Qed.

Lemma rank_dproduct (F : fieldType) (D m n : nat) (W_Q : 'M[F]_(D, m)) (W_K : 'M[F]_(D, n)) :
  (rank_of [linear of dproduct W_Q W_K] + \rank W_K * \rank W_Q
    = \rank W_K * m + n * \rank W_Q)%N.
Proof.
pose queries := linfun (sandwich W_K^T (1%:M : 'M[F]_m)).
pose keys := linfun (sandwich (1%:M : 'M[F]_n) W_Q).
pose both := linfun (sandwich W_K^T W_Q).
have -> : rank_of [linear of dproduct W_Q W_K] = \dim (limg queries + limg keys).
  rewrite /rank_of; congr (\dim _); apply/vspaceP=> Y; apply/memv_imgP/memv_addP.
    move=> [[dQ dK] _ ->]; rewrite lfunE /= /dproduct /=; exists (W_K^T *m dQ).
      by apply/memv_imgP; exists dQ; rewrite ?memvf // lfunE /= /sandwich mulmx1.
    exists (dK^T *m W_Q) => //.
    by apply/memv_imgP; exists dK^T; rewrite ?memvf // lfunE /= /sandwich mul1mx.
  move=> [y1 /memv_imgP [dQ _ ->] [y2 /memv_imgP [dK _ ->] ->]].
  exists (dQ, dK^T); rewrite ?memvf //.
  by rewrite !lfunE /= /dproduct /sandwich /= trmxK mul1mx mulmx1.
have cap : (limg queries :&: limg keys = limg both)%VS.
  apply/vspaceP=> Y; rewrite memv_cap; apply/andP/memv_imgP.
    case=> /memv_imgP [dQ _]; rewrite lfunE /= /sandwich mulmx1 => YQ.
    move=> /memv_imgP [dK _]; rewrite lfunE /= /sandwich mul1mx => YK.
    have PY : W_K^T *m pinvmx W_K^T *m Y = Y.
      by rewrite YQ mulmxA (mulmxKpV (submx_refl _)).
    have YP : Y *m pinvmx W_Q *m W_Q = Y by rewrite YK (mulmxKpV (submxMl _ _)).
    exists (pinvmx W_K^T *m Y *m pinvmx W_Q); rewrite ?memvf // lfunE /= /sandwich.
    by rewrite -{1}YP -{1}PY !mulmxA.
  case=> Z _ ->; rewrite lfunE /= /sandwich; split; apply/memv_imgP.
    by exists (Z *m W_Q); rewrite ?memvf // lfunE /= /sandwich mulmx1 mulmxA.
  by exists (W_K^T *m Z); rewrite ?memvf // lfunE /= /sandwich mul1mx.
have dims : [/\ \dim (limg queries) = (\rank W_K * m)%N, \dim (limg keys) = (n * \rank W_Q)%N
              & \dim (limg both) = (\rank W_K * \rank W_Q)%N].
  by split; apply: (etrans (rank_sandwich _ _)); rewrite ?mxrank1 ?mxrank_tr.
by case: dims => <- <- <-; rewrite -cap dimv_sum_cap.
Qed.

(* What a product loses, for any ranks. Let A be d x a of rank p and B d x b   *)
(* of rank q. The directions (dB, dA) with dA^T B + A^T dB = 0 form a space of *)
(* dimension d (a + b) - (q a + p b - p q). Subtraction is that of natural     *)
(* numbers; nothing is cut off by it (see the next theorem).                   *)
Theorem what_a_product_loses (F : fieldType) (d a b : nat)
    (A : 'M[F]_(d, a)) (B : 'M[F]_(d, b)) (p q : nat) :
    \rank A = p -> \rank B = q ->
  nullity [linear of dproduct B A] = (d * (a + b) - (q * a + p * b - p * q))%N.
Proof.
move=> rA rB; have R := rank_dproduct B A; rewrite rA rB in R.
have N : (_ = d * b + d * a)%N := rank_nullity [linear of dproduct B A].
have -> : (q * a + p * b - p * q)%N = rank_of [linear of dproduct B A].
  by rewrite addnC [(q * a)%N]mulnC -R addnK.
by rewrite mulnDr addnC -N addnK.
Qed.

(* What a product loses, in addition: with A of rank p and B of rank q the     *)
(* differential of A^T B has a rank r with r + p q = q a + p b, and rank and   *)
(* dimension of the null space make d (a + b).                                 *)
Theorem rank_of_a_product (F : fieldType) (d a b : nat)
    (A : 'M[F]_(d, a)) (B : 'M[F]_(d, b)) (p q : nat) :
    \rank A = p -> \rank B = q ->
  (rank_of [linear of dproduct B A] + p * q = q * a + p * b)%N /\
  (nullity [linear of dproduct B A] + rank_of [linear of dproduct B A] = d * (a + b))%N.
Proof.
move=> rA rB; have R := rank_dproduct B A; rewrite rA rB in R.
have N : (_ = d * b + d * a)%N := rank_nullity [linear of dproduct B A].
by rewrite R N mulnDr addnC [(a * q)%N]mulnC [(d * b + _)%N]addnC.
Qed.

(* How many numbers a product loses. Let W_Q and W_K be D x E of rank          *)
(* r = min(D, E). The derivative of (W_Q, W_K) |-> W_K^T W_Q has rank          *)
(* r (2 E - r), and its null space dimension 2 D E - r (2 E - r): D^2 when     *)
(* D <= E, and 2 D E - E^2 when E <= D.                                        *)
Theorem count_of_a_product (F : fieldType) (D E : nat) (W_Q W_K : 'M[F]_(D, E)) :
    let r := minn D E in
    \rank W_Q = r -> \rank W_K = r ->
  [/\ rank_of [linear of dproduct W_Q W_K] = (r * (2 * E - r))%N,
      nullity [linear of dproduct W_Q W_K] = (2 * D * E - r * (2 * E - r))%N,
      (D <= E)%N -> nullity [linear of dproduct W_Q W_K] = (D ^ 2)%N
    & (E <= D)%N -> nullity [linear of dproduct W_Q W_K] = (2 * D * E - E ^ 2)%N].
Proof.
move=> r rQ rK; have [R N] := rank_of_a_product rK rQ.
have rk : rank_of [linear of dproduct W_Q W_K] = (r * (2 * E - r))%N.
  by rewrite mulnBr mul2n -addnn mulnDr -R addnK.
have nl : nullity [linear of dproduct W_Q W_K] = (2 * D * E - r * (2 * E - r))%N.
  by rewrite -rk -mulnA mulnCA mul2n -addnn -N addnK.
split=> //; rewrite nl /r => le.
  rewrite (minn_idPl le) mulnBr mulnCA -mulnA subKn ?mulnn //.
  by rewrite mulnCA leq_mul2l mul2n -addnn (leq_trans le) ?leq_addr ?orbT.
by rewrite (minn_idPr le) [(2 * E)%N]mul2n -addnn addnK mulnn.
Qed.
