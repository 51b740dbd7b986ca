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
# # Many heads
#
# *Assumed: no biases, no {term}`rotary positions <rotary position>`, plain softmax; {doc}`chapters 1 <01_what_is_identified>` and
# {doc}`2 <02_query_key_invariance>`. For one proof, partial fractions and what a pole is.*
#
# *In the ledger:* {ref}`section 4.5 <ledger-sec-4-5>`, {ref}`Lemma 4.6 <ledger-lemma-4-6>`.
#
# ## The question
#
# A layer with $H$ heads adds up what they say:
#
# $$
# f(X) = \sum_{h=1}^{H} N_h\, X\, \mathrm{softmax}\big( X^\top M_h\, X \big), \qquad M_h = (W_K^h)^\top W_Q^h, \quad N_h = W_O^h W_V^h .
# $$
#
# The usual layer keeps its size whatever $H$ is, by cutting the heads narrower: $D = C = E/H$. It has $4E^2$ weights with one head and with
# twelve. Does it matter for identification into how many pieces they are cut? We know what one head loses, but not yet whether heads that
# stand side by side lose more: two heads share one output, and it is not obvious that it tells them apart.

# %% [markdown]
# ## The claim
#
# ```{prf:proposition} More heads, larger share (paper: section 4.5)
# :label: prop-share
#
# Let $H$ divide $E$ and $D = E/H$. Of the $2HDE = 2E^2$ query and key weights $H D^2 = E^2/H$ are {term}`unidentified`. The identified
# {term}`share` is
#
# $$
# 1 - \frac{E^2/H}{2E^2} = 1 - \frac{1}{2H} .
# $$
#
# It depends on $H$ only, grows with $H$, and lies between $1/2$ at $H = 1$ and $1 - 1/(2E)$ at $H = E$.
# ```
#
# ```{prf:lemma} Value-output invariance (paper: Lemma 4.6)
# :label: lem-value-output
#
# Let $W_O \in \mathbb{R}^{E \times C}$ and $W_V \in \mathbb{R}^{C \times E}$.
#
# 1. For every nonsingular $S \in \mathbb{R}^{C \times C}$ the pair $(W_O S^{-1},\, S W_V)$ has the same product $W_O W_V$.
# 2. For every $T \in \mathbb{R}^{C \times C}$, singular or not, the product has derivative zero along $(\delta W_O, \delta W_V) = (-W_O
#    T,\; T W_V)$.
# 3. If $C \le E$ and both matrices have rank $C$, these directions form a linear space of dimension $C^2$, and there are no others.
# ```
#
# Both statements concern a single product. What makes them add up over heads is the next lemma. It is stated with a vector $c_h$ for each head
# and one vector $b$, which are zero in this chapter; they are what {doc}`biases <06_biases>` will bring.
#
# ```{prf:lemma} What the outputs see
# :label: lem-heads-apart
#
# Under a causal mask or none, let a layer of $H$ heads put out
#
# $$
# f(X) = \sum_{h=1}^{H} N_h\, X\, \mathrm{softmax}\big( X^\top (M_h X + c_h \mathbf{1}^\top) \big) + b \mathbf{1}^\top ,
# $$ (eq-layer-seen)
#
# with $N_h \ne 0$ for every head, and $(M_h, c_h) \ne (M_g, c_g)$ for any two.
#
# 1. *To first order:* a direction is unidentified exactly when it keeps, to first order, all $M_h$, $c_h$, $N_h$, and $b$.
# 2. *Finitely:* another layer of this kind with the same outputs has as many heads, the same $b$, and the same $(M_h, c_h, N_h)$ up to their
#    order.
# 3. If $M_h \ne 0$ for every head and $M_h \ne \pm M_g$ for any two, sequences of one and two tokens are enough for *1*.
# ```
#
# ```{prf:corollary} The whole layer (paper: section 4.5)
# :label: cor-whole-layer
#
# Let $H$ divide $E$ and $D = C = E/H$. Of the $4E^2$ weights of a layer $H D^2 + H C^2 = 2E^2/H$ are unidentified, and the identified share
# is again $1 - 1/(2H)$.
# ```

