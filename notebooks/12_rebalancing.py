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
# *Assumed: the {term}`orbit` of a head, {prf:ref}`prop-orbit`; what {term}`gradient flow` conserves, {prf:ref}`lem-conserved`; and that a
# positive definite matrix has exactly one positive definite square root.*
#
# *In the ledger:* {ref}`rebalancing <ledger-rebalancing>`, {ref}`rebalancing and biases <ledger-rebalancing-biases>`.
#
# ## The question
#
# A head's {term}`score product` $M = W_K^\top W_Q$ leaves $D^2$ numbers of its weights open. Training picks some of them anyhow: an
# optimiser such as Adam moves weights along the orbit as well as across it, and $P - K$, with $P = W_Q W_Q^\top$ and $K = W_K W_K^\top$,
# wanders. The paper puts this right now and then. Every 200 steps it replaces the weights by others in the same orbit with $P = K$, and
# watches whether training minds.
#
# This is a choice of representative: of all weights with one function, take those with equal {term}`Gram matrices <Gram matrix>`.
# {cite:t}`zhao2025` survey such choices. Is there always a {term}`balanced` pair in an orbit? How many are there, which is the right one,
# what does moving there cost, and what happens to all that is attached to the weights, biases, rotations and the optimiser's memory?

# %% [markdown]
# ## The claim
#
# A pair $(A, B)$ of $D \times E$ matrices is **balanced** if $A A^\top = B B^\top$. Norms without an index are Frobenius norms, $\kappa$ is
# the ratio of the largest to the smallest singular value, and $\|M\|_*$ is the nuclear norm, the sum of the singular values.
#
# ```{prf:proposition} The balanced pairs of an orbit (paper: section 5.2.2)
# :label: prop-balanced-orbit
#
# Let $D \le E$, let $W_Q, W_K$ have rank $D$, and let $M = W_K^\top W_Q = U \Sigma V^\top$ be a thin singular value decomposition.
#
# 1. The balanced pairs with product $M$ are exactly
#
#    $$
#    (Z\, \Sigma^{1/2} V^\top,\; Z\, \Sigma^{1/2} U^\top), \qquad Z \in O(D) .
#    $$
# 2. $(S W_Q, S^{-\top} W_K)$ is balanced if and only if $T = S^\top S$ solves $T P\, T = K$. The only positive definite solution is
#
#    $$
#    T = P^{-1/2} \big( P^{1/2} K P^{1/2} \big)^{1/2} P^{-1/2} .
#    $$
# 3. For each such $S$, $\kappa(S)^2 \le \kappa(W_Q)\, \kappa(W_K)$.
# ```
#
# So balance settles $D(D+1)/2$ of the $D^2$ open numbers and leaves a rotation. The second part needs no decomposition of anything
# larger than $D \times D$; $T$ is known as the geometric mean of $P^{-1}$ and $K$.
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
# Under the hypotheses of {prf:ref}`prop-balanced-orbit` let $(A, B)$ be any balanced pair with product $M$, and let
# $C = W_Q A^\top + W_K B^\top$.
#
# 1. $C$ is nonsingular. With a singular value decomposition $C = U_C \Sigma_C V_C^\top$, exactly one balanced pair with product $M$
#    is nearest to $(W_Q, W_K)$: the pair $(Z A, Z B)$ with $Z = U_C V_C^\top$.
# 2. Hence it does not depend on the pair $(A, B)$ that one starts from, {term}`rebalancing` twice moves nothing, and for $Z' \in O(D)$
#    rebalancing $(Z' W_Q, Z' W_K)$ gives $Z'$ times the result for $(W_Q, W_K)$.
# ```
#
# Under {term}`rotary positions <rotary position>` less is allowed: $S$ must commute with the rotations. Take a plane that turns, and read
# its two rows of $W_Q$ as the real and imaginary part of one row $q_i \in \mathbb{C}^E$; likewise $k_i$ for $W_K$.
#
# ```{prf:proposition} Balance under rotation
# :label: prop-rotary-balance
#
# Let all coordinates of a head lie in planes, turning by angles that differ modulo sign and $2\pi$, none a multiple of $\pi$, and let no
# $q_i$ or $k_i$ be zero. Over all nonsingular $S$ that commute with the rotations, $\|S W_Q\|^2 + \|S^{-\top} W_K\|^2$ is least exactly
# where in each of the $D/2$ planes queries and keys have equal length, and the pair nearest to the old weights that does so multiplies
# plane $i$ of $W_Q$ by
#
# $$
# s_i = \sqrt{\|k_i\| / \|q_i\|}
# $$
#
# and divides plane $i$ of $W_K$ by it. Where $n$ planes turn alike (rows of planes that turn backwards conjugated), the same holds with the
# $n \times n$ Hermitian Gram matrices of their complex rows, once these rows are independent, and $U(n)$ in the place of $O(D)$.
# ```

