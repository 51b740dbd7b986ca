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
# # Differences, mixtures, routers
#
# *Assumed: the counts of {doc}`05_many_heads`, {doc}`08_rotary_positions` and {doc}`09_grouped_queries`; for layers in a network
# {doc}`14_a_whole_network`. Nothing here is in the paper.*
#
# *In the ledger:* {ref}`differential attention <ledger-difference>`, {ref}`layers that turn beside layers that do not <ledger-mixed-layers>`,
# {ref}`routers <ledger-router>`, {ref}`what others found <ledger-others-numbers>`.
#
# ## The question
#
# Three things that networks have come to do, and that the paper's layer does not. They **subtract** one attention map from another {cite:p}`ye2025`. They turn
# queries and keys in some layers and **leave them alone in others**, as Command R7B, Llama 4 and SmolLM3 do. And they keep many MLPs, the *experts*, and let a
# **router** choose a few of them for each token. Each has numbers of its own: a second pair of query and key maps and the vectors that say how much of
# it to subtract; nothing at all, but other layers; a row of the router for each expert. How many of all these are {term}`idle`?

# %% [markdown]
# ## The claim
#
# **Two maps subtracted.** A head of *differential attention* has two pairs $(W_Q^1, W_K^1)$, $(W_Q^2, W_K^2)$ of query and key maps with $D$ rows each, and one value map $W_V$ with $C$ rows,
# usually $C = 2D$. With $\alpha^1$ and $\alpha^2$ for the weights that the two pairs give to the tokens $x_1, \dots, x_L$, head $h$ puts out
#
# $$
# z_h = W_V\, u_h, \qquad u_h = \sum_m (\alpha^1_m - \lambda\, \alpha^2_m)\, x_m, \qquad y = \sum_h W_O^h \Big( g \circ \frac{z_h}{\mathrm{rms}(z_h)} \Big) .
# $$ (eq-difference)
#
# The number $\lambda$ is the same for all heads, and so are the gains $g \in \mathbb{R}^C$. As published, $\lambda = e^{a \cdot b} - e^{a' \cdot b'} + \lambda_0$ with four trained vectors
# of $D$ numbers and a fixed $\lambda_0$. We also look at the layer without gains ($g = 1$), without the norm ($y = \sum_h W_O^h z_h$), and with $\lambda$ trained itself. In a *group*, heads
# share both key maps and the value map.
#
# ```{prf:proposition} Differential attention
# :label: prop-difference
#
# Let $D \le E$ and $2 \le C \le E$, let attention be causal, and let $d_R$ be the dimension of the {term}`commutant` of the rotation $R$ of one map: $d_R = D^2$ where nothing
# turns, $d_R = D$ where $D/2$ planes turn by distinct angles in $(0, \pi)$. At {term}`generic` weights of a layer of $G$ groups the {term}`unidentified` directions are
#
# 1. in queries and keys $2 G d_R$: each of the two maps loses what it would lose alone;
# 2. in values and outputs $G C^2$ without the norm; with it a rotation and a scale of each value, $G \big( \tfrac{C(C-1)}{2} + 1 \big)$, and with gains $C$ more;
# 3. in $\lambda$ $4D - 1$ if it is made of four vectors, and none if it is trained itself.
# ```
#
# **Layers that turn beside layers that do not.** Chapter 14 counts a network whose layers all turn, and one whose layers all keep still.
#
# ```{prf:proposition} Layers that turn beside layers that do not
# :label: prop-mixed-layers
#
# Let a network be as in {prf:ref}`prop-14-count`, without learned positions and with more tokens than dimensions, let $D$ be even and as in {prf:ref}`lem-14-heads`, and let each layer turn
# all $D/2$ planes of its heads by distinct angles in $(0, \pi)$, or none.
#
# 1. The directions of {prf:ref}`lem-14-norms`, {prf:ref}`lem-14-stream` and {prf:ref}`lem-14-tied` and those of values and outputs are unidentified whichever layers turn.
# 2. A layer that keeps still has $H D^2$ unidentified directions in its queries and keys and, with biases, its $E$ key biases. A layer that turns has $H D$, and no key bias.
# 3. A layer that turns has no others in its queries and keys as a layer of its own, with free inputs.
# ```
#
# So the count of this network is affine in the number of layers that turn: each takes $H D (D - 1)$ directions away, and $E$ more with biases.
#
# **Routers.** A mixture of $n$ experts $f_1, \dots, f_n$ has *scores* $s_i = w_i \cdot x$ or $w_i \cdot x + b_i$, chooses the $k$ experts with the largest ones, and puts out
# $\sum_i p_i\, f_i(x)$, summed over those chosen. There are four common makes of $p_i$: the softmax over *all* scores (a), that over the chosen (b); the sigmoid $\sigma(s_i)$ (c); and
# $\sigma(s_i)$ divided by its sum over the chosen (d). Let experts be gated MLPs as they are used, with the same number of hidden units:
#
# $$
# f_i(x) = \sum_j c_{ij}\, (r_{ij} \cdot x)\, \mathrm{silu}(a_{ij} \cdot x), \qquad \mathrm{silu}(z) = z\, \sigma(z), \qquad \sigma(z) = \frac{1}{1 + e^{-z}} .
# $$
#
# ```{prf:proposition} The router of a mixture of experts
# :label: prop-router
#
# Let inputs be free, $E \ge 2$, and let each expert be chosen far out: at $t d$ for all large $t$, for an open set of directions $d$. Let $k \ge 2$ in (b) and (d). At generic weights a direction in the router and
# the experts changes no output to first order, at any input where the choice is not a tie, if and only if it leaves each $f_i$ as it is and moves the rows of the router
#
# 1. all alike, $\dot w_1 = \dots = \dot w_n$ and $\dot b_1 = \dots = \dot b_n$, in (a) and (b): $E$ directions, or $E + 1$ with a bias;
# 2. not at all in (c) and (d): none.
# ```
#
# In (a) and (b) with *centred* inputs, $\mathbf{1}^\top x = 0$, each row may also move along $\mathbf{1}$; one of these $n$ directions is a common shift, which makes $E + n - 1$ without a bias.

