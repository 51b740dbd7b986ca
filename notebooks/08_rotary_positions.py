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
# # Rotary positions
#
# *Assumed: {prf:ref}`prop-orbit` of chapter 2 and {prf:ref}`lem-directions` of chapter 4, that is, one head with $D \le E$, no biases, a plain
# softmax; and complex numbers as rotations of the plane.*
#
# *In the ledger:* {ref}`Proposition 4.8 <ledger-prop-4-8>`.
#
# ## The question
#
# So far a head had no sense of order. {term}`Rotary positions <rotary position>` ({cite:t}`su2024`) give it one by turning queries and
# keys before they are compared. The head's $D$ coordinates are taken in pairs, the *planes*, and at position $l$ plane $i$ is turned by the
# angle $\theta_i l$. Let $R$ be the block-diagonal matrix that turns plane $i$ by $\theta_i$ and leaves coordinates outside all planes
# where they are. The query at $l$ becomes $R^l W_Q x_l$, the key at $m$ becomes $R^m W_K x_m$, and since $R$ is orthogonal their score is
#
# $$
# x_m^\top\, W_K^\top R_{l - m} W_Q\, x_l, \qquad R_\delta = R^\delta .
# $$
#
# Where there was one product $W_K^\top W_Q$ there is now one for each offset $\delta$: more for the outputs to see, and less room to hide. Which of
# the $D^2$ changes of basis $(S W_Q, S^{-\top} W_K)$ survive? The paper answers $D$ dimensions. We shall find that this is right for the
# frequencies of most models, that it is wrong for some, and that it is a statement about exact arithmetic which a short sequence may
# not notice.
#
# ## The claim
#
# Write $M_\delta = W_K^\top R_\delta W_Q$. First, what is there to see?
#
# ```{prf:lemma} The outputs see the products
# :label: lem-rotary-outputs
#
# For a rotary head with $N = W_O W_V \ne 0$ and causal attention, a direction is {term}`unidentified` exactly when it keeps $N$ and every
# $M_\delta$, $\delta \ge 1$, to first order. It then keeps $M_0$ and the $M_\delta$ with $\delta < 0$ as well.
# ```
#
# ```{prf:proposition} Rotary positions (paper: Prop. 4.8, with necessity)
# :label: prop-rotary
#
# Let $D \le E$ and let $W_Q, W_K$ have rank $D$. Let $\Delta$ be a set of offsets that contains two neighbours.
#
# 1. Weights $W_Q', W_K'$ have the same products, $W_K'^\top R_\delta W_Q' = W_K^\top R_\delta W_Q$ for all $\delta \in \Delta$, if and only if
#
#    $$
#    W_Q' = A\, W_Q, \qquad W_K' = A^{-\top} W_K
#    $$
#
#    with a nonsingular $A$ that commutes with $R$, that is, $A R = R A$. This $A$ is unique.
# 2. In particular, $B^\top R_\delta A = R_\delta$ for all $\delta \in \Delta$ forces $B = A^{-\top}$ and $A R = R A$.
# 3. If $N \neq 0$ and attention is causal, the unidentified directions in $(W_Q, W_K)$ are $(S W_Q, -S^\top W_K)$ with $S$ in the
#    **{term}`commutant`** of $R$, the linear space $\{ S : S R = R S \}$. Their number is its dimension.
# ```
#
# So everything hangs on which matrices commute with $R$. Two planes *turn alike* if their angles agree modulo sign and $2\pi$: positions are
# whole numbers, so a full turn more per step is invisible, and a plane that turns backwards is a plane that turns forwards, seen in a mirror.
#
# ```{prf:lemma} The commutant
# :label: lem-commutant
#
# Sort the coordinates by how they turn: $d_0$ keep still (outside all planes, or with $\theta \in 2\pi\mathbb{Z}$), $d_\pi$ change sign at
# each step ($\theta \in \pi + 2\pi\mathbb{Z}$), and $n_\varphi$ planes turn by $\pm\varphi$, for each $\varphi \in (0, \pi)$ that occurs, modulo $2\pi$.
# The commutant of $R$ is isomorphic to
#
# $$
# \mathfrak{gl}(d_0, \mathbb{R}) \;\oplus\; \mathfrak{gl}(d_\pi, \mathbb{R}) \;\oplus\; \bigoplus_\varphi \mathfrak{gl}(n_\varphi, \mathbb{C}),
# \qquad \text{of dimension} \quad d_0^2 + d_\pi^2 + \sum_\varphi 2\, n_\varphi^2 .
# $$
# ```
#
# Here $\mathfrak{gl}(n, \cdot)$ is the space of all $n \times n$ matrices. If all $D/2$ planes turn differently, and none is still or
# half-turning, this is $\mathbb{C}^{D/2}$: its nonsingular elements form the paper's group $(\mathbb{C} \setminus \{0\})^{D/2}$, of dimension
# $D$. With no rotation at all $d_0 = D$, and we are back at $D^2$.
#
# The proposition asks for $D \le E$. Without that one can still count.
#
# ```{prf:proposition} Heads of any width
# :label: prop-rotary-wide
#
# For any $D$ and $E$ let $\ell(n) = 2nE - r(2E - r)$ with $r = \min(n, E)$, the number of {prf:ref}`prop-count-r`. The number of unidentified
# directions in $(W_Q, W_K)$ of a generic rotary head is
#
# $$
# \ell(d_0) + \ell(d_\pi) + \sum_\varphi 2\, \ell(n_\varphi) .
# $$
# ```
#
# As $\ell(n) = n^2$ for $n \le E$, nothing changes when $D$ outgrows $E$: it is each *class* of coordinates that may not outgrow it. With
# distinct frequencies the count is $D$ even for $E = 1$.
#
# ## Proof
#
# ```{prf:proof}
# (of {prf:ref}`lem-rotary-outputs`) The outputs are a function of $N$ and of the scores, and $R_0 = I$ is a linear combination of $R_1, \dots, R_D$ by
# the theorem of Cayley and Hamilton, since $R$ is invertible; so are the negative powers. That shows "if". For "only if", sequences of one token
# give $\dot N = 0$ as in {prf:ref}`lem-two-products`. Take a sequence of $n$ tokens $y$ and then one token $x$. The output at $x$ is $N(y + p\,(x - y))$ with
#
# $$
# \log \frac{p}{1 - p} = x^\top M_0\, x - \log \sum_{\delta = 1}^{n} e^{y^\top M_\delta\, x} .
# $$
#
# An unidentified direction keeps $p$ for almost all $x, y$, hence all, so $x^\top \dot M_0 x = \sum_\delta w_\delta\, y^\top \dot M_\delta x$, with
# weights $w_\delta > 0$. For $n = 1$ the left side is free of $y$ and the right side is linear in $y$, so both vanish, and $\dot M_1 = 0$. For $n > 1$ the left side is now
# zero and so are all terms on the right but the last, by induction, so $\dot M_n = 0$.
# ```
#
# Several heads, with generic weights, are seen one by one. For $n = 1$ the proof of {prf:ref}`lem-heads-apart` applies, with $x$ and $y$ both multiplied by $\sqrt{t}$, and gives for each
# head $\dot N = 0$, $\dot M_1 = 0$ and $x^\top \dot M_0 x = 0$. For $n = 2$ there remains a sum over heads, $\sum_h f_h(t)\; y^\top \dot M_2^h x\; N_h (x - y) = 0$, where
#
# $$
# f_h(t) = \frac{e^{\gamma_h t}}{(1 + e^{\beta_h t} + e^{\gamma_h t})^2}, \qquad
# \beta_h = y^\top M_1^h x - x^\top M_0^h x, \quad \gamma_h = y^\top M_2^h x - x^\top M_0^h x .
# $$
#
# As $t \to \infty$, $f_h$ falls like $e^{-\rho_h t}$ with $\rho_h = 2 \max(0, \beta_h, \gamma_h) - \gamma_h$. For almost all $x, y$ these rates differ from head to head, functions
# with different rates are independent, and so $\dot M_2^h = 0$. For $D \le E$ the two offsets 1 and 2 are all we need; larger $n$ go the same way.
#
# ```{prf:proof}
# (of {prf:ref}`prop-rotary`) *1.* If $A$ commutes with $R$, it commutes with each $R_\delta$, and
# $W_K^\top A^{-1} R_\delta A W_Q = W_K^\top R_\delta W_Q$. Conversely, let $\delta, \delta + 1 \in \Delta$. The pairs $(R_\delta W_Q, W_K)$
# and $(R_\delta W_Q', W_K')$ have the same product, so by {prf:ref}`prop-orbit` there is exactly one nonsingular $A$ with $R_\delta W_Q' = A R_\delta W_Q$ and
# $W_K' = A^{-\top} W_K$. The product at $\delta + 1$ then reads
#
# $$
# W_K^\top\, A^{-1} R A\; R_\delta W_Q = W_K^\top\, R\; R_\delta W_Q .
# $$
#
# Here $W_K^\top$ is injective and $R_\delta W_Q$ is onto, so they cancel: $R A = A R$. Now $A$ also commutes with $R_\delta$, and $W_Q' = A W_Q$.
# *2.* This is the case $E = D$, $W_Q = W_K = I$. *3.* By {prf:ref}`lem-rotary-outputs` the unidentified directions keep $M_1$ and $M_2$. Repeat the argument with
# derivatives: by {prf:ref}`lem-directions` a direction that keeps $M_1$ is $R\,\delta W_Q = T R W_Q$, $\delta W_K = -T^\top W_K$, and one that keeps $M_2$
# too has $T R = R T$. So $\delta W_Q = T W_Q$. All these keep every $M_\delta$.
# ```
#
# ```{prf:proof}
# (of {prf:ref}`lem-commutant`) If $S$ commutes with $R$ it commutes with $R^{-1} = R^\top$ and with $R + R^\top$. This symmetric matrix is
# $2 \cos\varphi$ on the coordinates that turn by $\pm\varphi$, and these numbers differ for different $\varphi \in [0, \pi]$. So $S$ maps each class of
# coordinates to itself. On the still and on the half-turning ones $R = \pm I$, and every $S$ will do. On a class with $0 < \varphi < \pi$, swap the
# two axes of each plane that turns backwards. Then $R = \cos\varphi\, I + \sin\varphi\, J$, with $J$ a quarter turn of every plane, and since $\sin\varphi \ne 0$ to
# commute with $R$ is to commute with $J$. But $J$ is multiplication by $i$ on $\mathbb{C}^{n_\varphi}$. Real linear maps that commute with it
# are the complex linear ones: $n_\varphi^2$ complex entries.
# ```
#
# ```{prf:proof}
# (of {prf:ref}`prop-rotary-wide`) Let $K_\varphi, Q_\varphi \in \mathbb{C}^{n_\varphi \times E}$ be the rows of $W_K, W_Q$ in a class of planes, each pair of real rows made one
# complex row, and $K_0, Q_0, K_\pi, Q_\pi$ the rows of the real classes. Then
#
# $$
# M_\delta = K_0^\top Q_0 + (-1)^\delta K_\pi^\top Q_\pi + \sum_\varphi \mathrm{Re} \big( e^{i \varphi \delta}\, K_\varphi^* Q_\varphi \big) .
# $$
#
# The sequences $1$, $(-1)^\delta$, $\cos\varphi\delta$, $\sin\varphi\delta$ that occur are at most $D$, and linearly independent over any $D$ successive offsets (a
# Vandermonde determinant in distinct numbers). To know the $M_\delta$ is therefore to know each product $K_0^\top Q_0$, $K_\pi^\top Q_\pi$, $K_\varphi^* Q_\varphi$. These have no
# weights in common, and each loses what {prf:ref}`prop-count-r` says; its proof holds over $\mathbb{C}$ word by word, and one complex dimension is two real ones.
# ```
#
# ## The same symbols in code

