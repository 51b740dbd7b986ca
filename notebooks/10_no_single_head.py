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
# # No single head will do
#
# *Assumed: no biases, no {term}`rotary positions <rotary position>` (until we break that), plain softmax, a causal mask or none; {prf:ref}`lem-two-products`,
# {prf:ref}`prop-count-r` and {prf:ref}`cor-whole-layer`.*
#
# *In the ledger:* {ref}`section 4.10 <ledger-sec-4-10>`.
#
# ## The question
#
# A layer with $H$ heads of the usual widths identifies $1 - 1/(2H)$ of its $4E^2$ weights. A single head identifies less of its own. But it
# has one more knob: its head width is free. Can one build a single-head layer on the same tokens, as wide inside as one likes, that
# identifies as many numbers as a multi-head layer does? If not, how much wider would the tokens have to be?
#
# There are two kinds of single-head layers to compare with. The paper takes the older form, whose values are already the output,
#
# $$
# f(X) = W_V X\, \mathrm{softmax}(X^\top W_K^\top W_Q X), \qquad W_V \in \mathbb{R}^{E \times E};
# $$
#
# we also take the form in use, with $W_O W_V$ in the place of $W_V$ and any value width. Their widths are called $D'$ and $C'$ here.

# %% [markdown]
# ## The claim
#
# ```{prf:theorem} No single head (paper: section 4.10)
# :label: thm-no-go
#
# Let $E \ge 2$, let $H \ge 2$ divide $E$, and take a multi-head layer with $D = C = E/H$. At generic weights it identifies
# $(4 - 2/H)\, E^2 \ge 3E^2$ numbers.
#
# Every single-head layer on the same $E$, of any head width $D' \ge 1$ and at any weights, identifies fewer: without an output matrix, and with
# one of any value width $C' \ge 1$. In detail, at generic weights and with $a = D'/E$ and $c = C'/E$ it identifies
#
# $$
# \big(1 + g(a)\big)\, E^2 \quad \text{without}, \qquad \big(g(c) + g(a)\big)\, E^2 \quad \text{with an output matrix},
# \qquad g(a) = \begin{cases} 2a - a^2 & a \le 1, \\ 1 & a \ge 1, \end{cases}
# $$
#
# and at no weights more than $2E^2$.
# ```
#
# ```{prf:proposition} The price of a wider embedding (paper: section 4.10)
# :label: prop-inflation
#
# Let $E$ and $H$ be as above. Among single-head layers on tokens of width $E_0$, of any inner widths, there is one that identifies at least
# $(4 - 2/H)\, E^2$ numbers if and only if
#
# $$
# E_0 \ge E \sqrt{2 - 1/H} .
# $$
#
# The smallest such width is $E_0 = \lceil E \sqrt{2 - 1/H} \rceil$, with an output matrix and without. At $D' = C' = E_0$ the layer then
# has $3E_0^2$ weights without and $4E_0^2$ with an output matrix, that is at least $\frac34 (2 - 1/H)$ and $2 - 1/H$ times the $4E^2$ of
# the multi-head layer.
# ```
#
# The counts may agree then. The functions do not:
#
# ```{prf:proposition} Same count, other functions
# :label: prop-segment
#
# Let $f$ be any single-head layer, with or without an output matrix, of any width, with any linear maps before and after it. For all tokens
# $y$ and $x$, the output $f(y, x)_x$ at $x$ in the sequence $(y, x)$ lies on the segment from $f(y)$ to $f(x)$, the outputs at each of the
# two tokens alone. A multi-head layer with $M_1 \neq M_2$, in which $N_1 u, \dots, N_H u$ are linearly independent for some $u$, leaves
# this segment for some pair of tokens. So it equals none of these layers.
# ```