# %% [markdown]
# ## Proof
#
# Two of the proofs let the input grow, $x \to t x$. Softmaxes, sigmoids and norms then become series in $e^{-\kappa t}$, and one lemma takes these apart.
#
# ```{prf:lemma} Sums of exponentials
# :label: lem-exponentials
#
# Let $\kappa_1 < \kappa_2 < \dots$ be real numbers, finitely many or tending to infinity, and $p_1, p_2, \dots$ polynomials of bounded degree such that $\sum_j p_j(t)\, e^{-\kappa_j t}$ converges absolutely,
# coefficient by coefficient, for large $t$. If the sum is zero for all large $t$, then all $p_j$ are zero.
# ```
#
# ```{prf:proof}
# (of {prf:ref}`lem-exponentials`) If not, let $p_i$ be the first that is not zero. Then $p_i(t) = -\sum_{j > i} p_j(t)\, e^{-(\kappa_j - \kappa_i) t}$. If the degrees are at most $r$ and the sum converges at $t_0 \ge 1$,
# each term at $t > t_0$ is at most $(t/t_0)^r\, e^{-(\kappa_{i+1} - \kappa_i)(t - t_0)}$ times the absolute sum of its parts at $t_0$. So the right side tends to zero, and no polynomial but zero does.
# ```
#
# We call numbers *independent* if no combination of them with rational coefficients, not all zero, is zero. Where polynomials (or linear forms) in the inputs are independent, their values are so at almost all
# inputs, since there are only countably many combinations. Products of independent $e^{-\kappa_1 t}, e^{-\kappa_2 t}, \dots$ have different exponents, so by the lemma an identity between power series in them holds coefficient by coefficient.
#
# ```{prf:proof}
# (of {prf:ref}`prop-difference`) *The directions named are unidentified.* For queries and keys that is {prf:ref}`prop-groups` (1) and {prf:ref}`prop-groups-rotary` in each map. Without a norm $W_O^h W_V$ keeps under a change of basis. A norm
# divides a factor on $W_V$ out, and it commutes with rotations: $\dot W_V = A W_V$ and $\dot W_O^h = -W_O^h\, \mathrm{diag}(g)\, A\, \mathrm{diag}(g)^{-1}$ with skew $A$ leave the outputs as they are. A gain up, a column of every $W_O^h$ down is the product rule, and
# $\lambda$ is one function of $4D$ numbers, whose gradient is not zero.
#
# *There are no others.* Let $\psi_h(u)$ be what head $h$ makes of $u = u_h$, so $y = \sum_h \psi_h(u_h)$ with $\psi_h(u) = W_O^h W_V\, u$, or this with the norm and the gains. Take a direction that is null, with dots for derivatives along it, and a sequence $x_1, \dots, x_L$;
# look at the output at its last token, with $\sqrt{t}\, x_m$ for $x_m$. The scores become $t$ times what they were. Number the $2H$ maps by $i$ and let $s_{im}$ be the scores at $t = 1$, $m_i$ the token with the largest, and
# $\kappa_{im} = s_{i m_i} - s_{im} > 0$ for the others. These numbers are independent for almost all sequences: a relation $\sum q_{im} \kappa_{im} = 0$ between the polynomials would give, from the terms $x_m^\top \cdots x_L$ with $m < L$, a relation with rational coefficients between the products
# $M_i = (W_K^i)^\top R_{L - m} W_Q^i$ of the maps, which generic weights do not have, unless $q_{im} = 0$ for all of these $m \ne m_i$ and $\sum_m q_{im} = 0$ where $m_i < L$; then $q_{iL} = 0$ as well.
#
# As $t$ grows, $u_h$ is a power series in the $e^{-\kappa_{im} t}$ of its two maps that tends to $u_h^\infty = x_{m_1} - \lambda x_{m_2}$, and (up to a common $\sqrt{t}$ without a norm) $\psi_h(u_h)$ is one as well, for $\psi_h$ is analytic where $W_V u \ne 0$. In it $e^{-\kappa_{im} t}$
# stands with the coefficient $\psi_h'(u_h^\infty)(x_m - x_{m_i})$, for the second map times $-\lambda$. For generic weights and inputs this is not zero: with a norm because $C \ge 2$. Now differentiate along the direction. The coefficient of $t\, e^{-\kappa_{im} t}$ in $\dot y$ is $-\dot \kappa_{im}$ times that vector,
# so $\dot\kappa_{im} = 0$: *differences of scores keep*, for almost all sequences and so for all. With a token that is zero among the first $L - 1 \ge 2$ this says that $x_m^\top \dot M_i\, x_L = 0$ for the others: all $M_i$ keep, at every offset $L - m \ge 1$. So the direction in queries and keys is one of part 1 ({prf:ref}`prop-groups`, {prf:ref}`prop-groups-rotary`).
#
# The coefficients themselves keep too. Where both maps prefer the same token they are $v$ and $-\lambda v$ with one $v \ne 0$, so $\dot\lambda = 0$. Then $u_h$ keeps and $\dot y = \sum_h \dot\psi_h(u_h) = 0$. Different heads have different exponents, so each $\dot\psi_h(u_h)$ is
# constant in $t$. For two tokens $u_h = (1 - \lambda) x_2 + w (x_1 - x_2)$, where $w$ runs through an interval. Thus $\dot\psi_h$ is constant on a piece of a line and, being analytic on a line that misses the kernel of $W_V$, on all of it. Without a norm $\dot\psi_h$ is linear, so $\dot\psi_h(x_1 - x_2) = 0$. With one it depends on
# the ray of $u$ only and is odd, so its limits at the two ends are $\pm\dot\psi_h(x_1 - x_2)$; again this is zero. So all $\psi_h$ keep.
#
# Without a norm these are the products $W_O^h W_V$, which lose $G C^2$ ({prf:ref}`prop-groups`). With one, $\psi_h(u)$ is a linear map of $u$ over $\|W_V u\|$, so $W_V^\top W_V$ keeps up to a factor (the fact at the head of chapter 15's proofs, as $C \ge 2$). Since $W_V$ has full row rank, $\dot W_V = (A + \tau) W_V$ with $A$ skew
# and a number $\tau$, and then $W_O^h\, \mathrm{diag}(g)$ must move by $-W_O^h\, \mathrm{diag}(g)\, A$: one $A$ and one $\tau$ for each value, and $\dot g$ at will.
# ```

