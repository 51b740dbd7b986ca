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
# # An atlas of architectures
#
# *Assumed: the counts of {doc}`02_query_key_invariance`, {doc}`06_biases`, {doc}`08_rotary_positions` and {doc}`09_grouped_queries`. Nothing
# here is in the paper but one model, Llama-2-70B.*
#
# *In the ledger:* {ref}`section 4.9 <ledger-sec-4-9>`, {ref}`Llama-2-70B <ledger-llama>`, {ref}`norms and latent attention <ledger-norms-latent>`.
#
# ## The question
#
# The paper counts {term}`idle` numbers in layers that it draws up itself. People have published the layers of thousands of models, and
# each comes with a small file, `config.json`, that says how wide, how many heads, how many groups, what turns and what is normalised. That
# is all a count needs. So: of the attention weights that people train and store, how many can their models' functions see? And what did
# each change of architecture since 2018, more heads, {term}`rotary positions <rotary position>`, grouped queries, norms on queries and
# keys, latent attention, do to that number?

# %% [markdown]
# ## The claim
#
# Two makes of layer are new to us. Many recent models **normalise** queries and keys: with $\mathrm{rms}(z) = \|z\| / \sqrt{D}$ the root mean square of
# a vector $z$ of $D$ entries, and $\circ$ the product entry by entry,
#
# $$
# q = g_Q \circ \frac{W_Q\, x}{\mathrm{rms}(W_Q\, x)}, \qquad k = g_K \circ \frac{W_K\, y}{\mathrm{rms}(W_K\, y)}, \qquad s = k^\top R_\delta\, q,
# $$
#
# where the gains $g_Q, g_K \in \mathbb{R}^D$ are trained and shared by all heads, and $R_\delta$ turns by the offset $\delta$ of the two
# tokens. We call a direction in the weights and gains *score-null* if it keeps every score, for all $x$, $y$ and $\delta$, to first order.
#
# ```{prf:proposition} Normalised queries and keys
# :label: prop-qk-norm
#
# Let $2 \le D \le E$, let $D$ be even, and let $R$ turn $D/2$ planes by distinct angles in $(0, \pi)$. At {term}`generic` weights and
# gains of a layer with $H$ query heads and $G$ key heads the score-null directions are spanned by
#
# 1. a factor on the $W_Q$ of one query head or the $W_K$ of one key head: $H + G$ directions;
# 2. for each plane, a factor on its two entries of $g_Q$ and the inverse factor on those of $g_K$: $D/2$ directions.
#
# If nothing turns and $|g_{Q,i}\, g_{K,i}|$ differ, the second kind has one direction for each of the $D$ coordinates.
# ```
#
# The $G D$ directions that rotary layers without norms have ({prf:ref}`prop-groups-rotary`) are gone: the norm sees a plane's phase and size.
#
# **Latent attention**, from DeepSeek-V2 ([arXiv 2405.04434](https://arxiv.org/abs/2405.04434)), does not make keys and values from the token
# but from a short, normalised summary of it. With maps $F \in \mathbb{R}^{r \times E}$ and $U \in \mathbb{R}^{q \times E}$,
#
# $$
# c(y) = g \circ \frac{F y}{\mathrm{rms}(F y)}, \qquad d(x) = f \circ \frac{U x}{\mathrm{rms}(U x)},
# $$
#
# head $h$ has keys $W_K^h\, c(y)$ and values $W_V^h\, c(y)$, queries $W_Q^h\, d(x)$, and the output map $W_O^h$: they are maps as in any head, but that they read a
# latent in the place of a token. Nothing in these keys turns. Positions come in through a second part of the score, with turned queries $W_{QR}^h\, d(x)$ and one
# turned key $W_{KR}\, y$ for all heads:
#
# $$
# s_h = \big( W_K^h\, c(y) \big)^\top W_Q^h\, d(x) + \big( W_{KR}\, y \big)^\top R_\delta\, W_{QR}^h\, d(x) .
# $$
#
# Let $W_Q^h, W_K^h$ have $n$ rows, $W_V^h$ have $C$, and $W_{QR}^h, W_{KR}$ have $t$ (even). Some models leave $U$ and $f$ out and let $d(x) = x$.
#
# ```{prf:proposition} Latent attention
# :label: prop-latent
#
# Let $2 \le r, q \le E$, let $n \le \min(r, q)$ and $C \le r$, and let $R$ turn the $t/2$ planes by distinct angles in $(0, \pi)$. At generic weights
# the directions that keep, to first order, all scores $s_h$ and all values put out, $W_O^h W_V^h\, c(y)$, form a space of dimension
#
# $$
# \underbrace{H n^2 + t}_{\text{queries and keys}} + \underbrace{H C^2}_{\text{values and outputs}}
# + \underbrace{\tfrac{r(r+1)}{2} + 1}_{\text{latent of keys and values}} + \underbrace{\tfrac{q(q+1)}{2} + 1}_{\text{latent of queries}} ,
# $$
#
# without the last term if $d(x) = x$.
# ```
#
# Both statements are about scores and values. (A softmax hides what it adds to the scores of all keys $y$ alike; but these scores are odd in $y$, so no direction does that.) That the outputs
# show scores and values, so that nothing else is idle, is {prf:ref}`lem-heads-apart` for bilinear scores. For normalised ones we do not prove it; the measured ranks below say it.