# %% [markdown]
# ## Proof
#
# ```{prf:proof}
# (of {prf:ref}`lem-value-output`)
# *1.* $W_O S^{-1} S\, W_V = W_O W_V$. *2.* The derivative is $\delta W_O\, W_V + W_O\, \delta W_V = -W_O T W_V + W_O T W_V = 0$. *3.* $W_V$
# has a right inverse, so $T W_V = 0$ only for $T = 0$; the map from $T$ to directions is injective, and its image has dimension $C^2$. Now
# read $W_O W_V$ as $(W_O^\top)^\top W_V$: it is the product of {prf:ref}`prop-count-r` with $W_V$ for $W_Q$, $W_O^\top$ for $W_K$, and $C$
# for $D$. So its {term}`null directions <null direction>` make a space of dimension $2CE - C(2E - C) = C^2$, which is the image.
# ```
#
# The next proof extends that of {prf:ref}`lem-two-products` from one sigmoid to a sum of $H$ of them. What keeps them apart is to say one token
# several times: as a function of the number of times, each head has a pole of its own.
#
# ```{prf:proof}
# (of {prf:ref}`lem-heads-apart`)
# *1.* The outputs depend on the quantities named, so keeping these keeps the outputs. Conversely take an unidentified direction and let dots
# denote derivatives along it. A sequence of one token $y$ has output $\sum_h N_h\, y + b$. Hence $\sum_h \dot N_h = 0$ and $\dot b = 0$.
# Now take the token $y$, $n$ times, and then $x = y + u$. The output at $x$ is
#
# $$
# \sum_h N_h \big( y + p_h\, u \big) + b, \qquad p_h = \frac{q_h}{q_h + n}, \qquad q_h = e^{s_h}, \qquad s_h = u^\top (M_h\, x + c_h) .
# $$ (eq-shares)
#
# Its derivative vanishes, and $\sum_h \dot N_h\, y + \dot b = 0$, so
#
# $$
# \sum_h \Big( \frac{q_h}{q_h + n}\; \dot N_h u \;+\; \frac{n\, q_h}{(q_h + n)^2}\; \dot s_h\, N_h u \Big) = 0 \qquad \text{for } n = 1, 2, 3, \dots
# $$ (eq-repeats)
#
# Choose $u$ and $x$ so that the numbers $s_h$ are distinct and no $N_h u$ is zero. Almost all pairs will do, for the polynomials $s_h - s_g$ in
# $(u, x)$ are not zero. The left side is a rational function of $n$ with infinitely many zeros, so it is zero for every $n$. At $n = -q_g$
# only head $g$ has a pole, and $n\, q_g / (q_g + n)^2 = q_g / (n + q_g) - q_g^2 / (n + q_g)^2$. The double pole must vanish, $\dot s_g N_g u = 0$,
# so $\dot s_g = 0$; and then the simple one, $\dot N_g u = 0$. By continuity both hold for all $u$ and $x$: $\dot N_g = 0$, and from
# $u^\top (\dot M_g x + \dot c_g) = 0$ first $\dot c_g = 0$, with $x = 0$, and then $\dot M_g = 0$.
#
# *2.* By {eq}`eq-shares` two layers with the same outputs have the same $\sum_h N_h$ and $b$, from one token, and then the same
# $\sum_h \frac{q_h}{q_h + n} N_h u$ for all $n$. Choose $u$ and $x$ as before, now for all heads of both layers at once: $s_h$ and $s'_k$ are
# equal only where $(M_h, c_h) = (M'_k, c'_k)$. A rational function has one set of poles and one residue at each. So every
# head of one layer has a head of the other with the same $M$ and $c$, and only one, and $N_h u = N'_k u$ for almost all $u$.
#
# *3.* Now $n = 1$. Keep $u$ and replace $x$ by $t x$ with a number $t$, so $y$ by $t x - u$. Then $s_h = a_h t + d_h$ with
# $a_h = u^\top M_h x$ and $d_h = u^\top c_h$, and {eq}`eq-repeats` reads, with $\sigma(z) = 1/(1 + e^{-z})$,
#
# $$
# \sum_h \Big( \sigma(s_h)\; \dot N_h u \;+\; \sigma'(s_h)\; (\dot a_h t + \dot d_h)\, N_h u \Big) = 0
# \qquad \text{for all real } t, \text{ and so for complex } t \text{ off the poles.}
# $$ (eq-sigmoids)
#
# Choose $u$ and $x$ so that the numbers $|a_h|$ are distinct and not zero, and no $N_h u$ is. The poles of head $h$ have $|\mathrm{Im}\, t| =
# (2k + 1) \pi / |a_h|$ with $k = 0, 1, \dots$ So the head $g$ with the largest $|a_g|$ has one alone, at $t_0 = (i\pi - d_g)/a_g$. The double
# pole there must vanish, $(\dot a_g t_0 + \dot d_g) N_g u = 0$. As $t_0$ is not real and $\dot a_g$, $\dot d_g$ are, both are zero; then so is
# $\dot N_g u$. Strike out head $g$ and go on with the largest $|a_h|$ that is left, until none is.
# ```
#
# ```{prf:proof}
# (of {prf:ref}`prop-share` and {prf:ref}`cor-whole-layer`)
# Generic weights meet the hypotheses of {prf:ref}`lem-heads-apart` (1), with $c_h = b = 0$, and head $h$ has weights of its own. So the null space is the direct
# sum of the null spaces of the $2H$ products, of dimension $D^2$ each by {prf:ref}`cor-share`, or $C^2$ by {prf:ref}`lem-value-output`.
# With $D = C = E/H$ either sum is $H (E/H)^2 = E^2/H$, out of $2E^2$ weights.
# ```
#
# ```{prf:remark} Departure from the paper
# :label: rem-05-percent
#
# With six heads the paper turns the share $11/12$ into about 83 per cent. It is $91.7\%$; 83 per cent is the share with three heads, $5/6$.
# Its figure for eight heads, $15/16$ or 94 per cent, is right.
# ```
#
# ```{prf:remark} Departure from the paper
# :label: rem-05-svd
#
# For Lemma 4.6 the paper writes down directions built from singular value decompositions. As printed these have no minus sign, one has its
# factors in the wrong order, and both decompositions have a factor of the wrong matrix. With $W_O = U_O \Sigma_O V_O^\top$ and $W_V = U_V \Sigma_V
# V_V^\top$ they should read
#
# $$
# \delta W_O = -\,U_O\, A\, \Sigma_V^{-1} U_V^\top, \qquad \delta W_V = V_O\, \Sigma_O^{-1} A\, V_V^\top ,
# $$
#
# for any $A \in \mathbb{R}^{C \times C}$, which are the directions of the lemma with $T = V_O \Sigma_O^{-1} A\, \Sigma_V^{-1} U_V^\top$.
# ```
#
# ```{prf:remark} Departure from the paper
# :label: rem-05-apart
#
# The paper multiplies the count of one head by $H$. That gives unidentified directions, but not yet all of them: {prf:ref}`lem-heads-apart`
# is our addition, with biases and for finite changes as well. {cite:t}`henry2026` studies the same question, which weights give the same
# function, for layers of many heads; {cite:t}`tran2025` determine the largest group that acts on such a layer, and its dimension is the
# $H D^2 + H C^2$ of {prf:ref}`cor-whole-layer`.
# ```