# %% [markdown]
# ```{prf:proof}
# (of {prf:ref}`prop-mixed-layers`) *1.* The proofs of these lemmas use the maps that read and write the stream, and values and outputs; they do not look at what happens between queries and keys. In particular a rotation of the stream is undone by $W_Q$ and $W_K$ before anything turns. *2.* Still layers are {prf:ref}`lem-14-heads`. In a layer
# that turns $(T W_Q, -T^\top W_K)$ keeps $W_K^\top R_\delta W_Q$ for all $\delta$ if $T$ commutes with $R$, and these $T$ have dimension $D$ ({prf:ref}`lem-commutant`). A key bias there enters the scores as $b_K^\top R_\delta W_Q x$, which depends on the key's position. *3* is {prf:ref}`prop-rotary` (3).
# ```
#
# As in chapter 14, that the directions of *all* layers together are independent, and that a network has no further ones, is measured and not proved.
#
# ```{prf:proof}
# (of {prf:ref}`prop-router`) *The directions named are null:* a softmax does not see a common shift, and neither does the choice. *There are no others.* Let $x = t d$ for a direction $d$ along which the set of those chosen is constant for large $t$ and has no tie; write $u_i = \dot w_i \cdot d\; t + \dot b_i$ for the change of a score.
# The numbers $w_i \cdot d$ and $a_{ij} \cdot d$ are independent for almost all $d$, at generic weights. As $\mathrm{silu}(z)$ is $z$ or $0$ plus $z$ times a power series in $e^{-|z|}$, along the ray $f_i$ and $\dot f_i$ are power series in the $e^{-|a_{ij} \cdot d| t}$ of their own expert, with polynomials in $t$ for coefficients.
#
# *Softmax.* In (a) and (b) multiply $\sum_i p_i (\dot f_i + (u_i - \sum_j p_j u_j) f_i) = 0$ by the square of the denominator of the $p_i$:
#
# $$
# \sum_{i, j} e^{s_i + s_j} \big( \dot f_i + (u_i - u_j) f_i \big) = 0 ,
# $$
#
# with $i$ over the chosen experts and $j$ over all of them in (a), over the chosen in (b). By the lemma the terms with $i = j$ and those of each pair vanish alone: $\dot f_i = 0$, and then $(u_i - u_j)(f_i - f_j) = 0$ or, if $j$ is not chosen, $(u_i - u_j) f_i = 0$. So $u_i = u_j$ for an open set of $d$, which gives $\dot w_i = \dot w_j$ and
# $\dot b_i = \dot b_j$. In (a) these are all pairs with a chosen $i$, and we are done. In (b) any two experts that are chosen together move alike. Cross the border between two sets of directions: one expert is put in another's place and $k - 1 \ge 1$ stay, so both move like those that stay. Going from region to region we meet every expert.
#
# *Sigmoids.* Put $\sigma_i = \sigma(s_i)$. In (c) the terms of expert $i$ alone depend on $e^{-|w_i \cdot d| t}$, so $\sigma_i \dot f_i + \sigma_i (1 - \sigma_i)\, u_i f_i$ is constant in it. Its derivative in $\sigma_i$, $\dot f_i + (1 - 2\sigma_i)\, u_i f_i$, vanishes for variable $\sigma_i$, so $u_i = 0$ and $\dot f_i = 0$. In (d) multiply by $(\sum_j \sigma_j)^2$. The pair $\{i, j\}$ contributes
#
# $$
# \sigma_i \sigma_j \Big( \dot f_i + \dot f_j + \big( (1 - \sigma_i)\, u_i - (1 - \sigma_j)\, u_j \big) (f_i - f_j) \Big) ,
# $$
#
# and no other term depends on both $\sigma_i$ and $\sigma_j$. So its mixed derivative vanishes: $\dot f_i + \dot f_j + \big( (1 - 2\sigma_i) u_i - (1 - 2\sigma_j) u_j \big)(f_i - f_j) = 0$ for variable $\sigma_i$ and $\sigma_j$, hence $u_i = u_j = 0$. What remains is $\sum_i \sigma_i \dot f_i = 0$, and so each $\dot f_i = 0$.
# ```