# %% [markdown]
# ## Proof
#
# ```{prf:proof}
# (of {prf:ref}`thm-no-go`)
# The first sentence is {prf:ref}`cor-whole-layer`: $4E^2 - 2E^2/H$, with $H \ge 2$.
#
# A single head without an output matrix is a function of $M = W_K^\top W_Q$ and of $W_V$, which takes the place of $N$. By
# {prf:ref}`lem-two-products`, whose proof asks nothing of $N$ but that it be some nonzero matrix, it identifies as many numbers as $(M, W_V)$
# has independent derivatives. For $W_V$ these are $E^2$. For $M$ they are $r(2E - r)$ with $r = \min(D', E)$ by {prf:ref}`prop-count-r`,
# which is $g(a) E^2$. With an output matrix $N = W_O W_V$ has $g(c) E^2$ for the same reason.
#
# The bound needs none of the detail: either way the outputs are a function of two $E \times E$ matrices, and a function of $2E^2$ numbers
# cannot have a Jacobian of larger rank. And $2E^2 < 3E^2$.
# ```
#
# ```{prf:proof}
# (of {prf:ref}`prop-inflation`)
# By {prf:ref}`thm-no-go` on tokens of width $E_0$ the largest number identified is $2E_0^2$, reached at $D' = E_0$ (and $C' = E_0$). It is
# at least $(4 - 2/H)E^2$ exactly when $E_0^2 \ge (2 - 1/H)E^2$. The weights are $2D'E_0 + E_0^2$ and $2D'E_0 + 2C'E_0$.
# ```
#
# ```{prf:proof}
# (of {prf:ref}`prop-segment`)
# Linear maps before and after change $M$ and $N$ to other matrices, not the form of $f$. A single head has $f(y, x)_x = (1 - p)\, N y + p\,
# N x$ with $0 < p < 1$, and $f(y) = N y$, $f(x) = N x$. With $H$ heads and $u = x - y$ the output is $f(y) + \sum_h p_h N_h u$. If that is
# $f(y) + p \sum_h N_h u$ for some $p$, then $\sum_h (p_h - p) N_h u = 0$, so $p_1 = p_2 = p$ by independence, and $u^\top (M_1 - M_2)\, x =
# 0$. Independence holds for almost all $u$ if it holds for one, so some pair $(u, x)$ has it while $u^\top (M_1 - M_2)\, x \ne 0$.
# ```
#
# ```{prf:remark} Departure from the paper
# :label: rem-10-wide
#
# The paper writes the count over $E^2$ as $1 + 2a - a^2$ (in our letters) and bounds it by its maximum, 2 at $a = 1$. For $a > 1$ this
# polynomial is not the count: it falls, while the count stays at 2. And the paper's single head has no output matrix. The conclusion holds
# for wider heads too, and with an output matrix.
# ```
#
# ```{prf:remark} Departure from the paper
# :label: rem-10-sixty
#
# For 12 heads the paper puts the inflation "in model size" at roughly 60% and does not say of what. The formula gives $\sqrt{2 - 1/12} =
# 1.384$: the embedding is 38% wider. The attention layer becomes $1.44$ times as large without an output matrix and $1.92$ times with one,
# a block $1.76$ or $1.92$ times. A whole network lies between 1.38 and these, according to how much of it is embedding; for GPT-2's sizes
# it comes to $1.64$ or $1.75$ (computed below). So a number near 60% can be had, but it needs more than $E$ and $H$.
# ```

# %% [markdown]
# ## The same symbols in code

# %%
import math

import torch

from attnid import Attention, count, exact_nullity, figures, forward
from attnid import independent_directions, measure
from attnid.claims import check
from attnid.network.gpt import GPT, GPTConfig
from attnid.tensors import normal, rank

# %% [markdown]
# The counts of {prf:ref}`thm-no-go`:


# %%
def g(a):
    return 2 * a - a**2 if a <= 1 else 1.0


def identified_single(E, D, C=None):  # C: with an output matrix, of value width C
    r = min(D, E)
    s = E if C is None else min(C, E)
    return r * (2 * E - r) + s * (2 * E - s)