# %% [markdown]
# ## The same symbols in code
#
# First the fractions, exactly. The paper's examples are six heads and eight.

# %%
from fractions import Fraction

import numpy as np
import torch
from flint import fmpz_mat

from attnid import Attention, act_query_key, act_value_output, count, exact_nullity
from attnid import figures, forward, independent_directions, measure
from attnid.claims import check
from attnid.tensors import normal, rank, relative_change


def share(H):
    return 1 - Fraction(1, 2 * H)


for H in (1, 2, 6, 8, 12, 96):
    print(f"{H:2} heads: {str(share(H)):>7} = {float(100 * share(H)):.1f}%")
check("sec-4.5", percent=[round(100 * share(H)) for H in (6, 8)])  # not 83

# %% [markdown]
# Then the layer. Written with its products it is
#
# $$
# f(X) = \sum_{h} N_h\, X\, \mathrm{softmax}( X^\top M_h\, X ),
# $$
#
# and this is the same function as the package's `forward`, which never forms them.


# %%
def from_products(M, N, x):  # (H, E, E), (H, E, E), (L, E)
    s = x @ M.mT @ x.mT  # (H, L, L): query l, key m
    later = torch.ones_like(s, dtype=torch.bool).triu(1)
    p = s.masked_fill(later, -torch.inf).softmax(-1)
    return (p @ x @ N.mT).sum(0)  # heads are added


layer = Attention(12, 3)  # E = 12, H = 3, D = C = 4
theta, x = layer.random_parameters(seed=0), normal(6, 12, seed=1)
M = theta["W_K"].mT @ theta["W_Q"] / layer.D**0.5  # the factor that the text absorbs
N = theta["W_O"] @ theta["W_V"]
y = forward(layer, theta, x)
assert relative_change(from_products(M, N, x), y) < 1e-12

# %% [markdown]
# Every head may change both of its bases, independently of the others. Here are $2H$ unrelated changes at once: all weights are new, and
# the outputs are the same.

# %%
S, S_values = normal(2, 3, 4, 4, seed=2)  # one of each for every head
W_Q, W_K = act_query_key(S, theta["W_Q"], theta["W_K"])
W_V, W_O = act_value_output(S_values, theta["W_V"], theta["W_O"])
moved = {"W_Q": W_Q, "W_K": W_K, "W_V": W_V, "W_O": W_O}
assert all(relative_change(moved[name], theta[name]) > 0.5 for name in theta)
check("lemma-4.6", outputs=relative_change(forward(layer, moved, x), y))

# %% [markdown]
# ## The check
#
# **Lemma 4.6** for one pair with $C = 4$ and $E = 12$. The Jacobian of $(W_O, W_V) \mapsto W_O W_V$ is a matrix with $E^2$ rows and $2CE$
# columns. It must lose $C^2 = 16$ of them, and lose exactly the directions $(-W_O T, T W_V)$.


# %%
def derivative(dO, dV):
    return dO @ W_V + W_O @ dV


W_O, W_V = theta["W_O"][0], theta["W_V"][0]  # one head
blocks = torch.func.jacrev(torch.matmul, argnums=(0, 1))(W_O, W_V)
slopes = torch.cat([part.flatten(2).flatten(0, 1) for part in blocks], 1)
units = torch.eye(16, dtype=torch.float64).view(16, 4, 4)  # a basis of all T
dO, dV = -W_O @ units, units @ W_V
check(
    "lemma-4.6",
    product=slopes.shape[1] - rank(slopes),
    directions=rank(torch.cat((dO.flatten(1), dV.flatten(1)), 1)),
    derivative=derivative(dO, dV).abs().max(),
)

# %% [markdown]
# The construction from singular values, corrected ({prf:ref}`rem-05-svd`), with a random $A$: zero to rounding, and equal to the direction
# with the $T$ given there. As printed in the paper, even with the right decompositions, the derivative is far from zero; mending the sign
# alone is not enough, nor is mending the order alone.

# %%
(U_O, s_O, V_Oh), (U_V, s_V, V_Vh) = (
    torch.linalg.svd(W, full_matrices=False) for W in (W_O, W_V)
)
V_O, A = V_Oh.mT, normal(4, 4, seed=4)
svd_O, svd_V = -U_O @ A / s_V @ U_V.mT, V_O / s_O @ A @ V_Vh
T = V_O / s_O @ A / s_V @ U_V.mT
assert relative_change(svd_O, -W_O @ T) < 1e-12 > relative_change(svd_V, T @ W_V)
wrong_order = V_O @ A / s_O @ V_Vh
printed = ((-svd_O, wrong_order), (svd_O, wrong_order), (-svd_O, svd_V))
check(
    "lemma-4.6",
    mended=derivative(svd_O, svd_V).norm() / A.norm(),
    printed=[float(derivative(*d).norm() / A.norm()) for d in printed],
)