# %% [markdown]
# ## The same symbols in code
#
# `DifferentialAttention` is the description. Here is {eq}`eq-difference` in a few lines of our own for one head, beside the package's program.

# %%
import math
from dataclasses import replace
from functools import partial

import torch

from attnid import Attention, DifferentialAttention, GPTConfig, count, figures
from attnid import forward, independent_directions, measure
from attnid.claims import check
from attnid.layer.differences import forward_difference
from attnid.layer.measuring import measure_function
from attnid.layer.parameters import random_parameters
from attnid.tensors import normal


# %%
def softmax_map(x, W_Q, W_K):  # tokens are rows: x is (..., L, E)
    s = (x @ W_Q.mT) @ (x @ W_K.mT).mT / math.sqrt(len(W_Q))
    later = torch.ones(s.shape[-2:], dtype=torch.bool).triu(1)
    return s.masked_fill(later, -torch.inf).softmax(-1)


def one_head(p, x):
    (a, b), (c, d) = p["mixing"]
    share = (a @ b).exp() - (c @ d).exp() + 0.8
    first, second = map(partial(softmax_map, x), p["W_Q"][0], p["W_K"][0])
    z = (first - share * second) @ x @ p["W_V"][0].mT
    return z / z.square().mean(-1, keepdim=True).sqrt() @ p["W_O"][0].mT


# %%
one = DifferentialAttention(8, 1, head_dim=2, norm="head")  # norm="head": no gains
p, x = one.random_parameters(seed=0), normal(3, 7, 8, seed=1)
assert (one_head(p, x) - forward_difference(one, p, x)).abs().max() < 1e-12
for term, number in count(one).terms.items():
    print(f"{term:16} {number:3}")
print(f"{'in all':16} {count(one).unidentified:3} of {one.parameters}")

# %% [markdown]
# Symmetries move weights by a finite amount. Rotate the value by $O$ and let $W_O$ turn back; scale the value by 3; move $a$ and $b$ so that $a \cdot b$ stays. The outputs stay, to rounding.

# %%
O = torch.linalg.qr(normal(4, 4, seed=2)).Q
(a, b), cd = p["mixing"]
moved = p | {
    "W_V": 3 * O @ p["W_V"],
    "W_O": p["W_O"] @ O.mT,
    "mixing": torch.stack((torch.stack((5 * a, b / 5)), cd)),
}
change = (one_head(moved, x) - one_head(p, x)).abs().max()
far = (moved["mixing"] - p["mixing"]).norm() / p["mixing"].norm()
print(f"the vectors moved by {100 * far:.0f} % of their size")
one_sided = (one_head(p | {"W_V": O @ p["W_V"]}, x) - one_head(p, x)).abs().max()
check("difference", moved_together=change, value_alone=one_sided)

# %% [markdown]
# ## The check
#
# Each count by formula, by rank and by directions.
#
# ### Two maps subtracted
#
# Four numbers for each layer: the proposition's, `count`, the generators that pass a Jacobian-vector product and are independent together, and the rank of the Jacobian of the package's program, which knows of no symmetry;
# for the first layer also that of our own program. (`count` and the generators rest on the same derivation, `measure` does not.)


