(* Chapter 8: rotary positions. What commutes with the rotations.              *)

From mathcomp Require Import all_ssreflect all_algebra.
From attnid Require Import basics ch01_products ch02_invariance ch04_directions.

Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Import GRing.Theory.
Local Open Scope ring_scope.

(* What the commutant of R is the null space of.                               *)
Definition commutator (F : fieldType) (D : nat) (R S : 'M[F]_D) : 'M[F]_D := S *m R - R *m S.

Lemma commutator_is_linear F D R : linear (@commutator F D R).
Proof.
move=> a u v; rewrite /commutator mulmxDl mulmxDr -scalemxAl -scalemxAr opprD addrACA.
by rewrite scalerBr.
Qed.
Canonical commutator_linear F D R := Linear (@commutator_is_linear F D R).

(* R is any nonsingular D x D matrix, such as one that turns planes; queries   *)
(* at distance d from a key are turned by R_d = R^d, with d any integer. D is  *)
(* written d'.+1 because a head has at least one coordinate.                   *)
Section Rotary.
Variables (F : fieldType) (d' m n : nat).
Notation D := d'.+1.
Variable R : 'M[F]_D.
Hypothesis R_unit : R \in unitmx.
Implicit Types (W_Q dW_Q : 'M[F]_(D, m)) (W_K dW_K : 'M[F]_(D, n)) (A S : 'M[F]_D) (d : int).

Lemma power_unit d : R ^ d \in unitmx.
Proof. exact: (unitrXz d R_unit). Qed.

Lemma power_next d : R ^ (d + 1) = R *m R ^ d.
Proof. by rewrite addrC (exprzDr R_unit) expr1z. Qed.

Lemma commutes_with_powers A d : A *m R = R *m A -> A *m R ^ d = R ^ d *m A.
Proof. by move=> AR; apply: commrXz. Qed.

(* Rotary positions, sufficiency. If A commutes with R, then (A W_Q, A^-T W_K) *)
(* have the same products W_K^T R_d W_Q at all offsets d.                      *)
Theorem rotary_sufficiency W_Q W_K A d :
    A \in unitmx -> A *m R = R *m A ->
  (invmx A^T *m W_K)^T *m R ^ d *m (A *m W_Q) = W_K^T *m R ^ d *m W_Q.
Proof.
move=> uA /(commutes_with_powers d) comm; rewrite -[in LHS]mulmxA [R ^ d *m (A *m _)]mulmxA.
by rewrite -comm -[A *m _ *m _]mulmxA invariance // mulmxA.
Qed.

(* Rotary positions, with necessity. Let W_Q and W_K have rank D, and let      *)
(* Delta be a set of offsets that contains two neighbours. Weights have the    *)
(* same products W_K^T R_d W_Q at all offsets d of Delta if and only if they   *)
(* are (A W_Q, A^-T W_K) with a nonsingular A that commutes with R. This A is  *)
(* unique.                                                                     *)
Theorem rotary_orbit (Delta : int -> Prop) W_Q W_K (W_Q' : 'M[F]_(D, m)) (W_K' : 'M[F]_(D, n)) :
    row_free W_Q -> row_free W_K ->
    (exists d, Delta d /\ Delta (d + 1)) ->
  (forall d, Delta d -> W_K'^T *m R ^ d *m W_Q' = W_K^T *m R ^ d *m W_Q) <->
  exists! A, [/\ A \in unitmx, A *m R = R *m A, W_Q' = A *m W_Q & W_K' = invmx A^T *m W_K].
Proof.
move=> fQ fK [d [inD inD1]]; split=> [same | [A [[uA AR -> ->] _]] k _]; last first.
  exact: rotary_sufficiency.
have fRQ : row_free (R ^ d *m W_Q).
  by rewrite /row_free mxrankMfree // mxrank_unit ?power_unit.
have := same _ inD; rewrite -!mulmxA => /(orbit_is_fibre _ _ fRQ fK) [A [[uA RQ K] _]].
have cancel_K : injective (@mulmx F n D m W_K^T).
  by apply: row_full_inj; rewrite /row_full mxrank_tr.
have AR : A *m R = R *m A.
  have := same _ inD1; rewrite power_next -!mulmxA RQ K trmx_mul -trmx_inv trmxK -mulmxA.
  move/cancel_K/(congr1 (mulmx A)); rewrite mulKVmx // !mulmxA => eq.
  by apply: (row_free_inj fRQ); rewrite -!mulmxA in eq *; rewrite eq.
have QA : W_Q' = A *m W_Q.
  have := RQ; rewrite mulmxA (commutes_with_powers d AR) -mulmxA.
  by apply: row_full_inj; rewrite row_full_unit power_unit.
exists A; split=> // A' [_ _ QA' _]; apply: (row_free_inj fQ).
by rewrite -QA.
Qed.

(* The same to first order. With W_Q and W_K of rank D, the directions that    *)
(* keep the products at all offsets of Delta are (S W_Q, -S^T W_K) with S in   *)
(* the commutant of R.                                                         *)
Theorem rotary_null_directions (Delta : int -> Prop) W_Q W_K dW_Q dW_K :
    row_free W_Q -> row_free W_K ->
    (exists d, Delta d /\ Delta (d + 1)) ->
  (forall d, Delta d -> W_K^T *m R ^ d *m dW_Q + dW_K^T *m R ^ d *m W_Q = 0) <->
  exists S, S *m R = R *m S /\ (dW_Q, dW_K) = direction W_Q W_K S.
Proof.
move=> fQ fK [d [inD inD1]]; split=> [null | [S [SR [-> ->]]] k _]; last first.
  rewrite linearN /= trmx_mul trmxK !mulNmx -!mulmxA [R ^ k *m (S *m _)]mulmxA.
  by rewrite -(commutes_with_powers k SR) !mulmxA subrr.
have fRQ e : row_free (R ^ e *m W_Q).
  by rewrite /row_free mxrankMfree // mxrank_unit ?power_unit.
have := null _ inD; rewrite -!mulmxA.
move=> /(no_other_null_directions (R ^ d *m dW_Q) dW_K (fRQ d) fK) [S [RQ K]].
have cancel_K : injective (@mulmx F n D m W_K^T).
  by apply: row_full_inj; rewrite /row_full mxrank_tr.
have SR : S *m R = R *m S.
  have := null _ inD1; rewrite power_next -!mulmxA RQ K linearN /= trmx_mul trmxK mulNmx.
  move/eqP; rewrite subr_eq0 => /eqP; rewrite -mulmxA => /cancel_K eq.
  by apply: (row_free_inj (fRQ d)); rewrite -!mulmxA eq.
exists S; split=> //; rewrite K; congr pair.
have := RQ; rewrite mulmxA (commutes_with_powers d SR) -mulmxA.
by apply: row_full_inj; rewrite row_full_unit power_unit.
Qed.

(* The first-order changes of the products at offsets d and d + 1.             *)
Definition dproducts d W_Q W_K (dW : 'M[F]_(D, m) * 'M[F]_(D, n)) : 'M[F]_(n, m) * 'M[F]_(n, m) :=
  (W_K^T *m R ^ d *m dW.1 + dW.2^T *m R ^ d *m W_Q,
   W_K^T *m R ^ (d + 1) *m dW.1 + dW.2^T *m R ^ (d + 1) *m W_Q).

Lemma dproducts_is_linear d W_Q W_K : linear (dproducts d W_Q W_K).
Proof.
have one e : linear (fun dW : 'M[F]_(D, m) * 'M[F]_(D, n) =>
    W_K^T *m R ^ e *m dW.1 + dW.2^T *m R ^ e *m W_Q).
  move=> a u v /=; rewrite mulmxDr -scalemxAr linearD linearZ /= !mulmxDl -!scalemxAl.
  by rewrite scalerDr addrACA.
by move=> a u v; rewrite /dproducts (one d a u v) (one (d + 1) a u v).
Qed.
Canonical dproducts_linear d W_Q W_K := Linear (dproducts_is_linear d W_Q W_K).

(* With W_Q and W_K of rank D, the directions that keep the products at two    *)
(* neighbouring offsets (and then at all) form a space that has the dimension  *)
(* of the commutant of R.                                                      *)
Theorem rotary_dimension d W_Q W_K :
    row_free W_Q -> row_free W_K ->
  nullity [linear of dproducts d W_Q W_K] = nullity [linear of commutator R].
Proof.
move=> fQ fK; pose Delta e := e = d \/ e = d + 1.
have neighbours : exists e, Delta e /\ Delta (e + 1) by exists d; split; [left | right].
apply: (nullity_by_null_space (g := [linear of direction W_Q W_K])) => /= [S S0 | [dQ dK]].
  apply: (@different_T_different_directions _ _ _ _ W_Q W_K); first by rewrite fQ.
  by rewrite S0 [RHS]linear0.
have [to back] := rotary_null_directions dQ dK fQ fK neighbours.
split=> [[at_d at_d1] | [S [/eqP SR dir]]].
  have [|S [SR dir]] := to; first by move=> e [->|->].
  by exists S; split=> //; rewrite /commutator SR subrr.
rewrite /commutator subr_eq0 in SR.
have null := back (ex_intro _ S (conj (eqP SR) dir)).
by congr pair; apply: null; [left | right].
Qed.

End Rotary.

(* In particular, for a nonsingular R, B^T R_d A = R_d at two neighbouring     *)
(* offsets forces B = A^-T and A R = R A.                                      *)
Theorem rotary_insertion (F : fieldType) (d' : nat) (R A B : 'M[F]_d'.+1) (d : int) :
    R \in unitmx ->
    B^T *m R ^ d *m A = R ^ d -> B^T *m R ^ (d + 1) *m A = R ^ (d + 1) ->
  [/\ A \in unitmx, B = invmx A^T & A *m R = R *m A].
Proof.
move=> uR at_d at_d1; pose Delta e := e = d \/ e = d + 1.
have free1 : row_free (1%:M : 'M[F]_d'.+1) by rewrite row_free_unit unitmx1.
have neighbours : exists e, Delta e /\ Delta (e + 1) by exists d; split; [left | right].
have [|A' [[uA AR QA KA] _]] := iffLR (rotary_orbit uR A B free1 free1 neighbours).
  by move=> e [->|->]; rewrite trmx1 mul1mx mulmx1.
by rewrite QA KA !mulmx1.
Qed.

(* The plane. J is the quarter turn, and a I + b J turns by (a, b) = (cos      *)
(* theta, sin theta) when a^2 + b^2 = 1.                                       *)
Section Plane.
Variable F : fieldType.
Implicit Types (X : 'M[F]_2) (a b c s : F).

Definition quarter_turn : 'M[F]_2 := delta_mx 1 0 - delta_mx 0 1.
Definition turn c s : 'M[F]_2 := c%:M + s *: quarter_turn.

Lemma sum2 (f : 'I_2 -> F) : \sum_(i < 2) f i = f 0 + f 1.
Proof. by rewrite big_ord_recl big_ord1; congr (_ + f _); apply: val_inj. Qed.

Lemma matrix2P (X Y : 'M[F]_2) :
  X 0 0 = Y 0 0 -> X 0 1 = Y 0 1 -> X 1 0 = Y 1 0 -> X 1 1 = Y 1 1 -> X = Y.
Proof.
have two (i : 'I_2) : i = 0 \/ i = 1.
  by case: i => [[|[|//]] p]; [left | right]; apply: val_inj.
move=> e00 e01 e10 e11; apply/matrixP=> i j.
by have [->|->] := two i; have [->|->] := two j.
Qed.

Lemma J_entries : [/\ quarter_turn 0 0 = 0, quarter_turn 0 1 = -1, quarter_turn 1 0 = 1 & quarter_turn 1 1 = 0].
Proof. by rewrite !mxE /= !subr0 sub0r. Qed.

Lemma mul_J X :
  [/\ (X *m quarter_turn) 0 0 = X 0 1, (X *m quarter_turn) 0 1 = - X 0 0, (X *m quarter_turn) 1 0 = X 1 1
    & (X *m quarter_turn) 1 1 = - X 1 0].
Proof.
have [j00 j01 j10 j11] := J_entries; split; rewrite mxE sum2 ?j00 ?j01 ?j10 ?j11;
by rewrite ?mulr0 ?mulr1 ?mulrN1 ?add0r ?addr0.
Qed.

Lemma J_mul X :
  [/\ (quarter_turn *m X) 0 0 = - X 1 0, (quarter_turn *m X) 0 1 = - X 1 1, (quarter_turn *m X) 1 0 = X 0 0
    & (quarter_turn *m X) 1 1 = X 0 1].
Proof.
have [j00 j01 j10 j11] := J_entries; split; rewrite mxE sum2 ?j00 ?j01 ?j10 ?j11;
by rewrite ?mul0r ?mul1r ?mulN1r ?add0r ?addr0.
Qed.

Lemma JJ : quarter_turn *m quarter_turn = - 1%:M.
Proof.
have [j00 j01 j10 j11] := J_entries; have [e00 e01 e10 e11] := mul_J quarter_turn.
by apply: matrix2P; rewrite ?e00 ?e01 ?e10 ?e11 ?j00 ?j01 ?j10 ?j11 !mxE /= ?mulr1n ?mulr0n ?oppr0.
Qed.

Lemma commutes_with_J X : X *m quarter_turn = quarter_turn *m X <-> X = turn (X 0 0) (X 1 0).
Proof.
have [x00 x01 x10 x11] := mul_J X; have [y00 y01 y10 y11] := J_mul X.
have [j00 j01 j10 j11] := J_entries; split=> [XJ | ->]; last first.
  by rewrite /turn mulmxDl mulmxDr -scalemxAl -scalemxAr mul_scalar_mx mul_mx_scalar.
have e00 : X 0 1 = - X 1 0 by rewrite -x00 XJ.
have e10 : X 1 1 = X 0 0 by rewrite -x10 XJ.
by apply: matrix2P; rewrite /turn 3!mxE ?j00 ?j01 ?j10 ?j11 /= ?mulr0n ?mulr1n ?mulr0 ?mulr1 ?mulrN1 ?addr0 ?add0r.
Qed.

Lemma commutes_with_turn X c s : s != 0 -> X *m turn c s = turn c s *m X <-> X *m quarter_turn = quarter_turn *m X.
Proof.
move=> s0; rewrite /turn mulmxDl mulmxDr mul_scalar_mx mul_mx_scalar -scalemxAl -scalemxAr.
by split=> [/addrI/(scalerI s0) | ->].
Qed.

(* The commutant of one rotation. What commutes with the turn by (c, s), s not *)
(* zero, are the a I + b J, and each of them does.                             *)
Theorem commutant_of_a_rotation X c s :
  s != 0 -> X *m turn c s = turn c s *m X <-> exists a b, X = turn a b.
Proof.
move=> s0; rewrite commutes_with_turn //; split=> [/commutes_with_J -> | [a [b ->]]].
  by exists (X 0 0), (X 1 0).
by rewrite /turn mulmxDl mulmxDr -scalemxAl -scalemxAr mul_scalar_mx mul_mx_scalar.
Qed.

(* The mirror that swaps forwards and backwards.                               *)
Definition mirror : 'M[F]_2 := delta_mx 0 0 - delta_mx 1 1.

Lemma mirror_mul X :
  [/\ (mirror *m X) 0 0 = X 0 0, (mirror *m X) 0 1 = X 0 1, (mirror *m X) 1 0 = - X 1 0
    & (mirror *m X) 1 1 = - X 1 1].
Proof. by split; rewrite mxE sum2 !mxE /= ?subr0 ?sub0r ?mulN1r ?mul1r ?mul0r ?addr0 ?add0r. Qed.

Lemma mul_mirror X :
  [/\ (X *m mirror) 0 0 = X 0 0, (X *m mirror) 0 1 = - X 0 1, (X *m mirror) 1 0 = X 1 0
    & (X *m mirror) 1 1 = - X 1 1].
Proof. by split; rewrite mxE sum2 !mxE /= ?subr0 ?sub0r ?mulrN1 ?mulr1 ?mulr0 ?addr0 ?add0r. Qed.

Lemma mirror_mirror X : mirror *m (mirror *m X) = X.
Proof.
have [a b c d] := mirror_mul X; have [a' b' c' d'] := mirror_mul (mirror *m X).
by apply: matrix2P; rewrite ?a' ?b' ?c' ?d' ?a ?b ?c ?d ?opprK.
Qed.

Lemma mirror_turn c s : mirror *m turn c (- s) = turn c s *m mirror.
Proof.
have [a b c' d] := mirror_mul (turn c (- s)); have [a' b' c'' d'] := mul_mirror (turn c s).
have [j00 j01 j10 j11] := J_entries.
have [e00 e01 e10 e11] : [/\ forall x : F, turn c x 0 0 = c, forall x : F, turn c x 0 1 = - x,
    forall x : F, turn c x 1 0 = x & forall x : F, turn c x 1 1 = c].
  by split=> x; rewrite /turn 3!mxE ?j00 ?j01 ?j10 ?j11 /= ?mulr0n ?mulr1n ?mulr0 ?mulr1 ?mulrN1 ?addr0 ?add0r.
apply: matrix2P; rewrite ?a ?b ?c' ?d ?a' ?b' ?c'' ?d' ?e00 ?e01 ?e10 ?e11 ?opprK //.
Qed.

(* The turns by (c, s) and (c, -s), s not zero, are opposite. What takes one   *)
(* to the other, X R_2 = R_1 X, are the a I + b J after a mirror, and each of  *)
(* them does.                                                                  *)
Theorem planes_that_turn_oppositely X c s :
  s != 0 -> X *m turn c s = turn c (- s) *m X <-> exists a b, X = mirror *m turn a b.
Proof.
move=> s0; transitivity (mirror *m X *m turn c s = turn c s *m (mirror *m X)).
  rewrite -mulmxA [RHS in _ <-> _ = RHS]mulmxA -mirror_turn -mulmxA.
  by split=> [-> // | /(congr1 (mulmx mirror))]; rewrite !mirror_mirror.
rewrite (commutant_of_a_rotation _ c s0); split=> -[a [b eq]]; exists a, b.
  by rewrite -eq mirror_mirror.
by rewrite eq mirror_mirror.
Qed.

Lemma turn_square c s : c ^+ 2 + s ^+ 2 = 1 ->
  turn c s *m turn c s = (c *+ 2) *: turn c s - 1%:M.
Proof.
move=> unit; have -> : turn c s *m turn c s = (c ^+ 2 - s ^+ 2)%:M + (c * s *+ 2) *: quarter_turn.
  rewrite /turn mulmxDl !mulmxDr !mul_scalar_mx !mul_mx_scalar -!scalemxAl -!scalemxAr JJ.
  rewrite !scalerA scalerN !scale_scalar_mx mulr1 -!expr2 addrA.
  by rewrite -[_ + _ *: quarter_turn + _ *: quarter_turn]addrA -scalerDl -mulr2n addrAC; congr (_ + _); rewrite raddfB.
rewrite /turn [in RHS](scalerDr _ c%:M) scalerA mulrnAl scale_scalar_mx addrAC; congr (_ + _).
  rewrite -raddfB; congr (_%:M).
  by rewrite -unit mulrnAl -expr2 mulr2n opprD addrA addrK.
Qed.

(* Planes that turn at different rates do not mix: if 2 c1 is not 2 c2 and     *)
(* both turns are rotations, only X = 0 has X R_2 = R_1 X.                     *)
Theorem planes_of_different_rates X c1 s1 c2 s2 :
    c1 ^+ 2 + s1 ^+ 2 = 1 -> c2 ^+ 2 + s2 ^+ 2 = 1 -> c1 *+ 2 != c2 *+ 2 ->
  X *m turn c2 s2 = turn c1 s1 *m X -> X = 0.
Proof.
move=> rot1 rot2 neq comm.
have sq : X *m (turn c2 s2 *m turn c2 s2) = turn c1 s1 *m turn c1 s1 *m X.
  by rewrite mulmxA comm -mulmxA comm mulmxA.
have TX : turn c1 s1 *m X = 0.
  move: sq; rewrite !turn_square // mulmxBr mulmxBl mul1mx mulmx1 => /addIr.
  rewrite -scalemxAr -scalemxAl comm => /eqP; rewrite -subr_eq0 -scalerBl scaler_eq0.
  by rewrite subr_eq0 eq_sym (negPf neq) => /eqP.
move: (congr1 (fun Z => turn c1 s1 *m Z) TX); rewrite mulmx0 mulmxA turn_square // mulmxBl.
by rewrite -scalemxAl TX scaler0 mul1mx sub0r => /eqP; rewrite oppr_eq0 => /eqP.
Qed.

End Plane.

(* Many planes. Plane i turns by (c i, s i): the head's rotation is block      *)
(* diagonal, and S has a 2 x 2 block for each two planes.                      *)
Section Planes.
Variables (F : fieldType) (p : nat) (c s : 'I_p -> F).
Notation D := (\sum_(i < p) 2)%N.
Implicit Types S : 'M[F]_D.

Definition rotation : 'M[F]_D := \mxdiag_(i < p) turn (c i) (s i).

Lemma commutes_by_blocks S :
  S *m rotation = rotation *m S <->
  forall i j, submxblock S i j *m turn (c j) (s j) = turn (c i) (s i) *m submxblock S i j.
Proof.
rewrite -{1 2}[S]submxblockK mul_mxblock_mxdiag mul_mxdiag_mxblock.
split=> [/eq_mxblockP eq i j | eq]; first exact: eq.
by apply: eq_mxblock.
Qed.

Hypothesis rotations : forall i, c i ^+ 2 + s i ^+ 2 = 1.
Hypothesis none_is_still : forall i, s i != 0.
Hypothesis alike_or_different : forall i j, c i = c j \/ c i *+ 2 != c j *+ 2.

(* A block between two planes with the same cosine: a I + b J where they turn  *)
(* the same way, and the mirror of that where they turn opposite ways.         *)
Definition block (i j : 'I_p) (a b : F) : 'M[F]_2 :=
  if s i == s j then turn a b else mirror F *m turn a b.

Lemma same_or_opposite i j : c i = c j -> s i = s j \/ s i = - s j.
Proof.
move=> ceq; have := rotations i; rewrite ceq -(rotations j) => /addrI /eqP.
by rewrite eqf_sqr => /orP [] /eqP; [left | right].
Qed.

Lemma commutes_block i j (X : 'M[F]_2) : c i = c j ->
  X *m turn (c j) (s j) = turn (c i) (s i) *m X <-> exists a b, X = block i j a b.
Proof.
move=> ceq; rewrite /block ceq; case: eqP => [-> | neq].
  exact: commutant_of_a_rotation.
have [// | ->] := same_or_opposite ceq.
exact: planes_that_turn_oppositely.
Qed.

(* The commutant. Let each plane turn, by neither zero nor a half turn, and    *)
(* let cosines that differ have doubles that differ, as in any field where 2   *)
(* is not 0. What commutes with the rotation are the matrices that have a      *)
(* block a I + b J for each two planes that turn alike, its mirror for two     *)
(* that turn oppositely, and zero for any others.                              *)
Theorem commutant_of_planes S :
  S *m rotation = rotation *m S <->
  forall i j, if c i == c j then exists a b, submxblock S i j = block i j a b
              else submxblock S i j = 0.
Proof.
rewrite commutes_by_blocks; split=> blocks i j; have := blocks i j.
  case: ifP => [/eqP ceq | cne] comm; first exact/(commutes_block _ ceq).
  have [ceq | neq] := alike_or_different i j; first by rewrite ceq eqxx in cne.
  exact: (planes_of_different_rates (rotations i) (rotations j) neq).
case: ifP => [/eqP ceq ex | _ ->]; last by rewrite mul0mx mulmx0.
exact/(commutes_block _ ceq).
Qed.

Definition alike : finType := [finType of {x : 'I_p * 'I_p | c x.1 == c x.2}].

Definition from_blocks (t : {ffun alike -> F^o * F^o}) : 'M[F]_D :=
  \mxblock_(i < p, j < p)
    (if insub (i, j) is Some x then block i j (t x).1 (t x).2 else 0 : 'M[F]_2).

Lemma turn_entries (a b : F) : turn a b 0 0 = a /\ turn a b 1 0 = b.
Proof. by split; rewrite !mxE /= ?mulr1n ?mulr0n ?subr0 ?mulr0 ?mulr1 ?addr0 ?add0r. Qed.

Definition sign i j : F := if s i == s j then 1 else -1.

Lemma block_entries i j (a b : F) : block i j a b 0 0 = a /\ sign i j * block i j a b 1 0 = b.
Proof.
rewrite /block /sign; have [ta tb] := turn_entries a b; case: ifP => _; first by rewrite mul1r.
by have [-> _ -> _] := mirror_mul (turn a b); rewrite ta tb mulN1r opprK.
Qed.

Lemma turn_linear (a c1 s1 c2 s2 : F) :
  turn (a * c1 + c2) (a * s1 + s2) = a *: turn c1 s1 + turn c2 s2.
Proof.
rewrite /turn scalerDl -scalerA [in RHS](scalerDr a c1%:M) raddfD /= scale_scalar_mx.
by rewrite addrACA.
Qed.

Lemma block_linear i j (a c1 s1 c2 s2 : F) :
  block i j (a * c1 + c2) (a * s1 + s2) = a *: block i j c1 s1 + block i j c2 s2.
Proof.
by rewrite /block turn_linear; case: ifP => // _; rewrite mulmxDr -scalemxAr.
Qed.

Lemma from_blocks_is_linear : linear from_blocks.
Proof.
move=> a u v; apply/mxblockP=> i j; rewrite submxblockD.
have subZ (X : 'M[F]_D) : submxblock (a *: X) i j = a *: submxblock X i j.
  by apply/matrixP=> k l; rewrite !mxE.
rewrite subZ /from_blocks !mxblockK; case: insub => [x|]; last by rewrite scaler0 addr0.
by rewrite !ffunE; apply: block_linear.
Qed.
Canonical from_blocks_linear := Linear from_blocks_is_linear.

(* The dimension of the commutant is two for each pair (i, j) of planes with   *)
(* the same cosine, that is planes that turn alike or oppositely, i = j        *)
(* included. If n planes turn at each of several rates, one way or the other,  *)
(* these are 2 n^2 for each rate.                                              *)
Theorem dimension_of_commutant :
  nullity [linear of commutator rotation] = (2 * #|[pred x : 'I_p * 'I_p | c x.1 == c x.2]|)%N.
Proof.
rewrite mulnC -card_sig.
apply: (@nullity_by_parameters _ _ _ _ _ [linear of from_blocks]) => /= [t t0 | S].
  apply/ffunP=> x; rewrite [RHS]ffunE.
  have := congr1 (fun Z : 'M[F]_D => submxblock Z (val x).1 (val x).2) t0.
  rewrite submxblock0 /from_blocks mxblockK -surjective_pairing valK /= => eq0.
  have [ta tb] := block_entries (val x).1 (val x).2 (t x).1 (t x).2.
  have e0 := congr1 (fun Z : 'M[F]_2 => Z 0 0) eq0.
  have e1 := congr1 (fun Z : 'M[F]_2 => Z 1 0) eq0.
  rewrite ta mxE in e0; rewrite e1 mxE mulr0 in tb.
  by rewrite [t x]surjective_pairing e0 -tb.
rewrite /commutator; split=> [/eqP | [t ->]].
  rewrite subr_eq0 => /eqP/commutant_of_planes blocks.
  exists [ffun x : alike => (submxblock S (val x).1 (val x).2 0 0,
                             sign (val x).1 (val x).2 * submxblock S (val x).1 (val x).2 1 0)].
  apply/mxblockP=> i j; rewrite /from_blocks mxblockK; have := blocks i j.
  case: insubP => [x /= -> xij [a [b eq]] | /= /negbTE -> //].
  by rewrite ffunE xij /= eq; have [-> ->] := block_entries i j a b.
apply/eqP; rewrite subr_eq0; apply/eqP/commutant_of_planes=> i j.
rewrite /from_blocks mxblockK; case: insubP => [x /= -> _ | /= /negbTE -> //].
by exists (t x).1, (t x).2.
Qed.

(* If no two planes turn at the same rate, what commutes has a block a I + b J *)
(* for each of the p planes and is zero elsewhere; the dimension is 2 p, the   *)
(* width D of the head.                                                        *)
Theorem distinct_rates S :
    injective c ->
  (S *m rotation = rotation *m S <-> exists a b, S = \mxdiag_(i < p) turn (a i) (b i))
  /\ nullity [linear of commutator rotation] = D.
Proof.
move=> c_inj; split.
  rewrite commutant_of_planes; split=> [blocks | [a [b ->]] i j].
    exists (fun i => submxblock S i i 0 0), (fun i => submxblock S i i 1 0).
    apply/mxblockP=> i j; have := blocks i j; rewrite mxblockK (inj_eq c_inj).
    case: eqP => [<- [a [b eq]] | //]; rewrite conform_mx_id eq /block eqxx.
    by have [-> ->] := turn_entries a b.
  rewrite mxblockK (inj_eq c_inj); case: eqP => [<- | //].
  by rewrite conform_mx_id; exists (a i), (b i); rewrite /block eqxx.
rewrite dimension_of_commutant sum_nat_const card_ord mulnC; congr (_ * _)%N.
rewrite -[RHS]card_ord -(card_codom (f := fun i : 'I_p => (i, i))) => [|i j [] //].
apply: eq_card => -[i j]; rewrite !inE /= (inj_eq c_inj).
by apply/eqP/codomP => [-> | [k [-> ->]] //]; exists j.
Qed.

End Planes.

Section Blocks.
Variables (F : fieldType) (m n : nat) (P : 'M[F]_m) (Q : 'M[F]_n).
Hypothesis no_PQ : forall X : 'M[F]_(m, n), X *m Q = P *m X -> X = 0.
Hypothesis no_QP : forall X : 'M[F]_(n, m), X *m P = Q *m X -> X = 0.

(* A block diagonal matrix whose blocks have nothing to exchange commutes with *)
(* block diagonal matrices alone.                                              *)
Definition two_blocks (S : 'M[F]_m * 'M[F]_n) : 'M[F]_(m + n) := block_mx S.1 0 0 S.2.

Lemma two_blocks_is_linear : linear two_blocks.
Proof.
by move=> a u v; rewrite /two_blocks scale_block_mx add_block_mx !scaler0 !addr0.
Qed.
Canonical two_blocks_linear := Linear two_blocks_is_linear.

Lemma nullity_of_blocks :
  nullity [linear of commutator (block_mx P 0 0 Q)]
    = (nullity [linear of commutator P] + nullity [linear of commutator Q])%N.
Proof.
rewrite -nullity_side_by_side.
apply: (nullity_by_null_space (g := [linear of two_blocks])) => /= [[S S'] | S].
  rewrite /two_blocks -[RHS](block_mx0 F m n m n) /=.
  by case/eq_block_mx => -> _ _ ->.
have comm : commutator (block_mx P 0 0 Q) S = 0 <->
    [/\ ulsubmx S *m P = P *m ulsubmx S, ursubmx S *m Q = P *m ursubmx S,
        dlsubmx S *m P = Q *m dlsubmx S & drsubmx S *m Q = Q *m drsubmx S].
  rewrite /commutator -{1 2}[S]submxK !mulmx_block !mulmx0 !mul0mx !addr0 !add0r.
  split=> [/eqP | [-> -> -> ->]]; last by rewrite subrr.
  by rewrite subr_eq0 => /eqP/eq_block_mx [].
rewrite comm; split=> [[ul /no_PQ ur /no_QP dl dr] | [[A B] [[/eqP cA /eqP cB] ->]]].
  exists (ulsubmx S, drsubmx S); rewrite /side_by_side /= /commutator ul dr !subrr.
  by split=> //; rewrite /two_blocks /= -[LHS]submxK ur dl.
move: cA cB; rewrite /= /commutator !subr_eq0 => /eqP cA /eqP cB.
rewrite /two_blocks block_mxKul block_mxKur block_mxKdl block_mxKdr.
by rewrite !mul0mx !mulmx0.
Qed.

End Blocks.

Section AllClasses.
Variables (F : fieldType) (d_0 d_pi p : nat) (c s : 'I_p -> F).
Hypothesis two_is_not_zero : 2%:R != 0 :> F.
Hypothesis rotations : forall i, c i ^+ 2 + s i ^+ 2 = 1.
Hypothesis none_is_still : forall i, s i != 0.

(* What keeps d_0 coordinates still, changes the sign of d_pi others and turns *)
(* p planes.                                                                   *)
Definition all_classes : 'M[F]_(d_0 + (d_pi + \sum_(i < p) 2)) :=
  block_mx 1%:M 0 0 (block_mx (- 1%:M) 0 0 (rotation c s)).

Lemma cosine_is_no_sign i (e : F) : e ^+ 2 = 1 -> (c i * e) *+ 2 != 2%:R.
Proof.
move=> e2; rewrite -[X in _ != X]mulr1 mulr_natl -subr_eq0 -mulrnBl -mulr_natl mulf_neq0 //.
rewrite subr_eq0; apply: contraTneq (none_is_still i) => ce; rewrite negbK.
have c2 : c i ^+ 2 = 1 by rewrite -[LHS]mulr1 -e2 -exprMn ce expr1n.
by have := rotations i; rewrite c2 -[RHS]addr0 => /addrI /eqP; rewrite sqrf_eq0.
Qed.

Lemma turn_keeps_nothing i (e : F) k :
    e ^+ 2 = 1 ->
  (forall X : 'M[F]_(k, 2), X *m turn (c i) (s i) = e *: X -> X = 0) /\
  (forall X : 'M[F]_(2, k), turn (c i) (s i) *m X = e *: X -> X = 0).
Proof.
move=> e2; have zero m n (X : 'M[F]_(m, n)) : X = (c i *+ 2 * e) *: X - X -> X = 0.
  move=> /eqP; rewrite eq_sym subr_eq -mulr2n -scaler_nat -subr_eq0 -scalerBl scaler_eq0.
  by rewrite subr_eq0 mulrnAl (negPf (cosine_is_no_sign i e2)) => /eqP.
split=> X XR; apply: zero.
  transitivity (X *m (turn (c i) (s i) *m turn (c i) (s i))).
    by rewrite mulmxA XR -scalemxAl XR scalerA -expr2 e2 scale1r.
  by rewrite turn_square // mulmxBr mulmx1 -scalemxAr XR scalerA.
transitivity (turn (c i) (s i) *m turn (c i) (s i) *m X).
  by rewrite -mulmxA XR -scalemxAr XR scalerA -expr2 e2 scale1r.
by rewrite turn_square // mulmxBl mul1mx -scalemxAl XR scalerA.
Qed.

Lemma rotation_keeps_nothing (e : F) k :
    e ^+ 2 = 1 ->
  (forall X : 'M[F]_(k, \sum_(i < p) 2), X *m rotation c s = e *: X -> X = 0) /\
  (forall X : 'M[F]_(\sum_(i < p) 2, k), rotation c s *m X = e *: X -> X = 0).
Proof.
move=> e2; split=> X.
  rewrite -[X]submxrowK /rotation mul_mxrow_mxdiag -mul_scalar_mx mul_mxrow => /eq_mxrowP XR.
  rewrite -[RHS](@mxrow0 _ _ (fun=> 2%N)); apply: eq_mxrow => i.
  by have [z _] := turn_keeps_nothing i k e2; apply: z; rewrite XR mul_scalar_mx.
rewrite -[X]submxcolK /rotation mul_mxdiag_mxcol -mul_mx_scalar mxcol_mul => /eq_mxcolP XR.
rewrite -[RHS](@mxcol0 _ _ (fun=> 2%N)); apply: eq_mxcol => i.
by have [_ z] := turn_keeps_nothing i k e2; apply: z; rewrite XR mul_mx_scalar.
Qed.

Lemma nullity_of_a_sign (n : nat) (e : F) : nullity [linear of commutator (e%:M : 'M[F]_n)] = (n ^ 2)%N.
Proof.
rewrite -mulnn; apply: (@nullity_by_parameters _ _ _ _ _ [linear of idfun]) => //= S.
rewrite /commutator mul_scalar_mx mul_mx_scalar subrr.
by split=> // _; exists S.
Qed.

Lemma pairs_by_rate (q : nat) (rate : 'I_p -> 'I_q) :
    (forall i j, (rate i == rate j) = (c i == c j)) ->
  #|[pred x : 'I_p * 'I_p | c x.1 == c x.2]| = (\sum_(k < q) #|[pred i | rate i == k]| ^ 2)%N.
Proof.
move=> rates; rewrite -sum1_card big_mkcond /=.
transitivity (\sum_(i < p) \sum_(j < p) (if rate j == rate i then 1 else 0))%N.
  by rewrite pair_bigA /=; apply: eq_bigr => x _; rewrite inE rates eq_sym.
rewrite (partition_big rate xpredT) //=; apply: eq_bigr => k _.
transitivity (\sum_(i < p | rate i == k) #|[pred j | rate j == k]|)%N.
  by apply: eq_bigr => i /eqP ->; rewrite -sum1_card [RHS]big_mkcond.
by rewrite sum_nat_const mulnn.
Qed.

(* The commutant of all classes. Let d_0 coordinates keep still, d_pi change   *)
(* sign at each step, and let p planes turn, by neither zero nor a half turn.  *)
(* The commutant has dimension d_0^2 + d_pi^2 + 2 m, with m the number of      *)
(* pairs (i, j) of planes that turn alike or oppositely, i = j included. If    *)
(* n_k planes turn, one way or the other, at the rate k, then m is the sum of  *)
(* the n_k^2. (2 is not zero in the field.)                                    *)
Theorem commutant_of_all_classes (q : nat) (rate : 'I_p -> 'I_q) :
    (forall i j, (rate i == rate j) = (c i == c j)) ->
  nullity [linear of commutator all_classes]
    = (d_0 ^ 2 + d_pi ^ 2 + \sum_(k < q) 2 * #|[pred i | rate i == k]| ^ 2)%N.
Proof.
move=> rates; have sign2 : (-1 : F) ^+ 2 = 1 by rewrite sqrrN expr1n.
have no_sign m n (X : 'M[F]_(m, n)) : X *m - 1%:M = 1%:M *m X -> X = 0.
  rewrite mulmxN mulmx1 mul1mx => /eqP; rewrite eq_sym -subr_eq0 opprK -mulr2n -scaler_nat.
  by rewrite scaler_eq0 (negPf two_is_not_zero) => /eqP.
have no_sign' m n (X : 'M[F]_(m, n)) : X *m 1%:M = - 1%:M *m X -> X = 0.
  by move=> eq; apply: no_sign; rewrite mul1mx -[RHS]mulmx1 eq mulmxN mulmx1 mulNmx mul1mx.
rewrite nullity_of_blocks; first last.
- move=> X; rewrite -[X]vsubmxK mul_block_col mul_col_mx !mul0mx addr0 add0r.
  case/eq_col_mx => /no_sign' -> eq; have [_ z] := rotation_keeps_nothing d_0 (expr1n F 2).
  by rewrite (z (dsubmx X)) ?col_mx0 // scale1r -eq mulmx1.
- move=> X; rewrite -[X]hsubmxK mul_row_block mul_mx_row !mulmx0 addr0 add0r.
  case/eq_row_mx => /no_sign -> eq; have [z _] := rotation_keeps_nothing d_0 (expr1n F 2).
  by rewrite (z (rsubmx X)) ?row_mx0 // scale1r eq mul1mx.
rewrite nullity_of_blocks; first last.
- move=> X; rewrite mulmxN mulmx1 => eq; have [_ z] := rotation_keeps_nothing d_pi sign2.
  by apply: z; rewrite -eq scaleN1r.
- move=> X; rewrite mulNmx mul1mx => eq; have [z _] := rotation_keeps_nothing d_pi sign2.
  by apply: z; rewrite eq scaleN1r.
have one : nullity [linear of commutator (1%:M : 'M[F]_d_0)] = (d_0 ^ 2)%N by apply: nullity_of_a_sign.
have minus : nullity [linear of commutator (- 1%:M : 'M[F]_d_pi)] = (d_pi ^ 2)%N.
  have -> : (- 1%:M : 'M[F]_d_pi) = (-1)%:M by rewrite raddfN.
  exact: nullity_of_a_sign.
rewrite one minus addnA; congr (_ + _)%N.
have cosines i j : c i = c j \/ c i *+ 2 != c j *+ 2.
  have [-> | neq] := eqVneq (c i) (c j); [by left | right].
  by rewrite -subr_eq0 -mulrnBl -mulr_natl mulf_neq0 // subr_eq0.
rewrite (dimension_of_commutant rotations none_is_still cosines) (pairs_by_rate rates).
by rewrite big_distrr.
Qed.

End AllClasses.
