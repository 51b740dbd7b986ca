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
# *Assumed: {prf:ref}`prop-orbit` of chapter 2 and {prf:ref}`cor-dimension` of chapter 4, that is, one head with $D \le E$, no biases, a plain
# softmax; for several heads {prf:ref}`lem-heads-apart`; and complex numbers as rotations of the plane.*
#
# *In the ledger:* {ref}`Proposition 4.8 <ledger-prop-4-8>`.
#
# ## The question
#
# So far a head had no sense of order. {term}`Rotary positions <rotary position>` ({cite:t}`su2024`) give it one by turning queries and
# keys before they are compared. The head's $D$ coordinates are taken in pairs, the *planes*, and at position $l$ plane $i$ is turned by the
# angle $\varphi_i l$. Let $R$ be the block-diagonal matrix that turns plane $i$ by $\varphi_i$ and leaves coordinates outside all planes
# where they are. The query at $l$ becomes $R^l W_Q x_l$, the key at $m$ becomes $R^m W_K x_m$, and since $R$ is orthogonal their score is
#
# $$
# x_m^\top\, W_K^\top R_{l - m} W_Q\, x_l, \qquad R_\delta = R^\delta .
# $$
#
# Where there was one product $W_K^\top W_Q$ there is now one for each offset $\delta$, and the outputs may see more. Which of
# the $D^2$ changes of basis $(S W_Q, S^{-\top} W_K)$ survive? The paper answers $D$ dimensions. We shall find that this is right for the
# frequencies of most models and wrong for some, and that in a short sequence many of the other changes are too small to
# notice.
#
# ## The claim
#
# Write $M_\delta = W_K^\top R_\delta W_Q$.
#
# ```{prf:lemma} The outputs see the products
# :label: lem-rotary-outputs
#
# For a rotary head with $N = W_O W_V \ne 0$, under a causal mask or none, a direction is {term}`unidentified` exactly when it keeps $N$ and every
# $M_\delta$, $\delta \ge 1$, to first order. It then keeps $M_0$ and the $M_\delta$ with $\delta < 0$ as well.
# ```
#
# ```{prf:lemma} The outputs see every rotary head
# :label: lem-rotary-heads
#
# Under a causal mask or none, let several rotary heads have $N_h \ne 0$, and let no quadratic form $x^\top M_0^h\, x$ be zero, nor any two of them equal or opposite. A direction
# is unidentified exactly when it keeps, to first order, $N_h$ and every $M_\delta^h$, $\delta \ge 1$, of each head.
# ```
#
# {term}`Generic <generic>` weights meet its conditions, at any $D$ and $E$, also where several heads share their keys.
#
# ```{prf:proposition} Rotary positions (paper: Prop. 4.8, with necessity)
# :label: prop-rotary
#
# Let $W_Q$ and $W_K$ have $D$ rows and rank $D$, so $D \le E$. Let $\Delta$ be a set of offsets that contains two neighbours. Of $R$ nothing is asked here but that it is nonsingular.
#
# 1. Weights $W_Q', W_K'$ have the same products, $W_K'^\top R_\delta W_Q' = W_K^\top R_\delta W_Q$ for all $\delta \in \Delta$, if and only if
#
#    $$
#    W_Q' = A\, W_Q, \qquad W_K' = A^{-\top} W_K
#    $$
#
#    with a nonsingular $A$ that commutes with $R$, that is, $A R = R A$. This $A$ is unique.
# 2. In particular, $B^\top R_\delta A = R_\delta$ for all $\delta \in \Delta$ forces $B = A^{-\top}$ and $A R = R A$.
# 3. If the head is that of {prf:ref}`lem-rotary-outputs` (or one of those of {prf:ref}`lem-rotary-heads`, with keys of its own), its unidentified directions in $(W_Q, W_K)$ are
#    $(T W_Q, -T^\top W_K)$ with $T$ in the **{term}`commutant`** of $R$, the linear space $\{ T : T R = R T \}$. Their number is its dimension.
# ```
#
# So everything hangs on which matrices commute with $R$. Two planes *turn alike* if their angles agree modulo sign and $2\pi$: positions are
# whole numbers, so a full turn more per step is invisible, and a plane that turns backwards turns forwards when its two axes are swapped.
#
# ```{prf:lemma} The commutant
# :label: lem-commutant
#
# Sort the coordinates by how they turn: $d_0$ keep still (outside all planes, or with $\varphi_i \in 2\pi\mathbb{Z}$), $d_\pi$ change sign at
# each step ($\varphi_i \in \pi + 2\pi\mathbb{Z}$), and $n_\varphi$ planes turn by $\pm\varphi$, for each $\varphi \in (0, \pi)$ that occurs, modulo $2\pi$.
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
# For any $D$ and $E$ let $\mathrm{lost}(n) = 2nE - r(2E - r)$ with $r = \min(n, E)$, the number of {prf:ref}`prop-count-r`. Under a causal mask or none, the number of
# unidentified directions in $(W_Q, W_K)$ of each head of a generic rotary layer is, if it has keys of its own,
#
# $$
# \mathrm{lost}(d_0) + \mathrm{lost}(d_\pi) + \sum_\varphi 2\, \mathrm{lost}(n_\varphi) .
# $$
# ```
#
# As $\mathrm{lost}(n) = n^2$ for $n \le E$, nothing changes when $D$ outgrows $E$, as long as no *class* of coordinates does. With
# distinct frequencies the count is $D$ even for $E = 1$.
#
# ## Proof
#
# ```{prf:proof}
# (of {prf:ref}`lem-rotary-outputs`) The outputs are a function of $N$ and of the scores, and $R_0 = I$ is a linear combination of $R_1, \dots, R_D$ by
# the theorem of Cayley and Hamilton, since $R$ is invertible; so are the negative powers. That shows "if". For "only if", sequences of one token
# give $\dot N = 0$ as in {prf:ref}`lem-two-products`. Take a sequence of $n$ tokens $y$ and then one token $x$, which sees them all under either mask. Its output is $N(y + p\,(x - y))$ with
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
# ```{prf:proof}
# (of {prf:ref}`lem-rotary-heads`) "If" is as for one head. For "only if", one token gives $\sum_h \dot N_h = 0$. After $n$ tokens $y$ the output at $x = y + u$ is
# $\sum_h N_h (y + p_h u)$ with
#
# $$
# p_h = \Big( 1 + \sum_{\delta = 1}^n e^{\gamma_\delta^h} \Big)^{-1}, \qquad \gamma_\delta^h = y^\top M_\delta^h\, x - q_h, \quad q_h = x^\top M_0^h\, x .
# $$
#
# Put $\sqrt{t}\, x$ and $\sqrt{t}\, y$ in the place of $x$ and $y$: each $\gamma_\delta^h$ becomes $\gamma_\delta^h t$.
#
# *$n = 1$.* The derivative is that of {eq}`eq-sigmoids`, with $a_h = -\gamma_1^h$. The proof of {prf:ref}`lem-heads-apart` asks of these only that $a_h$ and $a_h \pm a_g$ are nonzero polynomials, and they are: at
# $y = 0$ they are $q_h$ and $q_h \pm q_g$. It gives $\dot N_h = 0$ and $\dot\gamma_1^h = 0$, that is, $\dot M_1^h = 0$ and $\dot q_h = 0$.
#
# *$n > 1$.* Suppose $\dot M_\delta^h = 0$ is known for $0 < \delta < n$. Of the derivative there remains, for all $t > 0$,
#
# $$
# \sum_h f_h(t)\; y^\top \dot M_n^h\, x\; N_h u = 0, \qquad f_h(t) = \frac{e^{\gamma_n^h t}}{\big( e^{\gamma_0^h t} + \dots + e^{\gamma_n^h t} \big)^2}, \quad \gamma_0^h = 0 .
# $$
#
# As $t \to \infty$, $e^{\kappa_h t} f_h(t)$ has a positive limit, with the rate $\kappa_h = 2 \max(\gamma_0^h, \dots, \gamma_n^h) - \gamma_n^h$. Where the maxima of two heads are at $i$ and at $j$, the
# difference of their rates is the polynomial $(2 \gamma_i^h - \gamma_n^h) - (2 \gamma_j^g - \gamma_n^g)$. It is not zero: at $y = 0$ its first bracket is $q_h$ if $i = 0$ and $-q_h$ if not, and its
# second likewise. So for almost all $x, y$ the rates are distinct. Multiply the sum by $e^{\kappa t}$ with the smallest rate $\kappa$ and let $t \to \infty$: that head's coefficient is zero. Strike it out and
# go on. As $N_h u \ne 0$ for almost all $u$, this leaves $y^\top \dot M_n^h\, x = 0$, and so $\dot M_n^h = 0$.
# ```
#
# ```{prf:proof}
# (of {prf:ref}`prop-rotary`) *1.* If $A$ commutes with $R$, it commutes with each $R_\delta$, and
# $W_K^\top A^{-1} R_\delta A W_Q = W_K^\top R_\delta W_Q$. Conversely, let $\delta, \delta + 1 \in \Delta$. The pairs $(R_\delta W_Q, W_K)$
# and $(R_\delta W_Q', W_K')$ have the same product, so by {prf:ref}`prop-orbit`, whose proof uses ranks alone and lets queries and keys differ in their number of columns, there is exactly one nonsingular $A$ with $R_\delta W_Q' = A R_\delta W_Q$ and
# $W_K' = A^{-\top} W_K$. The product at $\delta + 1$ then reads
#
# $$
# W_K^\top\, A^{-1} R A\; R_\delta W_Q = W_K^\top\, R\; R_\delta W_Q .
# $$
#
# Here $W_K^\top$ is injective and $R_\delta W_Q$ is onto, so they cancel: $R A = A R$. Now $A$ also commutes with $R_\delta$, and $W_Q' = A W_Q$.
# *2.* This is the case $E = D$, $W_Q = W_K = I$. *3.* The unidentified directions keep $M_1$ and $M_2$, by {prf:ref}`lem-rotary-outputs` or {prf:ref}`lem-rotary-heads`. Repeat the argument with
# derivatives: by {prf:ref}`cor-dimension` a direction that keeps $M_1$ is $R\,\delta W_Q = T R W_Q$, $\delta W_K = -T^\top W_K$, and one that keeps $M_2$
# too has $T R = R T$. So $\delta W_Q = T W_Q$. All these keep every $M_\delta$.
# ```
#
# ```{prf:proof}
# (of {prf:ref}`lem-commutant`) If $T$ commutes with $R$ it commutes with $R^{-1} = R^\top$ and with $R + R^\top$. This symmetric matrix is
# $2 \cos\varphi$ on the coordinates that turn by $\pm\varphi$, and these numbers differ for different $\varphi \in [0, \pi]$. So $T$ maps each class of
# coordinates to itself. On the still and on the half-turning ones $R = \pm I$, and every $T$ will do. On a class with $0 < \varphi < \pi$, swap the
# two axes of each plane that turns backwards. Then $R$ turns each plane by $\cos\varphi\, I + \sin\varphi\, \Omega$ with the quarter turn $\Omega$, and since $\sin\varphi \ne 0$ to
# commute with $R$ is to commute with the map that applies $\Omega$ to all planes. This is multiplication by $i$ on $\mathbb{C}^{n_\varphi}$. Real linear maps that commute with it
# are the complex linear ones: $n_\varphi^2$ complex entries.
# ```
#
# ```{prf:proof}
# (of {prf:ref}`prop-rotary-wide`) Let $U_\varphi, V_\varphi \in \mathbb{C}^{n_\varphi \times E}$ be the rows of $W_K$ and of $W_Q$ in a class of planes, each pair of real rows made one
# complex row, and $U_0, V_0, U_\pi, V_\pi$ the rows of the real classes. Then
#
# $$
# W_K^\top R_\delta W_Q = U_0^\top V_0 + (-1)^\delta\, U_\pi^\top V_\pi + \sum_\varphi \mathrm{Re} \big( e^{i \varphi \delta}\, U_\varphi^* V_\varphi \big) .
# $$
#
# The sequences $1$, $(-1)^\delta$, $\cos\varphi\delta$, $\sin\varphi\delta$ that occur are at most $D$, and linearly independent over any $D$ successive offsets (a
# Vandermonde determinant in distinct numbers). To know the $M_\delta$ is therefore to know each product $U_0^\top V_0$, $U_\pi^\top V_\pi$, $U_\varphi^* V_\varphi$. These have no
# weights in common, and each loses what {prf:ref}`lem-what-a-product-loses` says, which covers $U_\varphi^* V_\varphi$; that the outputs show them is {prf:ref}`lem-rotary-heads`.
# ```
#
# ## The same symbols in code