# %% [markdown]
# ## Proof
#
# Both proofs use one fact. Let $a(y)$ be a linear form, not zero, and $\|B y\|^2$ a quadratic form of rank at least two. Then the function
# $a(y) / \|B y\|$ determines $B^\top B$ up to a positive factor: its square is a fraction of polynomials, and it is in lowest terms, because a sum of two or more
# independent squares has no real linear factor. The same to first order: if the derivative of the square vanishes, then $2 \dot a\, \|B y\|^2 = a\,
# \tfrac{d}{dt} \|B y\|^2$, so $\|B y\|^2$ divides its own derivative, which is a multiple of it. And $B^\top B$ determines a $B$ of full row rank up to a rotation, $B \mapsto O B$.
#
# ```{prf:proof}
# (of {prf:ref}`prop-qk-norm`) The directions listed keep all scores: the norm divides the factors of the first kind out, and in the second kind the factor on a plane
# commutes with $R_\delta$ and meets its inverse. Conversely, as a function of $x$ a score is a linear form over $\mathrm{rms}(W_Q x)$. So a
# score-null direction keeps $W_Q^\top W_Q$ up to a factor. Up to a direction of the first kind it then moves $W_Q$ by $B W_Q$ and likewise $W_K$ by
# $A W_K$, with skew $A$ and $B$, and it keeps $W_K^\top Z_\delta W_Q$, where $Z_\delta = \mathrm{diag}(g_K)\, R_\delta\, \mathrm{diag}(g_Q)$. Since $W_Q$ and
# $W_K$ have full row rank, this says
#
# $$
# A^\top Z_\delta + Z_\delta B + \dot Z_\delta = 0 \qquad \text{for all } \delta .
# $$ (eq-norm)
#
# Take the block of two different planes $i$ and $j$. There $\dot Z_\delta$ is zero and $Z_\delta$ is block diagonal, so $A_{ji}^\top Z_\delta^j + Z_\delta^i B_{ij} =
# 0$. The first term is a combination of $\cos \delta\varphi_j$ and $\sin \delta\varphi_j$, the second of those of $\varphi_i$, the planes' angles. The four are independent
# functions of $\delta$, and $Z^i$, $Z^j$ are invertible, so $A_{ji} = B_{ij} = 0$. In the block of one plane $A = a_1 \Omega$ and $B = a_2 \Omega$ with $\Omega$ the
# quarter turn, and $Z_\delta = \cos(\delta\varphi)\, Z_0 + \sin(\delta\varphi)\, \mathrm{diag}(g_K)\, \Omega\, \mathrm{diag}(g_Q)$ with
# $Z_0 = \mathrm{diag}(p_1, p_2)$ and $p_i = g_{K,i}\, g_{Q,i}$. The cosine's part of {eq}`eq-norm` is $-a_1 \Omega Z_0 + a_2 Z_0 \Omega + \dot Z_0 = 0$. Off the diagonal, $a_1 p_2 =
# a_2 p_1$ and $a_1 p_1 = a_2 p_2$, so $a_1 = a_2 = 0$ if $p_1^2 \ne p_2^2$. On it, $\dot p_1 = \dot p_2 = 0$: what $g_{Q,i}$ gains relative to its size, $g_{K,i}$ loses. The
# sine's part now keeps $g_{K,1}\, g_{Q,2}$, so both entries of the plane gain alike. If nothing turns, $Z_0$ is all there is, $D \times D$, and $A^\top Z_0 + Z_0 B + \dot Z_0 = 0$; the same two lines for each
# pair of coordinates give $A = B = 0$, and $\dot Z_0 = 0$ leaves $D$ exchanges.
# ```
#
# ```{prf:proof}
# (of {prf:ref}`prop-latent`) We peel the parameters off in layers; each step loses the dimension of its fibres. *Gains.* Scores and values
# depend on $g$ only through $W_K^h\, \mathrm{diag}(g)$ and $W_V^h\, \mathrm{diag}(g)$, and on $f$ likewise. So $r + q$ directions are lost, and we may take all gains to be one.
# *The latent.* The values $W_O^h W_V^h\, F y / \mathrm{rms}(F y)$ determine $F^\top F$ up to a factor, by the fact above. All $F$ with this property are $c\, O F$ with a number $c > 0$ and an orthogonal $O$: what is lost has
# dimension $1 + r(r-1)/2$. *Queries.* Replacing $y$ by $\lambda y$, $\lambda > 0$, leaves the first part of $s_h$ as it is and multiplies the second
# by $\lambda$, so we know both parts. The second is, in $x$, a linear form over $\mathrm{rms}(U x)$, and loses $1 + q(q-1)/2$ in the same way. *Products.* Fix $F$ and $U$ among those left. They have full row rank, so
# what is still seen are the matrices $(W_K^h)^\top W_Q^h$, $W_O^h W_V^h$, and $W_{KR}^\top R_\delta\, W_{QR}^h$ for all $\delta$. These lose $n^2$ and $C^2$ for each head by
# {prf:ref}`cor-share`, and $2$ for each plane by {prf:ref}`prop-groups-rotary`, the heads being one group. The sum is the claim; with $d(x) = x$ there is nothing to peel off on the queries' side.
# ```