# %% [markdown]
# ## Proof
#
# The proof on the nearest pair stands open below, the others are folded.
#
# ````{admonition} Proof of what is balanced in an orbit
# :class: dropdown
#
# (Of {prf:ref}`prop-balanced-orbit`.)
# *1.* Both factors with $Z = I$ have Gram matrix $\Sigma$, and their product is $M$. By {prf:ref}`prop-orbit` every other pair with product
# $M$ is $(S\, \Sigma^{1/2} V^\top, S^{-\top} \Sigma^{1/2} U^\top)$ with one nonsingular $S$, and it is balanced if and only if $S \Sigma
# S^\top = S^{-\top} \Sigma S^{-1}$. With $T = S^\top S$ this reads $T \Sigma T = \Sigma$, or $(\Sigma^{1/2} T\, \Sigma^{1/2})^2 =
# \Sigma^2$. Both sides are squares of positive definite matrices, so $\Sigma^{1/2} T\, \Sigma^{1/2} = \Sigma$, hence $T = I$, and $S$ is
# orthogonal.
#
# *2.* Likewise $S P S^\top = S^{-\top} K S^{-1}$ says $T P\, T = K$, or $(P^{1/2} T P^{1/2})^2 = P^{1/2} K P^{1/2}$: the square root is
# unique, and gives $T$.
#
# *3.* $\kappa(S)^2 = \kappa(T)$. Let $k$ be the largest eigenvalue of $K$ and $p$ the smallest of $P$. From $P^{1/2} K P^{1/2} \preceq k P$
# follows $(P^{1/2} K P^{1/2})^{1/2} \preceq k^{1/2} P^{1/2}$, since the square root keeps the order of matrices; so $T \preceq k^{1/2}
# P^{-1/2} \preceq (k/p)^{1/2} I$. The smallest eigenvalue of $T$ is bounded below in the same way, with the smallest eigenvalue of $K$ and
# the largest of $P$. The quotient is $\sqrt{\kappa(P)\, \kappa(K)} = \kappa(W_Q)\, \kappa(W_K)$.
# ````
#
# ````{admonition} Proof of the least norm
# :class: dropdown
#
# (Of {prf:ref}`prop-least-norm`.)
# Let $B^\top A = U \Sigma V^\top$, thin and without zero singular values. Then
#
# $$
# \begin{aligned}
# \|B^\top A\|_* = \mathrm{tr}\, U^\top B^\top A\, V = \langle B U, A V \rangle
# &\le \tfrac12 \big( \|B U\|^2 + \|A V\|^2 \big) \\
# &\le \tfrac12 \big( \|B\|^2 + \|A\|^2 \big) .
# \end{aligned}
# $$
#
# Equality holds if and only if $B U = A V$, $B = B U U^\top$ and $A = A V V^\top$, and then $A A^\top = A V V^\top A^\top = B U U^\top
# B^\top = B B^\top$. Conversely let both Gram matrices be $G$. Then $A = G^{1/2} X$ and $B = G^{1/2} Y$ with $X X^\top = Y Y^\top$ the
# orthogonal projection on the range of $G$. So $B^\top A = Y^\top G X$ has the nonzero eigenvalues of $G$ as its singular values, and $2
# \|B^\top A\|_* = 2\, \mathrm{tr}\, G = \|A\|^2 + \|B\|^2$.
# ````
#
# ````{prf:proof}
# (of {prf:ref}`prop-nearest`)
# *1.* By {prf:ref}`prop-balanced-orbit` the candidates are $(Z A, Z B)$, and
#
# $$
# \begin{gathered}
# \|Z A - W_Q\|^2 + \|Z B - W_K\|^2 = \text{const} - 2\, \mathrm{tr}\, Z^\top C, \\
# \mathrm{tr}\, Z^\top C = \mathrm{tr}\, (V_C^\top Z^\top U_C)\, \Sigma_C \le \mathrm{tr}\, \Sigma_C .
# \end{gathered}
# $$
#
# If $\Sigma_C$ has no zero, equality holds for $V_C^\top Z^\top U_C = I$ alone. It has none: write $(A, B) = (Z_0 T^{1/2} W_Q,\, Z_0
# T^{-1/2} W_K)$ and use $K = T P\, T$ to find $C = (P T^{1/2} + K T^{-1/2}) Z_0^\top = (I + T)\, P\, T^{1/2} Z_0^\top$, a product of
# nonsingular matrices.
#
# *2.* The nearest pair is described without $(A, B)$. A balanced pair is a candidate at distance zero from itself. And a rotation $Z'$
# common to all maps candidates to candidates and keeps distances.
# ````
#
# ````{admonition} Proof of balance under rotation
# :class: dropdown
#
# (Of {prf:ref}`prop-rotary-balance`.)
# By {prf:ref}`lem-commutant`, $S$ multiplies each $q_i$ by a complex number $s_i \ne 0$ and $k_i$ by $\bar s_i^{-1}$. The norm is $\sum_i
# |s_i|^2 \|q_i\|^2 + |s_i|^{-2} \|k_i\|^2$, least at $|s_i|^2 = \|k_i\| / \|q_i\|$, where both terms are $\|q_i\| \|k_i\|$. The squared
# distance from the old weights is a constant minus twice the real part of $\sum_i s_i \|q_i\|^2 + s_i^{-1} \|k_i\|^2$. Among all $s_i$ of a
# given modulus, $s_i > 0$ alone makes this real part largest. For planes that turn alike the blocks of $S$ are complex $n \times n$
# matrices, and the proofs above hold word by word, with adjoints for transposes.
# ````
#
# ```{prf:remark} Departure from the paper
# :label: rem-12-order
#
# The paper prints the new key weights as $\Sigma^{1/2} Q_K^\top U_M^\top$, with $Q_K$ of size $E \times D$ and $U_M$ of size $D \times D$:
# the two last factors are interchanged, and for $D < E$ the product does not exist. It must be $\Sigma^{1/2} U_M^\top Q_K^\top$. That its
# rotation finds the nearest of *all* balanced pairs in the orbit, that there is only one, and what these pairs minimise are our additions.
# ```