# %%
import math
from math import pi

import torch
from flint import fmpz_mat

from attnid import Attention, count, exact_nullity, figures, forward
from attnid import generators, independent_directions, measure
from attnid.claims import check
from attnid.layer.attention import project, scores
from attnid.layer.rotation import isotypes
from attnid.tensors import normal, rank, relative_change


def rotation(frequencies, D, offset=1):  # R_offset, (D, D)
    turns = [offset * phi for phi in frequencies]
    planes = [[[math.cos(t), -math.sin(t)], [math.sin(t), math.cos(t)]] for t in turns]
    still = torch.eye(D - 2 * len(turns), dtype=torch.float64)
    return torch.block_diag(*torch.tensor(planes, dtype=torch.float64), still)


# %% [markdown]
# The package turns queries and keys by their positions, as models do; the text turns neither and puts $R_{l - m}$ in the middle. On a head with $D = 8$,
# $E = 10$ and four different frequencies both give the same scores, to $10^{-12}$.

# %%
D, E, L = 8, 10, 7
distinct = (0.3, 0.7, 1.1, 2.0)
head = Attention(E, 1, head_dim=D, value_dim=1, rotary=distinct)
p, x = head.random_parameters(seed=1), normal(L, E, seed=2)
W_Q, W_K = p["W_Q"][0], p["W_K"][0]
by_package = scores(head, p, *project(head, p, x)[:2])[0]  # row: query, column: key
between = lambda l, m: x[m] @ W_K.mT @ rotation(distinct, D, l - m) @ W_Q @ x[l]
by_offset = torch.stack([between(l, m) for l in range(L) for m in range(L)]).view(L, L)
assert (by_package - by_offset / math.sqrt(D)).abs().max() < 1e-12