# %% [markdown]
# ## The same symbols in code
#
# `read_architecture` takes a `config.json`, a folder that holds one, or its fields, and gives a description of each layer; `count_table` writes down their counts. From a shell it is
# `python -m attnid count config.json`, with `--json` for programs.

# %%
from collections import Counter
from dataclasses import replace

import torch

from attnid import Attention, LatentAttention, count, figures, forward
from attnid import independent_directions, measure, read_architecture
from attnid.claims import check
from attnid.layer.attention import attend, project
from attnid.layer.latents import forward_latent
from attnid.layer.measuring import cut
from attnid.models.architectures import circuits, count_table, load_atlas
from attnid.tensors import normal

# %%
llama = read_architecture(
    {
        "model_type": "llama",
        "hidden_size": 8192,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "num_hidden_layers": 80,
    }
)
print(count_table(llama))
assert llama.total.unidentified == 80 * (8 * 128 + 8 * 128**2) == 10_567_680

# %% [markdown]
# A model type that it does not know is refused. A field that is impossible, or that would change the layer in a way that is not described, is an error that names it; one that is missing has the default of the class that loads the model. Three that are refused:

# %%
plain = {"model_type": "phi", "hidden_size": 64, "num_attention_heads": 4}
unread = (
    {"model_type": "rwkv"},
    {"model_type": "bert", "hidden_size": 0},
    plain | {"qk_layernorm": True},
)
for fields in unread:
    try:
        read_architecture(fields)
        raise AssertionError("was read")
    except ValueError as error:
        print(str(error)[:60])

# %% [markdown]
# Latent attention has a description of its own, `LatentAttention`. Here is one head of it from the formulas above, against the package's own program, at sizes that can be measured:
# $E = 8$, $H = 1$, $r = 4$, $q = 5$, $n = C = 2$ and $t = 2$. The maps $F$ and $U$ are `W_DKV` and `W_DQ`, down to a latent, and $g$ and $f$ are `gain_DKV` and `gain_DQ`.


# %%
def normalised(z, gain):
    return gain * z / z.square().mean(-1, keepdim=True).sqrt()


def turned(z, angle):  # (L, 2)
    (x, y), at = z.unbind(1), angle * torch.arange(len(z), dtype=z.dtype)
    return torch.stack((x * at.cos() - y * at.sin(), x * at.sin() + y * at.cos()), 1)


