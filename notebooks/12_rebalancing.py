# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% tags=["remove-cell"]
# On Colab: fetch the book and install its package. In a clone: go to the records.
import os, subprocess, sys

if "google.colab" in sys.modules:
    address = "https://github.com/identified-attention/identified-attention"
    fetch = f"test -d ~/attnid || git clone -q --depth 1 {address} ~/attnid"
    install = f"{sys.executable} -m pip install -q ~/attnid"
    subprocess.run(f"{fetch} && {install}", shell=True, check=True)
    os.chdir(os.path.expanduser("~/attnid/notebooks"))
elif os.path.isdir("../../../notebooks/results"):
    os.chdir("../../../notebooks")

# %% [markdown]
# # Rebalancing
#
# *Assumed: the {term}`orbit` of a head, {prf:ref}`prop-orbit`; what {term}`gradient flow` conserves, {prf:ref}`lem-conserved`; and that a positive definite
# matrix has exactly one positive definite square root.*
#
# *In the ledger:* {ref}`rebalancing <ledger-rebalancing>`, {ref}`rebalancing and biases <ledger-rebalancing-biases>`.
#
# ## The question
#
# A head's {term}`score product` $M = W_K^\top W_Q$ leaves $D^2$ numbers of its weights open, and Adam moves weights along the orbit too. Every 200 steps the
# paper replaces them by others in the orbit with equal {term}`Gram matrices <Gram matrix>` $P_Q = W_Q W_Q^\top$ and $P_K = W_K W_K^\top$, and watches whether
# training minds ({cite:t}`zhao2025` survey such choices). Is there always a {term}`balanced` pair in an orbit? How many are there, what does moving there cost,
# and what happens to all that is attached to the weights: biases, rotations and the optimiser's memory?
#
# ## The claim
#
# A pair $(A, B)$ of $D \times E$ matrices is **balanced** if $A A^\top = B B^\top$. Norms without an index are Frobenius norms, $\kappa$ is the ratio of the
# largest to the smallest singular value, and $\|M\|_*$ is the nuclear norm, the sum of the singular values.
#
# ```{prf:proposition} The balanced pairs of an orbit (paper: section 5.2.2)
# :label: prop-balanced-orbit
#
# Let $D \le E$, let $W_Q, W_K$ have rank $D$, and let $M = W_K^\top W_Q = U \Sigma V^\top$ be a thin singular value decomposition.
#
# 1. The balanced pairs with product $M$ are exactly $(Z\, \Sigma^{1/2} V^\top,\; Z\, \Sigma^{1/2} U^\top)$ with $Z \in O(D)$.
# 2. $(S W_Q, S^{-\top} W_K)$ is balanced if and only if $\Psi = S^\top S$ solves $\Psi P_Q \Psi = P_K$. The only positive definite solution is
#
#    $$
#    \Psi = P_Q^{-1/2} \big( P_Q^{1/2} P_K P_Q^{1/2} \big)^{1/2} P_Q^{-1/2} .
#    $$
# 3. For each such $S$, $\kappa(S)^2 \le \kappa(W_Q)\, \kappa(W_K)$.
# ```
#
# So balance settles $D(D+1)/2$ of the $D^2$ open numbers and leaves a rotation. $\Psi$ is known as the geometric mean of $P_Q^{-1}$ and $P_K$.
#
# ```{prf:proposition} Least norm
# :label: prop-least-norm
#
# For all $A, B \in \mathbb{R}^{D \times E}$, of any sizes and ranks, $\|A\|^2 + \|B\|^2 \ge 2\, \|B^\top A\|_*$, with equality exactly when
# $A A^\top = B B^\top$.
# ```
#
# ```{prf:proposition} The nearest balanced pair (paper: section 5.2.2)
# :label: prop-nearest
#
# Under the hypotheses of {prf:ref}`prop-balanced-orbit` let $(A, B)$ be any balanced pair with product $M$, and let $F = W_Q A^\top + W_K B^\top$.
#
# 1. $F$ is nonsingular. With a singular value decomposition $F = U_F \Sigma_F V_F^\top$, exactly one balanced pair with product $M$ is nearest to $(W_Q, W_K)$:
#    the pair $(Z A, Z B)$ with $Z = U_F V_F^\top$.
# 2. Hence it does not depend on the pair $(A, B)$ that one starts from, {term}`rebalancing` twice moves nothing, and for $Z' \in O(D)$ rebalancing
#    $(Z' W_Q, Z' W_K)$ gives $Z'$ times the result for $(W_Q, W_K)$.
# ```
#
# Under {term}`rotary positions <rotary position>` less is allowed: $S$ must commute with the rotations. Take a plane that turns, and read its two rows of $W_Q$
# as the real and imaginary part of one row $q_i \in \mathbb{C}^E$; likewise $k_i$ for $W_K$.
#
# ```{prf:proposition} Balance under rotation
# :label: prop-rotary-balance
#
# Let all coordinates of a head lie in planes, turning by angles that differ modulo sign and $2\pi$, none a multiple of $\pi$, and let no $q_i$ or $k_i$ be
# zero. Over all nonsingular $S$ that commute with the rotations, $\|S W_Q\|^2 + \|S^{-\top} W_K\|^2$ is least exactly where in each of the $D/2$ planes queries
# and keys have equal length, and the pair nearest to the old weights that does so multiplies plane $i$ of $W_Q$ by $s_i = \sqrt{\|k_i\| / \|q_i\|}$ and divides
# plane $i$ of $W_K$ by it. Where $n$ planes turn alike (rows of planes that turn backwards conjugated), the same holds with the $n \times n$ Hermitian Gram
# matrices of their complex rows, once these rows are independent, and $U(n)$ in the place of $O(D)$.
# ```
#
# ## Proof
#
# The proof on the nearest pair stands open, the others are folded.
#
# ````{admonition} Proof of what is balanced in an orbit
# :class: dropdown
#
# (Of {prf:ref}`prop-balanced-orbit`.) *1.* Both factors with $Z = I$ have Gram matrix $\Sigma$, and their product is $M$. By {prf:ref}`prop-orbit` every other
# pair with product $M$ is $(S\, \Sigma^{1/2} V^\top, S^{-\top} \Sigma^{1/2} U^\top)$ with one nonsingular $S$, and it is balanced if and only if
# $S \Sigma S^\top = S^{-\top} \Sigma S^{-1}$. With $\Psi = S^\top S$ this reads $\Psi \Sigma \Psi = \Sigma$, or
# $(\Sigma^{1/2} \Psi\, \Sigma^{1/2})^2 = \Sigma^2$. Both sides are squares of positive definite matrices, so $\Sigma^{1/2} \Psi\, \Sigma^{1/2} = \Sigma$, hence
# $\Psi = I$, and $S$ is orthogonal.
#
# *2.* Likewise $S P_Q S^\top = S^{-\top} P_K S^{-1}$ says $\Psi P_Q \Psi = P_K$, or $(P_Q^{1/2} \Psi P_Q^{1/2})^2 = P_Q^{1/2} P_K P_Q^{1/2}$: the square root
# is unique, and gives $\Psi$.
#
# *3.* $\kappa(S)^2 = \kappa(\Psi)$. Let $k$ be the largest eigenvalue of $P_K$ and $p$ the smallest of $P_Q$. From $P_Q^{1/2} P_K P_Q^{1/2} \preceq k P_Q$
# follows $(P_Q^{1/2} P_K P_Q^{1/2})^{1/2} \preceq k^{1/2} P_Q^{1/2}$, since the square root keeps the order of matrices; so
# $\Psi \preceq k^{1/2} P_Q^{-1/2} \preceq (k/p)^{1/2} I$. The smallest eigenvalue of $\Psi$ is bounded below in the same way, with the smallest eigenvalue of
# $P_K$ and the largest of $P_Q$. The quotient is $\sqrt{\kappa(P_Q)\, \kappa(P_K)} = \kappa(W_Q)\, \kappa(W_K)$.
# ````
#
# ````{admonition} Proof of the least norm
# :class: dropdown
#
# (Of {prf:ref}`prop-least-norm`.) Let $B^\top A = U \Sigma V^\top$, thin and without zero singular values. Then
#
# $$
# \|B^\top A\|_* = \mathrm{tr}\, U^\top B^\top A\, V = \langle B U, A V \rangle
# \le \tfrac12 \big( \|B U\|^2 + \|A V\|^2 \big) \le \tfrac12 \big( \|B\|^2 + \|A\|^2 \big) .
# $$
#
# Equality holds if and only if $B U = A V$, $B = B U U^\top$ and $A = A V V^\top$, and then $A A^\top = A V V^\top A^\top = B U U^\top B^\top = B B^\top$.
# Conversely let both Gram matrices be $\Phi$. Then $A = \Phi^{1/2} Y$ and $B = \Phi^{1/2} Y'$ with $Y Y^\top = Y' Y'^\top$ the orthogonal projection on the
# range of $\Phi$. So $B^\top A = Y'^\top \Phi\, Y$ has the nonzero eigenvalues of $\Phi$ as its singular values, and
# $2 \|B^\top A\|_* = 2\, \mathrm{tr}\, \Phi = \|A\|^2 + \|B\|^2$.
# ````
#
# ````{prf:proof}
# (of {prf:ref}`prop-nearest`) *1.* By {prf:ref}`prop-balanced-orbit` the candidates are $(Z A, Z B)$, and
#
# $$
# \begin{gathered}
# \|Z A - W_Q\|^2 + \|Z B - W_K\|^2 = \text{const} - 2\, \mathrm{tr}\, Z^\top F, \\
# \mathrm{tr}\, Z^\top F = \mathrm{tr}\, (V_F^\top Z^\top U_F)\, \Sigma_F \le \mathrm{tr}\, \Sigma_F .
# \end{gathered}
# $$
#
# If $\Sigma_F$ has no zero, equality holds for $V_F^\top Z^\top U_F = I$ alone. It has none: write $(A, B) = (Z_0 \Psi^{1/2} W_Q,\, Z_0 \Psi^{-1/2} W_K)$ and
# use $P_K = \Psi P_Q \Psi$ to find $F = (P_Q \Psi^{1/2} + P_K \Psi^{-1/2}) Z_0^\top = (I + \Psi)\, P_Q\, \Psi^{1/2} Z_0^\top$, a product of nonsingular
# matrices.
#
# *2.* The nearest pair is described without $(A, B)$. A balanced pair is a candidate at distance zero from itself. And a rotation $Z'$ common to all maps
# candidates to candidates and keeps distances.
# ````
#
# ````{admonition} Proof of balance under rotation
# :class: dropdown
#
# (Of {prf:ref}`prop-rotary-balance`.) By {prf:ref}`lem-commutant`, $S$ multiplies each $q_i$ by a complex number $s_i \ne 0$ and $k_i$ by $\bar s_i^{-1}$. The
# norm is $\sum_i |s_i|^2 \|q_i\|^2 + |s_i|^{-2} \|k_i\|^2$, least at $|s_i|^2 = \|k_i\| / \|q_i\|$, where both terms are $\|q_i\| \|k_i\|$. The squared
# distance from the old weights is a constant minus twice the real part of $\sum_i s_i \|q_i\|^2 + s_i^{-1} \|k_i\|^2$. Among all $s_i$ of a given modulus,
# $s_i > 0$ alone makes this real part largest. For planes that turn alike the blocks of $S$ are complex $n \times n$ matrices, and the proofs above hold word
# by word, with adjoints for transposes.
# ````
#
# ```{prf:remark} Departure from the paper
# :label: rem-12-order
#
# The paper's formula for the new key weights interchanges the last two factors of $\Sigma^{1/2} U_M^\top O_K^\top$ (our letters, below): $O_K^\top$ is
# $D \times E$ and $U_M^\top$ is $D \times D$, so for $D < E$ the printed product does not exist. That its rotation finds the nearest of *all* balanced pairs in
# the orbit, that there is only one, and what these pairs minimise are our additions.
# ```

