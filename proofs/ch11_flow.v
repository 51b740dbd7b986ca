(* Chapter 11: what gradient flow conserves, and the drift of one step.        *)
(* All identities are exact, over any field; limits do not occur.              *)

From mathcomp Require Import all_ssreflect all_algebra.
From attnid Require Import basics.

Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Import GRing.Theory.
Local Open Scope ring_scope.

Section Flow.
Variables (F : fieldType) (D E : nat).
Implicit Types (W_Q W_K A B : 'M[F]_(D, E)) (G : 'M[F]_E) (T : 'M[F]_D).

(* The imbalance of a head, Delta = W_Q W_Q^T - W_K W_K^T.                     *)
Definition imbalance W_Q W_K : 'M[F]_D := W_Q *m W_Q^T - W_K *m W_K^T.

(* Its first-order change in the direction (X, Y).                             *)
Definition dimbalance W_Q W_K (X Y : 'M[F]_(D, E)) : 'M[F]_D :=
  (X *m W_Q^T + W_Q *m X^T) - (Y *m W_K^T + W_K *m Y^T).

(* Along a straight line the imbalance changes by t times its first-order      *)
(* change in that direction, and by t^2 times the imbalance of the direction.  *)
Theorem imbalance_along_a_line W_Q W_K (X Y : 'M[F]_(D, E)) (t : F) :
  imbalance (W_Q + t *: X) (W_K + t *: Y)
    = imbalance W_Q W_K + t *: dimbalance W_Q W_K X Y + t ^+ 2 *: imbalance X Y.
Proof.
have square (W V : 'M[F]_(D, E)) : (W + t *: V) *m (W + t *: V)^T
    = W *m W^T + t *: (V *m W^T + W *m V^T) + t ^+ 2 *: (V *m V^T).
  have -> : (W + t *: V)^T = W^T + t *: V^T by rewrite linearD linearZ.
  rewrite mulmxDl !mulmxDr -!scalemxAl -!scalemxAr scalerA -expr2 scalerDr.
  by rewrite !addrA; congr (_ + _); rewrite -!addrA; congr (_ + _); rewrite addrC.
rewrite /imbalance /dimbalance !square !scalerBr !opprD.
by rewrite addrACA; congr (_ + _); rewrite addrACA.
Qed.

(* The inner product of matrices, the sum of the products of their entries.    *)
Definition inner (m n : nat) (X Y : 'M[F]_(m, n)) : F := \tr (X^T *m Y).

(* The chain rule. If G is the gradient of the loss with respect to the score  *)
(* product W_K^T W_Q, then A = W_K G is its gradient with respect to W_Q, and  *)
(* B = W_Q G^T that with respect to W_K.                                       *)
Theorem gradients_by_the_chain_rule W_Q W_K G (X Y : 'M[F]_(D, E)) :
  inner G (dproduct W_Q W_K (X, Y)) = inner (W_K *m G) X + inner (W_Q *m G^T) Y.
Proof.
rewrite /inner /dproduct /= mulmxDr linearD /= trmx_mul mulmxA; congr (_ + _).
by rewrite -mxtrace_tr !trmx_mul !trmxK mxtrace_mulC !mulmxA.
Qed.

(* Gradients of a loss of the product W_K^T W_Q are balanced, A W_Q^T = W_K    *)
(* B^T with A = W_K G and B = W_Q G^T.                                         *)
Theorem gradients_balance W_Q W_K G :
  let A := W_K *m G in let B := W_Q *m G^T in A *m W_Q^T = W_K *m B^T.
Proof. by move=> A B; rewrite /B trmx_mul trmxK mulmxA. Qed.

(* The same from the invariance alone, to first order: the gradients (A, B)    *)
(* are orthogonal to every null direction (T W_Q, -T^T W_K) if and only if A   *)
(* W_Q^T = W_K B^T.                                                            *)
Theorem invariant_loss_balances W_Q W_K A B :
  (forall T, inner A (T *m W_Q) + inner B (- (T^T *m W_K)) = 0)
    <-> A *m W_Q^T = W_K *m B^T.
Proof.
have pair T : inner A (T *m W_Q) + inner B (- (T^T *m W_K))
    = \tr (T *m (A *m W_Q^T - W_K *m B^T)^T).
  rewrite /inner mulmxN linearN linearB /= mulmxBr linearB /= !trmx_mul !trmxK.
  rewrite [\tr (A^T *m _)]mxtrace_mulC -mulmxA; congr (_ - _).
  by rewrite -mxtrace_tr !trmx_mul !trmxK mxtrace_mulC !mulmxA mxtrace_mulC mulmxA.
split=> [zero | bal T]; last by rewrite pair bal subrr trmx0 mulmx0 mxtrace0.
apply/eqP; rewrite -subr_eq0; apply/eqP/matrixP=> i j; rewrite [RHS]mxE.
set Z := (_ - _) in pair *; have := zero (delta_mx i j); rewrite pair /mxtrace.
rewrite (bigD1 i) //= big1 ?addr0 => [|k ki].
  rewrite mxE (bigD1 j) //= big1 ?addr0 => [|k kj]; first by rewrite !mxE !eqxx mul1r.
  by rewrite !mxE (negPf kj) andbF mul0r.
by rewrite mxE big1 // => l _; rewrite !mxE (negPf ki) mul0r.
Qed.

(* Gradient flow conserves the imbalance Delta = W_Q W_Q^T - W_K W_K^T: with   *)
(* balanced gradients, A W_Q^T = W_K B^T, its first-order change in the        *)
(* direction (-A, -B) is zero.                                                 *)
Theorem gradient_flow_conserves W_Q W_K A B :
  A *m W_Q^T = W_K *m B^T -> dimbalance W_Q W_K (- A) (- B) = 0.
Proof.
move=> bal; rewrite /dimbalance !linearN /= !mulNmx bal.
have -> : W_Q *m A^T = B *m W_K^T by rewrite -[W_Q]trmxK -trmx_mul bal trmx_mul trmxK.
by rewrite opprD !opprK [X in _ + X]addrC addrACA !addNr addr0.
Qed.

(* Decay contracts. A step of gradient descent of rate eta with decoupled      *)
(* weight decay lambda turns the imbalance Delta into exactly                  *)
(* (1 - eta lambda)^2 Delta + eta^2 (A A^T - B B^T).                           *)
Theorem decay_contracts W_Q W_K A B (eta lambda : F) :
    A *m W_Q^T = W_K *m B^T ->
  imbalance ((1 - eta * lambda) *: W_Q - eta *: A) ((1 - eta * lambda) *: W_K - eta *: B)
    = (1 - eta * lambda) ^+ 2 *: imbalance W_Q W_K
      + eta ^+ 2 *: (A *m A^T - B *m B^T).
Proof.
move=> bal; set c := 1 - _; rewrite /imbalance.
have tr_bal : B *m W_K^T = W_Q *m A^T.
  by rewrite -[W_Q]trmxK -trmx_mul bal trmx_mul trmxK.
have square (W V : 'M[F]_(D, E)) : (c *: W - eta *: V) *m (c *: W - eta *: V)^T
    = c ^+ 2 *: (W *m W^T) + eta ^+ 2 *: (V *m V^T)
      - (c * eta) *: (W *m V^T + V *m W^T).
  have -> : (c *: W - eta *: V)^T = c *: W^T - eta *: V^T by rewrite linearB !linearZ.
  rewrite mulmxBl !mulmxBr -!scalemxAl -!scalemxAr !scalerA.
  by rewrite -!expr2 [eta * c]mulrC opprB addrACA -opprD -scalerDr.
rewrite !square -tr_bal bal [W_K *m _ + _]addrC.
by rewrite opprB addrA subrK opprD addrACA -!scalerBr.
Qed.

(* The drift of one step: without decay the imbalance changes by exactly       *)
(* eta^2 (A A^T - B B^T). So the change is of second order in eta.             *)
Theorem drift_of_one_step W_Q W_K A B (eta : F) :
    A *m W_Q^T = W_K *m B^T ->
  imbalance (W_Q - eta *: A) (W_K - eta *: B) - imbalance W_Q W_K
    = eta ^+ 2 *: (A *m A^T - B *m B^T).
Proof.
move=> bal; have := decay_contracts eta 0 bal; rewrite mulr0 subr0 expr1n !scale1r => ->.
by rewrite addrC addKr.
Qed.

(* The drift of one step in terms of the gradient G with respect to the score  *)
(* product is eta^2 (W_K G G^T W_K^T - W_Q G^T G W_Q^T).                       *)
Theorem drift_in_terms_of_G W_Q W_K G (eta : F) :
  imbalance (W_Q - eta *: (W_K *m G)) (W_K - eta *: (W_Q *m G^T)) - imbalance W_Q W_K
    = eta ^+ 2 *: (W_K *m G *m G^T *m W_K^T - W_Q *m G^T *m G *m W_Q^T).
Proof.
by rewrite (drift_of_one_step _ (gradients_balance W_Q W_K G)) !trmx_mul !trmxK !mulmxA.
Qed.

End Flow.
