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
# ````{prf:proof}
# (of {prf:ref}`prop-balanced-orbit`)
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
# ````{prf:proof}
# (of {prf:ref}`prop-least-norm`)
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
# ````{prf:proof}
# (of {prf:ref}`prop-rotary-balance`)
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

from attnid import (
    Attention,
    act_query_key,
    figures,
    forward,
    head_metrics,
    measure,
    rebalance,
)
from attnid.layer.attention import random_inputs
from attnid.layer.metrics import with_bias
from attnid.training.data import load_corpus
from attnid.training.experiments import Job, rebalance_model, run
from attnid.network.gpt import GPT, GPTConfig, head_weights, query_key, set_head_weights
from attnid.training.run import get_batch


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
    Z = U @ Vh
    return Z @ A, Z @ B


def normal(seed, *shape):
    return torch.randn(
        shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )


def near(found, expected, tolerance=1e-12):
    return bool((found - expected).norm() < tolerance * expected.norm())


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
    T_half = power(T, 0.5)
    U, _, Vh = torch.linalg.svd((torch.eye(len(P), dtype=P.dtype) + T) @ P @ T_half)
    return U @ Vh @ T_half


# %% tags=["claim-rebalancing"]
D, E = 4, 10
W_Q, W_K = normal(1, D, E), normal(2, D, E)
M = W_K.mT @ W_Q
A, B = rebalance(W_Q, W_K)
by_svd = nearest(*balanced_pair(W_Q, W_K), W_Q, W_K)
by_mean = act_query_key(balancing_S(W_Q, W_K), W_Q, W_K)
for pair in (by_svd, by_mean):
    assert near(pair[0], A) and near(pair[1], B)
assert near(B.mT @ A, M) and near(A @ A.mT, B @ B.mT)  # the product stays, P = K
again = rebalance(A, B)
assert near(again[0], A) and near(again[1], B)  # twice moves nothing
assert not near(A, W_Q, 0.1)
print("QR and SVD, and the geometric mean: one balanced pair, to 1e-12")

# %% [markdown]
# ## The check
#
# Every part of the claim on one head, then on a whole network, in a short number format, and for heads that turn.
#
# ### How many balanced pairs
#
# The {term}`null directions <null direction>` at $(W_Q, W_K)$ are the tangents of its orbit. Along $(T W_Q, -T^\top W_K)$ the matrix
# $P - K$ changes by $T P + P
# T^\top + T^\top K + K T$, to first order. The directions that keep it should have dimension $D(D-1)/2$, the dimension of $O(D)$, and the
# others $D(D+1)/2$. We take the null directions from `measure`, which finds them in the layer's outputs and knows of no $S$; the generators
# are the skew $T$, at a balanced pair.


# %%
def rank(matrix, rtol=1e-8):
    return int(torch.linalg.matrix_rank(matrix, rtol=rtol))


def skew_units(D):
    i, j = torch.triu_indices(D, D, 1)
    units = torch.eye(D * D, dtype=torch.float64).view(D, D, D, D)
    return units[i, j] - units[j, i]


def moved_and_kept(attention, p, quantity):
    """Null directions in the queries and keys of one head that change quantity(W_Q, W_K), and that keep it: two dimensions."""
    null = [
        measure(attention, parameters=p).null_space[name][:, 0]
        for name in ("W_Q", "W_K")
    ]
    change = lambda dQ, dK: torch.func.jvp(
        quantity, (p["W_Q"][0], p["W_K"][0]), (dQ, dK)
    )[1].flatten()
    moved = rank(torch.stack([change(dQ, dK) for dQ, dK in zip(*null)]))
    return moved, rank(torch.cat([part.flatten(1) for part in null], 1)) - moved