# %% [markdown]
# ## The same symbols in code
#
# Thin QR decompositions of the transposed weights, and a small singular value decomposition of what is between:
#
# $$
# \begin{gathered}
# W_Q^\top = O_Q Y_Q, \qquad W_K^\top = O_K Y_K, \qquad Y_K Y_Q^\top = U_M \Sigma V_M^\top, \\
# A = \Sigma^{1/2} V_M^\top O_Q^\top, \qquad B = \Sigma^{1/2} U_M^\top O_K^\top .
# \end{gathered}
# $$
#
# Then one rotation towards the old weights, as in {prf:ref}`prop-nearest` (an orthogonal Procrustes problem).

# %%
import tempfile

import torch

from attnid import Attention, act_query_key, figures, forward
from attnid import head_metrics, measure, rebalance
from attnid.claims import check
from attnid.layer.attention import random_inputs
from attnid.layer.metrics import with_bias
from attnid.network.gpt import GPT, GPTConfig, head_weights, query_key, set_head_weights
from attnid.tensors import normal, rank, relative_change as apart
from attnid.training.data import load_corpus
from attnid.training.experiments import Job, rebalance_model, run
from attnid.training.trainer import get_batch


def balanced_pair(W_Q, W_K):
    (O_Q, Y_Q), (O_K, Y_K) = torch.linalg.qr(W_Q.mT), torch.linalg.qr(W_K.mT)
    U, sigma, Vh = torch.linalg.svd(Y_K @ Y_Q.mT)
    root = sigma.sqrt()[:, None]
    return root * (Vh @ O_Q.mT), root * (U.mT @ O_K.mT)