# %% [markdown]
# ## The same symbols in code
#
# Take thin QR decompositions of the transposed weights, and a small singular value decomposition of what is between:
#
# $$
# \begin{gathered}
# W_Q^\top = O_Q R_Q, \qquad W_K^\top = O_K R_K, \qquad R_K R_Q^\top = U_M \Sigma V_M^\top, \\
# A = \Sigma^{1/2} V_M^\top O_Q^\top, \qquad B = \Sigma^{1/2} U_M^\top O_K^\top .
# \end{gathered}
# $$
#
# Nothing of size $E \times E$ is formed.

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
    (O_Q, R_Q), (O_K, R_K) = torch.linalg.qr(W_Q.mT), torch.linalg.qr(W_K.mT)
    U, sigma, Vh = torch.linalg.svd(R_K @ R_Q.mT)
    root = sigma.sqrt()[:, None]
    return root * (Vh @ O_Q.mT), root * (U.mT @ O_K.mT)


# %% [markdown]
# Then one rotation, common to both factors, towards the old weights (an orthogonal Procrustes problem):
#
# $$
# C = W_Q A^\top + W_K B^\top = U_C \Sigma_C V_C^\top, \qquad Z = U_C V_C^\top .
# $$


# %%
def nearest(A, B, W_Q, W_K):
    U, _, Vh = torch.linalg.svd(W_Q @ A.mT + W_K @ B.mT)
    return U @ Vh @ A, U @ Vh @ B


def worst(found, expected):
    """The largest relative change from one list of tensors to another."""
    return max(apart(new, old) for new, old in zip(found, expected))


# %% [markdown]
# `attnid.rebalance` does these two steps for any batch of heads. A second program shares no step with it. It uses part 2 of
# {prf:ref}`prop-balanced-orbit` and the formula for $C$ in the proof of {prf:ref}`prop-nearest`: from $P$ and $K$ alone,
#
# $$
# S = Z\, T^{1/2}, \qquad Z \text{ the orthogonal factor of } (I + T)\, P\, T^{1/2} .
# $$


# %%
def power(G, exponent):  # of a positive definite matrix
    values, U = torch.linalg.eigh(G)
    return U * values**exponent @ U.mT


def balancing_S(W_Q, W_K):
    P, K = W_Q @ W_Q.mT, W_K @ W_K.mT
    T = power(P, -0.5) @ power(power(P, 0.5) @ K @ power(P, 0.5), 0.5) @ power(P, -0.5)
    half = power(T, 0.5)
    U, _, Vh = torch.linalg.svd((torch.eye(len(P), dtype=P.dtype) + T) @ P @ half)
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
# The order of factors that the paper prints can be tried where $D = E$, since all of them are square there. It gives another product.

# %%
square_Q, square_K = normal(D, D, seed=1), normal(D, D, seed=2)
(O_Q, R_Q), (O_K, R_K) = torch.linalg.qr(square_Q.mT), torch.linalg.qr(square_K.mT)
U, sigma, Vh = torch.linalg.svd(R_K @ R_Q.mT)
queries, root = sigma.sqrt()[:, None] * (Vh @ O_Q.mT), sigma.sqrt()[:, None]
for order, keys in {"printed": O_K.mT @ U.mT, "ours": U.mT @ O_K.mT}.items():
    error = apart((root * keys).mT @ queries, square_K.mT @ square_Q)
    if order == "printed":
        check("rebalancing", printed_order=error)
    else:
        assert error < 1e-12

# %% [markdown]
# ## The check
#
# Every part of the claim on one head, then on a whole network, in a short number format, and for heads that turn.
#
# ### How many balanced pairs
#
# The {term}`null directions <null direction>` at $(W_Q, W_K)$ are the tangents of its orbit. Along $(T W_Q, -T^\top W_K)$ the matrix
# $P - K$ changes by $T P + P T^\top + T^\top K + K T$, to first order. The directions that keep it should have dimension $D(D-1)/2$, the
# dimension of $O(D)$, and the others $D(D+1)/2$. We take the null directions from `measure`, which finds them in the layer's outputs and
# knows of no $S$, and compare with the skew $T$ at a balanced pair, $D = 1, \dots, 4$.


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
# {prf:ref}`prop-least-norm` against an optimiser that is told nothing of it: L-BFGS over all entries of $S$, from five random starts. Every
# start must end at $2 \|M\|_*$ and at a balanced pair. Which one differs from start to start.


# %%
def least(of, start):
    """Where L-BFGS ends that makes a function small."""
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
# There is a reason why every start arrives. Along a null direction $T$ the squared norm changes at the rate
#
# $$
# \frac{d}{dt} \Big( \|W_Q + t\, T W_Q\|^2 + \|W_K - t\, T^\top W_K\|^2 \Big)_{t = 0} = 2\, \mathrm{tr}\, T (P - K) .
# $$
#
# So $\beta = \|P - K\|$ is half the steepest slope, over $\|T\| = 1$, of the squared norm within the orbit. Where there is no slope there
# is balance, and every balanced pair has the same norm. What weight decay does within the orbit is to walk down this slope; and the penalty
# $\tfrac{\lambda}{2} (\|W_Q\|^2 + \|W_K\|^2)$, least over an orbit, is $\lambda \|M\|_*$. So the gradient of the squared norm in $S$, taken
# by automatic differentiation at $S = I$, has the length $2\beta$.

# %%
beta = lambda q, k: head_metrics(q, k, q, k)["beta"]
slope = torch.func.grad(norm_of)(torch.eye(D, dtype=torch.float64))
assert apart(slope, 2 * gram_difference(W_Q, W_K)) < 1e-12
check("rebalancing", beta_as_slope=apart(slope.norm(), 2 * beta(W_Q, W_K)))

