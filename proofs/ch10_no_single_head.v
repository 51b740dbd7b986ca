(* Chapter 10: no single head matches a layer of several.                      *)

From mathcomp Require Import all_ssreflect all_algebra.
From attnid Require Import basics ch01_products.

Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Import GRing.Theory Num.Theory.
Local Open Scope ring_scope.

Section Inequality.
Variable R : realFieldType.

(* The share g(eta) of E^2 that a product of inner width D' = eta E keeps.     *)
Definition g (eta : R) : R := if eta <= 1 then 2%:R * eta - eta ^+ 2 else 1.

Lemma square_of_complement (eta : R) : 1 - (2%:R * eta - eta ^+ 2) = (1 - eta) ^+ 2.
Proof. by rewrite sqrrB expr1n mul1r opprB addrA addrAC mulr_natl. Qed.

Lemma g_le1 eta : g eta <= 1.
Proof.
by rewrite /g; case: ifP => // _; rewrite -subr_ge0 square_of_complement sqr_ge0.
Qed.

(* The inequality of section 4.10: 1 + 2 eta - eta^2 <= 2 < 2 (2 - 1/H), for   *)
(* all eta and H >= 2.                                                         *)
Theorem no_single_head_inequality (eta : R) (H : nat) :
    (2 <= H)%N ->
  1 + 2%:R * eta - eta ^+ 2 <= 2%:R /\ 2%:R < 2%:R * (2%:R - H%:R^-1) :> R.
Proof.
move=> H2; split.
  rewrite -addrA [2%:R in X in _ <= X](natrD R 1 1) ler_add2l -subr_ge0.
  by rewrite square_of_complement sqr_ge0.
have : (H%:R : R)^-1 < 1 by rewrite invf_lt1 ?ltr1n // ltr0n (leq_trans _ H2).
by rewrite ltr_pmulr ?ltr0n // ltr_subr_addl -ltr_subr_addr (natrD R 1 1) addrK.
Qed.

(* The same with the count of the chapter, g, which stops growing at eta = 1:  *)
(* in units of E^2 a single head keeps 1 + g(eta) without and g(gamma) +       *)
(* g(eta) with an output matrix, at most 2, and H heads keep 4 - 2/H, at least *)
(* 3.                                                                          *)
Theorem no_single_head_shares (eta gamma : R) (H : nat) :
    (2 <= H)%N ->
  [/\ 1 + g eta <= 2%:R, g gamma + g eta <= 2%:R,
      2%:R < 3%:R :> R & 3%:R <= 4%:R - 2%:R / H%:R :> R].
Proof.
move=> H2; split; rewrite ?ltr_nat //.
- by rewrite (natrD R 1 1) ler_add2l g_le1.
- by rewrite (natrD R 1 1) ler_add ?g_le1.
rewrite ler_subr_addl -ler_subr_addr -natrB // ler_pdivr_mulr ?mul1r ?ler_nat //.
by rewrite ltr0n (leq_trans _ H2).
Qed.

End Inequality.

(* What a product of inner width D on tokens of width E keeps, r (2 E - r)     *)
(* numbers with r = min(D, E).                                                 *)
Definition kept (D E : nat) : nat := (minn D E * (2 * E - minn D E))%N.

Lemma kept_le D E : (kept D E <= E ^ 2)%N.
Proof.
rewrite /kept; have rE : (minn D E <= E)%N by apply: geq_minr.
move: (minn D E) rE => r /subnK <-; move: (E - r)%N => x.
have -> : (2 * (x + r) - r = 2 * x + r)%N by rewrite mulnDr [(2 * r)%N]mul2n -addnn addnA addnK.
by rewrite sqrnD mulnDr mulnn mulnCA [(r * x)%N]mulnC addnC leq_add2r leq_addl.
Qed.

Lemma kept_head D H : (0 < H)%N -> kept D (H * D) = ((2 * H - 1) * D ^ 2)%N.
Proof.
move=> H0; rewrite /kept (minn_idPl _) ?leq_pmull //.
by rewrite mulnBl mul1n mulnBr -!mulnn; congr (_ - _)%N; rewrite mulnC -!mulnA.
Qed.

(* What a product keeps is the rank of its derivative, at weights of rank      *)
(* min(D, E).                                                                  *)
Theorem kept_is_the_rank (F : fieldType) (D E : nat) (W_Q W_K : 'M[F]_(D, E)) :
    \rank W_Q = minn D E -> \rank W_K = minn D E ->
  rank_of [linear of dproduct W_Q W_K] = kept D E.
Proof. by move=> rQ rK; have [] := count_of_a_product rQ rK. Qed.

(* The theorem in whole numbers. Let D = C = E/H, that is E = H D, and H >= 2. *)
(* The layer of H heads keeps H products of queries and keys and H of values   *)
(* and outputs: (4 - 2/H) E^2 = 4 E^2 - 2 H D^2 >= 3 E^2 numbers. A single     *)
(* head keeps fewer, for any inner width D', without an output matrix (E^2 for *)
(* its values) and with one, of any value width C'.                            *)
Theorem no_single_head (D H D' C' : nat) :
    (0 < D)%N -> (2 <= H)%N ->
  let E := (H * D)%N in
  let layer := (H * kept D E + H * kept D E)%N in
  [/\ layer = (4 * E ^ 2 - 2 * H * D ^ 2)%N, (3 * E ^ 2 <= layer)%N,
      (E ^ 2 + kept D' E < layer)%N & (kept C' E + kept D' E < layer)%N].
Proof.
move=> D0 H2 E layer; have H0 : (0 < H)%N by apply: leq_trans H2.
have E0 : (0 < E ^ 2)%N by rewrite expn_gt0 muln_gt0 H0 D0.
have count : layer = (4 * E ^ 2 - 2 * H * D ^ 2)%N.
  rewrite /layer kept_head // addnn -mul2n /E expnMn; move: (D ^ 2)%N => d.
  by rewrite -mulnn !mulnA -mulnBl mulnBr muln1 mulnACA mulnA.
have three : (3 * E ^ 2 <= layer)%N.
  rewrite count /E expnMn; move: (D ^ 2)%N => d; rewrite -mulnn !mulnA -mulnBl leq_mul2r.
  apply/orP; right; rewrite -!mulnA [(4 * _)%N]mulSn [(H * H + _)%N]addnC.
  by rewrite -addnBA ?leq_addr // leq_mul2r H2 orbT.
have small n : (n <= E ^ 2 -> E ^ 2 + n < layer)%N.
  move=> nE; apply: leq_trans three; rewrite [(3 * _)%N]mulSn -addnS leq_add2l.
  by rewrite mul2n -addnn -addn1 leq_add.
split=> //; first by apply: small; apply: kept_le.
by apply: leq_ltn_trans (small _ (kept_le D' E)); rewrite leq_add2r kept_le.
Qed.