# %%
def nearest(A, B, W_Q, W_K):
    U, _, Vh = torch.linalg.svd(W_Q @ A.mT + W_K @ B.mT)
    return U @ Vh @ A, U @ Vh @ B


def worst(found, expected):
    """The largest relative change from one list of tensors to another."""
    return max(apart(new, old) for new, old in zip(found, expected))


# %% [markdown]
# `attnid.rebalance` does these two steps for any batch of heads. A second program shares no step with it: from $P_Q$ and $P_K$ alone, $S = Z \Psi^{1/2}$ with
# $\Psi$ of {prf:ref}`prop-balanced-orbit` and the orthogonal factor $Z$ of $(I + \Psi)\, P_Q\, \Psi^{1/2}$, the $F$ of {prf:ref}`prop-nearest` for $\Psi^{1/2}$
# in the place of $S$.


# %%
def power(gram, exponent):  # of a positive definite matrix
    values, U = torch.linalg.eigh(gram)
    return U * values**exponent @ U.mT


def balancing_S(W_Q, W_K):
    P_Q, P_K = W_Q @ W_Q.mT, W_K @ W_K.mT
    root, inverse = power(P_Q, 0.5), power(P_Q, -0.5)
    Psi = inverse @ power(root @ P_K @ root, 0.5) @ inverse
    half = power(Psi, 0.5)
    U, _, Vh = torch.linalg.svd(P_Q @ half + Psi @ P_Q @ half)
    return U @ Vh @ half


# %%
D, E = 4, 10
W_Q, W_K = normal(D, E, seed=1), normal(D, E, seed=2)
M = W_K.mT @ W_Q
A, B = rebalance(W_Q, W_K)
assert apart(A, W_Q) > 0.1
check("rebalancing", product=apart(B.mT @ A, M), balanced=apart(A @ A.mT, B @ B.mT))
by_svd = nearest(*balanced_pair(W_Q, W_K), W_Q, W_K)
by_mean = act_query_key(balancing_S(W_Q, W_K), W_Q, W_K)
check("rebalancing", svd=worst(by_svd, (A, B)), geometric_mean=worst(by_mean, (A, B)))
check("rebalancing", twice=worst(rebalance(A, B), (A, B)))

# %% [markdown]
# The order that the paper prints can be tried where $D = E$, and gives another product.

# %%
square_Q, square_K = normal(D, D, seed=1), normal(D, D, seed=2)
(O_Q, Y_Q), (O_K, Y_K) = torch.linalg.qr(square_Q.mT), torch.linalg.qr(square_K.mT)
U, sigma, Vh = torch.linalg.svd(Y_K @ Y_Q.mT)
queries, root = sigma.sqrt()[:, None] * (Vh @ O_Q.mT), sigma.sqrt()[:, None]
error = lambda keys: apart((root * keys).mT @ queries, square_K.mT @ square_Q)
assert error(U.mT @ O_K.mT) < 1e-12
check("rebalancing", printed_order=error(O_K.mT @ U.mT))