# %% [markdown]
# **Heads apart.** The heart of {prf:ref}`lem-heads-apart` is that the $2H$ functions $q_h/(q_h + n)$ and $n\, q_h/(q_h + n)^2$ of $n$ are
# linearly independent when the numbers $q_h = e^{s_h}$ are distinct, and that with pairs of tokens only, $1$, $\sigma(a_h t)$ and
# $t\, \sigma'(a_h t)$ are independent functions of $t$ when the $|a_h|$ are. We sample both and ask for the rank, with three distinct
# scores, with two equal ones, and with two opposite ones. Equal scores lose two either way; opposite ones lose two to pairs alone.


# %%
def by_repeats(s):
    n = torch.logspace(-3, 3, 200, dtype=torch.float64)[:, None]
    p = torch.sigmoid(s - n.log())  # q / (q + n), (200, H)
    return rank(torch.cat((p, p * (1 - p)), 1))


def by_pairs(a):
    t = torch.linspace(-8, 8, 200, dtype=torch.float64)[:, None]
    p = torch.sigmoid(a * t)
    return rank(torch.cat((torch.ones_like(t), p, t * p * (1 - p)), 1))


triples = [torch.tensor([0.5, 1.3, last]).double() for last in (-3.0, 1.3, -1.3)]
check("sec-4.5", repeats=[by_repeats(s) for s in triples])
check("sec-4.5", pairs=[by_pairs(a) for a in triples])

# %% [markdown]
# Part 3 of the lemma promises that one and two tokens are enough. So the Jacobian of a layer over pairs of tokens must already have the
# full rank, which is $4E^2 - 2E^2/H = 120$ for $E = 6$ and $H = 3$. We differentiate `forward` at 60 random pairs.


# %%
def jacobian(layer, theta, x):
    blocks = torch.func.jacrev(lambda p: forward(layer, p, x))(theta)
    flat = [blocks[name].flatten(0, x.ndim - 1).flatten(1) for name in layer.shapes]
    return torch.cat(flat, 1)


six = Attention(6, 3)
over_pairs = jacobian(six, six.random_parameters(seed=0), normal(60, 2, 6, seed=5))
check("sec-4.5", of_pairs=rank(over_pairs))

# %% [markdown]
# **The count, four ways**, for the ways of cutting $E = 4$, and the part of the measured null space that lies in the query and key weights,
# which must be half of it; then for a layer with values narrower than its queries.


# %%
def dimension_in(null_space, names):  # a null space is measured to 1e-9
    part = torch.cat([null_space[name].flatten(1) for name in names], 1)
    return rank(part, rtol=1e-6)


fours = [Attention(4, heads) for heads in (1, 2, 4)]
found = [measure(a) for a in fours]
check(
    "sec-4.5",
    formula=[count(a).unidentified for a in fours],
    measured=[measurement.nullity for measurement in found],
    generators=[independent_directions(a) for a in fours],
    exact=[exact_nullity(a) for a in fours],
    circuit=[dimension_in(m.null_space, ("W_Q", "W_K")) for m in found],
)

# %%
narrow = Attention(8, 2, value_dim=3)
check(
    "lemma-4.6",
    formula=count(narrow).unidentified,
    measured=measure(narrow).nullity,
    generators=independent_directions(narrow),
    exact=exact_nullity(narrow),
)

# %% [markdown]
# **The share, measured.** All six ways of cutting $E = 12$: the rank of the layer's Jacobian over random sequences, which knows nothing of
# heads or products, over the number of weights.

# %%
measured = {}
for H in (1, 2, 3, 4, 6, 12):
    cut = Attention(12, H)
    seen = measure(cut).rank
    measured[H] = seen / cut.parameters
    print(f"{H:2} heads of width {cut.D:2}: rank {seen} of {cut.parameters}")
check("lemma-4.6", shares=[abs(s - float(share(H))) for H, s in measured.items()])

# %% [markdown]
# Six heads instead of one turn 288 identified numbers into 528, without a single weight more.
#
# ## A layer by hand
#
# All of it fits on a sheet of paper for $E = 3$, $H = 2$ and $D = C = 2$. Take
#
# $$
# W_Q^1 = \begin{pmatrix} 1 & 0 & 1 \\ 0 & 1 & 0 \end{pmatrix}, \quad
# W_K^1 = \begin{pmatrix} 1 & 1 & 0 \\ 0 & 0 & 1 \end{pmatrix}, \quad
# W_Q^2 = \begin{pmatrix} 0 & 1 & 1 \\ 1 & 0 & 0 \end{pmatrix}, \quad
# W_K^2 = \begin{pmatrix} 1 & 0 & 0 \\ 0 & 1 & 1 \end{pmatrix},
# $$
#
# $$
# W_V^1 = \begin{pmatrix} 1 & 0 & 0 \\ 0 & 1 & 1 \end{pmatrix}, \quad
# W_O^1 = \begin{pmatrix} 1 & 0 \\ 1 & 1 \\ 0 & 1 \end{pmatrix}, \quad
# W_V^2 = \begin{pmatrix} 0 & 1 & 0 \\ 1 & 0 & 1 \end{pmatrix}, \quad
# W_O^2 = \begin{pmatrix} 0 & 1 \\ 1 & 0 \\ 1 & 1 \end{pmatrix}.
# $$
#
# The four products, each of rank 2, are
#
# $$
# M_1 = \begin{pmatrix} 1 & 0 & 1 \\ 1 & 0 & 1 \\ 0 & 1 & 0 \end{pmatrix}, \quad
# M_2 = \begin{pmatrix} 0 & 1 & 1 \\ 1 & 0 & 0 \\ 1 & 0 & 0 \end{pmatrix}, \quad
# N_1 = \begin{pmatrix} 1 & 0 & 0 \\ 1 & 1 & 1 \\ 0 & 1 & 1 \end{pmatrix}, \quad
# N_2 = \begin{pmatrix} 1 & 0 & 1 \\ 0 & 1 & 0 \\ 1 & 1 & 1 \end{pmatrix}.
# $$
#
# *What is lost.* Each product has $12$ weights and loses $2^2 = 4$ of them, so the layer loses $16$ of $48$. One of the four in $M_1$ has
# $T = \begin{pmatrix} 0 & 1 \\ 0 & 0 \end{pmatrix}$: add the second row of $W_Q^1$ to its first, take the first row of $W_K^1$ from
# its second, and $M_1$ stays as it is.
#
# *What is seen.* Say $y = e_2$, $n$ times, and then $x = e_1$. With $u = x - y = (1, -1, 0)^\top$ the scores of {eq}`eq-shares` are $s_1 =
# u^\top M_1 x = 0$ and $s_2 = u^\top M_2 x = -1$, so the output is
#
# $$
# (N_1 + N_2)\, y + \frac{N_1 u}{1 + n} + \frac{N_2 u}{1 + e n} =
# \begin{pmatrix} 0 \\ 2 \\ 2 \end{pmatrix} + \frac{1}{1 + n} \begin{pmatrix} 1 \\ 0 \\ -1 \end{pmatrix}
# + \frac{1}{1 + e n} \begin{pmatrix} 1 \\ -1 \\ 0 \end{pmatrix} ,
# $$
#
# with the poles $-1$ and $-1/e$, one for each head. In the code the derivatives of the products are integers, and their rank is exact.