# %% [markdown]
# A nonsingular element of the commutant with distinct frequencies is a complex number for each plane: a scaling and a rotation,
#
# $$
# A = \mathrm{diag}\Big( \begin{pmatrix} a_i & -b_i \\ b_i & a_i \end{pmatrix} \Big)_{i = 1}^{D/2}, \qquad a_i^2 + b_i^2 \ne 0 .
# $$
#
# We move the weights by a large one, and by a random matrix that does not commute, which was harmless in chapter 2.


# %%
def moved_scores(A):
    moved = p | {"W_Q": (A @ W_Q)[None], "W_K": (torch.linalg.inv(A).mT @ W_K)[None]}
    return scores(head, moved, *project(head, moved, x)[:2])[0]


a, b = normal(D // 2, seed=3), normal(D // 2, seed=4)
A = torch.block_diag(*torch.stack((a, -b, b, a), 1).view(-1, 2, 2))
S = normal(D, D, seed=5)
assert relative_change(A @ W_Q, W_Q) > 0.5
check(
    "prop-4.8",
    identity=relative_change(moved_scores(A), by_package),
    other_S=relative_change(moved_scores(S), by_package),
)
same_place = (moved_scores(S) - by_package).diagonal()  # offset 0 does not mind
assert same_place.abs().max() < 1e-11

# %% [markdown]
# The other half of {prf:ref}`prop-rotary` says that *all* weights with the same products come about so. For a trial we need weights that were not made by some $A$. Forget $W_Q$ and $W_K$
# and keep $M_1$, $M_2$ and the frequencies. Factor $M_1$ into $U^\top V$ by a singular value decomposition. Then $M_2$ is $U^\top F V$ for one $F$, and as $F$
# must have the eigenvalues $e^{\pm i \varphi_i}$ of $R$, its eigenvectors give a real $B$ with $F B = B R$. The weights $R\, W_Q' = B^{-1} V$ and $W_K' = B^\top U$ have the products
# $M_1$ and $M_2$. From them we read $A = W_Q' W_Q^+$.


# %%
def weights_from(M_1, M_2, frequencies):
    D = 2 * len(frequencies)
    left, s, right = torch.linalg.svd(M_1)
    U, V = s[:D, None].sqrt() * left[:, :D].mT, s[:D, None].sqrt() * right[:D]
    F = torch.linalg.pinv(U.mT) @ M_2 @ torch.linalg.pinv(V)
    values, vectors = torch.linalg.eig(F)
    nearest = lambda t: (values - complex(math.cos(t), math.sin(t))).abs().argmin()
    turning = [vectors[:, nearest(phi)] for phi in frequencies]
    B = torch.stack([part for v in turning for part in (v.real, -v.imag)], 1)
    R = rotation(frequencies, D)
    return R.mT @ torch.linalg.solve(B, V), B.mT @ U


products = lambda W_Q, W_K, m: W_K.mT @ rotation(distinct, D, m) @ W_Q
new_Q, new_K = weights_from(*(products(W_Q, W_K, m) for m in (1, 2)), distinct)
A, R = new_Q @ torch.linalg.pinv(W_Q), rotation(distinct, D)
assert relative_change(new_Q, W_Q) > 0.5
for m in (0, 1, 2, 50):
    assert relative_change(products(new_Q, new_K, m), products(W_Q, W_K, m)) < 1e-8
pairs = ((A @ R, R @ A), (new_Q, A @ W_Q), (new_K, torch.linalg.inv(A).mT @ W_K))
check("prop-4.8", recovered=max(relative_change(*pair) for pair in pairs))

# %% [markdown]
# **By hand.** Take the layer that {doc}`chapter 5 <05_many_heads>` works out with a pencil, $E = 3$, $D = 2$, $H = 2$, and let the one plane of each head make a quarter turn at each step. For the first head
#
# $$
# R = \begin{pmatrix} 0 & -1 \\ 1 & 0 \end{pmatrix}, \quad
# W_Q = \begin{pmatrix} 1 & 0 & 1 \\ 0 & 1 & 0 \end{pmatrix}, \quad
# W_K = \begin{pmatrix} 1 & 1 & 0 \\ 0 & 0 & 1 \end{pmatrix}, \quad
# M_0 = \begin{pmatrix} 1 & 0 & 1 \\ 1 & 0 & 1 \\ 0 & 1 & 0 \end{pmatrix}, \quad
# M_1 = \begin{pmatrix} 0 & -1 & 0 \\ 0 & -1 & 0 \\ 1 & 0 & 1 \end{pmatrix} .
# $$
#
# As $R^2 = -I$, $M_2 = -M_0$ and $M_3 = -M_1$, so these two products are all there is to see. With $T = \begin{pmatrix} a & b \\ c & d \end{pmatrix}$ the direction $(T W_Q, -T^\top W_K)$ keeps $M_0$,
# and $M_1$ changes by
#
# $$
# W_K^\top (R T - T R)\, W_Q, \qquad R T - T R = \begin{pmatrix} -b - c & a - d \\ a - d & b + c \end{pmatrix} .
# $$
#
# This is zero for $a = d$ and $b = -c$ only. Of four directions two are left, in the second head likewise: 4 idle numbers of 24, where 8 were idle without the turn. First in whole numbers, then by the outputs of a layer with these
# weights:


# %%
def idle_by_hand(W_Q, W_K, turns):  # exact: ranks of integer matrices
    units = torch.eye(12, dtype=torch.int64).view(12, 2, 2, 3)
    change = lambda dQ, dK: [W_K.mT @ R @ dQ + dK.mT @ R @ W_Q for R in turns]
    rows = [torch.stack(change(*unit)).flatten().tolist() for unit in units]
    return 12 - fmpz_mat(rows).rank()


hand_Q = torch.tensor([[[1, 0, 1], [0, 1, 0]], [[0, 1, 1], [1, 0, 0]]])
hand_K = torch.tensor([[[1, 1, 0], [0, 0, 1]], [[1, 0, 0], [0, 1, 1]]])
turns = torch.tensor([[[1, 0], [0, 1]], [[0, -1], [1, 0]]])  # R_0 and R_1
hand = Attention(3, 2, head_dim=2, value_dim=1, rotary=(pi / 2,))
q = hand.random_parameters(seed=6) | {"W_Q": hand_Q.double(), "W_K": hand_K.double()}
both = list(zip(hand_Q, hand_K))
check(
    "prop-4.8",
    by_hand=[sum(idle_by_hand(*h, turns[:n]) for h in both) for n in (1, 2)],
    hand_measured=measure(hand, parameters=q).nullity - 2,  # two in the values
)

# %% [markdown]
# ## The check
#
# The commutant's dimension for many patterns of frequencies, also beside other heads; how few offsets it takes; and the two ways to pair coordinates into planes.
#
# ### Every pattern of frequencies
#
# {prf:ref}`lem-commutant` against three counts that do not use it: the null space of the linear map $T \mapsto R T - T R$, as an explicit
# $D^2 \times D^2$ matrix; the null space of $(A, B) \mapsto (B^\top R_\delta + R_\delta A)_{\delta = 1, 2, 3}$, which is
# {prf:ref}`prop-rotary` part 2, linearised, and has to find $B = -A^\top$; and the rank of the outputs' Jacobian, by `measure`. With row-major flattening,
# $R T - T R$ is $(R \otimes I - I \otimes R^\top)$ applied to $T$.


# %%
def commutator(R):  # (D D, D D), acting on T flattened
    eye = torch.eye(len(R), dtype=R.dtype)
    return torch.kron(R, eye) - torch.kron(eye, R.mT.contiguous())


def linearised(R, offsets):  # nullity of (A, B) -> B^T R_m + R_m A over the offsets
    units = torch.eye(R.numel(), dtype=R.dtype).view(-1, *R.shape)
    powers = torch.stack([torch.linalg.matrix_power(R, m) for m in offsets])
    on_A = powers @ units[:, None]  # (D D, offsets, D, D)
    on_B = units[:, None].mT @ powers
    return 2 * R.numel() - rank(torch.cat((on_A, on_B)).flatten(1))


# %% [markdown]
# `isotypes` sorts a head's coordinates into its {term}`isotypes <isotype>`, the classes of {prf:ref}`lem-commutant`. The patterns below have $D = 6$: three planes, some turning alike,
# some not turning, some left out.

# %%
patterns = {
    "all different": (0.3, 1.1, 2.0),
    "two equal": (0.3, 0.3, 2.0),
    "two opposite": (0.3, -0.3, 2.0),
    "equal modulo 2 pi": (0.3, 0.3 + 2 * pi, 2.0),
    "three alike": (0.3, 0.3, -0.3),
    "one at zero": (0.0, 0.3, 1.1),
    "one not listed": (0.3, 1.1),
    "one half turn": (0.3, 1.1, pi),
    "two half turns": (0.3, pi, -pi),
    "some of each": (0.3, pi),
    "none": (),
}
alone = [Attention(7, 1, head_dim=6, value_dim=1, rotary=f) for f in patterns.values()]
parts = [isotypes(layer) for layer in alone]
formula = [sum(i.size**2 * (2 if i.complex else 1) for i in found) for found in parts]
for name, dimension in zip(patterns, formula):
    print(f"{name:>20}: {dimension:2}")
assert formula == [count(layer).terms["query-key maps"] for layer in alone]

# %% [markdown]
# Whole layers lose one number more, in the values, as $C = 1$. Beside the rank of the outputs we try the directions of `generators`, and take the
# exact rank of the products, in which a turn is a random point of a circle over a prime field.

# %%
turning = [rotation(f, 6) for f in patterns.values()]
check(
    "prop-4.8",
    formula=formula,
    commutant=[36 - rank(commutator(R)) for R in turning],
    pairs=[linearised(R, (1, 2, 3)) for R in turning],
)
check(
    "prop-4.8",
    measured=[measure(layer).nullity - 1 for layer in alone],
    generators=[independent_directions(layer) - 1 for layer in alone],
    exact=[exact_nullity(layer) - 1 for layer in alone],
)

# %% [markdown]
# The first line is the paper's case. One pair of equal frequencies adds four dimensions: $2 \cdot 2^2$ instead of $2 \cdot 1^2 + 2 \cdot 1^2$. A
# plane that does not turn adds two, since it has $2^2$ where a turning one has 2; a half turn does the same, and is kept apart from the still
# planes. **Partly rotated heads** belong here too: with $D = 64$, of which a quarter turns, the count is $48^2 + 16 = 2{,}320$, much
# nearer to $64^2$ than to $64$.

# %%
turn = tuple(1e4 ** (-i / 8) for i in range(8))  # eight planes of D = 64
partly = Attention(768, 12, rotary=turn)
assert count(partly).terms["query-key maps"] == 12 * (48**2 + 16) == 12 * 2320

# %% [markdown]
# **Several heads, and heads wider than their tokens.** {prf:ref}`lem-rotary-heads` says that counts add up over heads, and {prf:ref}`prop-rotary-wide` what each has. Two heads with $D = 6$ and three different planes on $E = 2$;
# three with $D = 4$ on $E = 1$; and two with three planes alike, where the class has $n = 3 > E = 2$ and $2\,\mathrm{lost}(3) = 2\,(12 - 4) = 16$ takes the place of $2 \cdot 3^2 = 18$.

# %%
beside = [
    Attention(2, 2, head_dim=6, value_dim=1, rotary=(0.5, 1.1, 2.0)),
    Attention(1, 3, head_dim=4, value_dim=1, rotary=(0.5, 1.1)),
    Attention(2, 2, head_dim=6, value_dim=1, rotary=(0.5, 0.5, 0.5)),
]
lost = lambda n, E: 2 * n * E - min(n, E) * (2 * E - min(n, E))  # lost(n)
check(
    "prop-4.8",
    wide_formula=[2 * 3 * 2 * lost(1, 2), 3 * 2 * 2 * lost(1, 1), 2 * 2 * lost(3, 2)],
    wide_measured=[measure(layer).nullity - layer.H for layer in beside],
    wide_exact=[exact_nullity(layer) - layer.H for layer in beside],
)

# %% [markdown]
# The directions themselves: those of `generators`, and those made from a numerical basis of the commutant, span the same space.

# %%
commuting = torch.linalg.svd(commutator(rotation(distinct, D))).Vh[-D:].view(D, D, D)
ours = torch.cat(((commuting @ W_Q).flatten(1), (-commuting.mT @ W_K).flatten(1)), 1)
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
    W_Q, W_K = normal(D, E, seed=6), normal(D, E, seed=7)
    see = lambda q, k: k.mT @ R @ q  # (offsets, E, E)
    blocks = torch.func.jacrev(see, argnums=(0, 1))(W_Q, W_K)
    J = torch.cat([block.flatten(3).flatten(0, 2) for block in blocks], 1)
    return 2 * D * E - rank(J)


few = ((0,), (1,), (0, 1), (1, 2), (0, 1, 2, 3))
check("prop-4.8", offsets=[idle(distinct, 8, 10, offsets) for offsets in few])

# %% [markdown]
# With $E < D$ one product has too few rows to show all of $A$, and more offsets are needed, but never more than $D$; the end of the row is that of
# {prf:ref}`prop-rotary-wide`.

# %%
for narrow in (1, 3, 5):
    row = [idle(distinct, 8, narrow, range(n)) for n in range(1, 10)]
    print(f"E = {narrow}, 1 to 9 offsets:", row)
    layer = Attention(narrow, 1, head_dim=8, value_dim=1, rotary=distinct)
    assert row[7] == row[8] == 8 == count(layer).terms["query-key maps"]

# %% [markdown]
# ### Two layouts
#
# Which coordinates make a plane is a matter of layout. *Interleaved* code pairs coordinates $2i$ and $2i + 1$, as here; *half-split* code, that
# of GPT-NeoX and of the Llama models as most people load them, pairs $i$ and $i + D/2$. One is the other after a permutation of the rows
# of $W_Q$ and $W_K$. A permutation of coordinates conjugates $R$ and the commutant with it, and dimensions stay. Weights of one layout in code of
# the other, however, make another function: that permutation does not commute with $R$.


# %%
def half_split_scores(W_Q, W_K, x, frequencies):
    planes = len(frequencies)
    steps = torch.tensor(frequencies, dtype=torch.float64).repeat(2)
    angle = torch.arange(len(x)).double()[:, None] * steps  # (L, D)
    quarter = lambda v: torch.cat((-v[:, planes:], v[:, :planes]), 1)
    turn = lambda v: v * angle.cos() + quarter(v) * angle.sin()
    return turn(x @ W_Q.mT) @ turn(x @ W_K.mT).mT / math.sqrt(len(W_Q))


# first axes of all planes, then second axes
order = torch.cat((torch.arange(0, D, 2), torch.arange(1, D, 2)))
sorted_rows = half_split_scores(W_Q[order], W_K[order], x, distinct)
assert relative_change(sorted_rows, by_package) < 1e-12
assert relative_change(half_split_scores(W_Q, W_K, x, distinct), by_package) > 0.1
for frequencies in patterns.values():
    R = rotation(frequencies, D)
    assert rank(commutator(R[order][:, order])) == rank(commutator(R))

# %% [markdown]
# ## What a finite sequence notices
#
# Equal frequencies merge planes into one class and unequal ones do not, however close. In practice it is a matter of degree: two planes with
# angles $10^{-6}$ apart differ by $10^{-4}$ at most over a hundred tokens. This can be computed.
# A tangent $T$ changes $R_\delta$ by $R_\delta T - T R_\delta$, to first order. Let $T$ act from plane $j$ to plane $i$ only, either as a complex number or as
# one after a mirror image, so that there are $2 + 2$ real dimensions for each of the $(D/2)^2$ pairs. Since planes turn by complex units, the change at offset
# $\delta$ has the size of $T$ times
#
# $$
# \big| e^{i \varphi_i \delta} - e^{\pm i \varphi_j \delta} \big| = 2\, \big| \sin \tfrac{1}{2} (\varphi_i \mp \varphi_j)\, \delta \big| .
# $$
#
# These directions are orthogonal, and so are their images. Hence the root mean square of this number over $\delta = 0, \dots, L - 1$ is a singular value of
# the map $T \mapsto (R_\delta T - T R_\delta)_\delta$ over $\sqrt{L}$, twice for each pair and sign. The mean square has a closed form,
# $2 - 2 \cdot \frac{1}{L} \sum_\delta \cos g\delta$ with $g = \varphi_i \mp \varphi_j$:


# %%
def ladder(base, D):  # the frequencies in use, fast to slow
    return base ** (-2 * torch.arange(D // 2, dtype=torch.float64) / D)


def sensitivity(phi, L):  # (2, planes, planes): as a complex number, and mirrored
    gap = torch.stack((phi[:, None] - phi, phi[:, None] + phi))
    kernel = ((2 * L - 1) * gap / 2).sin() / (gap / 2).sin()
    kernel = torch.where(gap == 0, 2 * L - 1.0, kernel)
    # the mean of cos(gap m) over m < L is (kernel + 1) / 2L
    return (2 - (kernel + 1) / L).clamp_min(0).sqrt()


# %% [markdown]
# The formula against all $D^2$ singular values of the explicit map, for $D = 8$ and $L = 20$, to $10^{-7}$ (half the digits, since a square root is taken):

# %%
phi = ladder(1e4, 8)
maps = torch.cat([commutator(rotation(phi.tolist(), 8, m)) for m in range(20)])
explicit = torch.linalg.svdvals(maps) / math.sqrt(20)
sizes = sensitivity(phi, 20).flatten().repeat_interleave(2)
assert len(sizes) == 64
assert (explicit - sizes.sort(descending=True).values).abs().max() < 1e-7

# %% [markdown]
# Now the real ladders $\varphi_i = \text{base}^{-2i/D}$ with $D = 128$, for the bases $10^4$ (the original, kept by Llama 2) and $5 \cdot 10^5$ (chosen
# for longer texts, by Llama 3 among others). We call a direction of unit size *practically idle* at tolerance $\varepsilon$ if this root mean square change of $R_\delta$ is below $\varepsilon$.

# %%
lengths = [2**k for k in range(18)]


def practically_idle(base, tolerance):
    phi = ladder(base, 128)
    return [2 * int((sensitivity(phi, L) < tolerance).sum()) for L in lengths]


curves = {
    f"base {base:,.0f}, tolerance {tolerance:g}": practically_idle(base, tolerance)
    for base in (1e4, 5e5)
    for tolerance in (1e-3, 1e-2)
}
chosen = (32, 256, 4096, 131072)
print("practically idle at L =", *chosen)
for name, counts in curves.items():
    print(f"{name}: {[counts[lengths.index(L)] for L in chosen]}")
    assert counts[0] == 128**2 and counts[17] == 128
    assert counts == sorted(counts, reverse=True)
reached = [lengths[counts.index(128)] for counts in curves.values()]
assert reached == [128, 1024, 4096, 32768]
assert 9 < practically_idle(5e5, 1e-2)[8] / 128 < 11

# %% mystnb={"image": {"alt": "Left: a square heat map over pairs of 64 planes. It is bright, of order one, along the edges of fast planes, and falls to below one in a hundred thousand in the corner of slow planes and along the diagonal; a white line marks one in a thousand. Right: four falling curves against sequence length on logarithmic axes, all starting at 16,384 and ending at 128; those for the larger base and the looser tolerance arrive later."}, "figure": {"caption": "Left: root mean square change of $R_\\delta$, relative to the size of $T$, when plane $j$ is mixed into plane $i$ as a complex number, base $5 \\cdot 10^5$ and $L = 256$; the white line is $10^{-3}$. Right: the directions of $\\mathfrak{gl}(128)$ that change $R_\\delta$ by less than a tolerance, between no rotation ($D^2$) and the exact count ($D$).", "name": "fig-rotary-idle"}}
mixed = sensitivity(ladder(5e5, 128), 256)[0]
figures.rotary_idle_directions(mixed, 1e-3, lengths, curves, (128, 128**2))

# %% [markdown]
# {numref}`fig-rotary-idle` begins with the count without rotation and ends with the exact one. At $L = 1$ the only offset is zero, and all $D^2 = 16{,}384$ directions keep $M_0$. As texts grow
# longer more and more planes are told apart, the slow ones last. With the small base and the tight tolerance nothing but the exact $D = 128$ is left at
# $L = 128$; with the large base and the loose tolerance the first power of two at which this is so is $32{,}768$, and a text of 256 tokens leaves about ten times as many.
#
# What this means for one head: mix its two slowest planes by half, and look at the products at several offsets.

# %%
slow = ladder(5e5, 32)
wide_Q, wide_K = normal(32, 48, seed=8), normal(32, 48, seed=9)


def change(i, j, offset):
    A = torch.eye(32, dtype=torch.float64)
    A[2 * i : 2 * i + 2, 2 * j : 2 * j + 2] = torch.eye(2, dtype=torch.float64) / 2
    R = rotation(slow.tolist(), 32, offset)
    after = wide_K.mT @ torch.linalg.inv(A) @ R @ A @ wide_Q
    return relative_change(after, wide_K.mT @ R @ wide_Q)


for name, (i, j) in (("fastest", (0, 1)), ("slowest", (14, 15))):
    sizes = {m: f"{change(i, j, m):.0e}" for m in (16, 1024, 65536)}
    print(f"{name} two:", ", ".join(f"offset {m}: {s}" for m, s in sizes.items()))
assert change(14, 15, 16) < 1e-4 and change(14, 15, 65536) > 0.02
assert change(0, 1, 16) > 0.1

# %% [markdown]
# ## Break it
#
# **Drop the neighbours.** If only even offsets occur, $R$ is never seen, only $R^2$. Half turns look still, and the angles $\varphi$ and $\pi - \varphi$ look opposite. In general, what counts
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
# **Add a key bias.** Fact 4.7 of the paper ({prf:ref}`lem-key-bias`) made the whole of $b_K$ idle. Under rotations it fails: the bias's key $R^m b_K$ depends on the position, and is no common shift.
# Only coordinates that keep still keep an idle bias.

# %%
for frequencies, expected in (((), 4), ((0.5,), 2), ((0.5, 1.1), 0)):
    layer = Attention(6, 1, head_dim=4, value_dim=1, rotary=frequencies, bias="k")
    assert count(layer).terms.get("key bias", 0) == expected
    assert measure(layer).nullity == count(layer).unidentified

# %% [markdown]
# ## What it means
#
# Rotary positions identify almost everything that an unrotated head leaves open. Of the $D^2$ dimensions there remain $D$: a scale and a phase for each plane. The scale
# says that queries may grow where keys shrink, plane by plane; the phase says that only the angle *between* query and key matters. Nothing may be moved from one plane to another.
# To compress or to merge models some methods rotate weights: an orthogonal change of basis of queries and keys, exact without rotations, is not exact with them.
# And it is a matter of degree. The slow planes of a long ladder were made to tell distant tokens apart. On short texts they are barely identified, and
# training on short texts can hardly tell one basis of these planes from another.
#
# ```{prf:remark} Departure from the paper
# :label: rem-08-group
#
# Proposition 4.8 gives $(\mathbb{C} \setminus \{0\})^{D/2}$ without a condition on the frequencies. It holds exactly when they are distinct modulo sign and $2\pi$ and no coordinate is still or
# half-turning, as in the usual ladders; {prf:ref}`lem-commutant` has the other cases, partly rotated heads among them. Of changes of the form $(A W_Q, B W_K)$ the paper derives, as in part 2 of {prf:ref}`prop-rotary`,
# that $A$ has to commute. What it says it waves at is the commutant; and it does not ask whether other weights, not of this form, have the same products (they have not: part 1), or whether the outputs show
# all products ({prf:ref}`lem-rotary-outputs` and {prf:ref}`lem-rotary-heads`). {cite:t}`tran2026` find that sinusoidal positions keep the equivalences of plain attention and that rotary
# ones leave fewer; {prf:ref}`rem-20-group` and what follows it measure both.
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
assert count(layer).terms["query-key maps"] == 4**2 + 2**2 + 2 * 3**2 == 38
assert measure(layer).nullity == 38 + 1

# %% [markdown]
# **2.** Use the scales to balance a rotary head: find weights with the same scores for which, in each plane, the two rows of $W_Q$ and the two of $W_K$ have the same total square. Can one reach
# $W_Q W_Q^\top = W_K W_K^\top$, as for a head without rotations?
#
# ```{admonition} Answer
# :class: dropdown
#
# Multiply the two rows of plane $i$ of $W_Q$ by $a_i$ and divide those of $W_K$ by it, where $a_i^2$ is the norm of these rows of $W_K$ over that of those of $W_Q$. The phases turn the two Gram matrices of a plane alike and leave these totals alone, so $D/2$ balances
# are all that $D$ dimensions can buy: the rest of $W_Q W_Q^\top$ and $W_K W_K^\top$ is identified up to the phases.
# ```

# %% tags=["hide-cell"]
size = lambda W: W.view(D // 2, 2, E).square().sum((1, 2)).sqrt()
scale = (size(W_K) / size(W_Q)).sqrt().repeat_interleave(2)[:, None]
balanced = p | {"W_Q": (scale * W_Q)[None], "W_K": (W_K / scale)[None]}
new_scores = scores(head, balanced, *project(head, balanced, x)[:2])[0]
assert relative_change(new_scores, by_package) < 1e-12
assert (size(scale * W_Q) - size(W_K / scale)).abs().max() < 1e-12
gram = lambda W: W @ W.mT
assert relative_change(gram(W_K / scale), gram(scale * W_Q)) > 0.1

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
def idle_at(width, length):  # by the outputs, over sequences of this length
    layer = Attention(width, 1, head_dim=4, value_dim=1, rotary=(0.4, 1.3))
    q, x = layer.random_parameters(seed=10), normal(80, length, width, seed=11)
    blocks = torch.func.jacrev(lambda q: forward(layer, q, x))(q)
    J = torch.cat([block.flatten(3).flatten(0, 2) for block in blocks.values()], 1)
    return layer.parameters - rank(J) - 1  # one in the values


from_length = {width: [idle_at(width, n) for n in (2, 3, 6)] for width in (4, 8)}
print("idle with two, three and six tokens:", from_length)
assert from_length == {4: [6, 4, 4], 8: [4, 4, 4]}

# %% [markdown]
# **Next:** {doc}`09_grouped_queries` lets several query heads share one key head, with rotations and without.