def one_latent_head(p, x, angle):  # tokens are rows: x is (L, E)
    c = normalised(x @ p["W_DKV"].mT, p["gain_DKV"])
    b = normalised(x @ p["W_DQ"].mT, p["gain_DQ"])
    s = (b @ p["W_Q"][0].mT) @ (c @ p["W_K"][0].mT).mT
    s = s + turned(b @ p["W_QR"][0].mT, angle) @ turned(x @ p["W_KR"].mT, angle).mT
    later = torch.ones_like(s, dtype=torch.bool).triu(1)
    s = s / 4**0.5  # heads have 2 + 2 coordinates
    weights = s.masked_fill(later, -torch.inf).softmax(-1)
    return weights @ (c @ p["W_V"][0].mT) @ p["W_O"][0].mT


# %%
one = LatentAttention(8, 1, 4, 2, rotary=(0.7,), query_rank=5)
p, x = one.random_parameters(seed=0), normal(6, 8, seed=1)
assert (one_latent_head(p, x, 0.7) - forward_latent(one, p, x)).abs().max() < 1e-12
for term, number in count(one).terms.items():
    print(f"{term:18} {number:3}")

# %% [markdown]
# ## The check
#
# First the new counts against measured ranks, then every make of layer in the atlas.
#
# ### Latent attention
#
# `measure`, the rank of the outputs' Jacobian cut at a gap of at least $10^6$ as in {doc}`01_what_is_identified`, against {prf:ref}`prop-latent`. The second layer has no latent for its
# queries; the third has heads as wide as the latent. With them goes a layer of {prf:ref}`prop-qk-norm`, at $H = 2$, $G = 1$, $D = 4$.


# %%
def latent_formula(H, n, C, t, r, q=None):
    latent = lambda r: 0 if r is None else r * (r + 1) // 2 + 1
    return H * n**2 + t + H * C**2 + latent(r) + latent(q)