# %%
gram_difference = lambda q, k: q @ q.mT - k @ k.mT
for d in (1, 2, 3, 4):
    head = Attention(6, 1, head_dim=d, value_dim=1)
    p = head.random_parameters(seed=d)
    q, k = rebalance(p["W_Q"], p["W_K"])
    moved, kept = moved_and_kept(head, p | {"W_Q": q, "W_K": k}, gram_difference)
    assert (moved, kept) == (d * (d + 1) // 2, d * (d - 1) // 2)
    T = skew_units(d)
    generators = torch.cat(((T @ q).flatten(1), (-T.mT @ k).flatten(1)), 1)
    change = T @ gram_difference(q, k) - gram_difference(q, k) @ T
    assert rank(generators) == kept and bool((change.abs() < 1e-12).all())
    print(f"D = {d}: {d * d} null directions, {moved} change P - K, {kept} keep it")

# %% [markdown]
# ### Least norm
#
# {prf:ref}`prop-least-norm` against an optimiser that is told nothing of it: L-BFGS over all entries of $S$, from five random starts. Every
# start must end at $2 \|M\|_*$, to $10^{-10}$, and at a balanced pair, to $10^{-6}$. Which one differs from start to start.


# %%
def squared_norm(S):
    q, k = act_query_key(S, W_Q, W_K)
    return q.square().sum() + k.square().sum()


def shortest(S):
    S = S.clone().requires_grad_()
    search = torch.optim.LBFGS(
        [S],
        max_iter=500,
        tolerance_grad=1e-12,
        tolerance_change=1e-16,
        line_search_fn="strong_wolfe",
    )

    def closure():
        search.zero_grad()
        value = squared_norm(S)
        value.backward()
        return value

    search.step(closure)
    return S.detach()


# %% tags=["claim-rebalancing"]
least = 2 * torch.linalg.svdvals(M).sum()
assert near(A.square().sum() + B.square().sum(), least)
found = [
    act_query_key(shortest(normal(seed, D, D)), W_Q, W_K) for seed in range(10, 15)
]
for q, k in found:
    assert near(q.square().sum() + k.square().sum(), least, 1e-10)
    assert near(q @ q.mT, k @ k.mT, 1e-6)
assert not any(near(found[0][0], other[0], 0.1) for other in found[1:])
print("five starts, one least norm, 2 ||M||_*: True")

# %% [markdown]
# There is a reason why every start arrives. Along a null direction $T$ the squared norm changes at the rate
#
# $$
# \frac{d}{dt} \Big( \|W_Q + t\, T W_Q\|^2 + \|W_K - t\, T^\top W_K\|^2 \Big)_{t = 0} = 2\, \mathrm{tr}\, T (P - K) .
# $$
#
# So $\beta = \|P - K\|$ is half the steepest slope, over $\|T\| = 1$, of the squared norm within the orbit. Where there is no slope there
# is balance, and every balanced pair has the same norm. What weight decay does within the orbit is to walk down this slope; and the penalty
# $\tfrac{\lambda}{2} (\|W_Q\|^2 + \|W_K\|^2)$, least over an orbit, is $\lambda \|M\|_*$.

# %%
from_identity = lambda t, T: squared_norm(torch.linalg.matrix_exp(t * T))
difference = gram_difference(W_Q, W_K)
zero, one = torch.tensor(0.0).double(), torch.tensor(1.0).double()
slope = lambda T: torch.func.jvp(lambda t: from_identity(t, T), (zero,), (one,))[1]
for T in normal(3, 20, D, D):
    assert abs(slope(T) - 2 * (T * difference.mT).sum()) < 1e-10
    assert slope(T / T.norm()).abs() < 2 * difference.norm()
assert near(slope(difference / difference.norm()), 2 * difference.norm(), 1e-10)

# %% [markdown]
# {numref}`fig-rebalancing-orbit` shows both: on the left the simplest head, $E = D = 1$, whose orbits are hyperbolas; on the right the norm
# along curves $(e^{tX} A,\, e^{-tX^\top} B)$ through the balanced pair of the head above. Symmetric $X$ change the norm, and skew ones,
# which rotate, do not.

# %%
times = torch.linspace(-0.8, 0.8, 33, dtype=torch.float64)
along = lambda X: torch.stack(
    [
        sum(
            part.square().sum()
            for part in act_query_key(torch.linalg.matrix_exp(t * X), A, B)
        )
        for t in times
    ]
)
symmetric = [X / X.norm() for X in (G + G.mT for G in normal(4, 4, D, D))]
skew = [X / X.norm() for X in (G - G.mT for G in normal(5, 2, D, D))]
curves = {
    "symmetric $X$": [along(X) / least for X in symmetric],
    "skew $X$": [along(X) / least for X in skew],
}
for curve in curves["symmetric $X$"]:
    assert (
        bool((curve.diff().diff() > 0).all()) and curve.argmin() == 16
    )  # convex, and least at t = 0
for curve in curves["skew $X$"]:
    assert bool((curve - 1).abs().max() < 1e-12)

# %% mystnb={"image": {"alt": "Left: the plane of two weights with orange hyperbolas, the orbits, crossed at right angles by grey hyperbolas, the paths of gradient flow. Black arrows run along orbits from unbalanced weights to the diagonals, where an orbit touches a dashed circle about the origin. Right: squared norm over its least value against t; four convex curves with their minimum one at t equal to zero, and a flat line for skew X."}, "figure": {"caption": "Left: the head with $E = D = 1$. Orbits (orange) keep $W_K W_Q$, gradient flow (grey) keeps $W_Q^2 - W_K^2$, and the two cross at right angles. Rebalancing (arrows) runs along an orbit to the nearest point with $|W_Q| = |W_K|$, where the orbit comes closest to the origin (dashed circle). Right: the squared norm along the orbit of a head with $D = 4$, relative to $2 \\|M\\|_*$: along symmetric $X$ it is convex and least at the balanced pair, along skew $X$ it is constant.", "name": "fig-rebalancing-orbit"}}
figures.rebalancing_orbit(times, curves)

# %% [markdown]
# ### The nearest
#
# First, no other rotation does better: not one of 2,000 random ones and none of 2,000 small ones. Second, the result does not depend on the
# balanced pair one starts from, and rotations of the old weights carry over. Third, what the pair stands on: $C$ is nonsingular.

# %% tags=["claim-rebalancing"]
distance = lambda q, k: (
    (q - W_Q).square().sum((-2, -1)) + (k - W_K).square().sum((-2, -1))
).sqrt()
G = normal(6, 2000, D, D)
U, _, Vh = torch.linalg.svd(G)
Z = U @ Vh  # rotations, half of them with a reflection
small = torch.linalg.matrix_exp(0.05 * (G - G.mT))
for turns in (Z, small):
    assert bool((distance(turns @ A, turns @ B) > distance(A, B)).all())
assert {round(float(d)) for d in torch.linalg.det(Z)} == {-1, 1}
for turn in Z[:20]:
    restarted = nearest(turn @ A, turn @ B, W_Q, W_K)
    turned = rebalance(turn @ W_Q, turn @ W_K)
    assert (
        near(restarted[0], A)
        and near(turned[0], turn @ A)
        and near(turned[1], turn @ B)
    )
assert torch.linalg.svdvals(W_Q @ A.mT + W_K @ B.mT)[-1] > 0.1

# %% [markdown]
# The singular vectors of $M$ are fixed only up to sign, and where singular values meet not even so. The result does not mind, by the same
# proposition. It is, however, not a function of $M$: other weights of the same orbit have another nearest balanced pair. Balance with the
# nearest rotation is a projection of the orbit onto its balanced pairs, not one canonical point.

# %%
q, k = act_query_key(normal(7, D, D), W_Q, W_K)
elsewhere = rebalance(q, k)
assert near(elsewhere[1].mT @ elsewhere[0], M, 1e-10) and not near(elsewhere[0], A, 0.1)
turn = elsewhere[0] @ torch.linalg.pinv(A)
assert near(turn @ turn.mT, torch.eye(D, dtype=torch.float64), 1e-10) and near(
    turn @ B, elsewhere[1], 1e-10
)

# %% [markdown]
# ### A whole network
#
# `rebalance_model` balances every head of a GPT: two layers, two heads each, with biases that are not zero. Weights and biases move
# together, as {prf:ref}`prop-joint-action` asks, and they are copied in place into the fused weight from which queries, keys and values
# come; the value rows stay as they are. The logits must stay to $10^{-12}$ in float64.

# %%
corpus = load_corpus("embedded")
config = GPTConfig(
    len(corpus.vocabulary), block_size=32, n_layer=2, n_head=2, n_embd=16, bias=True
)


def small_gpt(seed):
    model = GPT(config, seed=seed).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "c_attn" in name:  # larger than at the start of training, biases too
                parameter.normal_(0, 0.3, generator=generator)
    return model


# %%
def beta(W_Q, W_K):
    return head_metrics(W_Q, W_K, W_Q, W_K)["beta"]


tokens = get_batch(corpus.train, 32, 4, torch.Generator().manual_seed(8))[0]
model = small_gpt(9)
before, weights = (
    model(tokens)[0].detach(),
    [head_weights(model, layer) for layer in range(2)],
)

# %% tags=["claim-rebalancing", "claim-rebalancing-biases"]
fused = model.transformer.h[0].attn.c_attn.weight
memory, values, old_beta = fused.data_ptr(), fused[32:].clone(), beta(*query_key(model))
optimizer = torch.optim.AdamW(model.parameters())
rebalance_model(model, optimizer)
assert (
    fused is model.transformer.h[0].attn.c_attn.weight
    and fused.data_ptr() == memory
    and torch.equal(fused[32:], values)
)
assert near(model(tokens)[0], before)
assert bool((beta(*query_key(model)) < 1e-12 * old_beta).all())
print(f"{old_beta.numel()} heads balanced, logits kept to 1e-12")

# %% [markdown]
# ### What it costs in a short format
#
# How far rebalancing has to go is $\kappa(S)$, which `rebalance` reports as `condition`. We make heads that are further and further from
# balance: the pair $(A, B)$ moved by $S_0^{-1}$, so that the way back has $\kappa(S) = \kappa(S_0)$. They are rounded to a format, and from
# then on we compare with the product of the *rounded* weights. One way applies $S$ in that format. The other, the package's, does all
# arithmetic in float64 and rounds once. The bound of part 3 is checked on the way.

# %%
turns = torch.linalg.qr(normal(16, 2, D, D)).Q
exact = lambda q, k: k.double().mT @ q.double()
lost = lambda pair, old: float((exact(*pair) - old).norm() / old.norm())


def costs(exponent, dtype):
    """Relative change of the product: weights as rounded; S applied in the format; rounded once. And kappa(S)."""
    S0 = (
        turns[0]
        * torch.logspace(-exponent / 2, exponent / 2, D, dtype=torch.float64)
        @ turns[1].mT
    )
    pair = [part.to(dtype) for part in act_query_key(torch.linalg.inv(S0), A, B)]
    q, k = (part.double() for part in pair)
    result, S = rebalance(*pair), balancing_S(q, k)
    assert result.condition**2 <= torch.linalg.cond(q) * torch.linalg.cond(k) * (
        1 + 1e-9
    )
    in_format = S.to(dtype) @ pair[0], torch.linalg.inv(S).mT.to(dtype) @ pair[1]
    return (
        lost(pair, M),
        lost(in_format, exact(*pair)),
        lost(result, exact(*pair)),
        float(result.condition),
    )


# %%
for dtype, exponents in ((torch.float32, (0, 2, 4)), (torch.bfloat16, (0, 1, 2))):
    unit = torch.finfo(dtype).eps / 2
    for exponent in exponents:
        stored, in_format, once, condition = costs(exponent, dtype)
        assert abs(condition / 10**exponent - 1) < 0.1 and once < unit
        assert in_format < 3 * unit * condition and (
            exponent == 0 or (in_format > 3 * unit and stored > unit)
        )
        print(
            f"{str(dtype)[6:]:9} condition 1e{exponent}: rounded once, below one rounding unit: {once < unit}; in the format: "
            f"{'below' if in_format < 3 * unit else 'above'} three"
        )

# %% [markdown]
# Two errors grow with $\kappa(S)$, and rebalancing done with care has neither. Applying $S$ in a short format loses $\kappa(S)$ rounding
# units. And *storing* unbalanced weights in the first place loses as much: a rounding error in $W_Q$ is multiplied by the size of $W_K$,
# and by {prf:ref}`prop-least-norm` the balanced pair has the smallest factors for its product. In bfloat16 weights with $\kappa(S) = 100$
# have lost more than one rounding unit of $M$ before anybody rebalances; rounding the balanced pair loses less than one.
#
# ### Rotary heads
#
# With distinct frequencies all there is to balance are the $D/2$ numbers $\|q_i\|^2 - \|k_i\|^2$. The formula of
# {prf:ref}`prop-rotary-balance`, written out, against `rebalance(..., rotary=...)`, on a head with $D = 6$; then the outputs of the whole
# layer.

# %%
frequencies = (1.0, 0.3, 0.1)
rotary = Attention(10, 1, head_dim=6, rotary=frequencies)
p, x = (
    rotary.random_parameters(seed=17),
    random_inputs(rotary, batch=4, length=8, seed=18),
)
q, k = p["W_Q"][0], p["W_K"][0]
lengths = lambda W: W.view(3, -1).norm(dim=1)  # of the D/2 complex rows
s = (lengths(k) / lengths(q)).sqrt().repeat_interleave(2)[:, None]
q_new, k_new = rebalance(q, k, rotary=frequencies)
assert (
    near(q_new, s * q) and near(k_new, k / s) and near(lengths(q_new), lengths(k_new))
)
y = forward(rotary, p, x)
assert near(forward(rotary, p | {"W_Q": q_new[None], "W_K": k_new[None]}, x), y)
assert beta(q_new, k_new) > 0.1 * beta(
    q, k
)  # P - K does not vanish: most of it is out of reach

# %% [markdown]
# The counts change with the pattern of the angles, and `measure` finds them in the outputs. Where $n$ planes turn alike, the null
# directions number $2n^2$ and the balanced ones, a unitary group, $n^2$. The quantity to be balanced is the Hermitian Gram matrix of each
# class of planes.


# %%
def class_grams(classes):
    """The real and imaginary parts of Q Q^* - K K^*, one class of planes after the other."""
    rows = lambda W, planes: torch.complex(
        W[[2 * i for i in planes]], W[[2 * i + 1 for i in planes]]
    )
    gram = lambda W, planes: rows(W, planes) @ rows(W, planes).mH
    flat = lambda G: torch.view_as_real(G).flatten()
    return lambda q, k: torch.cat(
        [flat(gram(q, planes) - gram(k, planes)) for planes in classes]
    )


for angles, classes in (
    ((1.0, 0.3, 0.1), ([0], [1], [2])),
    ((1.0, 1.0, 0.1), ([0, 1], [2])),
    ((1.0, 1.0, 1.0), ([0, 1, 2],)),
):
    head = Attention(8, 1, head_dim=6, value_dim=1, rotary=angles)
    p = head.random_parameters(seed=19)
    q, k = rebalance(p["W_Q"], p["W_K"], rotary=angles)
    assert class_grams(classes)(q[0], k[0]).abs().max() < 1e-12
    moved, kept = moved_and_kept(head, p | {"W_Q": q, "W_K": k}, class_grams(classes))
    assert moved == kept == sum(len(planes) ** 2 for planes in classes)
    print(
        f"angles {angles}: {moved} null directions change the balance, {kept} keep it"
    )

# %% [markdown]
# ## The sawtooth
#
# Rebalancing during training: what should happen between two moves, and what does.
#
# ### Balance and gradient flow
#
# By {prf:ref}`lem-conserved` gradient flow keeps $P - K$. So once $P = K$, it stays so, and a reader of $\beta$ sees a flat line at zero.
# Steps of finite size leave it, by an amount of order $\eta^2$ each ({prf:ref}`lem-one-step`). We run plain gradient descent on a loss of $M$, from the balanced pair, for the same time
# with $\eta$ and with $\eta/2$: twice the steps, each with a quarter of the {term}`drift`, so half of $\beta$ at the end.

# %%
target = normal(20, E, E) / E**0.5
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
steps = records["adamw"].step
betas = {
    case: torch.from_numpy(record.heads["beta"]).flatten(1)
    for case, record in records.items()
}  # (measured, heads)
joint = torch.from_numpy(records["rebalanced"].heads["joint_beta"]).flatten(1)
after_move = torch.tensor([step > 0 and step % 20 == 0 for step in steps])
between = torch.tensor([step > 20 and step % 20 != 0 for step in steps])

# %%
start = betas["adamw"][0]
for case in ("rebalanced", "moved"):
    assert bool(
        (betas[case][after_move] < 1e-6 * start).all()
    )  # zero, but for float32 weights
    assert bool(
        (betas[case][between] > 1e-2 * start).all()
    )  # and gone again five steps later
    assert bool(
        (betas[case][between].view(-1, 3, 4).diff(dim=1) > 0).all()
    )  # each head, from one measurement to the next
for case in ("adamw", "cleared"):
    assert bool((betas[case] > 0.5 * start).all())  # never near zero
    assert betas[case][-1].mean() > 1.1 * start.mean()
assert (
    bool((joint[after_move].mean(1).diff() > 0).all())
    and joint[after_move][-1].mean() > 0.1 * start.mean()
)
for i in range(4):
    assert torch.equal(
        betas[cases[i]][:4], betas["adamw"][:4]
    )  # the same until the first move

# %% mystnb={"image": {"alt": "Left: beta against the step. AdamW and the control with cleared state stay near their start and then rise slowly. The rebalanced run and the control that keeps its moments fall to zero every twenty steps and climb in between, with ever smaller teeth. Right: from the first move on, the rebalanced run's beta of the weights falls to zero at each move; with biases it falls too, but from the second move on it stops clearly above zero."}, "figure": {"caption": "A sawtooth, live. Left: $\\beta$ of each head (thin) and their mean (thick) in four runs of 100 steps, moved every 20 (dotted lines); what moves the weights makes the teeth, and clearing the optimiser's state does not. Right: the rebalanced run from its first move on, on another scale, beside the joint $\\beta$ of weights with biases, which rebalancing of the weights does not bring to zero.", "name": "fig-sawtooth"}}
figures.sawtooth(
    steps, {records[case].settings["title"]: betas[case] for case in cases}, joint, 20
)

# %% [markdown]
# In {numref}`fig-sawtooth` the left panel is the paper's sawtooth, with its controls: a tooth appears where weights are moved, with or
# without the optimiser's memory, and clearing alone makes none. The teeth shrink as the learning rate does. One seed and a hundred steps
# settle nothing about the loss; chapter 13 does that. The right panel is about biases, which the paper's runs have.
#
# ### What should happen to the optimiser's memory
#
# When $W_Q$ becomes $S W_Q$, the gradient of any loss becomes $S^{-\top}$ times the old one: it moves the other way, as $W_K$ does. We
# verify it by automatic differentiation on the whole network, reading $S$ off the weights.

# %%
model, batch = (
    small_gpt(21),
    get_batch(corpus.train, 32, 8, torch.Generator().manual_seed(22)),
)


def gradients(model):  # with biases as one more column, (layers, H, D, E + 1) each
    model.zero_grad()
    model(*batch)[1].backward()
    return [
        with_bias(
            query_key(model, gradient=True)[i],
            query_key(model, "bias", gradient=True)[i],
        )
        for i in range(2)
    ]


old_Q, g_Q, g_K = query_key(model)[0], *gradients(model)
rebalance_model(model, torch.optim.AdamW(model.parameters()))
S = query_key(model)[0] @ torch.linalg.pinv(old_Q)  # (layers, H, D, D)
new_g_Q, new_g_K = gradients(model)
assert near(new_g_Q, torch.linalg.inv(S).mT @ g_Q, 1e-8) and near(
    new_g_K, S @ g_K, 1e-8
)
assert not near(new_g_Q, g_Q, 0.1)

# %% [markdown]
# Adam's first moment is a running sum of gradients, so it can be carried exactly: $S^{-\top} m_Q$ and $S\, m_K$ are what would have been
# gathered had the weights stood in the new place all along. (Not that training would then go on as before: the step $-\eta\, m$ moves the
# other way to the weights it is added to, unless $S$ is orthogonal.)
#
# The second moment cannot be carried. It stores $g_{ij}^2$ entry by entry, and $(S^{-\top} g)_{ij}^2$ contains products $g_{kj}\, g_{lj}$
# that nobody kept. Two gradients with the same squares show it: under one rotation by $45°$ one of them ends in the first coordinate, the
# other in the second.

# %%
eighth_turn = torch.tensor([[1.0, 1.0], [-1.0, 1.0]], dtype=torch.float64) / 2**0.5
first, second = torch.tensor([1.0, 1.0]).double(), torch.tensor([1.0, -1.0]).double()
assert torch.equal(first.square(), second.square())
turned = [(torch.linalg.inv(eighth_turn).mT @ g).square() for g in (first, second)]
assert (turned[0] - torch.tensor([2.0, 0.0])).abs().max() < 1e-12 and (
    turned[1] - torch.tensor([0.0, 2.0])
).abs().max() < 1e-12

# %% [markdown]
# Only where $S$ is a diagonal matrix times a permutation do squares suffice. So there are two honest ways: clear the moments, as the paper
# does, or keep them as they are and know that they point along axes which the weights have left. How far depends on the rotation. With the
# nearest one, $S$ is close to the identity if $\beta$ was small; with the pair straight from the singular value decomposition it is not
# close to anything. We compare at the start of a training run, head by head, the cosine between the old gradient and the carried one.

# %%
fresh = GPT(config, seed=23).double()
(W_Q0, W_K0), (g_Q0, _) = query_key(fresh), gradients(fresh)


def cosines(place):
    found = []
    for q, k, g in zip(*(t.flatten(0, 1) for t in (W_Q0, W_K0, g_Q0))):
        carried = torch.linalg.inv(place(q, k)[0] @ torch.linalg.pinv(q)).mT @ g
        found.append(float((carried * g).sum() / (carried.norm() * g.norm())))
    return found


with_rotation, without = cosines(rebalance), cosines(balanced_pair)
assert min(with_rotation) > 0.9 and max(map(abs, without)) < 0.5
print("cosines with the nearest rotation above 0.9:", min(with_rotation) > 0.9)
print("cosines without it below 0.5:", max(map(abs, without)) < 0.5)

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
# $W_K^\top b_Q$ ({prf:ref}`lem-key-bias`), and that one changes.

# %% tags=["claim-rebalancing-biases"]
model = small_gpt(9)
for layer, old in enumerate(weights):
    q, k = rebalance(old["W_Q"], old["W_K"])
    seen = lambda W_K: torch.einsum("hde,hd->he", W_K, old["b_Q"])
    assert near(k.mT @ q, old["W_K"].mT @ old["W_Q"]) and not near(
        seen(k), seen(old["W_K"]), 0.1
    )
    set_head_weights(model, layer, W_Q=q, W_K=k)
assert not near(model(tokens)[0], before, 1e-3)
for layer, old in enumerate(weights):  # now let the biases follow
    set_head_weights(
        model,
        layer,
        **dict(
            zip(
                ("W_Q", "W_K", "b_Q", "b_K"),
                rebalance(*(old[n] for n in ("W_Q", "W_K", "b_Q", "b_K"))),
            )
        ),
    )
assert near(model(tokens)[0], before)
print("weights alone: other logits; with biases: the same, to 1e-12")

# %% [markdown]
# There is more to it. With biases what gradient flow conserves is not $P - K$ but the matrix of the **joint** weights $(W_Q\; b_Q)$ and
# $(W_K\; b_K)$, which is $P - K + b_Q b_Q^\top - b_K b_K^\top$ ({prf:ref}`prop-conserved-bias`). Balancing the weights and carrying the biases along leaves $b_Q b_Q^\top - b_K b_K^\top$ of it: that is the curve that will not
# come down in {numref}`fig-sawtooth`. Balancing the joint weights brings it to zero, and keeps the scores as well. The same function then
# has $P \neq K$.

# %% tags=["claim-rebalancing-biases"]
b_Q, b_K = normal(24, D), normal(25, D)
q, k, c_Q, c_K = rebalance(W_Q, W_K, b_Q, b_K)
left = torch.outer(c_Q, c_Q) - torch.outer(c_K, c_K)
assert (
    near(gram_difference(with_bias(q, c_Q), with_bias(k, c_K)), left, 1e-10)
    and left.norm() > 0.1
)
j_Q, j_K = rebalance(with_bias(W_Q, b_Q), with_bias(W_K, b_K))
old_scores = with_bias(W_K, b_K).mT @ with_bias(W_Q, b_Q)
assert near(j_K.mT @ j_Q, old_scores) and near(
    with_bias(k, c_K).mT @ with_bias(q, c_Q), old_scores
)
assert beta(j_Q, j_K) < 1e-12 and beta(j_Q[:, :-1], j_K[:, :-1]) > 0.1

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
p = rotary.random_parameters(seed=17)
q, k = rebalance(p["W_Q"], p["W_K"])
assert near(k.mT @ q, p["W_K"].mT @ p["W_Q"]) and not near(
    forward(rotary, p | {"W_Q": q, "W_K": k}, x), y, 0.01
)

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
assert (rank(thin), rank(W_K), rank(q, 1e-6), rank(k, 1e-6)) == (D - 1, D, D - 1, D - 1)
assert (
    near(k.mT @ q, W_K.mT @ thin)
    and near(q @ q.mT, k @ k.mT)
    and torch.isinf(result.condition)
)
c = W_K.mT @ b_Q
assert (c - k.mT @ torch.linalg.pinv(k.mT, rtol=1e-6) @ c).norm() > 0.1 * c.norm()
try:
    rebalance(thin, W_K, b_Q, b_K)
    raise AssertionError("no error")
except ValueError as error:
    print(error)

# %% [markdown]
# On the way there $S$ becomes ever worse conditioned. With the smallest singular value of $W_Q$ at $\varepsilon$ times its old value,
# $\kappa(S)$ grows like $\varepsilon^{-1/2}$, as part 3 of {prf:ref}`prop-balanced-orbit` allows. The paper's $\mu$ is the warning light:
# it vanishes only if both $P$ and $K$ are singular, so it does not even light up here.


# %%
def weakened(epsilon):
    return U * torch.cat((sigma[:-1], epsilon * sigma[-1:])) @ Vh


conditions = [float(rebalance(weakened(10.0**-n), W_K).condition) for n in (4, 6, 8)]
for nearer, further in zip(conditions, conditions[1:]):
    assert abs(further / nearer - 10) < 0.1
assert head_metrics(thin, W_K, thin, W_K)["mu"] > 0.1
print("a hundredth of the singular value, ten times the condition: True")

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
row_Q, row_K = normal(26, 1, 5), 7 * normal(27, 1, 5)
s = (row_K.norm() / row_Q.norm()).sqrt()
q, k = rebalance(row_Q, row_K)
assert near(q, s * row_Q) and near(k, row_K / s)
assert near(q.norm(), (row_Q.norm() * row_K.norm()).sqrt())

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
assert (
    near(q @ q.mT, k @ k.mT, 1e-10) and 1.0001 < distance(q, k) / distance(A, B) < 1.01
)
diagonal = [
    torch.diag(normal(seed, D).exp()) @ torch.linalg.qr(normal(seed + 1, E, D)).Q.mT
    for seed in (28, 30)
]  # P, K diagonal
assert near(balancing_S(*diagonal), symmetric_S(*diagonal), 1e-10)

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
signs = (once[0] * twice[0]).sum(1).sign()
assert near(signs[:, None] * twice[0], once[0], 1e-10) and near(
    signs[:, None] * twice[1], once[1], 1e-10
)
assert distance(*once) > 1.2 * distance(A, B)

# %% [markdown]
# **Next:** the paper's own experiments, with many seeds. There rebalancing is one of four cases, and the question is no longer what it does
# to $\beta$ but whether the loss can tell.