# %%
hand = {
    "W_Q": [[[1, 0, 1], [0, 1, 0]], [[0, 1, 1], [1, 0, 0]]],
    "W_K": [[[1, 1, 0], [0, 0, 1]], [[1, 0, 0], [0, 1, 1]]],
    "W_V": [[[1, 0, 0], [0, 1, 1]], [[0, 1, 0], [1, 0, 1]]],
    "W_O": [[[1, 0], [1, 1], [0, 1]], [[0, 1], [1, 0], [1, 1]]],
}
hand = {name: torch.tensor(W).double() for name, W in hand.items()}


def hand_products(p):  # M_1, M_2, N_1, N_2
    return torch.cat((p["W_K"].mT @ p["W_Q"], p["W_O"] @ p["W_V"]))


slopes = torch.func.jacrev(hand_products)(hand)  # of numbers like 0 and 1: exact
rows = torch.cat([part.reshape(36, -1) for part in slopes.values()], 1)  # (36, 48)
check("sec-4.5", by_hand=fmpz_mat(rows.long().tolist()).rank())
for name, product in zip(("M_1", "M_2", "N_1", "N_2"), hand_products(hand)):
    print(name, product.long().tolist())

# %% [markdown]
# The other way round, from outputs alone. The first entry of both fractions together, $f$, satisfies $(n^2 + a n + c)\, f = a' n + c'$, with the
# poles where $n^2 + a n + c$ vanishes. So a few lengths $n$ give $a$ and $c$, these the poles, and the poles all of
# $N_1 u$ and $N_2 u$. (`forward` divides scores by $\sqrt D$, so $W_Q$ is multiplied by it.)

# %%
small, weights = Attention(3, 2, head_dim=2), hand | {"W_Q": hand["W_Q"] * 2**0.5}
e_1, e_2 = torch.eye(3, dtype=torch.float64)[:2]
said = [torch.stack([e_2] * times + [e_1]) for times in range(1, 7)]
alone = forward(small, weights, e_2[None])[-1]
heard = torch.stack([forward(small, weights, s)[-1] - alone for s in said])  # (6, E)
f, n = heard[:, 0], torch.arange(1, 7, dtype=torch.float64)
system = torch.stack((n * f, f, -n, -torch.ones(6)), 1)
a, c = torch.linalg.lstsq(system, -(n**2) * f).solution[:2].tolist()
odds = -torch.tensor(np.sort(np.roots([1, a, c])))  # q_1 and q_2
Nu = torch.linalg.lstsq(odds / (odds + n[:, None]), heard).solution
by_pencil = torch.tensor(np.array([[1, 1, 0, -1], [np.exp(-1), 1, -1, 0]]))
check("sec-4.5", read_off=relative_change(torch.cat((odds[:, None], Nu), 1), by_pencil))

# %% [markdown]
# ## What it costs
#
# Each $M_h$ is a product of an $E \times D$ and a $D \times E$ matrix, so its rank is at most $D = E/H$. A score product
# of rank $E$ is out of reach as soon as $H > 1$. How far out? By the theorem of Eckart and Young the best approximation of a target $M$ with
# singular values $s_1 \ge s_2 \ge \dots$ by a matrix of rank $D$ keeps the first $D$ of them, and its relative error is
#
# $$
# \varepsilon_D = \sqrt{ \frac{s_{D+1}^2 + \dots + s_E^2}{s_1^2 + \dots + s_E^2} } .
# $$


# %%
def best_errors(M, ranks):
    energy = torch.linalg.svdvals(M).square()
    return torch.stack([(energy[D:].sum() / energy.sum()).sqrt() for D in ranks])