sizes = ((2, 2, 3, 4, 4, 5), (3, 3, 2, 2, 4, None), (1, 4, 4, 2, 4, 6))
latents = [
    LatentAttention(8, H, r, n, C, rotary=(1.0, 0.3)[: t // 2], query_rank=q)
    for H, n, C, t, r, q in sizes
]
normed = Attention(8, 2, 1, 4, rotary=(1.0, 0.1), qk_norm="head_gain")
by_hand = 2 + 1 + 4 // 2 + 4**2  # scales, exchanges of gains, the values' circuit
check(
    "norms-latent",
    proposition=[by_hand, *(latent_formula(*size) for size in sizes)],
    formula=[count(layer).unidentified for layer in (normed, *latents)],
    measured=[measure(layer).nullity for layer in (normed, *latents)],
    generators_of_norms=independent_directions(normed),
)

# %% [markdown]
# ### Every make in the atlas
#
# `load_atlas` has the fields of 42 published configurations, oldest first. We shrink each layer to two heads of width 4 on $E = 8$, keeping what makes it what it is: biases, groups or
# not, whether none, some or all coordinates turn, norms, scores, causal or not. Many models turn out to be of the same make. For each make `measure`, which knows none of the symmetries, must find what `count` adds up.


# %%
def shrink(layer):
    if isinstance(layer, LatentAttention):
        query_rank = layer.query_rank and 5
        return LatentAttention(8, 2, 4, 2, rotary=(1.0, 0.3), query_rank=query_rank)
    part = 2 * len(layer.rotary) / layer.D
    planes = 0 if part == 0 else 2 if part == 1 else 1
    groups = 1 if layer.G < layer.H else 2
    sizes = dict(embed_dim=8, heads=2, kv_heads=groups, head_dim=4, value_dim=4)
    return replace(layer, **sizes, rotary=(1.0, 0.1)[:planes])


atlas = [(entry, read_architecture(entry["config"])) for entry in load_atlas()]
makes = {}
for entry, architecture in atlas:
    for layer in {shrink(layer) for _, layer in architecture.kinds}:
        makes.setdefault(layer, []).append(entry["name"])

# %%
nullity = {layer: measure(layer).nullity for layer in makes}
for layer, names in makes.items():
    print(f"{nullity[layer]:3} of {layer.parameters}: {names[0]}", end="")
    print(f" and {len(names) - 1} more" if len(names) > 1 else "")
    print("    " + ", ".join(count(layer).terms))
differ = [layer for layer in makes if nullity[layer] != count(layer).unidentified]
check("norms-latent", makes=len(makes), makes_that_differ=len(differ))

# %% [markdown]
# This trusts our own program of each layer. The package's tests do not: for each family they build a small model of the class in `transformers` itself, take one attention module with its own forward
# pass, in float64 and with the epsilon of its norms at zero, and find the Jacobian's rank equal to the count. They also compare how many parameters each of the 42 layers has with the module that `transformers` builds at full size.
#
# ## The atlas


# %%
def by_circuit(architecture):
    """How many numbers are unidentified in all layers, circuit by circuit."""
    parts = Counter()
    for (_, layer), number in architecture.kinds.items():
        for circuit, part in circuits(layer).items():
            parts[circuit] += number * part.unidentified
    return parts


rows = []
for entry, architecture in atlas:
    parts = by_circuit(architecture)
    assert sum(parts.values()) == architecture.total.unidentified
    rows.append(
        (entry["name"], entry["released"], architecture.total.parameters, parts)
    )

# %%
print("released model              parameters   unidentified       %", end="")
print("    q-k    v-o latents")
for (name, released, parameters, parts), (_, architecture) in zip(rows, atlas):
    idle = architecture.total.unidentified
    line = f"{released}  {name:17}{parameters / 1e6:10,.0f} M {idle:14,}"
    line += f"{100 * idle / parameters:8.3f}"
    for circuit in ("query-key", "value-output", "latents"):
        line += f"{parts[circuit] / 1e6:7.2f}" if parts[circuit] else " " * 7
    print(line.rstrip())

# %% mystnb={"image": {"alt": "Bars for 42 models from BERT in 2018 to gpt-oss in 2025. Early models lose two to four percent of their attention parameters, half in queries and keys and half in values and outputs. From LLaMA on the query-key part has all but vanished and grouped models lose less than half a percent. The three DeepSeek models with latent attention stand out with three to five percent. Right, on a logarithmic scale, the numbers: between a hundred thousand and about two hundred million, with DeepSeek's the largest."}, "figure": {"caption": "Unidentified attention parameters of 42 published models, oldest first. Left: percent of all attention parameters, by circuit. Right: millions of numbers, one mark for each circuit.", "name": "fig-atlas"}}
figures.atlas(rows)

# %% [markdown]
# Four ages show in {numref}`fig-atlas`.
#
# - **Before 2022** nothing turns in the models of this atlas, and every head has its own keys. Both circuits lose the share $D/(2E) = 1/(2H)$, and biases a little more. BERT base, GPT-2 and ViT-B are one layer to this count, and lose $4.2\%$.
# - **Rotary positions** strike the query-key circuit out, by a factor $D$. In GPT-NeoX and Pythia, where a quarter of each head turns, three quarters of a head keep their $(3D/4)^2$; from LLaMA on, where all turns,
#   what is left is in values and outputs, which nothing turns.
# - **Grouped queries** divide that remainder by $H/G$ and the value weights with it. Falcon 7B, with one key head for 71, loses one number in ten thousand.
# - **Latent attention** brings it all back. DeepSeek-V3 has 336 million idle attention parameters, more than any other model here, and its share of three percent is that of BERT large.

# %%
idle = {name: sum(parts.values()) for name, _, _, parts in rows}
percent = {name: 100 * idle[name] / parameters for name, _, parameters, _ in rows}
assert percent["BERT base"] == percent["GPT-2"] == percent["ViT-B/16"]
assert abs(percent["BERT base"] - 4.2) < 0.05
assert abs(percent["Falcon 7B"] - 0.01) < 0.001
recent = [name for name, released, _, _ in rows if released >= "2023"]
assert len(recent) == 35 and sum(percent[name] < 1 for name in recent) == 27
assert all(2 < percent[name] < 4.3 for name in list(percent)[:5])
turning = ("LLaMA", "Llama", "Falcon", "Mistral", "Gemma", "Qwen", "OLMo", "gpt-oss")
for name, _, _, parts in rows:
    assert not name.startswith(turning) or parts["query-key"] < 0.025 * idle[name]

# %%
assert max(idle, key=idle.get) == "DeepSeek-V3"
assert round(idle["DeepSeek-V3"] / 1e6) == 336
assert max(percent, key=percent.get) == "DeepSeek-V2-Lite"
assert abs(percent["DeepSeek-V3"] - percent["BERT large"]) < 0.25
quarter = Attention(5120, 40, rotary=tuple(1e4 ** (-i / 16) for i in range(16)))
# Pythia 12B: 32 of 128 coordinates turn
assert count(quarter).terms["query-key maps"] == 40 * (96**2 + 32)

# %% [markdown]
# ### One change at a time
#
# Models differ in size as well as in make. To see what a make does by the formula, take one size, $E = 8192$ with 64 heads of width 128 as in Llama 2, and change one thing after the other.

# %%
E, H, G, D = 8192, 64, 8, 128
angles = tuple(1e4 ** (-2 * i / D) for i in range(D // 2))
grouped = Attention(E, H, G, rotary=angles)
latent = LatentAttention(E, H, 512, 128, 128, rotary=angles[::2], query_rank=1536)
steps = {
    "8 heads": Attention(E, 8),
    "64 heads": Attention(E, H),
    "biases": Attention(E, H, bias="qkvo"),
    "rotary": Attention(E, H, rotary=angles),
    "groups": grouped,
    "norms": replace(grouped, qk_norm="head_gain"),
    "sinks and\nbiases": replace(grouped, score="sink", bias="qkvo"),
    "latent": latent,
}

# %%
parts_of = lambda layer: {
    name: part.unidentified for name, part in circuits(layer).items()
}
changed = {name: parts_of(layer) for name, layer in steps.items()}
query_key = {name: parts["query-key"] for name, parts in changed.items()}
value_output = {name: parts["value-output"] for name, parts in changed.items()}
assert query_key["8 heads"] == 8 * 1024**2 and query_key["64 heads"] == H * D**2
assert query_key["biases"] - query_key["64 heads"] == H * D
assert value_output["biases"] - value_output["64 heads"] == H * D
assert query_key["rotary"] == H * D
assert query_key["groups"] == query_key["sinks and\nbiases"] == G * D
assert query_key["norms"] == H + G + D // 2
assert query_key["latent"] == H * D**2 + 64
assert changed["latent"]["latents"] == 512 * 513 // 2 + 1536 * 1537 // 2 + 2

# %% mystnb={"image": {"alt": "Bars on a logarithmic scale for eight makes of one layer. Queries and keys lose 8,388,608 numbers with 8 heads, 1,048,576 with 64, a little more with biases, 8,192 with rotary positions, 1,024 with groups, 136 with norms, 1,024 with sinks and biases, and 1,048,640 with latent attention. Values and outputs lose as many as queries and keys at first, stay there under rotary positions, and fall to 131,072 with groups. Latent attention adds a third bar, 1,311,746."}, "figure": {"caption": "Unidentified numbers in one layer with $E = 8192$ as its make changes. From *8 heads* to *norms* each make adds what its name says to the one before it, except that *rotary* drops the biases again; the last two are variants of *groups*.", "name": "fig-changes"}}
figures.changes(changed)

# %% [markdown]
# Eight times as many heads leave an eighth. Biases add the $HD$ key biases and the $HD$ value biases of {doc}`06_biases`. Rotary positions divide the queries' and keys' part by $D$, groups divide both by $H/G$ ({prf:ref}`prop-groups-rotary`),
# and norms replace $G D$ by $H + G + D/2$ ({prf:ref}`prop-qk-norm`). Under rotation and with sinks, biases hide nothing: the positions tell a key bias apart, and attention rows that do not sum to one tell a value bias
# apart. The latent layer's keys do not turn, so its heads have the full $n^2$ again. It is the freedom that lets one multiply $(W_K^h)^\top$ into $W_Q^h$ and never form a key.

# %% [markdown]
# ## Break it
#
# **Give the norm its epsilon.** Real norms divide by $\sqrt{\sigma^2 + \varepsilon}$, where $\sigma$ is the root mean square and $\varepsilon = 10^{-6}$ or so, and we counted with $\varepsilon = 0$. Along a factor $c$ on $W_Q$ the normalised query then changes, relative to its size, by
#
# $$
# \frac{d}{d \log c} \log \frac{c \sigma}{\sqrt{c^2 \sigma^2 + \varepsilon}} = \frac{\varepsilon}{\sigma^2 + \varepsilon} \quad \text{at } c = 1,
# $$
#
# so the $H + G$ scale directions are no longer idle. They are nearly idle: the outputs see them, but through a singular value of the order of $\varepsilon$.

# %%
theta, x = normed.random_parameters(seed=3), normal(10, 10, 8, seed=4)
unnormed = replace(normed, qk_norm=None)


def with_epsilon(p, x, epsilon):
    q, k, v = project(normed, p, x)
    unit = lambda z: z / (z.square().mean(-1, keepdim=True) + epsilon).sqrt()
    z = attend(unnormed, {}, p["gain_Q"] * unit(q), p["gain_K"] * unit(k), v)
    return torch.einsum("...hlc,hec->...le", z, p["W_O"])


def spectrum(epsilon):
    blocks = torch.func.jacrev(lambda p: with_epsilon(p, x, epsilon))(theta)
    J = torch.cat([blocks[name].flatten(0, 2).flatten(1) for name in normed.shapes], 1)
    values = torch.linalg.svdvals(J)
    return values / values[0]


assert (with_epsilon(theta, x, 0.0) - forward(normed, theta, x)).abs().max() < 1e-12

# %%
terms, size = count(normed).terms, normed.parameters
scales = terms["query scales"] + terms["key scales"]
rest = terms["gain exchange"] + terms["value-output maps"]
epsilons = [10.0**e for e in (-9, -8, -7, -6, -5, -4, -3)]
spectra = {e: spectrum(e) for e in (0.0, *epsilons)}
small = {e: v[size - rest - scales : size - rest] for e, v in spectra.items()}
assert all((values[size - rest :] < 1e-13).all() for values in spectra.values())
assert (small[0.0] < 1e-13).all() and small[1e-6].max() < 1e-4
assert all((small[e] > 1e-3 * e).all() for e in epsilons)
assert (small[1e-8] / small[1e-9] - 10).abs().max() < 0.1

# %% mystnb={"image": {"alt": "Singular values against epsilon, both axes logarithmic. Most form flat grey lines between one and about a hundredth. Three orange lines fall in proportion to epsilon, from less than a thousandth at epsilon 0.001 to less than 1e-9 at epsilon 1e-9."}, "figure": {"caption": "The singular values of a small layer with normalised queries and keys, $H + G = 3$, against the epsilon of the norm. Three of them vanish with $\\varepsilon$. The $D/2$ exchanges of gains and the idle numbers of the values, exactly zero at every $\\varepsilon$, lie below the frame.", "name": "fig-epsilon"}}
figures.nearly_idle(
    epsilons, [spectra[e][: size - rest].tolist() for e in epsilons], scales
)

# %% [markdown]
# **Believe every field.** Falcon 7B's file has `num_kv_heads` equal to 71, and its module has one key head: an older field, `multi_query`, overrides it. A reader that takes fields at their word counts 71 groups and finds 71 times as many idle numbers.

# %%
layer_of = {entry["name"]: architecture.layers[0][1] for entry, architecture in atlas}
falcon = layer_of["Falcon 7B"]
believed = replace(falcon, kv_heads=71)
assert falcon.G == 1 and count(believed).unidentified == 71 * count(falcon).unidentified
print(f"one key head {count(falcon).unidentified:,}", end=", ")
print(f"as the field has it {count(believed).unidentified:,}")

# %% [markdown]
# **Let two planes turn alike.** With `rope_theta` 1 all planes turn at one rate, and the commutant of {prf:ref}`lem-commutant` grows from $D$ to $D^2/2$. `read_architecture` refuses such a file, because two angles that agree to rounding may or may not have been meant to.

# %%
alike = {"model_type": "llama", "hidden_size": 512, "num_attention_heads": 4}
try:
    read_architecture(alike | {"rope_theta": 1.0})
    raise AssertionError("was read")
except ValueError as error:
    print(error)
same = replace(grouped, rotary=(1.0,) * (D // 2))
freed = count(same).terms["query-key maps"]
assert freed == G * D**2 // 2 == D // 2 * count(grouped).terms["query-key maps"]
tiny = Attention(8, 2, 1, 4, rotary=(1.0, 1.0))
assert measure(tiny).nullity == count(tiny).unidentified == 4**2 // 2 + 4**2

# %% [markdown]
# ## What it means
#
# Of the 35 models since 2023, 27 leave less than one percent of their attention parameters unidentified; of the five up to 2020 each leaves two to four. Rotations struck out nearly all of the query-key part, and groups divided the
# rest. What remains is nearly all in values and outputs, the circuit that nothing turns. The exceptions show that there is no law in it: wide heads keep two percent, and latent attention has as large a share as the layers of 2018.
#
# Read the atlas with three cautions. A share is not a merit: whether identified parameters make better models is a question that counting does not answer. Inputs are taken as free, so what a LayerNorm or RMSNorm
# before the layer hides is not in these numbers but in those of {doc}`chapter 14 <14_a_whole_network>`. And the counts hold at generic weights; trained ones are not looked at here.
#
# ## Exercises
#
# **1.** Gemma 7B and LLaMA 7B both have rotary positions, no groups and no biases. Why does Gemma lose more than twice the share?
#
# ```{admonition} Answer
# :class: dropdown
#
# The share lost in values and outputs is $H C^2 / (2 H C E) = C/(2E)$. Gemma's heads are 256 wide on $E = 3072$, so $C/(2E) = 1/24$; LLaMA's are 128 wide on $4096$, so $1/64$. The whole layer loses about half of that.
# ```

# %% tags=["hide-cell"]
assert 256 / (2 * 3072) == 1 / 24 and 128 / (2 * 4096) == 1 / 64
assert abs(percent["Gemma 7B"] - 100 / 48) < 0.02
assert abs(percent["LLaMA 7B"] - 100 / 128) < 0.02
print("Gemma 7B over LLaMA 7B:", round(percent["Gemma 7B"] / percent["LLaMA 7B"], 1))

# %% [markdown]
# **2.** Whisper's keys have no bias. Qwen2's have one, on queries and values as well, and its file has no field that says so. Which of the two models' authors could have saved parameters, and how many?
#
# ```{admonition} Answer
# :class: dropdown
#
# Whisper's saved them: nothing turns, so a key bias would be idle ({prf:ref}`lem-key-bias`), $HD = 1280$ numbers in each of 96 layers. Qwen2's heads turn, and no part of its key bias is idle. Its value bias is: without an output bias, the $GC$ value biases act
# through their image in the outputs, $\sum_h W_O^h b_V$, which for $GC \le E$ shows all of them. So Qwen2 has nothing to save here.
# ```

# %% tags=["hide-cell"]
whisper, qwen = layer_of["Whisper large"], layer_of["Qwen2 7B"]
assert count(replace(whisper, bias="qkvo")).terms["key bias"] == 1280
assert "key bias" not in count(whisper).terms
assert qwen.bias == "qkv"
assert set(count(qwen).terms) == {"value-output maps", "query-key maps"}

# %% [markdown]
# **3.** Suppose DeepSeek-V3 dropped the norm on the latent of keys and values, $c(y) = F y$. How many numbers of each layer would be unidentified then?
#
# ```{admonition} Answer
# :class: dropdown
#
# Without the norm (and its gain) any invertible $A \in \mathbb{R}^{r \times r}$ may act on the latent: $F \mapsto A F$, $W_K^h \mapsto W_K^h A^{-1}$, $W_V^h \mapsto W_V^h A^{-1}$ keep everything, so the latent loses $r^2$ instead of $r(r+1)/2 + 1$. With $r = 512$ that is $262{,}144$ instead of $131{,}329$, twice as many.
# The norm pays for the difference by telling rotations from other changes of basis.
# ```


# %% tags=["hide-cell"]
def without_norm(p, x):  # the latent of keys and values as it is
    c = x @ p["W_DKV"].mT
    k = torch.einsum("...lr,hdr->...hld", c, p["W_K"])
    v = torch.einsum("...lr,hdr->...hld", c, p["W_V"])
    q = torch.einsum("...le,hde->...hld", x, p["W_Q"])
    z = attend(Attention(8, 2, head_dim=2), {}, q, k, v)
    return torch.einsum("...hlc,hec->...le", z, p["W_O"])


plain = LatentAttention(8, 2, 4, 2)  # nothing turns, no latent of queries
theta = plain.random_parameters(seed=5)
theta = {name: W for name, W in theta.items() if W.numel() and name != "gain_DKV"}
x = normal(12, 10, 8, seed=6)
blocks = torch.func.jacrev(lambda p: without_norm(p, x))(theta)
J = torch.cat([block.flatten(0, 2).flatten(1) for block in blocks.values()], 1)
rank, gap = cut(torch.linalg.svdvals(J))
assert gap > 1e6 and J.shape[1] - rank == 4**2 + 2 * 2 * 2**2
assert 512**2 == 262_144 and 512 * 513 // 2 + 1 == 131_329
print("unidentified without the norm:", J.shape[1] - rank, end=", ")
print("with it:", count(plain).unidentified)

# %% [markdown]
# *Next:* {doc}`16_real_checkpoints` takes the unidentified numbers out of a trained model. For a layer of your own there is {doc}`the calculator <../book/calculator>`.