# %% [markdown]
# ## The check
#
# Each statement by numbers, in its order.
#
# ### How many balanced pairs
#
# Of the {term}`null directions <null direction>` at a balanced pair those that keep $P_Q - P_K$ should have the dimension of $O(D)$, $D(D-1)/2$, as the skew
# $T$ have, and the others $D(D+1)/2$. We take them from `measure`, which finds them in the layer's outputs and knows of no $S$, for $D = 1, \dots, 4$.


# %%
def skew_units(D):
    i, j = torch.triu_indices(D, D, 1)
    units = torch.eye(D * D, dtype=torch.float64).view(D, D, D, D)
    return units[i, j] - units[j, i]


def moved_and_kept(head, p, quantity):
    """How many null directions of a head change quantity(q, k), how many keep it."""
    null = measure(head, parameters=p).null_space
    null = [null[name][:, 0] for name in ("W_Q", "W_K")]
    at = p["W_Q"][0], p["W_K"][0]
    along = lambda *step: torch.func.jvp(quantity, at, step)[1].flatten()
    moved = rank(torch.stack([along(*step) for step in zip(*null)]), 1e-8)
    return moved, rank(torch.cat([part.flatten(1) for part in null], 1), 1e-8) - moved


gram_difference = lambda q, k: q @ q.mT - k @ k.mT

# %%
counts, turns = [], []
for d in (1, 2, 3, 4):
    head = Attention(6, 1, head_dim=d, value_dim=1)
    p = head.random_parameters(seed=d)
    q, k = rebalance(p["W_Q"], p["W_K"])
    counts.append(moved_and_kept(head, p | {"W_Q": q, "W_K": k}, gram_difference))
    T = skew_units(d)
    turns.append(rank(torch.cat(((T @ q).flatten(1), (T @ k).flatten(1)), 1), 1e-8))
check("rebalancing", moved=[moved for moved, _ in counts])
check("rebalancing", kept=[kept for _, kept in counts], skew=turns)

# %% [markdown]
# ### Least norm
#
# L-BFGS over all entries of $S$, told nothing of {prf:ref}`prop-least-norm`, must end at $2 \|M\|_*$ and at a balanced pair from each of five random starts,
# and at different pairs.


# %%
def least(of, start):
    """Where L-BFGS ends that minimises a function."""
    x = start.clone().requires_grad_()
    stop = {"tolerance_grad": 1e-12, "tolerance_change": 1e-16}
    search = torch.optim.LBFGS([x], max_iter=500, line_search_fn="strong_wolfe", **stop)

    def closure():
        search.zero_grad()
        value = of(x)
        value.backward()
        return value

    search.step(closure)
    return x.detach()


squared_norm = lambda q, k: q.square().sum((-2, -1)) + k.square().sum((-2, -1))
norm_of = lambda S: squared_norm(*act_query_key(S, W_Q, W_K))

# %%
shortest = 2 * torch.linalg.svdvals(M).sum()
ends = [least(norm_of, normal(D, D, seed=seed)) for seed in range(10, 15)]
ends = [act_query_key(S, W_Q, W_K) for S in ends]
check(
    "rebalancing",
    least_norm=apart(squared_norm(A, B), shortest),
    searched_norm=max(apart(squared_norm(q, k), shortest) for q, k in ends),
    searched_balance=max(apart(q @ q.mT, k @ k.mT) for q, k in ends),
)
assert min(apart(q, ends[0][0]) for q, _ in ends[1:]) > 0.1

# %% [markdown]
# Every start arrives for a reason. Along the null direction of $T$ the squared norm changes at the rate $2\, \mathrm{tr}\, T (P_Q - P_K)$. So
# $2\beta = 2 \|P_Q - P_K\|$ is its steepest slope within the orbit, over $\|T\| = 1$, which automatic differentiation in $S$ at $S = I$ must find: no slope is
# balance. Weight decay walks down this slope, and its penalty $\tfrac{\lambda}{2} (\|W_Q\|^2 + \|W_K\|^2)$, least over an orbit, is $\lambda \|M\|_*$.

# %%
beta = lambda q, k: head_metrics(q, k, q, k)["beta"]
slope = torch.func.grad(norm_of)(torch.eye(D, dtype=torch.float64))
assert apart(slope, 2 * gram_difference(W_Q, W_K)) < 1e-12
check("rebalancing", beta_as_slope=apart(slope.norm(), 2 * beta(W_Q, W_K)))

times = torch.linspace(-0.8, 0.8, 33, dtype=torch.float64)
at_times = lambda T: torch.linalg.matrix_exp(times[:, None, None] * T / T.norm())
along = lambda T: squared_norm(*act_query_key(at_times(T), A, B)) / shortest
curves = {
    "symmetric $T$": [along(Y + Y.mT) for Y in normal(4, D, D, seed=4)],
    "skew $T$": [along(Y - Y.mT) for Y in normal(2, D, D, seed=5)],
}
for curve in curves["symmetric $T$"]:  # convex, and least at t = 0
    assert (curve.diff().diff() > 0).all() and curve.argmin() == 16
for curve in curves["skew $T$"]:
    assert (curve - 1).abs().max() < 1e-12