def identified_multi(E, H):
    return 4 * E**2 - 2 * E**2 // H


for E in (4, 12):
    for D in range(1, 3 * E):
        assert identified_single(E, D) == round((1 + g(D / E)) * E**2)
assert identified_multi(12, 1) == identified_single(12, 12) == 2 * 12**2

# %% [markdown]
# The last line is the one case of equality. At $H = 1$ the multi-head layer is a single head with $D = C = E$. It has $4E^2$ weights, the
# layer without an output matrix has $3E^2$, and both identify $2E^2$: there $W_O$ adds $E^2$ weights and not one identified number.
#
# ## The check
#
# **Multi-head.** `measure` takes the rank of the layer's Jacobian over random sequences. Over $E^2$ the numbers are 3, 3.5, 3, 3.33 and 3.67.

# %%
usual = ((4, 2), (4, 4), (6, 2), (6, 3), (6, 6))  # E, H
multi = {(E, H): measure(Attention(E, H)).rank for E, H in usual}
check(
    "sec-4.10",
    heads_formula=[identified_multi(E, H) for E, H in usual],
    heads_measured=list(multi.values()),
)
assert all(count(Attention(E, H)).identified == multi[E, H] for E, H in usual)

# %% [markdown]
# **Single head, without an output matrix.** Two independent ways. The first differentiates what the head depends on,
#
# $$
# (W_Q, W_K, W_V) \;\longmapsto\; (W_K^\top W_Q,\; W_V),
# $$
#
# an explicit matrix with $2E^2$ rows. The second takes the layer that we have, with $C' = E$, fixes $W_O = I$, and
# differentiates its outputs in the other three over random sequences.


# %%
def flat_jacobian(function, weights):
    blocks = torch.func.jacrev(function)(weights)
    flat = [b.flatten(-weights[n].ndim).flatten(0, -2) for n, b in blocks.items()]
    return torch.cat(flat, 1)


def without_output(E, D):
    layer = Attention(E, 1, head_dim=D, value_dim=E)
    weights = layer.random_parameters(seed=D)
    fixed, x = {"W_O": torch.eye(E, dtype=torch.float64)[None]}, normal(20, 5, E)
    del weights["W_O"]
    seen = lambda w: torch.stack((w["W_K"].mT @ w["W_Q"], w["W_V"]))
    outputs = lambda w: forward(layer, w | fixed, x)
    return [rank(flat_jacobian(function, weights)) for function in (seen, outputs)]


# %%
E, widths = 4, range(1, 9)
by_products, by_outputs = zip(*(without_output(E, D) for D in widths))
check("sec-4.10", single_formula=[identified_single(E, D) for D in widths])
check("sec-4.10", single_products=by_products, single_outputs=by_outputs)
assert max(by_outputs) == 2 * E**2 < min(multi[4, 2], multi[4, 4])

# %% [markdown]
# **Single head, with an output matrix.** All widths $D'$ and $C'$ from 1 to 6 with $E = 4$, by `measure` and by `count`. The largest number
# is $2E^2$ again, reached exactly where both widths are at least $E$.

# %%
sizes = [(D, C) for D in range(1, 7) for C in range(1, 7)]
layers = {(D, C): Attention(E, 1, head_dim=D, value_dim=C) for D, C in sizes}
found = {size: measure(layer).rank for size, layer in layers.items()}
check(
    "sec-4.10",
    square_formula=[identified_single(E, D, D) for D in range(1, 7)],
    square_measured=[found[D, D] for D in range(1, 7)],
)
for (D, C), layer in layers.items():
    assert found[D, C] == count(layer).identified == identified_single(E, D, C)
    assert found[D, C] == round((g(D / E) + g(C / E)) * E**2)
    assert (found[D, C] == 2 * E**2) == (min(D, C) >= E)
assert max(found.values()) < multi[4, 2]

# %% [markdown]
# What is *un*identified of three whole layers, two heads, one head of the usual width, and one head wider than its tokens, by every way there is:

# %%
three = Attention(4, 2), Attention(4, 1), Attention(4, 1, head_dim=6)
check(
    "sec-4.10",
    formula=[count(a).unidentified for a in three],
    measured=[measure(a).nullity for a in three],
    generators=[independent_directions(a) for a in three],
    exact=[exact_nullity(a) for a in three],
)

# %% [markdown]
# **Arithmetic, up to $E = 96$.** With the counts granted, the theorem is an inequality between integers. We evaluate both sides for all these
# $E$, all $H$ that divide them, and all $D'$ up to $2E$. The least margin is that of two heads on tokens of two numbers, $12 - 8 = 4$.

# %%
margins = []
for E_ in range(2, 97):
    best = max(identified_single(E_, D) for D in range(1, 2 * E_ + 1))
    both = max(identified_single(E_, D, D) for D in range(1, 2 * E_ + 1))
    assert best == both == 2 * E_**2
    counts = [identified_multi(E_, H) for H in range(2, E_ + 1) if E_ % H == 0]
    margins.append(min(counts) - best)
check("sec-4.10", margin=min(margins))

# %% mystnb={"image": {"alt": "Identified numbers over E squared against the head width over E. The curve without an output matrix rises from one to two and stays there from width E on; the one with an output matrix rises from zero to two. Dots lie on both. Four horizontal lines for 2, 4, 8 and 16 heads lie above, from 3 to almost 4, with a shaded empty band between 2 and 3."}, "figure": {"caption": "Identified numbers, over $E^2$, of a single head as it gets wider: without an output matrix, and with one and $C' = D'$ (lines: theorem; dots: measured at $E = 4$). Horizontal lines: multi-head layers of the usual widths. The thin line is the polynomial $1 + 2a - a^2$ of $a = D'/E$, beyond its range.", "name": "fig-no-go"}}
heads = {H: identified_multi(16, H) / 16**2 for H in (2, 4, 8, 16)}
measured = {
    "without": {D / E: n / E**2 for D, n in zip(widths, by_outputs)},
    "with": {D / E: n / E**2 for (D, C), n in found.items() if D == C},
}
figures.no_single_head(g, measured, heads)

# %% [markdown]
# No single head enters the shaded band of {numref}`fig-no-go`, whatever its width. Why two heads pass it is plain: they have two score
# products and two value products instead of one each, of lower rank, but more in all.
#
# ## With a wider embedding
#
# $E_0$ is the least integer with $H E_0^2 \ge (2H - 1)\, E^2$, which integers decide without rounding:


# %%
def matching_width(E, H):
    E_0 = math.isqrt((2 * H - 1) * E**2 // H)  # floor of the root
    return E_0 if H * E_0**2 >= (2 * H - 1) * E**2 else E_0 + 1


models = {
    "Transformer, base": (512, 8),
    "Transformer, big": (1024, 16),
    "the paper's nanoGPT": (384, 6),
    "GPT-2": (768, 12),
    "GPT-2 medium": (1024, 16),
    "GPT-2 large": (1280, 20),
    "GPT-2 XL": (1600, 25),
    "GPT-3": (12288, 96),
}
matching = {name: matching_width(E_, H) for name, (E_, H) in models.items()}
for name, (E_, H) in models.items():
    E_0 = matching[name]
    assert E_0 == math.ceil(E_ * math.sqrt(2 - 1 / H) - 1e-9)
    assert 2 * (E_0 - 1) ** 2 < identified_multi(E_, H) <= 2 * E_0**2
    print(f"{name:20} E = {E_:5}, H = {H:2}: E_0 = {E_0:5}, E_0/E = {E_0 / E_:.3f}")
check("sec-4.10", matching_widths=list(matching.values()))

# %% [markdown]
# The first two are those of {cite:t}`vaswani2017`; the GPT-2 sizes are the presets of {cite:t}`karpathy2022`. Rounding up makes the single
# head identify somewhat too many numbers (3,200 for GPT-2), except where $E^2 (2 - 1/H)$ is a square, as for GPT-2 XL:
# $2 - 1/25 = (7/5)^2$, and $E_0 = 2240$ matches exactly. At sizes that we can measure:

# %%
around = []
for E_, H in ((4, 2), (4, 4), (6, 3)):
    E_0 = matching_width(E_, H)
    wide, narrow = (measure(Attention(width, 1)).rank for width in (E_0, E_0 - 1))
    around.append([narrow, multi[E_, H], wide])
    assert narrow < multi[E_, H] <= wide
    assert without_output(E_0, E_0) == [wide, wide] and wide == 2 * E_0**2
check("sec-4.10", around_the_width=around)  # one too narrow, several heads, one head
assert 2 * matching_width(768, 12) ** 2 - identified_multi(768, 12) == 3200
assert matching_width(1600, 25) == 2240 and 2 * 2240**2 == identified_multi(1600, 25)

# %% [markdown]
# ### What else grows
#
# Tokens of width $E_0$ pass through the whole network. A GPT with $n$ blocks, an MLP of width $4E$, a vocabulary of $v$ tokens and $l$
# positions has, without biases,
#
# $$
# (v + l)\, E + n\, (4E^2 + 8E^2 + 2E) + E
# $$
#
# parameters: embeddings, then attention, MLP and two norms in each block, and the last norm. Without an output matrix $4E^2$ becomes
# $3E^2$. We check it on models that we build.


# %%
def network(E, blocks, vocabulary, positions, attention=4):
    return (vocabulary + positions) * E + blocks * ((attention + 8) * E**2 + 2 * E) + E


for E_, H in ((24, 6), (33, 1)):
    model = GPT(GPTConfig(65, 32, n_layer=2, n_head=H, n_embd=E_))
    assert sum(w.numel() for w in model.parameters()) == network(E_, 2, 65, 32)
assert matching_width(24, 6) == 33

# %% [markdown]
# For GPT-2 with 12 heads, and for a network of the same blocks that reads 65 characters:

# %%
E_, H, blocks, positions = 768, 12, 12, 1024
E_0 = matching_width(E_, H)
times = [E_0 / E_, 3 * E_0**2 / (4 * E_**2), E_0**2 / E_**2]
print("width {:.2f}, attention {:.2f} or {:.2f} times as large".format(*times))
ratios = [
    [
        network(E_0, blocks, words, positions, matrices)
        / network(E_, blocks, words, positions)
        for matrices in (3, 4)
    ]
    for words in (50257, 65)
]
for words, pair in zip((50257, 65), ratios):  # without and with an output matrix
    print("{} tokens: whole network {:.2f} or {:.2f} times".format(words, *pair))
assert [round(ratio, 2) for ratio in times] == [1.39, 1.44, 1.92]
assert abs(math.sqrt(2 - 1 / H) - 1.384) < 1e-3
assert abs(11 / 12 * (2 - 1 / H) - 1.76) < 0.01
check("sec-4.10", networks_in_percent=[round(100 * r) for pair in ratios for r in pair])

# %% [markdown]
# Width and embeddings grow by the root $\sqrt{2 - 1/H}$, blocks by about $2 - 1/H$, and two thirds of a block is MLP, which the comparison
# was not about. If the wider network does better, nobody can say that its attention is the reason. On this the paper is right.
#
# ## Break it
#
# **Drop the usual widths.** With heads narrower than $E/H$ a multi-head layer may be so small that a single head does reach it. Two heads
# of width 1 with $E = 4$:

# %%
narrow = measure(Attention(4, 2, head_dim=1)).rank
assert narrow == 2 * 2 * (2 * 4 - 1) == 28 and narrow < found[3, 3] == 30
print("two heads of width 1:", narrow, "one head of width 3:", found[3, 3])

# %% [markdown]
# **Let positions rotate.** The bound of $2E^2$ rests on a single {term}`score product`. With rotary positions there is one for each
# distance between tokens, $W_K^\top R_m W_Q$ ({doc}`chapter 8 <08_rotary_positions>`), and the bound is gone. A rotary head of width
# $D'$ with $D'/2$ different frequencies loses only $D'$ of its $2D'E$ query and key weights, at any $D'$ ({prf:ref}`prop-rotary-wide`). So its count grows without limit as it
# gets wider, and passes that of a multi-head layer, rotary or not.


# %%
def rotary_head(E, D, C):
    turns = [2 / i for i in range(1, D // 2 + 1)]
    return Attention(E, 1, head_dim=D, value_dim=C, rotary=turns)


alone = [rotary_head(4, D, 4) for D in (2, 4, 6, 8)]
rotary = [measure(layer).rank for layer in alone]
check(
    "sec-4.10",
    rotary_formula=[7 * D + 16 for D in (2, 4, 6, 8)],
    rotary_measured=rotary,
)
assert rotary == [count(layer).identified for layer in alone]
rotary_multi = measure(Attention(4, 2, rotary=[1.0])).rank
print("two rotary heads:", rotary_multi, "two plain heads:", multi[4, 2])
assert rotary[1] < multi[4, 2] < rotary_multi < rotary[2]

# %% [markdown]
# This counts what sequences of *every* length show. With at most $L$ tokens there are the offsets $0, \dots, L - 1$ only, and offset 0 shows $x^\top M_0\, x$, that is, the symmetric part of $M_0$. So no head, however wide, identifies more than
#
# $$
# E^2 + \tfrac12 E (E + 1) + (L - 1)\, E^2
# $$
#
# numbers, those of $N$ included. We differentiate the outputs at sequences of four tokens, with $E = C' = 2$, where the bound is $4 + 3 + 12 = 19$, and compare with all lengths:


# %%
def identified_at(layer, length):
    x = normal(60, length, layer.E, seed=2)
    outputs = lambda w: forward(layer, w, x)
    return rank(flat_jacobian(outputs, layer.random_parameters(seed=1)))


wider = [rotary_head(2, D, 2) for D in (4, 8, 12, 16)]
check(
    "sec-4.10",
    rotary_any_length=[measure(layer).rank for layer in wider],
    rotary_four_tokens=[identified_at(layer, 4) for layer in wider],
)

# %% [markdown]
# So the theorem is one about plain heads, and a short context keeps a bound for rotary ones. At the same head width $D' = E$ the single rotary head still falls short, $3E^2 - E = 44$ against
# $52$; a wider one does not.
#
# **Take equal counts for equal layers.** By {prf:ref}`prop-segment` they are not. First with random weights: for pairs of tokens
# $(y, x)$, the distance of the output at $x$ from the segment between $f(y)$ and $f(x)$, over the length of that segment.


# %%
def off_segment(layer, weights, y, x):
    pair = forward(layer, weights, torch.stack((y, x)))[1]
    alone_y, alone_x = (forward(layer, weights, t[None])[0] for t in (y, x))
    along = alone_x - alone_y
    p = ((pair - alone_y) @ along / along.square().sum()).clamp(0, 1)
    return (pair - alone_y - p * along).norm() / along.norm()


def farthest(H, D):
    layer = Attention(6, H, head_dim=D)
    weights = layer.random_parameters(seed=3)
    pairs = [(normal(6, seed=seed), normal(6, seed=seed + 100)) for seed in range(30)]
    return max(float(off_segment(layer, weights, y, x)) for y, x in pairs)


check("sec-4.10", one_head_off=farthest(1, 24))
check("sec-4.10", several_heads_off=[farthest(2, 3), farthest(6, 1)])

# %% [markdown]
# Then a case that can be drawn, with $E = 2$. Query and key weights are random. The value weights are chosen so that a token alone comes
# out as it went in: $N = I$ for one head, $N_1 = \mathrm{diag}(1, 0)$ and $N_2 = \mathrm{diag}(0, 1)$ for two. Token $y$ stays and $x$ runs
# around a circle.

# %%
angles = torch.linspace(0, 2 * math.pi, 37, dtype=torch.float64)[:-1]
y = torch.tensor([0.4, -0.3], dtype=torch.float64)
circle = 2 * torch.stack((angles.cos(), angles.sin()), 1)
drawn = {}
for name, H, D in (("one head of width 8", 1, 8), ("two heads of width 1", 2, 1)):
    layer = Attention(2, H, head_dim=D, value_dim=2 // H)
    values = torch.eye(2, dtype=torch.float64).view(H, 2 // H, 2)
    weights = layer.random_parameters(seed=8) | {"W_V": values, "W_O": values.mT}
    at_x = lambda x: forward(layer, weights, torch.stack((y, x)))[1]
    drawn[name] = [(y, at_x(x), x) for x in circle]
    off = max(off_segment(layer, weights, y, x) for x in circle)
    assert off < 1e-12 if H == 1 else off > 0.1
    assert layer.parameters == (40 if H == 1 else 16)
    alone = forward(layer, weights, circle[:, None])[:, 0]
    assert (alone - circle).abs().max() < 1e-12

# %% mystnb={"image": {"alt": "Two panels, each with spokes from a common point near the centre to points on a circle. Left, one head: a dot lies on every spoke. Right, two heads: many dots lie beside their spokes, joined to them by short lines."}, "figure": {"caption": "The output at $x$ in the sequence $(y, x)$, as $x$ goes round a circle (open dots). Square: $y$. Grey: the segments from $y$ to $x$, which are the outputs at each token alone. With one head the output (full dots) is always on the segment, at any width; two heads of width 1 leave it.", "name": "fig-segment"}}
figures.segments(drawn)

# %% [markdown]
# The head on the left of {numref}`fig-segment` has 40 weights, the two on the right have 16, and no choice of the 40 or of any more can
# draw the right panel. A single head mixes its tokens once; two heads mix them twice, differently, and add.
#
# ## What it means
#
# Identified numbers are dimensions of what a layer can do. A multi-head layer of the usual widths has between $3E^2$ and $4E^2$ of them, and no
# single plain head on the same tokens has more than $2E^2$. The paper concludes that an experiment cannot hold both the embedding and the
# identified count fixed while it takes the heads away, and this stands, with the output matrix and without.
#
# What does not follow is that the missing numbers are the reason why several heads work better. The last figure shows a difference between
# one head and two that no count repairs, and a rotary head, on sequences long enough, shows that the count can be repaired while this difference stays.
#
# ## Exercises
#
# **1.** Compare at equal budget instead: give a single head without an output matrix as many weights as the multi-head layer has, $3E_0^2 =
# 4E^2$. How many numbers does it identify at full width $D' = E_0$?
#
# ```{admonition} Answer
# :class: dropdown
#
# $2E_0^2 = \frac83 E^2$, two thirds of its weights. That is less than $3E^2$, so two heads of the usual width are ahead even at the same
# number of weights. (Narrow heads on wider tokens do better: $D' = 1$ and $E_0 = 2E - 1$ identify $4E^2 - 2$ of $4E^2 - 1$; the price is the tokens.) With an output matrix it is worse: $4E_0^2 = 4E^2$ leaves $2E^2$.
# ```

# %% tags=["hide-cell"]
E_, E_0 = 866, 1000  # 3 * 1000^2 and 4 * 866^2 differ by less than a thousandth
assert abs(3 * E_0**2 / (4 * E_**2) - 1) < 1e-3
assert abs(identified_single(E_0, E_0) / E_**2 - 8 / 3) < 1e-2
assert identified_single(E_0, E_0) < identified_multi(E_, 2)
for n in range(2, 20):
    assert identified_single(2 * n - 1, 1) == 4 * n**2 - 2 > identified_multi(n, n)

# %% [markdown]
# **2.** With $E_0$ and $D'$ both free, a single head without an output matrix identifies $2E_0^2 - (E_0 - D')^2$ numbers if $D' \le E_0$.
# For which $H$ can it match a multi-head layer exactly, instead of overshooting?
#
# ```{admonition} Answer
# :class: dropdown
#
# The target is $4E^2 - 2E^2/H = 2H(2H - 1)\, (E/H)^2$, and we ask whether it has the form $2a^2 - b^2$ with $0 \le b < a$. For $H = 2$ and
# $E = 4$ it is 48; only $a = 5$ and $6$ are large enough and not too large, and neither $2 - b^2 = 0$ nor $24 - b^2 = 0$ has a solution. In
# general a classical theorem of number theory says that a positive number is $2a^2 - b^2$ exactly when every prime that leaves the
# remainder 3 or 5 on division by 8 divides it an even number of times. Multiplying $b + a\sqrt2$ by powers of $3 + 2\sqrt2$ then brings a
# solution to $|b| \le a$, and $|b| = a$ would make the target $a^2$, a square, which it is not: $2H(2H - 1)$ lies between $(2H - 1)^2$ and
# $(2H)^2$. So $E$ does not matter: 4, 16 and 25 heads can be matched, 2, 6, 8
# and 12 heads never, at any size of the single head.
# ```


# %% tags=["hide-cell"]
def exact_matches(E, H):
    target = identified_multi(E, H)
    widths = range(matching_width(E, H), math.isqrt(target) + 1)
    sizes = ((E_0, D) for E_0 in widths for D in range(1, E_0 + 1))
    return [size for size in sizes if identified_single(*size) == target]


def allowed(n):  # no prime 3 or 5 modulo 8 to an odd power
    odd = (q for q in range(3, n + 1, 2) if all(q % d for d in range(3, q, 2)))
    for prime in (q for q in odd if q % 8 in (3, 5)):
        power = next(k for k in range(n) if n % prime ** (k + 1))
        if power % 2:
            return False
    return True


matched = [H for H in range(2, 33) if exact_matches(2 * H, H)]
assert matched == [H for H in range(2, 33) if allowed(H * (2 * H - 1))]
assert matched == [H for H in range(2, 33) if exact_matches(H, H)]
assert {4, 16, 25} <= set(matched) and not {2, 6, 8, 12} & set(matched)
print("can be matched exactly, up to 32 heads:", matched)
assert not exact_matches(384, 6) and (2240, 2240) in exact_matches(1600, 25)

# %% [markdown]
# **3.** What takes the place of the segment for sequences of any length, for one head and for $H$?
#
# ```{admonition} Answer
# :class: dropdown
#
# For one head the output is $\sum_i p_i N x_i$ with $p_i > 0$ of sum 1: it lies in the convex hull of the outputs at the single tokens. For
# $H$ heads each part lies in the hull of the points $N_h x_i$, and the output in the sum of these $H$ hulls, which is larger. Projected
# on any direction, one head never exceeds the largest single-token output, while two heads can.
# ```


# %% tags=["hide-cell"]
def excess(H, D, seed):
    layer = Attention(2, H, head_dim=D)
    weights, x = layer.random_parameters(seed, scale=3.0), normal(4, 2, seed=seed)
    alone = forward(layer, weights, x[:, None])[:, 0]  # (4, 2)
    last = forward(layer, weights, x)[-1]
    directions = torch.stack((angles.cos(), angles.sin()))  # (2, 36)
    return ((last @ directions) - (alone @ directions).max(0).values).max()


assert max(excess(1, 8, seed) for seed in range(50)) < 1e-12
assert max(excess(2, 1, seed) for seed in range(50)) > 0.1

# %% [markdown]
# **Next:** this ends the first part. All of it was about what a layer's function can show. The second part turns to training: which of
# these numbers a gradient moves, and what it leaves as it was.