# %% [markdown]
# {numref}`fig-rebalancing-orbit` shows both: on the left the simplest head, $E = D = 1$, whose orbits are hyperbolas; on the right the norm
# along curves $(e^{tX} A,\, e^{-tX^\top} B)$ through the balanced pair of the head above. Symmetric $X$ change the norm, and skew ones,
# which rotate, do not.

# %%
times = torch.linspace(-0.8, 0.8, 33, dtype=torch.float64)
at_times = lambda X: torch.linalg.matrix_exp(times[:, None, None] * X / X.norm())
along = lambda X: squared_norm(*act_query_key(at_times(X), A, B)) / shortest
curves = {
    "symmetric $X$": [along(G + G.mT) for G in normal(4, D, D, seed=4)],
    "skew $X$": [along(G - G.mT) for G in normal(2, D, D, seed=5)],
}
for curve in curves["symmetric $X$"]:  # convex, and least at t = 0
    assert (curve.diff().diff() > 0).all() and curve.argmin() == 16
for curve in curves["skew $X$"]:
    assert (curve - 1).abs().max() < 1e-12

# %% mystnb={"image": {"alt": "Left: the plane of two weights with orange hyperbolas, the orbits, crossed at right angles by grey hyperbolas, the paths of gradient flow. Black arrows run along orbits from unbalanced weights to the diagonals, where an orbit touches a dashed circle about the origin. Right: squared norm over its least value against t; four convex curves with their minimum one at t equal to zero, and a flat line for skew X."}, "figure": {"caption": "Left: the head with $E = D = 1$. Orbits (orange) keep $W_K W_Q$, gradient flow (grey) keeps $W_Q^2 - W_K^2$, and the two cross at right angles. Rebalancing (arrows) runs along an orbit to the nearest point with $|W_Q| = |W_K|$, where the orbit comes closest to the origin (dashed circle). Right: the squared norm along the orbit of a head with $D = 4$, relative to $2 \\|M\\|_*$: along symmetric $X$ it is convex and least at the balanced pair, along skew $X$ it is constant.", "name": "fig-rebalancing-orbit"}}
figures.rebalancing_orbit(times, curves)

# %% [markdown]
# ### The nearest
#
# Three tests of {prf:ref}`prop-nearest` that know nothing of $C$. *Competitors:* 2,000 balanced pairs with the product $M$ from its singular
# value decomposition, turned at random, half of them with a reflection, 2,000 small turns of the result, and the five pairs that L-BFGS has
# found all lie further away. *First
# order:* along every rotation of the result the squared distance has slope zero, by automatic differentiation, and curvature above it.
# *Search:* L-BFGS over rotations and reflections, from four starts each, comes no nearer.

# %%
away = lambda q, k: squared_norm(q - W_Q, k - W_K)
U, sigma, Vh = torch.linalg.svd(M)
root = sigma[:D, None].sqrt()
first = root * Vh[:D], root * U[:, :D].mT  # a balanced pair, by definition
Z = torch.linalg.qr(normal(2000, D, D, seed=6)).Q  # all of one determinant
Z[::2, 0] *= -1
assert {round(float(sign)) for sign in torch.linalg.det(Z)} == {-1, 1}
G = normal(2000, D, D, seed=8)
nudges = torch.linalg.matrix_exp(0.05 * (G - G.mT))
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
# Second, the result does not depend on the balanced pair one starts from, and rotations of the old weights carry over. Third, what the pair
# stands on: $C$ is nonsingular.

# %%
for turn in Z[:20]:
    assert worst(nearest(turn @ A, turn @ B, W_Q, W_K), (A, B)) < 1e-12
    assert worst(rebalance(turn @ W_Q, turn @ W_K), (turn @ A, turn @ B)) < 1e-12
assert torch.linalg.svdvals(W_Q @ A.mT + W_K @ B.mT)[-1] > 0.1

# %% [markdown]
# The singular vectors of $M$ are fixed only up to sign, and where singular values meet not even so. The result does not mind, by the same
# proposition. It is, however, not a function of $M$: other weights of the same orbit have another nearest balanced pair. Balance with the
# nearest rotation is a projection of the orbit onto its balanced pairs, not one canonical point.

# %%
elsewhere = rebalance(*act_query_key(normal(D, D, seed=7), W_Q, W_K))
assert apart(elsewhere[1].mT @ elsewhere[0], M) < 1e-10
assert apart(elsewhere[0], A) > 0.1
turn = elsewhere[0] @ torch.linalg.pinv(A)
assert apart(turn @ turn.mT, torch.eye(D, dtype=torch.float64)) < 1e-10
assert apart(turn @ B, elsewhere[1]) < 1e-10

# %% [markdown]
# ### A whole network
#
# `rebalance_model` balances every head of a GPT: two layers, two heads each, with biases that are not zero. Weights and biases move
# together, as {prf:ref}`prop-joint-action` asks, and they are copied in place into the fused weight from which queries, keys and values
# come; the value rows stay as they are.

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
logits, old_weights = (
    model(tokens)[0].detach(),
    [head_weights(model, i) for i in (0, 1)],
)
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
# How far rebalancing has to go is $\kappa(S)$, which `rebalance` reports as `condition`. We make heads that are further and further from
# balance: a balanced pair moved by $S_0^{-1}$, so that the way back has $\kappa(S) = \kappa(S_0)$. They are rounded to a format, and from
# then on we compare with the product of the *rounded* weights. One way applies $S$ in that format. The other, the package's, does all
# arithmetic in float64 and rounds once. The bound of part 3 is checked on the way. Errors are relative changes of the product, in rounding
# units of the format, means of twenty heads.