# %% mystnb={"image": {"alt": "Left: the plane of two weights with orange hyperbolas crossed at right angles by grey ones. Black arrows run along orange ones to the diagonals, where one touches a dashed circle. Right: squared norm over its least value against t; four convex curves with their minimum one at zero, and a flat line for skew T."}, "figure": {"caption": "Left: the head with $E = D = 1$. Orbits (orange) keep $W_K W_Q$, gradient flow (grey) keeps $W_Q^2 - W_K^2$, and the two cross at right angles. Rebalancing (arrows) runs along an orbit to the nearest point with $|W_Q| = |W_K|$, where the orbit comes closest to the origin (dashed circle). Right: the squared norm along curves $(e^{tT} A, e^{-tT^\\top} B)$ through the balanced pair of the head with $D = 4$, relative to $2 \\|M\\|_*$.", "name": "fig-rebalancing-orbit"}}
figures.rebalancing_orbit(times, curves)

# %% [markdown]
# ### The nearest
#
# Three tests of {prf:ref}`prop-nearest` that know nothing of $F$. *Competitors:* 2,000 turns of the balanced pair from the singular value decomposition of $M$,
# half of them with a reflection, 2,000 small turns of the result, and the five pairs that L-BFGS has found all lie further away. *First order:* along every
# rotation of the result the squared distance has slope zero and positive curvature. *Search:* L-BFGS over rotations and reflections, from four starts each,
# comes no nearer.

# %%
away = lambda q, k: squared_norm(q - W_Q, k - W_K)
U, sigma, Vh = torch.linalg.svd(M)
root = sigma[:D, None].sqrt()
first = root * Vh[:D], root * U[:, :D].mT  # a balanced pair, by definition
Z = torch.linalg.qr(normal(2000, D, D, seed=6)).Q  # all of one determinant
Z[::2, 0] *= -1
assert {round(float(sign)) for sign in torch.linalg.det(Z)} == {-1, 1}
skew = normal(2000, D, D, seed=8)
nudges = torch.linalg.matrix_exp(0.05 * (skew - skew.mT))
rivals = [away(turns @ q, turns @ k) for turns, q, k in ((Z, *first), (nudges, A, B))]
rivals += [away(q, k)[None] for q, k in ends]
check("rebalancing", rivals=torch.cat(rivals).min() / away(A, B))

# %%
skew = skew_units(D)
turned = lambda x, q, k: [
    torch.linalg.matrix_exp((x @ skew.flatten(1)).view(D, D)) @ w for w in (q, k)
]
still = torch.zeros(len(skew), dtype=torch.float64)
here = lambda x: away(*turned(x, A, B)) / away(A, B)
curvature = torch.linalg.eigvalsh(torch.func.hessian(here)(still))
check("rebalancing", slope=torch.func.grad(here)(still).norm(), curvature=curvature)
flip = torch.diag(torch.tensor([-1.0, 1, 1, 1])).double()
reached = []
for begin in normal(4, len(skew), seed=7):
    for pair in (first, (flip @ first[0], flip @ first[1])):
        distance = lambda x: away(*turned(x, *pair)) / away(A, B)
        reached.append(float(distance(least(distance, begin))))
check("rebalancing", searched=abs(min(reached) - 1))

# %% [markdown]
# Part 2, with twenty rotations. The result is, however, not a function of $M$: other weights of the orbit have another nearest balanced pair.

# %%
for turn in Z[:20]:
    assert worst(nearest(turn @ A, turn @ B, W_Q, W_K), (A, B)) < 1e-12
    assert worst(rebalance(turn @ W_Q, turn @ W_K), (turn @ A, turn @ B)) < 1e-12
elsewhere = rebalance(*act_query_key(normal(D, D, seed=7), W_Q, W_K))
assert apart(elsewhere[1].mT @ elsewhere[0], M) < 1e-10 < 0.1 < apart(elsewhere[0], A)

# %% [markdown]
# ### A whole network
#
# `rebalance_model` balances every head of a GPT, biases included ({prf:ref}`prop-joint-action`), in place in the fused weight from which queries, keys and
# values come; the value rows stay.

# %%
corpus = load_corpus("embedded")
sizes = {"block_size": 32, "n_layer": 2, "n_head": 2, "n_embd": 16}
config = GPTConfig(len(corpus.vocabulary), bias=True, **sizes)


def small_gpt(seed):
    model = GPT(config, seed=seed).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "c_attn" in name:  # larger than at the start of training, biases too
                parameter.normal_(0, 0.3, generator=generator)
    return model


# %%
model = small_gpt(9)
tokens = get_batch(corpus.train, 32, 4, torch.Generator().manual_seed(8))[0]
logits = model(tokens)[0].detach()
old_weights = [head_weights(model, i) for i in (0, 1)]
fused, old_beta = model.transformer.h[0].attn.c_attn.weight, beta(*query_key(model))
memory, values = fused.data_ptr(), fused[32:].clone()
rebalance_model(model, torch.optim.AdamW(model.parameters()))
assert fused is model.transformer.h[0].attn.c_attn.weight
assert fused.data_ptr() == memory and torch.equal(fused[32:], values)
check("rebalancing", network_beta=beta(*query_key(model)) / old_beta)
check("rebalancing-biases", network=apart(model(tokens)[0].detach(), logits))

# %% [markdown]
# ### What it costs in a short format
#
# How far rebalancing has to go is $\kappa(S)$, which `rebalance` reports as `condition`. We move balanced pairs away by a known $\kappa(S)$, round them to a
# format, and from then on compare with the product of the *rounded* weights. One way back applies $S$ in that format, the other, the package's, does all
# arithmetic in float64 and rounds once. The bound of part 3 is checked on the way. Errors are relative changes of the product, in rounding units of the format,
# means of twenty heads.

# %%
exact = lambda q, k: k.double().mT @ q.double()