E = 64
heads = [1, 2, 4, 8, 16, 32, 64]
targets = {
    "orthogonal": torch.linalg.qr(normal(E, E, seed=7)).Q,
    "normal entries": normal(E, E, seed=8),
    "spectrum $1/i$": torch.diag(1 / torch.arange(1, E + 1, dtype=torch.float64)),
}
errors = {name: best_errors(M, [E // H for H in heads]) for name, M in targets.items()}

# %% [markdown]
# The hardest target is an orthogonal matrix, which stretches every direction by the same factor; "attend to tokens like me", $M = I$, is
# one. All its $s_i$ are equal, so $\varepsilon_D^2 = 1 - D/E = 1 - 1/H$. Beside the share $1 - 1/(2H)$ this reads
#
# $$
# \varepsilon^2 = 2 \cdot \text{share} - 1 .
# $$
#
# For this target a point of share costs two of squared error. A matrix of independent normal entries is a little easier, and a spectrum
# that falls off is easier still. We check all of this, and that weights of width $D$ read off the truncated decomposition do attain
# $\varepsilon_D$.

# %%
squared = torch.tensor([2 * float(share(H)) - 1 for H in heads], dtype=torch.float64)
assert (errors["orthogonal"].square() - squared).abs().max() < 1e-12
target = targets["normal entries"]
U, s, Vh = torch.linalg.svd(target)
for H, error in zip(heads, errors["normal entries"]):
    best_Q, best_K = Vh[: E // H], (U[:, : E // H] * s[: E // H]).mT
    assert abs(relative_change(best_K.mT @ best_Q, target) - error) < 1e-12
for easier, harder in zip(list(errors.values())[1:], errors.values()):
    assert (easier[1:] < harder[1:]).all()
at_eight = {name: f"{values[heads.index(8)]:.0%}" for name, values in errors.items()}
print("relative error with 8 heads:", *at_eight.values())

# %% mystnb={"image": {"alt": "Left: the identified share rises with the number of heads along the curve one minus one over two H, from one half at one head to above 0.95 at twelve; measured points lie on it, and the values for 6 and 8 heads are marked eleven twelfths and fifteen sixteenths. Right: the error of the best approximation rises with the number of heads too, fastest for an orthogonal target, slowest for one whose spectrum falls off."}, "figure": {"caption": "Left: the share of identified parameters, by formula (line) and measured for $E = 12$ (dots). The paper's two examples are ringed. Right: what one head can no longer do: relative error of the best score product of rank $E/H$, for three targets with $E = 64$.", "name": "fig-share-and-error"}}
figures.share_and_error(measured, heads, errors)

# %% [markdown]
# {numref}`fig-share-and-error` shows share and error over the same axis, {numref}`fig-stripe` what such an error means.
# The target there makes token $i$ look for token $i + 1$: a narrow stripe beside the diagonal of a $24 \times 24$ score product.

# %%
token = torch.arange(24, dtype=torch.float64)
stripe = torch.exp(-(token[:, None] - token - 1).square())  # row: key, column: query
U, s, Vh = torch.linalg.svd(stripe)
views = {H: U[:, : 24 // H] * s[: 24 // H] @ Vh[: 24 // H] for H in (1, 2, 4, 12)}
missed = [float((view - stripe).norm() / stripe.norm()) for view in views.values()]
print("missed with 1, 2, 4, 12 heads:", ", ".join(f"{m:.0%}" for m in missed))
assert [round(m, 2) for m in missed] == [0, 0.35, 0.65, 0.89]

# %% mystnb={"image": {"alt": "Four square heat maps. With one head a sharp stripe runs beside the diagonal. With two heads it is paler; with four it is a broad, pale stripe on a faint chequered ground; with twelve only two wide blurs are left."}, "figure": {"caption": "The best score product that one head of width $24/H$ can form for the target \"look for the next token\" (first panel, which a single head of full width attains). The layer identifies more and more of its weights from left to right.", "name": "fig-stripe"}}
figures.stripes(views)

# %% [markdown]
# This is one head against one target. A layer has $H$ heads, and their ranks add up to $HD = E$ whatever $H$ is; but they do not add up
# inside a softmax, since each head has its own. {cite:t}`bhojanapalli2020` call this the {term}`low-rank bottleneck`, and widen the heads again.
# {doc}`Chapter 7 <07_wider_heads>` looks at what that does to the share.
#
# ## Break it
#
# **Tie the scores of two heads.** Give heads 1 and 2 the same $W_Q$ and $W_K$, so that $M_1 = M_2$. Then they pay the same attention, and
# the layer sees of $N_1$ and $N_2$ only the sum. The two act as one head with values of width $2C$:
#
# $$
# N_1 + N_2 = \begin{pmatrix} W_O^1 & W_O^2 \end{pmatrix} \begin{pmatrix} W_V^1 \\ W_V^2 \end{pmatrix} ,
# $$
#
# and such a product loses $(2C)^2$ numbers where two separate ones lose $2C^2$. So $2C^2 = 32$ directions should appear with $C = 4$. The
# query and key weights gain none: $N_1 u$ and $N_2 u$ are independent, and tell $\dot M_1$ from $\dot M_2$.

# %%
theta, C = layer.random_parameters(seed=9), layer.C
QK, OV = ("W_Q", "W_K"), ("W_O", "W_V")


def tied(theta, names, k=2):
    """The parameters with the named weights of the first k heads made equal."""
    share_first = lambda W: torch.cat((W[:1].expand(k, *W.shape[1:]), W[k:]))
    return {name: share_first(W) if name in names else W for name, W in theta.items()}


def lost(layer, theta):
    """Null directions in query and key weights, and in output and value weights."""
    null_space = measure(layer, parameters=theta).null_space
    return [dimension_in(null_space, names) for names in (QK, OV)]


parts = lost(layer, theta), lost(layer, tied(theta, QK))
print("query-key and value-output, generic:", parts[0], "scores tied:", parts[1])
assert parts == ([48, 48], [48, 48 + 2 * C**2])

# %% [markdown]
# **Tie the values instead.** Now let two heads have the same $W_V$ and $W_O$, and different scores. {prf:ref}`lem-heads-apart` asks that no
# $N_h$ vanish, not that they differ. So nothing should happen, and nothing does.

# %%
print("unidentified, values tied:", lost(layer, tied(theta, OV)))
assert lost(layer, tied(theta, OV)) == [48, 48]

# %% [markdown]
# **Permute the heads.** The order of a sum does not matter, so reordering the heads keeps the function: $H!$ sets of products with the same
# outputs. By {prf:ref}`lem-heads-apart` (2) there are no more. No small step leads from one order to another, so this symmetry adds
# isolated copies and no direction.

# %%
permuted = {name: W[[2, 0, 1]] for name, W in theta.items()}
x = normal(7, 12, seed=10)
assert relative_change(forward(layer, permuted, x), forward(layer, theta, x)) < 1e-12
assert all(relative_change(permuted[name], theta[name]) > 1 for name in theta)
assert lost(layer, permuted) == lost(layer, theta)

# %% [markdown]
# **Keep the width.** The share grows because $D = E/H$ shrinks. Hold $D$ fixed and add heads: the share of $1 - D/(2E)$ does not move.

# %%
threes = [Attention(6, H, head_dim=3) for H in (1, 2, 4)]
shares = [measure(a).rank / a.parameters for a in threes]
assert all(abs(s - (1 - 3 / (2 * 6))) < 1e-12 for s in shares)
print("D = 3, E = 6, and 1, 2, 4 heads:", shares)

# %% [markdown]
# ## What it means
#
# Splitting a layer into heads is usually explained by what the heads attend to. Here every product of two
# matrices through a space of width $D$ pays $D^2$ for the freedom to choose a basis there, and $H$ small squares cost less than one large
# one. The weights of a one-head layer describe half as many numbers as there are weights; those of a twelve-head layer, 23 of 24.
#
# The same small squares are what limits each head. The share says how economical the description is, and nothing about whether what it
# describes is what one needs. With $H = E$ heads nearly every weight is identified and each head compares tokens by a single number.
#
# (products-seen)=
# ### What is seen, in one table
#
# Two facts make every count up to {doc}`chapter 9 <09_grouped_queries>`: what the outputs see, which is {prf:ref}`lem-heads-apart` and its kin,
# and {prf:ref}`lem-what-a-product-loses`. By this, a product $A^\top B$ of generic $A \in \mathbb{F}^{d \times a}$ and
# $B \in \mathbb{F}^{d \times b}$ loses
#
# $$
# \mathrm{lost}(d, a, b) = d(a + b) - (qa + pb - pq), \qquad p = \min(d, a), \quad q = \min(d, b) ,
# $$ (eq-product-loses)
#
# which is $d^2$ where $d$ is the smallest of the three.
#
# | Layer | Products seen | $(d, a, b)$ | Unidentified |
# |---|---|---|---|
# | $H$ heads, this chapter | $M_h = (W_K^h)^\top W_Q^h$ | $(D, E, E)$ | $H\, \mathrm{lost} = H D^2$ if $D \le E$ |
# | | $N_h = W_O^h W_V^h$ | $(C, E, E)$ | $H\, \mathrm{lost} = H C^2$ if $C \le E$ |
# | biases, {doc}`06_biases` | $(M_h \; c_h) = (W_K^h)^\top (W_Q^h \; b_Q^h)$ | $(D, E, E + 1)$ | $H\, \mathrm{lost} = H D^2$ if $D \le E$ |
# | | $\sum_h W_O^h b_V^h + b_O$; nothing of $b_K$ | | $HD + HC$ |
# | {term}`centred inputs`, {doc}`06_biases` | $M_h$ and $N_h$ on the $E - 1$ dimensions met | $(D, E - 1, E - 1)$, $(C, E - 1, E)$ | $\sum \mathrm{lost} + H(2D + C)$ |
# | wide heads, {doc}`07_wider_heads` | $M_h$, $N_h$ | $(D, E, E)$, $(C, E, E)$ | $H (2DE - E^2)$, $H (2CE - E^2)$ if $D, C \ge E$ |
# | rotary, {doc}`08_rotary_positions` | for each frequency, of $m$ planes, a complex product | $(m, E, E)$ | $2 H\, \mathrm{lost}$; $HD$ for $D/2$ frequencies |
# | groups, {doc}`09_grouped_queries` | $W_K^\top (W_Q^1 \cdots W_Q^n)$ with $n = H/G$; the $W_O^j W_V$, stacked | $(D, E, nE)$, $(C, nE, E)$ | $G D^2$, $G C^2$ if $D, C \le E$ |
#
# Each line needs $N_h \ne 0$, and $M_h$ that differ (with pairs of tokens alone, that also differ from each other's opposites); with biases the $(M_h, c_h)$ must. The line
# of $HD + HC$ needs plain softmax and no rotation; rotary heads need sequences of every length.
#
# A layer that is several of these at once has the products of all: rotary groups, for example, have $(m, E, nE)$. We run a line of each.


# %%
def product_loss(d, a, b):
    p, q = min(d, a), min(d, b)
    return d * (a + b) - (q * a + p * b - p * q)


# %%
lines = {
    "heads": (Attention(4, 2), 4 * product_loss(2, 4, 4)),
    "biases": (
        Attention(4, 2, bias="qkvo"),
        2 * product_loss(2, 4, 5) + 2 * product_loss(2, 4, 4) + 2 * (2 + 2),
    ),
    "centred": (
        Attention(4, 2, inputs="centred"),
        2 * product_loss(2, 3, 3) + 2 * product_loss(2, 3, 4) + 2 * (2 * 2 + 2),
    ),
    "wide": (Attention(3, 2, head_dim=5), 4 * product_loss(5, 3, 3)),
    "rotary": (
        Attention(4, 1, head_dim=4, value_dim=1, rotary=(0.7, 1.9)),
        2 * 2 * product_loss(1, 4, 4) + product_loss(1, 4, 4),
    ),
    "groups": (
        Attention(4, 4, 2, head_dim=2),
        2 * product_loss(2, 4, 8) + 2 * product_loss(2, 8, 4),
    ),
}
check("sec-4.5", table={name: formula for name, (_, formula) in lines.items()})
check("sec-4.5", ranks={name: measure(a).nullity for name, (a, _) in lines.items()})

# %% [markdown]
# ## Exercises
#
# **1.** How many heads does it take to identify 99 per cent of the weights? What is the width of a head then, if $E = 768$?
#
# ```{admonition} Answer
# :class: dropdown
#
# $1/(2H) \le 1/100$ means $H \ge 50$. The next divisor of 768 is 64, with heads of width 12; it gives $127/128$.
# ```

# %% tags=["hide-cell"]
H = min(H for H in range(1, 769) if 768 % H == 0 and share(H) >= Fraction(99, 100))
assert min(H for H in range(1, 100) if share(H) >= Fraction(99, 100)) == 50
assert (H, 768 // H, share(H)) == (64, 12, Fraction(127, 128))

# %% [markdown]
# **2.** Part 3 of {prf:ref}`lem-heads-apart` excludes $M_2 = -M_1$. When do pairs of tokens miss something of two such heads? And how much?
#
# ```{admonition} Answer
# :class: dropdown
#
# With two tokens $\sigma(-z) = 1 - \sigma(z)$, and $\sigma'$ is even. The poles tell us that $\dot N_1 - \dot N_2 = 0$, and with the other heads
# gone $\sum_h \dot N_h = 0$ says $\dot N_1 + \dot N_2 = 0$; so both vanish. For the scores, what is left is $\dot a_1 N_1 u + \dot a_2 N_2 u
# = 0$. If $N_1 u$ and $N_2 u$ are linearly independent for almost all $u$, nothing is missed. At the other extreme, $N_2 = N_1$, every $\dot M_2 =
# -\dot M_1$ is: $D(2E - D)$ directions, since $M_1$ and $-M_1$ can move alike. Longer
# sequences bring them back, by part 1; three tokens are enough here.
# ```

# %% tags=["hide-cell"]
two = Attention(6, 2)
generic = two.random_parameters(seed=9)
opposite = (
    generic
    | {  # query weights of both signs, one key map
        "W_Q": generic["W_Q"][:1] * torch.tensor([1.0, -1.0]).double()[:, None, None],
        "W_K": generic["W_K"][[0, 0]],
    }
)
missed = [
    two.parameters - rank(jacobian(two, weights, normal(200, L, 6))) - 4 * two.D**2
    for weights in (opposite, tied(opposite, OV))
    for L in (2, 3)
]
print("more than 4 D^2, by 2 and by 3 tokens:", missed[:2], "N_1 = N_2:", missed[2:])
assert missed == [0, 0, two.D * (2 * two.E - two.D), 0]

# %% [markdown]
# **3.** Tie the scores of $k$ heads. How many directions appear, and what becomes of the advantage of many heads when all $H$ are tied?
#
# ```{admonition} Answer
# :class: dropdown
#
# The $k$ heads act as one with values of width $kC$. For $kC \le E$ it loses $(kC)^2$, so $k(k-1)\,C^2$ directions appear. For $kC \ge E$
# their sum can be any matrix, $2kCE - E^2$ are lost, and $2kCE - E^2 - kC^2$ appear (with $C \le E$). With $k = H$ and $C = E/H$ both say that
# the value-output part loses $E^2$, as a single head would: for the values the advantage of many heads is gone entirely. Queries and keys
# gain as well if $k > E(E + 1)/2$: of the $kE$ numbers $\dot M_h x$ the outputs at a token $x$ show $\sum_h (u^\top \dot M_h x)\, N_h u$ only,
# whose entries are quadratic in $u$: $E^2 (E + 1)/2$ numbers.
# ```

# %% tags=["hide-cell"]
for E, H, C, ks in (
    (8, 4, 2, (1, 2, 3, 4)),
    (4, 4, 2, (2, 3, 4)),
    (5, 3, 4, (1, 2, 3)),
    (2, 4, 2, (3, 4)),
):
    group = Attention(E, H, head_dim=2, value_dim=C)
    heads_alone = group.random_parameters(seed=12)
    for k in ks:
        appear = k * (k - 1) * C**2 if k * C <= E else 2 * k * C * E - E**2 - k * C**2
        found = lost(group, tied(heads_alone, QK, k))
        queries = 2 * max(0, k * E - E**2 * (E + 1) // 2)  # D = 2 times what is unseen
        assert found == [H * 2**2 + queries, H * C**2 + appear]

# %% [markdown]
# **Next:** real layers often have biases. {doc}`Chapter 6 <06_biases>` lets the change of basis act on them, and finds biases that nothing
# can identify.