# %%
exact = lambda q, k: k.double().mT @ q.double()


def costs(seed, decades, dtype):
    """Errors of weights as rounded, of S applied in the format, and rounded once."""
    a, b = rebalance(*normal(2, D, E, seed=seed))
    (left, right), unit = torch.linalg.qr(normal(2, D, D, seed=100 + seed)).Q, None
    stretch = torch.logspace(-decades / 2, decades / 2, D, dtype=torch.float64)
    back = left / stretch @ right.mT
    stored = [part.to(dtype) for part in act_query_key(back, a, b)]
    q, k = (part.double() for part in stored)
    result, S = rebalance(*stored), balancing_S(q, k)
    bound = torch.linalg.cond(q) * torch.linalg.cond(k)
    assert result.condition**2 <= bound * (1 + 1e-9)
    in_format = S.to(dtype) @ stored[0], torch.linalg.inv(S).mT.to(dtype) @ stored[1]
    unit = torch.finfo(dtype).eps / 2
    errors = apart(exact(*stored), b.mT @ a), apart(exact(*in_format), exact(q, k))
    return torch.tensor([*errors, apart(exact(*result), exact(q, k))]) / unit


mean_costs = lambda decades, dtype: (
    sum(costs(seed, decades, dtype) for seed in range(30, 50)) / 20
)

# %%
decades = {torch.float32: (1, 2, 3, 4), torch.bfloat16: (1, 2)}
table = torch.stack([mean_costs(n, dtype) for dtype in decades for n in decades[dtype]])
kappa = 10.0 ** torch.tensor(sum(decades.values(), ()))
stored, in_format, once = table.T
growth = (table[3] / table[0]).log10() / 3  # the power of kappa, in float32
check("rebalancing", units_stored=stored / kappa, units_in_format=in_format / kappa)
check("rebalancing", power_stored=growth[0], power_in_format=growth[1])
check("rebalancing", rounded_once=once)

# %% [markdown]
# Two errors grow in proportion to $\kappa(S)$, from 10 to $10^4$, and rebalancing done with care has neither. Applying $S$ in a short format
# loses about $\kappa(S)/6$ rounding units. And *storing* unbalanced weights in the first place loses about $\kappa(S)/10$: a rounding error
# in $W_Q$ is multiplied by the size of $W_K$, and by {prf:ref}`prop-least-norm` the balanced pair has the smallest factors for its product. In
# bfloat16 weights with $\kappa(S) = 100$ have lost some ten rounding units of $M$ before anybody rebalances; rounding the balanced pair
# loses less than one.
#
# ### Rotary heads
#
# With distinct frequencies all there is to balance are the $D/2$ numbers $\|q_i\|^2 - \|k_i\|^2$. The formula of
# {prf:ref}`prop-rotary-balance`, written out, against `rebalance(..., rotary=...)`, on a head with $D = 6$; then the outputs of the whole
# layer. $P - K$ does not vanish: most of it is out of reach.

# %%
frequencies = (1.0, 0.3, 0.1)
rotary = Attention(10, 1, head_dim=6, rotary=frequencies)
p_r = rotary.random_parameters(seed=17)
x = random_inputs(rotary, batch=4, length=8, seed=18)
q, k = p_r["W_Q"][0], p_r["W_K"][0]
lengths = lambda W: W.view(3, -1).norm(dim=1)  # of the D/2 complex rows
s = (lengths(k) / lengths(q)).sqrt().repeat_interleave(2)[:, None]
q_r, k_r = rebalance(q, k, rotary=frequencies)
y = forward(rotary, p_r, x)
assert apart(lengths(q_r), lengths(k_r)) < 1e-12 and beta(q_r, k_r) > 0.1 * beta(q, k)
check(
    "rebalancing",
    rotary=worst((q_r, k_r), (s * q, k / s)),
    rotary_outputs=apart(
        forward(rotary, p_r | {"W_Q": q_r[None], "W_K": k_r[None]}, x), y
    ),
)

# %% [markdown]
# The counts change with the pattern of the angles, and `measure` finds them in the outputs. Where $n$ planes turn alike, the null
# directions number $2n^2$ and the balanced ones, a unitary group, $n^2$. The quantity to be balanced is the Hermitian Gram matrix of each
# class of planes. Three planes of different angles, two of them alike, and all alike:


# %%
def class_grams(classes):
    """Q Q^* - K K^* as real numbers, one class of planes after the other."""
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
# Rebalancing during training: what should happen between two moves, and what does.
#
# ### Balance and gradient flow
#
# By {prf:ref}`lem-conserved` gradient flow keeps $P - K$. So once $P = K$, it stays so, and a reader of $\beta$ sees a flat line at zero.
# Steps of finite size leave it, by an amount of order $\eta^2$ each ({prf:ref}`lem-one-step`). We run plain gradient descent on a loss of
# $M$, from the balanced pair, for the same time with $\eta$ and with $\eta/2$: twice the steps, each with a quarter of the {term}`drift`, so
# half of $\beta$ at the end.

# %%
target = normal(E, E, seed=20) / E**0.5
loss_of = lambda q, k: (k.mT @ q / D - target).square().mean()


def beta_after_descent(eta, q, k):
    for _ in range(round(4 / eta)):
        dq, dk = torch.func.grad(loss_of, argnums=(0, 1))(q, k)
        q, k = q - eta * dq, k - eta * dk
    return float(beta(q, k))