# %%
import math

import torch

from attnid import Attention, count, figures, generators, measure
from attnid.layer.attention import project, scores
from attnid.layer.rotation import isotypes


def rotation(frequencies, D, offset=1):  # R_offset, (D, D)
    R = torch.eye(D, dtype=torch.float64)
    for i, theta in enumerate(frequencies):
        c, s = math.cos(offset * theta), math.sin(offset * theta)
        R[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = torch.tensor(
            [[c, -s], [s, c]], dtype=torch.float64
        )
    return R


def normal(seed, *shape):
    return torch.randn(
        shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )


def rank(matrix):
    return int(torch.linalg.matrix_rank(matrix, rtol=1e-10))


# %% [markdown]
# The package turns queries and keys by their positions, as models do; the text turns neither and puts $R_{l - m}$ in the middle. On a head with $D = 8$,
# $E = 10$ and four different frequencies both give the same scores, to $10^{-12}$.

# %%
D, E, L = 8, 10, 7
distinct = (0.3, 0.7, 1.1, 2.0)
head = Attention(E, 1, head_dim=D, value_dim=1, rotary=distinct)
p, x = head.random_parameters(seed=1), normal(2, L, E)
W_Q, W_K = p["W_Q"][0], p["W_K"][0]
by_package = scores(head, p, *project(head, p, x)[:2])[0]  # row l: query, column m: key
by_offset = torch.tensor(
    [
        [x[m] @ W_K.mT @ rotation(distinct, D, l - m) @ W_Q @ x[l] for m in range(L)]
        for l in range(L)
    ],
    dtype=torch.float64,
) / math.sqrt(D)
assert (by_package - by_offset).abs().max() < 1e-12

# %% [markdown]
# A nonsingular element of the commutant with distinct frequencies is a complex number for each plane: a scaling and a rotation,
#
# $$
# A = \mathrm{diag}\Big( \begin{pmatrix} a_i & -b_i \\ b_i & a_i \end{pmatrix} \Big)_{i = 1}^{D/2}, \qquad a_i^2 + b_i^2 \ne 0 .
# $$
#
# We move the weights by a large one, and by a random matrix that does not commute, which was harmless in chapter 2.


# %% tags=["claim-prop-4.8"]
def moved_scores(A):
    moved = p | {"W_Q": (A @ W_Q)[None], "W_K": (torch.linalg.inv(A).mT @ W_K)[None]}
    return scores(head, moved, *project(head, moved, x)[:2])[0]


a, b = normal(3, D // 2), normal(4, D // 2)
A = torch.block_diag(
    *[torch.tensor([[u, -v], [v, u]], dtype=torch.float64) for u, v in zip(a, b)]
)
S = normal(5, D, D)
worst = lambda s: (s - by_package).abs().max() / by_package.abs().max()
assert (A @ W_Q - W_Q).norm() > 0.5 * W_Q.norm()
assert worst(moved_scores(A)) < 1e-12 and worst(moved_scores(S)) > 0.1
assert (
    moved_scores(S) - by_package
).diagonal().abs().max() < 1e-11  # offset 0 does not mind

# %% [markdown]
# ## The check
#
# The commutant's dimension for many patterns of frequencies; how few offsets it takes; and the two ways to pair coordinates into planes.
#
# ### Every pattern of frequencies
#
# {prf:ref}`lem-commutant` against three counts that do not use it: the null space of the linear map $S \mapsto R S - S R$, as an explicit
# $D^2 \times D^2$ matrix; the null space of $(S, T) \mapsto (T^\top R_\delta + R_\delta S)_{\delta = 0, 1, 2}$, which is
# {prf:ref}`prop-rotary` part 2, linearised, and is told nothing of $T = -S^\top$; and the rank of the outputs' Jacobian, by `measure`. With row-major flattening,
# $R S - S R$ is $(R \otimes I - I \otimes R^\top)$ applied to $S$.


# %%
def commutator(R):  # (D D, D D), acting on S flattened
    eye = torch.eye(len(R), dtype=R.dtype)
    return torch.kron(R, eye) - torch.kron(eye, R.mT.contiguous())


def linearised(
    frequencies, D, offsets
):  # nullity of (S, T) -> T^T R_m + R_m S over the offsets
    eye = torch.eye(D, dtype=torch.float64)
    blocks = []
    for R in (rotation(frequencies, D, m) for m in offsets):
        on_T = torch.stack(
            [
                (unit.view(D, D).mT @ R).flatten()
                for unit in torch.eye(D * D, dtype=R.dtype)
            ],
            1,
        )
        blocks.append(torch.cat((torch.kron(R, eye), on_T), 1))
    return 2 * D * D - rank(torch.cat(blocks))


# %% [markdown]
# `isotypes` sorts a head's coordinates into its {term}`isotypes <isotype>`, the classes of {prf:ref}`lem-commutant`. The patterns below have $D = 8$: four planes, some turning alike,
# some not turning, some left out.

# %% tags=["claim-prop-4.8"]
pi = math.pi
patterns = {
    "all different": distinct,
    "two equal": (0.3, 0.3, 1.1, 2.0),
    "two opposite": (0.3, -0.3, 1.1, 2.0),
    "equal modulo 2 pi": (0.3, 0.3 + 2 * pi, 1.1, 2.0),
    "three alike": (0.3, 0.3, -0.3, 2.0),
    "one at zero": (0.0, 0.3, 1.1, 2.0),
    "one not listed": (0.3, 1.1, 2.0),
    "half of the planes": (0.3, 1.1),
    "one half turn": (0.3, 1.1, 2.0, pi),
    "two half turns": (0.3, 1.1, pi, -pi),
    "some of each": (0.3, -0.3, pi),
    "none": (),
}
print(f"{'pattern':>20}  formula  commute  pairs  measured")
for name, frequencies in patterns.items():
    layer = Attention(9, 1, head_dim=8, value_dim=1, rotary=frequencies)
    formula = sum(i.size**2 * (2 if i.complex else 1) for i in isotypes(layer))
    commute = 64 - rank(commutator(rotation(frequencies, 8)))
    pairs = linearised(frequencies, 8, (0, 1, 2))
    measured = measure(layer).nullity - 1  # one is lost in the values, as C = 1
    print(f"{name:>20}  {formula:7}  {commute:7}  {pairs:5}  {measured:8}")
    assert (
        formula == commute == pairs == measured == count(layer).terms["query-key maps"]
    )

# %% [markdown]
# The first line is the paper's case. One pair of equal frequencies adds four dimensions: $2 \cdot 2^2$ instead of $2 \cdot 1^2 + 2 \cdot 1^2$. A
# plane that does not turn adds two, since it has $2^2$ where a turning one has 2; a half turn does the same, and is kept apart from the still
# planes. **Partly rotated heads** belong here too: with $D = 64$, of which a quarter turns, the count is $48^2 + 16 = 2{,}320$, much
# nearer to $64^2$ than to $64$.

# %%
partly = Attention(
    768, 12, rotary=tuple(1e4 ** (-i / 8) for i in range(8))
)  # D = 64, eight planes turn
assert count(partly).terms["query-key maps"] == 12 * (48**2 + 16) == 12 * 2320

# %% [markdown]
# The directions themselves: those of `generators`, and those made from a numerical basis of the commutant, span the same space.

# %%
basis = (
    torch.linalg.svd(commutator(rotation(distinct, D))).Vh[-D:].view(D, D, D)
)  # the last D: S with R S = S R
ours = torch.cat(((basis @ W_Q).flatten(1), (-basis.mT @ W_K).flatten(1)), 1)
theirs = generators(head, p)["query-key maps"]
theirs = torch.cat((theirs["W_Q"].flatten(1), theirs["W_K"].flatten(1)), 1)
assert rank(ours) == rank(theirs) == rank(torch.cat((ours, theirs))) == D

# %% [markdown]
# ### How many offsets does it take?
#
# {prf:ref}`prop-rotary` says two neighbouring offsets, for $D \le E$. We take the Jacobian of the products themselves, of $(W_Q, W_K) \mapsto (M_\delta)_{\delta \in \Delta}$, for
# several $\Delta$. One offset, whichever, leaves $D^2 = 64$; a second one brings the count down to $D = 8$ at once. A third adds nothing. The reason is
# that $R_1$ alone generates all its powers.


# %%
def idle(frequencies, D, E, offsets):
    R = torch.stack([rotation(frequencies, D, m) for m in offsets])
    W_Q, W_K = normal(6, D, E), normal(7, D, E)
    blocks = torch.func.jacrev(lambda q, k: k.mT @ R @ q, argnums=(0, 1))(
        W_Q, W_K
    )  # (offsets, E, E, D, E) each
    return 2 * D * E - rank(
        torch.cat([block.flatten(3).flatten(0, 2) for block in blocks], 1)
    )


for offsets, expected in (
    ((0,), 64),
    ((1,), 64),
    ((0, 1), 8),
    ((1, 2), 8),
    ((0, 1, 2, 3), 8),
):
    assert idle(distinct, 8, 10, offsets) == expected
    print(f"offsets {offsets}: {expected} idle")

# %% [markdown]
# With $E < D$ one product has too few rows to show all of $A$, and more offsets are needed, but never more than $D$; the end of the row is that of
# {prf:ref}`prop-rotary-wide`.

# %%
for narrow in (1, 3, 5):
    row = [idle(distinct, 8, narrow, range(n)) for n in range(1, 10)]
    print(f"E = {narrow}, 1 to 9 offsets:", row)
    assert (
        row[7]
        == row[8]
        == 8
        == count(Attention(narrow, 1, head_dim=8, value_dim=1, rotary=distinct)).terms[
            "query-key maps"
        ]
    )

# %% [markdown]
# ### Two layouts
#
# Which coordinates make a plane is a matter of layout. *Interleaved* code pairs coordinates $2i$ and $2i + 1$, as here; *half-split* code, that
# of GPT-NeoX and of the Llama models as most people load them, pairs $i$ and $i + D/2$. One is the other after a permutation of the rows
# of $W_Q$ and $W_K$. A permutation of coordinates conjugates $R$ and the commutant with it, and dimensions stay. Weights of one layout in code of
# the other, however, make another function: that permutation does not commute with $R$.


# %%
def half_split_scores(W_Q, W_K, x, frequencies):
    angle = torch.arange(len(x)).double()[:, None] * torch.tensor(
        frequencies, dtype=torch.float64
    ).repeat(2)  # (L, D)
    quarter = lambda v: torch.cat(
        (-v[:, len(frequencies) :], v[:, : len(frequencies)]), 1
    )
    turn = lambda v: v * angle.cos() + quarter(v) * angle.sin()
    return turn(x @ W_Q.mT) @ turn(x @ W_K.mT).mT / math.sqrt(len(W_Q))


order = torch.cat(
    (torch.arange(0, D, 2), torch.arange(1, D, 2))
)  # first axes of all planes, then second axes
assert (
    half_split_scores(W_Q[order], W_K[order], x, distinct) - by_package
).abs().max() < 1e-12
assert (half_split_scores(W_Q, W_K, x, distinct) - by_package).abs().max() > 0.1
for frequencies in patterns.values():
    R = rotation(frequencies, D)
    assert rank(commutator(R[order][:, order])) == rank(commutator(R))

# %% [markdown]
# ## What a finite sequence notices
#
# Equal frequencies merge planes into one class and unequal ones do not, however close. In practice it is a matter of degree: two planes with
# angles $10^{-6}$ apart differ by $10^{-4}$ at most over a hundred tokens. So the exact answer is the limit of a graded one, and the grades can be computed.
# A direction $S$ changes $R_\delta$ by $R_\delta S - S R_\delta$, to first order. Let $S$ act from plane $j$ to plane $i$ only, either as a complex number or as
# one after a mirror image, so that there are $2 + 2$ real dimensions for each of the $(D/2)^2$ pairs. Since planes turn by complex units, the change at offset
# $\delta$ has the size of $S$ times
#
# $$
# \big| e^{i \theta_i \delta} - e^{\pm i \theta_j \delta} \big| = 2\, \big| \sin \tfrac{1}{2} (\theta_i \mp \theta_j)\, \delta \big| .
# $$
#
# These directions are orthogonal, and so are their images. Hence the root mean square of this number over $\delta = 0, \dots, L - 1$ is a singular value of
# the map $S \mapsto (R_\delta S - S R_\delta)_\delta$ over $\sqrt{L}$, twice for each pair and sign. The mean square has a closed form,
# $2 - 2 \cdot \frac{1}{L} \sum_\delta \cos g\delta$ with $g = \theta_i \mp \theta_j$:


# %%
def ladder(base, D):  # the frequencies in use, fast to slow
    return base ** (-2 * torch.arange(D // 2, dtype=torch.float64) / D)


def sensitivity(
    theta, L
):  # (2, planes, planes): as a complex number, after a mirror image
    gap = torch.stack((theta[:, None] - theta, theta[:, None] + theta))
    kernel = torch.where(
        gap == 0, 2 * L - 1.0, ((2 * L - 1) * gap / 2).sin() / (gap / 2).sin()
    )
    return (
        (2 - (kernel + 1) / L).clamp_min(0).sqrt()
    )  # mean of cos(gap m) over m < L is (kernel + 1) / 2L


# %% [markdown]
# The formula against all $D^2$ singular values of the explicit map, for $D = 8$ and $L = 20$, to $10^{-7}$ (half the digits, since a square root is taken):

# %%
theta = ladder(1e4, 8)
explicit = torch.linalg.svdvals(
    torch.cat([commutator(rotation(theta.tolist(), 8, m)) for m in range(20)])
) / math.sqrt(20)
formula = (
    sensitivity(theta, 20).flatten().repeat_interleave(2).sort(descending=True).values
)
assert (explicit - formula).abs().max() < 1e-7 and len(formula) == 64

# %% [markdown]
# Now the real ladders $\theta_i = \text{base}^{-2i/D}$ with $D = 128$, for the bases $10^4$ (the original, kept by Llama 2) and $5 \cdot 10^5$ (chosen
# for longer texts, by Llama 3 among others). We call a direction of unit size *practically idle* at tolerance $\varepsilon$ if this root mean square change of $R_\delta$ is below $\varepsilon$.

# %%
lengths = [2**k for k in range(18)]


def practically_idle(base, tolerance):
    return [
        2 * int((sensitivity(ladder(base, 128), L) < tolerance).sum()) for L in lengths
    ]


curves = {
    f"base {base:,.0f}, tolerance {tolerance:g}": practically_idle(base, tolerance)
    for base in (1e4, 5e5)
    for tolerance in (1e-3, 1e-2)
}
for name, counts in curves.items():
    print(
        f"{name}: L = 32 {counts[5]}, 256 {counts[8]}, 4096 {counts[12]}, 131072 {counts[17]}"
    )
    assert (
        counts[0] == 128**2
        and counts[17] == 128
        and counts == sorted(counts, reverse=True)
    )
reached = [lengths[counts.index(128)] for counts in curves.values()]
assert reached == [128, 1024, 4096, 32768]
assert 9 < practically_idle(5e5, 1e-2)[8] / 128 < 11

# %% mystnb={"image": {"alt": "Left: a square heat map over pairs of 64 planes. It is bright, of order one, along the edges of fast planes, and falls to below one in a hundred thousand in the corner of slow planes and along the diagonal; a white line marks one in a thousand. Right: four falling curves against sequence length on logarithmic axes, all starting at 16,384 and ending at 128; those for the larger base and the looser tolerance arrive later."}, "figure": {"caption": "Left: root mean square change of $R_\\delta$, relative to the size of $S$, when plane $j$ is mixed into plane $i$ as a complex number, base $5 \\cdot 10^5$ and $L = 256$; the white line is $10^{-3}$. Right: the directions of $\\mathfrak{gl}(128)$ that change $R_\\delta$ by less than a tolerance, between no rotation ($D^2$) and the exact count ($D$).", "name": "fig-rotary-idle"}}
figures.rotary_idle_directions(
    sensitivity(ladder(5e5, 128), 256)[0], 1e-3, lengths, curves, (128, 128**2)
)

# %% [markdown]
# {numref}`fig-rotary-idle` has both of our earlier chapters as its ends. A single token sees no offset but zero, and all $D^2 = 16{,}384$ directions are idle. As texts grow
# longer more and more planes tell themselves apart, the slow ones last. With the small base and the tight tolerance nothing but the exact $D = 128$ is left at
# $L = 128$; with the large base and the loose tolerance this takes $L = 32{,}768$, and a text of 256 tokens leaves about ten times as many.
#
# What this means for one head: mix its two slowest planes by half, and look at the products at several offsets.

# %%
slow, D_small = ladder(5e5, 32), 32
W_Q, W_K = normal(8, D_small, 48), normal(9, D_small, 48)


def change(i, j, offset):
    A = torch.eye(D_small, dtype=torch.float64)
    A[2 * i : 2 * i + 2, 2 * j : 2 * j + 2] = torch.eye(2, dtype=torch.float64) / 2
    R = rotation(slow.tolist(), D_small, offset)
    before, after = W_K.mT @ R @ W_Q, W_K.mT @ torch.linalg.inv(A) @ R @ A @ W_Q
    return float((after - before).norm() / before.norm())


for name, (i, j) in (("fastest", (0, 1)), ("slowest", (14, 15))):
    print(
        f"{name} two planes mixed:",
        ", ".join(f"offset {m}: {change(i, j, m):.0e}" for m in (16, 1024, 65536)),
    )
assert (
    change(14, 15, 16) < 1e-4
    and change(14, 15, 65536) > 0.02
    and change(0, 1, 16) > 0.1
)

# %% [markdown]
# ## Break it
#
# **Drop the neighbours.** If only even offsets occur, $R$ is never seen, only $R^2$. Half turns look still, and the angles $\theta$ and $\pi - \theta$ look opposite. In general, what counts
# is $R_g$, with $g$ the greatest common divisor of the differences of offsets.

# %%
every, even = range(6), range(0, 12, 2)
cases = {
    "half turn beside still": ((pi,), (8, 16)),
    "0.5 and pi - 0.5": ((0.5, pi - 0.5), (4, 8)),
    "0.5 and 1.1": ((0.5, 1.1), (4, 4)),
}
for name, (frequencies, expected) in cases.items():
    found = (idle(frequencies, 4, 6, every), idle(frequencies, 4, 6, even))
    assert found == expected
    print(f"{name}: all offsets {found[0]}, even offsets {found[1]}")
assert 16 - rank(commutator(rotation((0.5, pi - 0.5), 4, 2))) == 8

# %% [markdown]
# **Make a class wider than $E$.** Three planes alike and $E = 2$: the class has $n = 3 > E$, and $2\,\ell(3) = 2 (12 - 4) = 16$ takes the place of
# $2 \cdot 3^2 = 18$. Three different planes with the same $D = 6 > E$ lose 6, as always.

# %%
for frequencies, expected in (((0.5, 0.5, 0.5), 16), ((0.5, 1.1, 2.0), 6)):
    layer = Attention(2, 1, head_dim=6, value_dim=1, rotary=frequencies)
    assert (
        count(layer).terms["query-key maps"]
        == expected
        == idle(frequencies, 6, 2, range(8))
        == measure(layer).nullity - 1
    )

# %% [markdown]
# **Add a key bias.** Fact 4.7 of the paper ({prf:ref}`lem-key-bias`) made the whole of $b_K$ idle. Under rotations it fails: the bias's key $R^m b_K$ depends on the position, and is no common shift.
# Only coordinates that keep still keep an idle bias.

# %%
for frequencies, expected in (((), 4), ((0.5,), 2), ((0.5, 1.1), 0)):
    layer = Attention(6, 1, head_dim=4, value_dim=1, rotary=frequencies, bias="k")
    assert (
        count(layer).terms.get("key bias", 0) == expected
        and measure(layer).nullity == count(layer).unidentified
    )

# %% [markdown]
# ## What it means
#
# Rotary positions identify almost everything that an unrotated head leaves open. Of the $D^2$ dimensions there remain $D$: a scale and a phase for each plane. The scale
# says that queries may grow where keys shrink, plane by plane; the phase says that only the angle *between* query and key matters. Nothing may be moved from one plane to another.
# That is a warning to anyone who rotates weights to compress or to merge models: a trick that is exact without rotations, such as an orthogonal change of basis of queries and keys, is not exact with them.
# And it is a matter of degree. The slow planes of a long ladder were made to tell distant tokens apart. On short texts they are barely identified, and
# training on short texts can hardly tell one basis of these planes from another.
#
# ```{prf:remark} Departure from the paper
# :label: rem-08-group
#
# Proposition 4.8 gives $(\mathbb{C} \setminus \{0\})^{D/2}$ without a condition on the frequencies. It holds exactly when they are distinct modulo sign and $2\pi$ and no coordinate is still or
# half-turning, as in the usual ladders; {prf:ref}`lem-commutant` has the other cases, partly rotated heads among them. The paper shows that matrices which commute may be inserted, and argues that there are no
# others by counting, not by proof; {prf:ref}`prop-rotary` supplies that half. Neither statement is about a sequence of given length and arithmetic of given precision.
# ```
#
# ## Exercises
#
# **1.** A head has $D = 12$ and the frequencies $(0.5,\ 0.5,\ -0.5,\ \pi,\ 2\pi)$; its last two coordinates are in no plane. Count.
#
# ```{admonition} Answer
# :class: dropdown
#
# Still: the plane at $2\pi$ and the last two, $d_0 = 4$. Half-turning: $d_\pi = 2$. Three planes turn alike. In all $4^2 + 2^2 + 2 \cdot 3^2 = 38$.
# ```

# %% tags=["hide-cell"]
layer = Attention(13, 1, head_dim=12, value_dim=1, rotary=(0.5, 0.5, -0.5, pi, 2 * pi))
assert (
    4**2 + 2**2 + 2 * 3**2
    == 38
    == count(layer).terms["query-key maps"]
    == measure(layer).nullity - 1
)

# %% [markdown]
# **2.** Use the scales to balance a rotary head: find weights with the same scores for which, in each plane, the two rows of $W_Q$ and the two of $W_K$ have the same total square. Can one reach
# $W_Q W_Q^\top = W_K W_K^\top$, as for a head without rotations?
#
# ```{admonition} Answer
# :class: dropdown
#
# Multiply the rows of plane $i$ of $W_Q$ by $\alpha_i = (\|K_i\| / \|Q_i\|)^{1/2}$ and divide those of $W_K$ by it. The phases turn the two Gram matrices of a plane alike and leave these totals alone, so $D/2$ balances
# are all that $D$ dimensions can buy: the rest of $W_Q W_Q^\top$ and $W_K W_K^\top$ is identified up to the phases.
# ```

# %% tags=["hide-cell"]
W_Q, W_K = p["W_Q"][0], p["W_K"][0]
size = lambda W: W.view(D // 2, 2, E).square().sum((1, 2)).sqrt()
alpha = (size(W_K) / size(W_Q)).sqrt().repeat_interleave(2)[:, None]
balanced = p | {"W_Q": (alpha * W_Q)[None], "W_K": (W_K / alpha)[None]}
assert (
    scores(head, balanced, *project(head, balanced, x)[:2])[0] - by_package
).abs().max() < 1e-12
assert (size(alpha * W_Q) - size(W_K / alpha)).abs().max() < 1e-12
gram = lambda W: W @ W.mT
assert (gram(alpha * W_Q) - gram(W_K / alpha)).norm() > 0.1 * gram(alpha * W_Q).norm()

# %% [markdown]
# **3.** How long must sequences be to identify all that can be identified? {prf:ref}`prop-rotary` needs two neighbouring offsets, and offset 0 pairs a token with itself only.
#
# ```{admonition} Answer
# :class: dropdown
#
# Three tokens have the offsets 1 and 2, which is enough for $D \le E$. Two tokens give $M_1$ and the values $x^\top M_0\, x$, that is, only the symmetric part of $M_0$. A direction that keeps $M_1$ has
# $\dot M_0 = W_K^\top (R^{-1} T R - T)\, W_Q$ for some $T$, as in the proof of {prf:ref}`prop-rotary`, and this must be skew. If $2D \le E$ the rows of $W_Q$ and $W_K$ are jointly independent, so the bracket is zero, and two tokens suffice. For $D = E = 4$ they do not: two more directions are idle.
# ```

# %% tags=["hide-cell"]
from_length = {}
for width in (4, 8):
    layer = Attention(width, 1, head_dim=4, rotary=(0.4, 1.3))
    q = layer.random_parameters(seed=10)
    found = []
    for n in (2, 3):
        R = torch.stack([rotation(layer.rotary, 4, m) for m in range(n)])
        seen = lambda W_Q, W_K: (
            (M := W_K.mT @ R @ W_Q)[0] + M[0].mT,
            M[1:],
        )  # x^T M_0 x sees the symmetric part
        parts = torch.func.jacrev(seen, argnums=(0, 1))(q["W_Q"][0], q["W_K"][0])
        rows = torch.cat(
            [torch.cat([b.reshape(-1, 4 * width) for b in part], 1) for part in parts]
        )
        found.append(8 * width - rank(rows))
    from_length[width] = found
print("idle with two and with three tokens:", from_length)
assert from_length == {4: [6, 4], 8: [4, 4]}

# %% [markdown]
# Next, {doc}`09_grouped_queries` lets several query heads share one key head, with rotations and without.