# %%
def by_proposition(a):
    G, C, D = a.kv_heads, a.value_dim, a.head_dim
    commutant = sum(2 for _ in a.rotary) + (D - 2 * len(a.rotary)) ** 2
    values = G * (C**2 if a.norm is None else C * (C - 1) // 2 + 1)
    gains = C if a.norm == "head_gain" else 0
    return 2 * G * commutant + values + gains + (4 * D - 1) * (a.mixing == "vectors")


layers = [
    one,
    DifferentialAttention(8, 2),  # D = 2, C = 4, with gains
    DifferentialAttention(8, 2, rotary=(0.7,)),  # as published
    DifferentialAttention(6, 2, kv_heads=1, head_dim=2, value_dim=3, norm="head"),
    DifferentialAttention(8, 1, norm=None, mixing="number"),
]

# %%
measured = [measure(layer, seed=3) for layer in layers]
draw = lambda number, seed: normal(number, 7, 8, seed=seed)
ours = measure_function(one_head, one.random_parameters(seed=4), draw, 7 * 8)
check(
    "difference",
    proposition=[by_proposition(layer) for layer in layers],
    formula=[count(layer).unidentified for layer in layers],
    generators=[independent_directions(layer, seed=5) for layer in layers],
    measured=[found.nullity for found in measured],
    own_program=ours.nullity,
    gap=[found.gap for found in (*measured, ours)],
)

# %% [markdown]
# At the size of a real layer: $E = 2048$, sixteen maps of width 128. A plain layer has sixteen heads, the differential one eight, with values twice as wide. Without a norm its values and outputs lose twice as much, $8 \cdot 256^2$ in place
# of $16 \cdot 128^2$. The norm takes half of that away again, and we are back where we started, but for 249 numbers. Rotary positions take what queries and keys lose, as they do in a plain layer.

# %%
angles = tuple(10_000 ** (-i / 64) for i in range(64))
makes = {
    "16 plain heads": Attention(2048, 16),
    "8 differences, no norm": DifferentialAttention(2048, 8, norm=None),
    "8 differences, with norm": DifferentialAttention(2048, 8),
    "the same, planes turn": DifferentialAttention(2048, 8, rotary=angles),
}
CAUSES = {
    "queries and keys": ("query-key maps",),
    "values and outputs": ("value-output maps", "value scales", "value rotations"),
    "gains and mixing": ("gain exchange", "mixing"),
}
stacks = {
    name: {c: sum(count(a).terms.get(t, 0) for t in ts) for c, ts in CAUSES.items()}
    for name, a in makes.items()
}
for name, a in makes.items():
    assert sum(stacks[name].values()) == count(a).unidentified
    print(f"{name:28} {count(a).unidentified:9,} of {a.parameters:,}")

# %% mystnb={"image": {"alt": "Stacked horizontal bars for four layers. Sixteen plain heads lose 262 thousand numbers in queries and keys and as many in values and outputs. Eight differences without a norm lose 262 and 524 thousand. With the norm they lose 262 and 261 thousand. With planes that turn the part of queries and keys all but vanishes and 264 thousand remain. Gains and mixing are too few to be seen."}, "figure": {"caption": "Unidentified numbers of one layer with $E = 2048$ and sixteen softmax maps, by cause.", "name": "fig-differences"}}
figures.idle_by_cause(stacks)

# %% [markdown]
# ### Layers that turn beside layers that do not
#
# `positions` of a `GPTConfig` may say for each layer whether it turns. Three layers, one of them still; with and without biases, tied and not.

# %%
sizes = dict(vocab_size=9, block_size=7, n_layer=3, n_head=1, n_embd=4, mlp_width=4)
mixed = ("rotary", "rotary", "none")
networks = [
    GPTConfig(**sizes, positions=mixed),
    GPTConfig(**sizes, positions=mixed, bias=True),
    GPTConfig(**sizes, positions=mixed, tied=False, norm="rmsnorm"),
    GPTConfig(**sizes, positions=("none", "rotary", "none"), bias=True),
]
measured = [measure(network) for network in networks]
check(
    "mixed-layers",
    formula=[count(network).unidentified for network in networks],
    generators=[independent_directions(network, seed=3) for network in networks],
    measured=[found.nullity for found in measured],
    gap=[found.gap for found in measured],
)

# %% [markdown]
# What one layer more or less that turns does, measured: $H D (D - 1) = 12$ numbers here, and 4 key biases.

# %%
patterns = ("rotary", mixed, ("none", "rotary", "none"), "none")
biased = [replace(networks[1], positions=pattern) for pattern in patterns]
nullities = [measure(network).nullity for network in biased]
steps = [after - before for before, after in zip(nullities, nullities[1:])]
print("still layers 0, 1, 2, 3:", nullities)
check("mixed-layers", steps=steps)

# %% [markdown]
# In models that people use, a few still layers hold nearly all that queries and keys have to lose. Every fourth layer keeps still in all three below. In Llama 4 the layers that turn also normalise queries and keys,
# each head by itself and without gains, so a plane of theirs can still be turned, but no longer stretched.

# %%
turning = lambda D: tuple(10_000 ** (-2 * i / D) for i in range(D // 2))
models = {  # the layer that turns, how many of them, how many keep still
    "SmolLM3 3B": (Attention(2048, 16, 4, rotary=turning(128)), 27, 9),
    "Command R7B": (Attention(4096, 32, 8, rotary=turning(128)), 24, 8),
    "Llama 4 Scout": (
        Attention(5120, 40, 8, qk_norm="head", rotary=turning(128)),
        36,
        12,
    ),
}


# %%
def query_key(layer):
    return count(layer).unidentified - count(layer).terms["value-output maps"]


table = {
    name: [
        many * query_key(layer),
        few * query_key(replace(layer, rotary=(), qk_norm=None)),
    ]
    for name, (layer, many, few) in models.items()
}
for name, (turn, still) in table.items():
    print(f"{name:14} turning {turn:7,}  still {still:9,}  ({still / turn:.0f} times)")
check("mixed-layers", models=table)

# %% [markdown]
# ### Routers
#
# Experts are rows of three tensors; the choice is a comparison with the $k$-th largest score.

# %%
E, n, F = 4, 4, 2  # width, experts, hidden units of an expert
SHAPES = {"router": (n, E), "W_1": (n, F, E), "W_3": (n, F, E), "W_2": (n, E, F)}


def experts(p, x):  # (..., E) to (..., n, E)
    into = lambda W: torch.einsum("...e,nfe->...nf", x, W)
    hidden = torch.nn.functional.silu(into(p["W_1"])) * into(p["W_3"])
    return torch.einsum("...nf,nef->...ne", hidden, p["W_2"])


def gates(s, make, k):  # make: one of the letters a to d of the text
    chosen = s >= s.topk(k).values[..., -1:]
    weights = torch.where(chosen, s.softmax(-1) if make in "ab" else s.sigmoid(), 0)
    return weights if make in "ac" else weights / weights.sum(-1, keepdim=True)


def mixture(p, x, make="a", k=n):
    s = x @ p["router"].mT + p.get("bias", 0)
    return torch.einsum("...n,...ne->...e", gates(s, make, k), experts(p, x))


# %% [markdown]
# Each hidden unit of an expert has one idle number of its own, $r_{ij}$ up and $c_{ij}$ down, so the experts have $nF = 8$. What is beyond these is the router's. Many tokens are needed: an expert that is seldom chosen shows itself in few of them.


# %%
def tokens(number, seed, centred=False):
    x = normal(number, 64, E, seed=seed)
    return x - x.mean(-1, keepdim=True) if centred else x


def of_router(make, k, bias=False, centred=False):
    """The measured nullity beyond what the experts lose by themselves, and the gap."""
    shapes = SHAPES | ({"bias": (n,)} if bias else {})
    found = measure_function(
        partial(mixture, make=make, k=k),
        random_parameters(shapes, {}, seed=1),
        partial(tokens, centred=centred),
        64 * E,
    )
    own = n * F + centred * 2 * n * F  # centred: two rows of each hidden unit as well
    return found.nullity - own, found.gap


# %%
cases = [(make, k) for make in "abcd" for k in (n, 2)]
free = [of_router(*case) for case in cases]
with_bias = [of_router(*case, bias=True) for case in cases]
centred = [of_router(*case, centred=True) for case in cases]
check(
    "router",
    proposition=[E if make in "ab" else 0 for make, _ in cases],
    measured=[found for found, _ in free],
    with_bias=[found for found, _ in with_bias],
    centred=[found for found, _ in centred],
    gap=[gap for _, gap in (*free, *with_bias, *centred)],
)

# %% [markdown]
# The same by construction: along the shift no output changes, at any distance, while a shift of one row does change them. A permutation of experts and rows is a symmetry too; it is one of $n!$ and has no direction.

# %%
p, x = random_parameters(SHAPES, {}, seed=1), tokens(8, seed=2)
shift = p | {"router": p["router"] + 3 * normal(E, seed=3)}
one_row = p | {"router": p["router"] + torch.eye(n, 1) * normal(E, seed=3)}
order = torch.tensor([2, 0, 3, 1])
permuted = {name: W[order] for name, W in p.items()}
moved_by = lambda q: (mixture(q, x, "b", 2) - mixture(p, x, "b", 2)).abs().max()
check(
    "router",
    shifted=moved_by(shift),
    one_row=moved_by(one_row),
    permuted=moved_by(permuted),
)

# %% [markdown]
# ## Break it
#
# **Let $\lambda$ be zero.** Then nobody sees the second map, and both its factors are idle, $2DE = 32$ numbers in place of $D^2 = 4$: generic means $\lambda \ne 0$. ($\lambda_0$ is fixed, so we choose it.)

# %%
p = one.random_parameters(seed=0)
plus, minus = p["mixing"].prod(1).sum(-1).exp()
silenced = replace(one, start=float(minus - plus))
found = measure(silenced, parameters=p)
print(found.nullity, "of", one.parameters)
assert found.nullity == count(one).unidentified + 2 * 2 * 8 - 2**2

# %% [markdown]
# **Let tokens be fewer than dimensions.** Then the first layer reads a table, and without biases it can still make a key that all tokens share. Idle is that only if *this* layer keeps still, so the order of the layers counts,
# not only their number.

# %%
few = GPTConfig(3, 9, n_layer=2, n_head=2, n_embd=4, mlp_width=4)
orders = [("rotary", "none"), ("none", "rotary")]
found = [measure(replace(few, positions=pattern)).nullity for pattern in orders]
print(found)
assert found == [count(replace(few, positions=q)).unidentified for q in orders]
assert found[1] - found[0] == 4

# %% [markdown]
# **Start from copies.** A mixture is often made from a trained network by copying its MLP $n$ times. There all $f_i$ agree, the proof's $f_i - f_j$ is zero, and where gates add up to one *nothing* in the router is seen to first order: it has $nE = 16$ null
# directions in place of $4$, and not even a gradient until the copies differ.

# %%
p = random_parameters(SHAPES, {}, seed=1)
copies = {
    name: W if name == "router" else W[:1].repeat(n, 1, 1) for name, W in p.items()
}
found = measure_function(partial(mixture, make="b", k=2), copies, tokens, 64 * E)
print(found.nullity - n * F, "of", n * E)
assert found.nullity - n * F == n * E

# %% [markdown]
# **Choose one expert, and divide by the sum.** With $k = 1$ in (b) and (d) the gate is one. The derivative sees no number of the router, but the function does: the borders between the experts are places where the output jumps. Here first order is not the whole
# truth; moving its rows by a quarter of their size changes what many tokens get.

# %%
alone = of_router("b", 1)[0]
p, x = random_parameters(SHAPES, {}, seed=1), tokens(100, seed=2)
q = p | {"router": p["router"] + 0.25 * normal(n, E, seed=3)}
apart = (mixture(q, x, "b", 1) - mixture(p, x, "b", 1)).abs().amax(-1)
jumped = (apart > 1e-9).double().mean()
print(f"null to first order: {alone} of {n * E}; tokens whose output jumped: ", end="")
print(f"{100 * jumped:.0f} %")
assert alone == n * E and jumped > 0.05

# %% [markdown]
# Such borders are also why the proposition asks where each expert is chosen, and why a measurement needs many tokens. DeepSeek-V3 adds a number to each score for the choice alone; its derivative is zero everywhere, and it moves nothing but borders.
#
# ## What others found of the same numbers
#
# ```{prf:remark} The group of multi-head attention
# :label: rem-20-group
#
# {cite:t}`tran2025` determine the largest group that acts on a plain multi-head layer without changing it: for each head an invertible matrix for queries with keys and one for values with outputs, and permutations of heads.
# A paper at NeurReps 2025 ([openreview.net/forum?id=KrkbYbK0cH](https://openreview.net/forum?id=KrkbYbK0cH)) gives the same group as *complete* for GPT-2, BERT, LLaMA and Qwen, its commutant with rotary positions, and "over 1.1 million redundant dimensions" for a model of 110 million parameters. We find the same number for the
# same layer, $12 \cdot 12 \cdot 2 \cdot 64^2$. But BERT and GPT-2 have biases, norms and a stream, and these hide more.
# ```

# %%
E, H, D = 768, 12, 64
group = 12 * H * 2 * D**2
plain = 12 * count(Attention(E, H)).unidentified
bert = 12 * count(Attention(E, H, bias="qkvo")).unidentified
gpt2 = GPTConfig(50257, 1024, n_layer=12, n_head=H, n_embd=E, bias=True)
print(f"the group {group:,}; BERT's attention with its biases {bert:,}")
print(f"GPT-2 as a whole {count(gpt2).unidentified:,}:")
for term, number in count(gpt2).terms.items():
    print(f"   {term:28} {number:8,}")
check(
    "others-numbers",
    group=group,
    plain_attention=plain,
    bert_attention=bert,
    gpt2=count(gpt2).unidentified,
)

# %% [markdown]
# For GPT-2 the last number is the closed form of {prf:ref}`prop-14-count`, and rests on what that does. What biases add can be measured where it is small. One layer with $E = 8$ and two heads: the group has 64 dimensions, the Jacobian with biases 80 null directions, 8 key biases and 8 value biases more.
#
# **Sinusoids and rotations.** {cite:t}`tran2026` show that sinusoidal positions keep the equivalences of plain attention and that rotary ones leave much smaller groups. The counts agree, measured: a table added to the inputs changes nothing, and rotation leaves $D$ of $D^2$ a head (chapter 8). That less symmetry is more
# expressive, as they read it, our numbers do not say: it is fewer idle numbers, in a layer of the same size.


# %%
def with_sinusoids(p, x):
    at = torch.arange(x.shape[-2], dtype=x.dtype)[:, None]
    table = torch.cat((at.sin(), at.cos(), (at / 9).sin(), (at / 9).cos()), 1)
    return forward(small, p, x + table.repeat(1, 2))


small = Attention(8, 2)
added = measure_function(with_sinusoids, small.random_parameters(seed=1), draw, 7 * 8)
check(
    "others-numbers",
    small_group=2 * 2 * 4**2,
    small_with_biases=measure(replace(small, bias="qkvo")).nullity,
    sinusoids=added.nullity,
    rotations=measure(replace(small, rotary=(1.0, 0.3))).nullity,
)

# %% [markdown]
# **The stream.** {cite:t}`vannierop2024` counts rotations $SO(E - 1)$ of embeddings and $GL(D)$ of heads. With a head of its own the network has exactly these rotations, $(E-1)(E-2)/2$ of them ({prf:ref}`lem-14-stream`, part 4); GPT-2 ties its head to its embeddings, and then none is left ({prf:ref}`lem-14-tied`).
# {cite:t}`theus2025` connect trained networks by four classes of maps: permutations, semi-permutations, orthogonal and invertible ones. Those with directions to count are the last two. For GPT-2's sizes, not tied:

# %%
untied = count(replace(gpt2, tied=False)).terms
orthogonal = untied["residual rotations"]
invertible = untied["query-key maps"] + untied["value-output maps"]
others = sum(untied.values()) - orthogonal - invertible
print(f"invertible {invertible:,}, orthogonal {orthogonal:,}, all else {others:,}")
assert "residual rotations" not in count(gpt2).terms and invertible == group
check("others-numbers", rotations_of_the_stream=[orthogonal, (E - 1) * (E - 2) // 2])

# %% [markdown]
# **Mixtures.** {cite:t}`tran2025moe` show for softmax gates, over all experts or the largest few, that two mixtures agree exactly when a common translation of the gate and a permutation of the experts leads from one to the other, under conditions that generic experts meet; a translation has $E + 1$ numbers with a bias. {prf:ref}`prop-router` has the same $E + 1$, to first order. It
# adds what is inside an expert, sigmoid gates, which have no translation, and centred inputs.

# %% [markdown]
# ## What it means
#
# Each of the three follows from what the outputs see. A second map costs what a first one costs, and a shared value is counted once; that value is twice as wide and would lose twice as much, and only the norm behind it brings the layer back to what its plain twin loses. Four vectors for one number are $4D - 1$ idle numbers:
# they change how fast $\lambda$ learns, not what it can be. Still layers are where the freedom of queries and keys is now, nine layers of SmolLM3 holding about forty times what the other twenty-seven do. And a softmax router carries one row too many. Whoever merges or compares such models has to fix these numbers first; whoever counts what a model
# knows should not count them.
#
# ## Exercises
#
# **1.** Is a layer with a trained $\lambda$ less than one with four vectors? Find vectors for $\lambda = -3$.
#
# ```{admonition} Answer
# :class: dropdown
#
# It has the same functions. $e^{a \cdot b} - e^{a' \cdot b'}$ takes every real value. With $a \cdot b = 0$ we need $e^{a' \cdot b'} = 1 + \lambda_0 - \lambda$; with $D = 1$ and $\lambda_0 = 0.8$ that is $a' = 1$ and $b' = \log 4.8$.
# ```

# %% tags=["hide-cell"]
from attnid.layer.differences import share_of_second

lone = DifferentialAttention(4, 1, head_dim=1, value_dim=2)
four = [[[0.0], [0.0]], [[1.0], [math.log(4.8)]]]
vectors = torch.tensor(four, dtype=torch.float64)
assert abs(share_of_second(lone, vectors) + 3) < 1e-12
vectors_cost = count(lone).unidentified
number_cost = count(replace(lone, mixing="number")).unidentified
assert vectors_cost - number_cost == 4 * 1 - 1
print("lambda:", round(float(share_of_second(lone, vectors)), 12))

# %% [markdown]
# **2.** Two differential heads in one group share keys and value. How many numbers does the layer lose less than with a group for each, and is the *share* that it loses smaller?
#
# ```{admonition} Answer
# :class: dropdown
#
# Parts 1 and 2 are halved: $2 d_R + \tfrac{C(C-1)}{2} + 1$ fewer. Gains and vectors stay. The layer also has fewer parameters, $2DE + CE$; the share is smaller all the same.
# ```

# %% tags=["hide-cell"]
apart, shared = DifferentialAttention(16, 2), DifferentialAttention(16, 2, kv_heads=1)
fewer = count(apart).unidentified - count(shared).unidentified
assert fewer == 2 * 4**2 + 8 * 7 // 2 + 1
assert apart.parameters - shared.parameters == 2 * 4 * 16 + 8 * 16
idle_share = [1 - count(layer).share for layer in (apart, shared)]
assert idle_share[1] < idle_share[0]
print(f"{fewer} fewer; shares {idle_share[0]:.3f} and {idle_share[1]:.3f}")

# %% [markdown]
# **3.** Routers are often trained with the penalty $(\log \sum_i e^{s_i})^2$ beside the loss. Which of the router's idle numbers does it hold?
#
# ```{admonition} Answer
# :class: dropdown
#
# All of them, and that is its purpose. Under the common shift by $v$ all scores grow by $v \cdot x$, and so does $\log \sum_i e^{s_i}$: the penalty changes while no output does. Its Hessian along the $E$ shifts is the mean of $2\, x x^\top$, of full rank; so the penalty picks one router of each fibre.
# ```

# %% tags=["hide-cell"]
E, n = 4, 4
p, x = random_parameters(SHAPES, {}, seed=1), tokens(50, seed=2)


def penalty(v):
    return (x @ (p["router"] + v).mT).logsumexp(-1).square().mean()


curvature = torch.autograd.functional.hessian(penalty, torch.zeros(E).double())
values = torch.linalg.eigvalsh(curvature)
assert (curvature - 2 * (x[..., None] * x[..., None, :]).mean((0, 1))).norm() < 1e-9
print("least curvature along a shift:", round(float(values[0]), 1))
assert values[0] > 1

# %% [markdown]
# *Next:* this is the last chapter. The {doc}`ledger <../book/ledger>` gathers what became of every statement, the {doc}`errata <../book/errata>` what has to be corrected in the paper.