coarse, fine = (beta_after_descent(eta, A, B) for eta in (0.1, 0.05))
assert abs(coarse / fine - 2) < 0.05 and coarse < 1e-3 * beta(W_Q, W_K)
print(f"twice the rate, {coarse / fine:.1f} times the beta at the end")

# %% [markdown]
# ### A live run
#
# Adam does not stay. Here are four runs of the package's `smoke` preset, a network small enough to train while you wait: AdamW; AdamW
# rebalanced every 20 steps, with the optimiser's moments of the fused weights cleared, as in the paper; and two controls, which clear the
# moments without moving weights, and move weights but keep the moments. The same seed gives all four the same start and the same batches.
# Metrics are taken every 5 steps, before the step, so that the fall at a move is drawn as a slope.

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
    assert (betas[case][between].view(-1, 3, 4).diff(dim=1) > 0).all()
for case in ("adamw", "cleared"):  # never near zero
    assert (betas[case] > 0.5 * start).all()
    assert betas[case][-1].mean() > 1.1 * start.mean()
assert (joint[at_move].mean(1).diff() > 0).all()
assert joint[at_move][-1].mean() > 0.1 * start.mean()
assert all(torch.equal(values[:4], betas["adamw"][:4]) for values in betas.values())

# %% mystnb={"image": {"alt": "Left: beta against the step. AdamW and the control with cleared state stay near their start and then rise slowly. The rebalanced run and the control that keeps its moments fall to zero every twenty steps and climb in between, with ever smaller teeth. Right: from the first move on, the rebalanced run's beta of the weights falls to zero at each move; with biases it falls too, but from the second move on it stops clearly above zero."}, "figure": {"caption": "A sawtooth, live. Left: $\\beta$ of each head (thin) and their mean (thick) in four runs of 100 steps, moved every 20 (dotted lines); what moves the weights makes the teeth, and clearing the optimiser's state does not. Right: the rebalanced run from its first move on, on another scale, beside the joint $\\beta$ of weights with biases, which rebalancing of the weights does not bring to zero.", "name": "fig-sawtooth"}}
titled = {records[case].settings["title"]: betas[case] for case in cases}
figures.sawtooth(steps.numpy(), titled, joint, 20)

# %% [markdown]
# In {numref}`fig-sawtooth` the left panel is the paper's sawtooth, with its controls: a tooth appears where weights are moved, with or
# without the optimiser's memory, and clearing alone makes none. What ten seeds say of the loss is in {doc}`13_nanogpt`. The right panel is
# about biases, which the paper's runs have.
#
# ### What should happen to the optimiser's memory
#
# When $W_Q$ becomes $S W_Q$, the gradient of any loss becomes $S^{-\top}$ times the old one: it moves the other way, as $W_K$ does. We
# verify it by automatic differentiation on the whole network, reading $S$ off the weights.

# %%
batch = get_batch(corpus.train, 32, 8, torch.Generator().manual_seed(22))


def gradients(model):  # with biases as one more column, (layers, H, D, E + 1) each
    model.zero_grad()
    model(*batch)[1].backward()
    weights = query_key(model, gradient=True)
    return list(map(with_bias, weights, query_key(model, "bias", gradient=True)))


model = small_gpt(21)
old_Q, g_Q, g_K = query_key(model)[0], *gradients(model)
rebalance_model(model, torch.optim.AdamW(model.parameters()))
S = query_key(model)[0] @ torch.linalg.pinv(old_Q)  # (layers, H, D, D)
new_g_Q, new_g_K = gradients(model)
assert apart(new_g_Q, torch.linalg.inv(S).mT @ g_Q) < 1e-8
assert apart(new_g_K, S @ g_K) < 1e-8 and apart(new_g_Q, g_Q) > 0.1

# %% [markdown]
# Adam's first moment is a running sum of gradients, so it can be carried exactly: $S^{-\top} m_Q$ and $S\, m_K$ are what would have been
# gathered had the weights stood in the new place all along. (Not that training would then go on as before: the step $-\eta\, m$ moves the
# other way to the weights it is added to, unless $S$ is orthogonal.)
#
# The second moment cannot be carried. It stores $g_{ij}^2$ entry by entry, and $(S^{-\top} g)_{ij}^2$ contains products $g_{kj}\, g_{lj}$
# that nobody kept. Two gradients with the same squares show it, $(1, 1)$ and $(1, -1)$: the rotation by $45°$ turns one of them into the
# first coordinate, squares $(2, 0)$, and the other into the second, squares $(0, 2)$.
#
# Only where $S$ is a diagonal matrix times a permutation do squares suffice. So there are two honest ways: clear the moments, as the paper
# does, or keep them as they are and know that they point along axes which the weights have left. How far depends on the rotation. With the
# nearest one, $S$ is close to the identity if $\beta$ was small; with the pair straight from the singular value decomposition it is not
# close to anything. We compare at the start of a training run, head by head, the cosine between the old gradient and the carried one.

# %%
fresh = GPT(config, seed=23).double()
(W_Q0, W_K0), (g_Q0, _) = query_key(fresh), gradients(fresh)


def cosines(place):
    for q, k, g in zip(*(t.flatten(0, 1) for t in (W_Q0, W_K0, g_Q0))):
        carried = torch.linalg.inv(place(q, k)[0] @ torch.linalg.pinv(q)).mT @ g
        yield float((carried * g).sum() / (carried.norm() * g.norm()))