def costs(seed, decades, dtype):
    """Errors of weights as rounded, of S applied in the format, and rounded once."""
    a, b = rebalance(*normal(2, D, E, seed=seed))
    left, right = torch.linalg.qr(normal(2, D, D, seed=100 + seed)).Q
    stretch = torch.logspace(-decades / 2, decades / 2, D, dtype=torch.float64)
    back = left / stretch @ right.mT
    stored = [part.to(dtype) for part in act_query_key(back, a, b)]
    q, k = (part.double() for part in stored)
    result, S = rebalance(*stored), balancing_S(q, k)
    bound = torch.linalg.cond(q) * torch.linalg.cond(k)
    assert result.condition**2 <= bound * (1 + 1e-9)
    in_format = S.to(dtype) @ stored[0], torch.linalg.inv(S).mT.to(dtype) @ stored[1]
    errors = apart(exact(*stored), b.mT @ a), apart(exact(*in_format), exact(q, k))
    errors = torch.tensor([*errors, apart(exact(*result), exact(q, k))])
    return errors / (torch.finfo(dtype).eps / 2)


# %%
decades = {torch.float32: (1, 2, 3, 4), torch.bfloat16: (1, 2)}
table = [
    torch.stack([costs(seed, n, dtype) for seed in range(30, 50)]).mean(0)
    for dtype in decades
    for n in decades[dtype]
]
stored, in_format, once = torch.stack(table).T
kappa = 10.0 ** torch.tensor(sum(decades.values(), ()))
growth = (table[3] / table[0]).log10() / 3  # the power of kappa, in float32
check("rebalancing", units_stored=stored / kappa, units_in_format=in_format / kappa)
check("rebalancing", power_stored=growth[0], power_in_format=growth[1])
check("rebalancing", rounded_once=once)

# %% [markdown]
# Two errors grow in proportion to $\kappa(S)$, from 10 to $10^4$: that of applying $S$ in a short format, and that of *storing* unbalanced weights in the first
# place, since a rounding error in $W_Q$ is multiplied by the size of $W_K$. Either is between a twentieth and a half of $\kappa(S)$ rounding units. Rebalancing
# that rounds once loses less than one.
#
# ### Rotary heads
#
# The formula of {prf:ref}`prop-rotary-balance` against `rebalance(..., rotary=...)`, on a head with $D = 6$; then the outputs of the whole layer, which change
# if the head is balanced as if it did not turn. And the counts, for three planes of different angles, two of them alike, and all alike: where $n$ planes turn
# alike, the null directions that `measure` finds number $2n^2$ and the balanced ones, a unitary group, $n^2$.

# %%
frequencies = (1.0, 0.3, 0.1)
rotary = Attention(10, 1, head_dim=6, rotary=frequencies)
p_r = rotary.random_parameters(seed=17)
x = random_inputs(rotary, batch=4, length=8, seed=18)
q, k = p_r["W_Q"][0], p_r["W_K"][0]
lengths = lambda W: W.view(3, -1).norm(dim=1)  # of the D/2 complex rows
s = (lengths(k) / lengths(q)).sqrt().repeat_interleave(2)[:, None]
balanced = rebalance(q, k, rotary=frequencies)
outputs = lambda q, k: forward(rotary, p_r | {"W_Q": q[None], "W_K": k[None]}, x)
assert beta(*balanced) > 0.1 * beta(q, k)
assert apart(outputs(*rebalance(q, k)), outputs(q, k)) > 0.01  # as if it did not turn
check("rebalancing", rotary=worst(balanced, (s * q, k / s)))
check("rebalancing", rotary_outputs=apart(outputs(*balanced), outputs(q, k)))


# %%
def class_grams(classes):
    """Gram matrices of complex rows, q less k, one class of planes after the other."""
    rows = lambda W, c: torch.complex(W[[2 * i for i in c]], W[[2 * i + 1 for i in c]])
    gram = lambda W, c: torch.view_as_real(rows(W, c) @ rows(W, c).mH).flatten()
    return lambda q, k: torch.cat([gram(q, c) - gram(k, c) for c in classes])


alike = {
    (1.0, 0.3, 0.1): ([0], [1], [2]),
    (1.0, 1.0, 0.1): ([0, 1], [2]),
    (1.0, 1.0, 1.0): ([0, 1, 2],),
}
of_classes = []
for angles, classes in alike.items():
    head = Attention(8, 1, head_dim=6, value_dim=1, rotary=angles)
    p = head.random_parameters(seed=19)
    q, k = rebalance(p["W_Q"], p["W_K"], rotary=angles)
    assert class_grams(classes)(q[0], k[0]).abs().max() < 1e-12
    p |= {"W_Q": q, "W_K": k}
    of_classes.append(moved_and_kept(head, p, class_grams(classes)))
check("rebalancing", rotary_counts=of_classes)

# %% [markdown]
# ## The sawtooth
#
# Without biases gradient flow would keep $P_Q = P_K$ ({prf:ref}`lem-conserved`). Here are four runs of the package's `smoke` preset, with the same start and
# batches: AdamW; AdamW rebalanced every 20 steps, with the optimiser's moments of the fused weights cleared, as in the paper; and two controls, which clear the
# moments without moving weights, and move weights but keep the moments. Metrics are taken every 5 steps, before the step, so that the fall at a move is drawn
# as a slope.

# %%
cases = ("adamw", "rebalanced", "cleared", "moved")
with tempfile.TemporaryDirectory() as folder:
    records = {case: run(Job("smoke", case), folder) for case in cases}