assert min(cosines(rebalance)) > 0.9 and max(map(abs, cosines(balanced_pair))) < 0.5
print("cosines: above 0.9 with the nearest rotation, below 0.5 without")

# %% [markdown]
# ```{prf:remark} Departure from the paper
# :label: rem-12-moments
#
# The paper says that rebalancing destroys what the optimiser has gathered about higher moments. That is true of second moments. First
# moments transform by a known matrix and need not be lost; the nearest rotation keeps both nearly valid when the weights move little.
# ```

# %% [markdown]
# ## Break it
#
# **Weights without their biases.** The product $W_K^\top W_Q$ stays, so all looks well. But a query bias makes a second vector visible,
# $W_K^\top b_Q$ ({prf:ref}`lem-key-bias`), and that one changes, and with it the outputs. With
# `rebalance(W_Q, W_K, b_Q, b_K)` vector and outputs stay: of a layer with random weights, and of the network above.

# %%
layer = Attention(8, 2, bias="qkvo")
p_b, x_b = layer.random_parameters(seed=3), random_inputs(layer, 4, 7, seed=4)
names = ("W_Q", "W_K", "b_Q", "b_K")
together = p_b | dict(zip(names, rebalance(*(p_b[n] for n in names))))
alone = p_b | dict(zip(names, rebalance(p_b["W_Q"], p_b["W_K"])))
visible = lambda p: torch.einsum("hde,hd->he", p["W_K"], p["b_Q"])
after = {
    what: forward(layer, p, x_b) for what, p in (("both", together), ("one", alone))
}
check("rebalancing-biases", visible=apart(visible(together), visible(p_b)))
check("rebalancing-biases", visible_alone=apart(visible(alone), visible(p_b)))
outputs = forward(layer, p_b, x_b)
check("rebalancing-biases", outputs=apart(after["both"], outputs))
check("rebalancing-biases", outputs_alone=apart(after["one"], outputs))

# %%
model = small_gpt(9)
for i, old in enumerate(old_weights):
    q, k = rebalance(old["W_Q"], old["W_K"])
    assert apart(k.mT @ q, old["W_K"].mT @ old["W_Q"]) < 1e-12
    set_head_weights(model, i, W_Q=q, W_K=k)
check("rebalancing-biases", network_alone=apart(model(tokens)[0].detach(), logits))

# %% [markdown]
# There is more to it. With biases what gradient flow conserves is not $P - K$ but the matrix of the **joint** weights $(W_Q\; b_Q)$ and
# $(W_K\; b_K)$, which is $P - K + b_Q b_Q^\top - b_K b_K^\top$ ({prf:ref}`prop-conserved-bias`). Balancing the weights and carrying the
# biases along leaves $b_Q b_Q^\top - b_K b_K^\top$ of it: that is the curve that will not come down in {numref}`fig-sawtooth`. Balancing the
# joint weights brings it to zero, and keeps the scores as well. The same function then has $P \neq K$.

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
# The paper's runs have biases, and its description of rebalancing mentions weights only. Moved alone, they change the function. And its
# statement that rebalancing zeroes the quantity that gradient flow conserves holds for a head without biases; with them, the conserved
# quantity is the joint one.
# ```
#
# **Rotations ignored.** Balance a rotary head as if it did not turn: the product at offset zero stays, all others change, and so do the
# outputs.

# %%
q, k = rebalance(p_r["W_Q"], p_r["W_K"])
assert apart(k.mT @ q, p_r["W_K"].mT @ p_r["W_Q"]) < 1e-12
assert apart(forward(rotary, p_r | {"W_Q": q, "W_K": k}, x), y) > 0.01

# %% [markdown]
# **No full rank.** Give $W_Q$ of the head above rank $D - 1$. QR and SVD do not mind: there are balanced factors with the same product, and
# by {prf:ref}`prop-least-norm`, which asks for no rank, they have the least norm. But both have rank $D - 1$ while $W_K$ had rank $D$. So
# no nonsingular $S$ leads there, the orbit comes near its least norm without reaching it, and a bias has nothing to follow: what $W_K^\top
# b_Q$ showed outside the new, smaller row space cannot be said any more. `rebalance` reports an infinite condition, and refuses biases.

# %%
U, sigma, Vh = torch.linalg.svd(W_Q, full_matrices=False)
thin = U[:, :-1] * sigma[:-1] @ Vh[:-1]
result = rebalance(thin, W_K)
q, k = result
assert [rank(w, 1e-6) for w in (thin, W_K, q, k)] == [D - 1, D, D - 1, D - 1]
assert apart(k.mT @ q, W_K.mT @ thin) < 1e-12 and apart(q @ q.mT, k @ k.mT) < 1e-12
c = W_K.mT @ b_Q
assert (c - k.mT @ torch.linalg.pinv(k.mT, rtol=1e-6) @ c).norm() > 0.1 * c.norm()
assert torch.isinf(result.condition)
try:
    rebalance(thin, W_K, b_Q, b_K)
    raise AssertionError("no error")
except ValueError as error:
    print(error)

# %% [markdown]
# On the way there $S$ becomes ever worse conditioned. With the smallest singular value of $W_Q$ at $\varepsilon$ times its old value,
# $\kappa(S)$ grows like $\varepsilon^{-1/2}$, as part 3 of {prf:ref}`prop-balanced-orbit` allows: a hundredth of the singular value, ten
# times the condition. The paper's $\mu$ is the warning light: it vanishes only if both $P$ and $K$ are singular, so it does not even light
# up here.


# %%
def weakened(epsilon):
    return U * torch.cat((sigma[:-1], epsilon * sigma[-1:])) @ Vh


conditions = [float(rebalance(weakened(10.0**-n), W_K).condition) for n in (4, 6, 8)]
for nearer, further in zip(conditions, conditions[1:]):
    assert abs(further / nearer - 10) < 0.1
assert head_metrics(thin, W_K, thin, W_K)["mu"] > 0.1

# %% [markdown]
# ## What it means
#
# Rebalancing is a clean operation. Every orbit of full rank has balanced pairs, one rotation away from one another, they are its shortest
# pairs, and exactly one of them is nearest to where training stands. The function stays, provided that everything attached to the weights
# moves with them. So if a training run changes its course after it, the reason is not the function but how the optimiser sees it. The steps
# of gradient descent depend on the basis up to a rotation, those of Adam up to signed permutations ({prf:ref}`prop-respects`). For Adam,
# then, the last rotation is part of what one does to the training run, and the nearest one is the least intrusive choice.
#
# Rebalancing makes $\beta$ zero by construction. That $\beta$ draws a sawtooth is therefore no finding about training; how fast it grows
# between two moves is one: without biases it shows how far the optimiser is from gradient flow, for which {prf:ref}`lem-conserved`
# promises a flat line.

# %% [markdown]
# ## Exercises
#
# **1. One number.** For $D = 1$ write down $S$, the balanced pairs, and what rebalancing does.
#
# ```{admonition} Answer
# :class: dropdown
#
# $O(1) = \{1, -1\}$, so there are two balanced pairs. $T = \|W_K\| / \|W_Q\|$, and the nearest takes $S = \sqrt{\|W_K\| / \|W_Q\|}$: both
# rows get the geometric mean of their lengths. It is {prf:ref}`prop-rotary-balance` with a real row instead of a complex one, and for $E =
# 1$ the left panel of {numref}`fig-rebalancing-orbit`.
# ```

# %% tags=["hide-cell"]
row_Q, row_K = normal(1, 5, seed=26), 7 * normal(1, 5, seed=27)
s = (row_K.norm() / row_Q.norm()).sqrt()
q, k = rebalance(row_Q, row_K)
assert worst((q, k), (s * row_Q, row_K / s)) < 1e-12
assert apart(q.norm(), (row_Q.norm() * row_K.norm()).sqrt()) < 1e-12

# %% [markdown]
# **2. Is the symmetric $S$ the nearest?** $S = T^{1/2}$ balances and is as simple as can be. When is it the one that `rebalance` uses?
#
# ```{admonition} Answer
# :class: dropdown
#
# For $S = Z T^{1/2}$ the nearest $Z$ is the orthogonal factor of $C = (I + T) P\, T^{1/2}$, by the proof of {prf:ref}`prop-nearest`. It is
# the identity if and only if $C$ is positive definite. If $P$ and $T$ commute, which is to say that $P$ and $K$ do, it is. The converse
# holds too: if $C$ is symmetric, $(I + T) P\, T^{1/2} = T^{1/2} P (I + T)$; in an eigenbasis of $T$ with eigenvalues $t_i$, entry $ij$
# reads $P_{ij} \big( (1 + t_i) \sqrt{t_j} - \sqrt{t_i} (1 + t_j) \big) = P_{ij} (\sqrt{t_j} - \sqrt{t_i}) (1 - \sqrt{t_i t_j}) = 0$. So
# $P_{ij} = 0$ unless $t_i = t_j$ or $t_i t_j = 1$; generically no $t_i t_j$ is one, and they commute. For the head of this chapter they do
# not, yet the symmetric $S$ lands less than one percent further away than the nearest.
# ```

# %% tags=["hide-cell"]
symmetric_S = lambda q, k: power(balancing_S(q, k).mT @ balancing_S(q, k), 0.5)
q, k = act_query_key(symmetric_S(W_Q, W_K), W_Q, W_K)
assert apart(q @ q.mT, k @ k.mT) < 1e-10
assert 1.0001 < (away(q, k) / away(A, B)).sqrt() < 1.01
ortho = lambda seed: torch.linalg.qr(normal(E, D, seed=seed)).Q.mT
diagonal = [normal(D, 1, seed=seed).exp() * ortho(seed + 1) for seed in (28, 30)]
assert apart(balancing_S(*diagonal), symmetric_S(*diagonal)) < 1e-10  # P, K diagonal

# %% [markdown]
# **3. Without the rotation.** Suppose one forgets the Procrustes step, and takes the pair straight from the singular value decomposition.
# Does rebalancing twice still move nothing? In which of the statements about training would you notice?
#
# ```{admonition} Answer
# :class: dropdown
#
# The second time the program sees a pair with Gram matrices $\Sigma$ and returns it up to signs of rows, one for each singular vector:
# $2^D$ results, if the singular values differ. The product, $\beta$, $\tau$ and the norm are as before. But the first move is a large one:
# the weights are turned by an arbitrary rotation, and moments that are kept belong to other axes, as the cosines above showed.
# ```

# %% tags=["hide-cell"]
once = balanced_pair(W_Q, W_K)
twice = balanced_pair(*once)
signs = (once[0] * twice[0]).sum(1, keepdim=True).sign()
assert worst((signs * twice[0], signs * twice[1]), once) < 1e-10
assert (away(*once) / away(A, B)).sqrt() > 1.2

# %% [markdown]
# **Next:** the paper's own experiments, with many seeds. There rebalancing is one of four cases, and the question is no longer what it does
# to $\beta$ but whether the loss can tell.