steps = torch.as_tensor(records["adamw"].step)
in_heads = lambda case, metric: torch.from_numpy(records[case].heads[metric]).flatten(1)
betas = {case: in_heads(case, "beta") for case in cases}  # (measured, heads)
joint = in_heads("rebalanced", "joint_beta")

# %%
start, at_move = betas["adamw"][0], (steps > 0) & (steps % 20 == 0)
between = (steps > 20) & (steps % 20 != 0)
for case in ("rebalanced", "moved"):  # zero, but for float32, and gone 5 steps later
    assert (betas[case][at_move] < 1e-6 * start).all()
    assert (betas[case][between] > 1e-2 * start).all()
for case in ("adamw", "cleared"):  # never near zero
    assert (betas[case] > 0.5 * start).all()
assert joint[at_move][-1].mean() > 0.1 * start.mean()
titled = {records[case].settings["title"]: betas[case] for case in cases}

# %% mystnb={"image": {"alt": "Left: beta against the step. AdamW and the control with cleared state stay near their start and then rise. The other two fall to zero every twenty steps and climb in between, with ever smaller teeth. Right: the rebalanced run's beta of the weights falls to zero at each move; with biases it stops above zero from the second move on."}, "figure": {"caption": "A sawtooth, live. Left: $\\beta$ of each head (thin) and their mean (thick) in four runs of 100 steps, moved every 20 (dotted lines). Right: the rebalanced run from its first move on, on another scale, beside the joint $\\beta$ of weights with biases, which rebalancing of the weights does not bring to zero.", "name": "fig-sawtooth"}}
figures.sawtooth(steps.numpy(), titled, joint, 20)

# %% [markdown]
# {numref}`fig-sawtooth` has the paper's sawtooth on the left: a tooth appears where weights are moved, with or without the optimiser's memory, and clearing
# alone makes none. The right panel is about biases, which the paper's runs have.
#
# ### What should happen to the optimiser's memory
#
# When $W_Q$ becomes $S W_Q$, the gradient of any loss becomes $S^{-\top}$ times the old one. So Adam's first moment, a running sum of gradients, can be carried
# exactly, to $S^{-\top} m_Q$ and $S\, m_K$. The second moment cannot. It stores squares, and the rotation by $45°$ turns $(1, 1)$ and $(1, -1)$, which have the
# same squares, into the two coordinate directions. Squares suffice only where $S$ is a diagonal matrix times a permutation.
#
# One can clear the moments, as the paper does, or keep them, along axes which the weights have left. How far depends on the rotation: we compare at the start
# of a training run, head by head, the cosine between the old gradient and the carried one, with the nearest rotation and with the pair straight from the
# singular value decomposition.

# %%
batch = get_batch(corpus.train, 32, 8, torch.Generator().manual_seed(22))


def gradients(model):  # with biases as one more column, (layers, H, D, E + 1) each
    model.zero_grad()
    model(*batch)[1].backward()
    weights = query_key(model, gradient=True)
    return list(map(with_bias, weights, query_key(model, "bias", gradient=True)))


model = small_gpt(21)
old_Q, (g_Q, g_K) = query_key(model)[0], gradients(model)
rebalance_model(model, torch.optim.AdamW(model.parameters()))
S = query_key(model)[0] @ torch.linalg.pinv(old_Q)  # (layers, H, D, D)
assert worst(gradients(model), (torch.linalg.inv(S).mT @ g_Q, S @ g_K)) < 1e-8


# %%
def cosines(place):
    for q, k, g in zip(*(t.flatten(0, 1) for t in (*query_key(fresh), g_fresh))):
        carried = torch.linalg.inv(place(q, k)[0] @ torch.linalg.pinv(q)).mT @ g
        yield float((carried * g).sum() / (carried.norm() * g.norm()))


fresh = GPT(config, seed=23).double()
g_fresh, _ = gradients(fresh)
assert min(cosines(rebalance)) > 0.9 and max(map(abs, cosines(balanced_pair))) < 0.5
print("cosines: above 0.9 with the nearest rotation, below 0.5 without")

# %% [markdown]
# ```{prf:remark} Departure from the paper
# :label: rem-12-moments
#
# The paper says that rebalancing destroys what the optimiser has gathered about higher moments. That is true of second moments. First moments transform by a
# known matrix and need not be lost; the nearest rotation keeps both nearly valid when the weights move little.
# ```
#
# ## Break it
#
# **Weights without their biases.** The product $M$ stays. But the outputs also see $W_K^\top b_Q$ ({prf:ref}`lem-key-bias`), and that changes, and with it the
# outputs of a layer with random weights and of the network above. With `rebalance(W_Q, W_K, b_Q, b_K)` both stay.

# %%
layer = Attention(8, 2, bias="qkvo")
p_b, x_b = layer.random_parameters(seed=3), random_inputs(layer, 4, 7, seed=4)
names = ("W_Q", "W_K", "b_Q", "b_K")
together = p_b | dict(zip(names, rebalance(*(p_b[n] for n in names))))
alone = p_b | dict(zip(names, rebalance(p_b["W_Q"], p_b["W_K"])))
visible = lambda p: torch.einsum("hde,hd->he", p["W_K"], p["b_Q"])
after = lambda p: apart(forward(layer, p, x_b), forward(layer, p_b, x_b))
check("rebalancing-biases", visible=apart(visible(together), visible(p_b)))
check("rebalancing-biases", visible_alone=apart(visible(alone), visible(p_b)))
check("rebalancing-biases", outputs=after(together), outputs_alone=after(alone))
model = small_gpt(9)
for i, old in enumerate(old_weights):
    q, k = rebalance(old["W_Q"], old["W_K"])
    set_head_weights(model, i, W_Q=q, W_K=k)
check("rebalancing-biases", network_alone=apart(model(tokens)[0].detach(), logits))

# %% [markdown]
# With biases gradient flow conserves $P_Q - P_K + b_Q b_Q^\top - b_K b_K^\top$ ({prf:ref}`prop-conserved-bias`). Balancing the weights and carrying the biases
# along leaves $b_Q b_Q^\top - b_K b_K^\top$ of it: that is the curve that will not come down in {numref}`fig-sawtooth`. Balancing the **joint** weights
# $(W_Q\; b_Q)$ and $(W_K\; b_K)$ brings it to zero, and keeps the scores as well, with $P_Q \neq P_K$.

# %%
b_Q, b_K = normal(D, seed=24), normal(D, seed=25)
q, k, c_Q, c_K = rebalance(W_Q, W_K, b_Q, b_K)
carried_pair = with_bias(q, c_Q), with_bias(k, c_K)
joint_pair = rebalance(with_bias(W_Q, b_Q), with_bias(W_K, b_K))
joint_scores = with_bias(W_K, b_K).mT @ with_bias(W_Q, b_Q)
check(
    "rebalancing-biases",
    scores=[apart(k.mT @ q, joint_scores) for q, k in (carried_pair, joint_pair)],
    left_over=beta(*carried_pair) / beta(with_bias(W_Q, b_Q), with_bias(W_K, b_K)),
)
check("rebalancing-biases", joint=beta(*joint_pair))
check("rebalancing-biases", weights_of_joint=beta(*(w[:, :-1] for w in joint_pair)))

# %% [markdown]
# ```{prf:remark} Departure from the paper
# :label: rem-12-biases
#
# The paper's runs have biases, and its description of rebalancing mentions weights only. Moved alone, they change the function. And with biases what gradient
# flow conserves, and rebalancing is said to bring to zero, is the joint matrix.
# ```
#
# **No full rank.** Give $W_Q$ rank $D - 1$. There are balanced factors with the same product, of least norm by {prf:ref}`prop-least-norm`. But both have rank
# $D - 1$ while $W_K$ had rank $D$: no nonsingular $S$ leads there, and a bias has nothing to follow. `rebalance` reports an infinite condition, and refuses
# biases. The paper's $\mu$ gives no warning: it vanishes only if both $P_Q$ and $P_K$ are singular.

# %%
U, sigma, Vh = torch.linalg.svd(W_Q, full_matrices=False)
thin = U[:, :-1] * sigma[:-1] @ Vh[:-1]
q, k = rebalance(thin, W_K)
assert [rank(w, 1e-6) for w in (thin, W_K, q, k)] == [D - 1, D, D - 1, D - 1]
assert apart(k.mT @ q, W_K.mT @ thin) < 1e-12 and apart(q @ q.mT, k @ k.mT) < 1e-12
assert torch.isinf(rebalance(thin, W_K).condition)
assert head_metrics(thin, W_K, thin, W_K)["mu"] > 0.1
try:
    rebalance(thin, W_K, b_Q, b_K)
    raise AssertionError("no error")
except ValueError as error:
    print(error)

# %% [markdown]
# ## What it means
#
# Every orbit of full rank has balanced pairs, its shortest ones, a rotation away from one another, and exactly one is nearest to where training stands. The
# function stays if everything attached to the weights moves with them. So if a training run then changes its course, the reason is how the optimiser sees the
# function. Gradient descent does not see rotations, Adam does ({prf:ref}`prop-respects`): for Adam the last rotation is part of what one does to the run, and
# the nearest one moves the weights least.
#
# That $\beta$ falls to zero at a move is so by construction, and no finding about training. How fast it grows in between, without biases, shows how far the
# optimiser is from gradient flow.
#
# ## Exercises
#
# **1. One number.** For $D = 1$ write down $S$, the balanced pairs, and what rebalancing does.
#
# ```{admonition} Answer
# :class: dropdown
#
# $O(1) = \{1, -1\}$, so there are two balanced pairs. $\Psi = \|W_K\| / \|W_Q\|$, and the nearest takes $S = \sqrt{\|W_K\| / \|W_Q\|}$: both rows get the
# geometric mean of their lengths.
# ```

# %% tags=["hide-cell"]
row_Q, row_K = normal(1, 5, seed=26), 7 * normal(1, 5, seed=27)
s = (row_K.norm() / row_Q.norm()).sqrt()
assert worst(rebalance(row_Q, row_K), (s * row_Q, row_K / s)) < 1e-12

# %% [markdown]
# **2. Without the rotation.** Suppose one takes the pair straight from the singular value decomposition. Does rebalancing twice still move nothing?
#
# ```{admonition} Answer
# :class: dropdown
#
# The second time the program sees a pair with Gram matrices $\Sigma$ and returns it up to signs of rows, one for each singular vector, if the singular values
# differ. But the first move is a longer one, and moments that are kept belong to other axes, as the cosines above showed.
# ```

# %% tags=["hide-cell"]
once = balanced_pair(W_Q, W_K)
twice = balanced_pair(*once)
signs = (once[0] * twice[0]).sum(1, keepdim=True).sign()
assert worst((signs * twice[0], signs * twice[1]), once) < 1e-10
assert (away(*once) / away(A, B)).sqrt() > 1.2

# %% [markdown]
# **Next:** the paper's own experiments, with many seeds. There the question is no longer what rebalancing does to $\beta$ but whether the loss can tell.
