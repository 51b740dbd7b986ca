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
# # A whole network
#
# *Assumed: a GPT in nanoGPT's shape {cite:p}`karpathy2022`, at {term}`generic` weights; the {term}`circuits <circuit>` of
# {doc}`05_many_heads`, the biases of {doc}`06_biases` and the rotations of {doc}`08_rotary_positions`. Nothing here is in the paper.*
#
# *In the ledger:* {ref}`a whole network <ledger-network>`.
#
# ## The question
#
# The paper counts the {term}`idle` directions of one attention layer whose inputs may be any vectors. In a network they may not. Inputs
# come out of a norm, outputs go into a sum that other norms read, the first layer meets nothing but embeddings, and all that is ever seen
# in the end are the probabilities of the next token. Each of these hides something. So: of the 10.7 million parameters of
# nanoGPT's Shakespeare model, how many does the data see, and which of the paper's numbers does that change?

# %% [markdown]
# ## The claim
#
# The network has a vocabulary of $v$ tokens, texts of up to $L$ tokens, $n_{\text{layer}}$ layers of $H$ heads of size $D = E/H$, and $F$ hidden units in each MLP. The
# **residual stream** $x \in \mathbb{R}^E$ starts as $w_t + e_p$, the embeddings of token $t$ and position $p$; every attention layer and every MLP reads
# a norm of it and adds to it; the logits are $U y$ with $y$ the last norm's output and one row of $U \in \mathbb{R}^{v \times E}$ a token. Embeddings are **tied** when $U$
# has the rows $w_t$. A norm with gain $\gamma$ and bias $b$, followed by what reads it, is
#
# $$
# y = \gamma \circ n + b, \qquad z = W y + b_W, \qquad n = \frac{\Pi x}{\sqrt{\|\Pi x\|^2 / E + \epsilon}},
# $$ (eq-norm-reader)
#
# where LayerNorm centres, $\Pi = I - \tfrac{1}{E} \mathbf{1}\mathbf{1}^\top$, and RMSNorm has $\Pi = I$ and no $b$. Let $m = E - 1$ or $E$ be the rank of $\Pi$.
#
# A direction in all parameters at once is **unidentified** if no log-probability, after any token of any text of up to $L$ tokens,
# changes along it to first order. In the lemmas, $\Lambda = \operatorname{diag}(\gamma)$ and $\Lambda^{-1}$ exists.
#
# ```{prf:lemma} A norm and what reads it
# :label: lem-14-norms
#
# In {eq}`eq-norm-reader` $z$ does not change along
#
# 1. a gain up, its column down: $\delta \gamma = c \circ \gamma$, $\delta b = c \circ b$, $\delta W = -W \operatorname{diag}(c)$: $E$ directions a norm;
# 2. $\delta b = u$, $\delta b_W = -W u$: $E$ directions a norm with biases;
# 3. under LayerNorm, $\delta W = a\, (\Lambda^{-1} \mathbf{1})^\top$, $\delta b_W = -a\, \mathbf{1}^\top \Lambda^{-1} b$: one direction for each row of $W$.
#
# For a head $U$ that is not tied there is no $b_W$. Then 1 holds as it stands; with a bias $b$ for which $\mathbf{1}^\top \Lambda^{-1} b \ne 0$, the directions of 3 are spent on 2,
# and without one 3 holds for all $v$ rows.
# ```
#
# ```{prf:lemma} What the stream hides
# :label: lem-14-stream
#
# The log-probabilities do not change
#
# 1. under LayerNorm, when anything that writes into the stream writes along $\mathbf{1}$: a column of $W_O$ or of the MLP's output map, an output bias,
#    a position, and a token if embeddings are not tied;
# 2. when positions are learned, every $w_t$ moves by $u$ and every $e_p$ by $-u$, tied or not;
# 3. when embeddings are not tied and every row of $U$ moves by the same row;
# 4. when embeddings are not tied and the stream is rotated, $x \to O x$ with $O$ orthogonal, $O \mathbf{1} = \mathbf{1}$ under LayerNorm: $m(m-1)/2$ directions;
# 5. when $\epsilon = 0$ and everything that writes into the stream is scaled alike, and the last $\gamma$ and $b$ inversely if embeddings are tied.
# ```
#
# ({cite:t}`vannierop2024` has the rotations of part 4, $SO(E - 1)$ under LayerNorm.) Tying breaks most rotations, because the last gain then stands between a matrix and itself. How many it breaks depends on the vocabulary.
#
# ```{prf:lemma} Tied embeddings
# :label: lem-14-tied
#
# Let embeddings be tied, the last gain's entries be distinct, $v \ge 3$, and $k = \max(0,\, E - v + 1)$. At generic weights the rotations of the stream that the other parameters can make up for
# are a space of dimension $k(k+1)/2$ under RMSNorm, and of dimension at least $\max(0,\, k(k+1)/2 + 4 - E)$ under LayerNorm, with equality where the $E - 1$ conditions
# of the proof are as independent as they can be. With biases, $k$ directions of the last $b$ are idle as well.
# ```
#
# ```{prf:lemma} Heads in a network
# :label: lem-14-heads
#
# Let keys of a layer vary over $r$ dimensions (constants not counted), $D \le \min(r, m)$. Each head has $D^2$ idle directions in its value-output
# circuit, and $D^2$ in its query-key circuit, or $D$ with rotary positions of distinct frequencies. A constant key is idle without rotary positions;
# a constant value is idle against the output bias: with biases, $E$ directions a layer each.
# ```
#
# ```{prf:lemma} What the first layer never meets
# :label: lem-14-reach
#
# Let positions be learned and $v + L - 1 < m$. The inputs of the first layer's attention span $s = v + L - 1$ of $m$ dimensions. So each row
# of its $W_K$ and $W_V$ has $m - s$ idle directions and each row of its $W_Q$ has $m - s + 1$. With biases there are $m - s$ more: all positions
# move by $u$, orthogonal to all centred inputs, and the output bias moves by $-u$.
# ```

# %% [markdown]
# ```{prf:proposition} The count of a whole network
# :label: prop-14-count
#
# Every direction of these lemmas is unidentified, and `count` adds them up by name, what two lemmas both list once. So wherever
# they are linearly independent, the count is a lower bound of what is unidentified.
# ```
#
# ```{prf:remark} Departure from the paper
# :label: rem-14-measured
#
# That they *are* independent at generic weights, and that there are *no further* directions, we have not proved: for networks of all sizes both are a
# conjecture. They are measured on every small network that we tried, by the rank of all generators together and by the
# rank of the Jacobian of the log-probabilities, which leaves exactly as many. What is said below of nanoGPT's size rests on the conjecture; measured there is
# that the directions are unidentified.
# ```

# %% [markdown]
# ## Proof
#
# ````{prf:proof}
# (of {prf:ref}`lem-14-norms`)
# 1 is the product rule: $W (\gamma \circ n)$ and $W b$ both keep. 2: $\delta z = W u - W u$. 3: $\delta z = a\, \mathbf{1}^\top \Lambda^{-1}(\Lambda n + b) + \delta b_W = a\, \mathbf{1}^\top n = 0$, since $n$ is centred.
# For $U$ without $b_W$: 1 is the same. Direction 3 without its $\delta b_W$ changes the logits by the constant vector $(\mathbf{1}^\top \Lambda^{-1} b)\, a$, and 2 without its
# $\delta b_W$ by the constant $U u$. So for every $u$ one $a$ brings the change back, $a = -U u / (\mathbf{1}^\top \Lambda^{-1} b)$, and $a$ alone is seen
# (but for $a \propto \mathbf{1}$, which is in part 3 of {prf:ref}`lem-14-stream`). Without $b$ nothing is changed by $a$.
# ````
#
# ````{prf:proof}
# (of {prf:ref}`lem-14-stream`)
# 1: every reader starts with $\Pi$, and $\Pi \mathbf{1} = 0$. If embeddings are tied, a token's row is also read, so tokens do not have it. 2: The stream stays; if tied, all
# logits of one context move by the same $u^\top y$, which a softmax does not see. 3 is that again. 4: norms commute with $O$: $\|\Pi O x\| = \|\Pi x\|$ and $\Pi O = O \Pi$. Turn
# $w_t$, $e_p$, $W_O$, the MLP's output map and the output biases by $O$, and let readers turn back, $W \Lambda \to W \Lambda O^\top$, with $b_W$ taking up
# what $W b$ loses; for the head the last lemma's $a$ does that. 5: $n$ does not change when $x$ is scaled; tied logits are scaled, and scaled back.
# ````
#
# ````{prf:proof}
# (of {prf:ref}`lem-14-tied`)
# Let $\delta x = A x$ with $A$ skew, and $A \mathbf{1} = 0$ under LayerNorm. Then $\delta w_t = A w_t + a_t \mathbf{1}$ ($a = 0$ under RMSNorm), and with
# $\delta \Lambda$ for the last gain and $W$ for the matrix with rows $w_t$ the logits change by
#
# $$
# \big( W Y + a\, \gamma^\top \big)\, n + \text{a constant of no } n, \qquad Y = \Lambda A - A \Lambda + \delta \Lambda .
# $$
#
# $Y$ is symmetric, its entries off the diagonal are $(\gamma_i - \gamma_j) A_{ij}$ and on it $\delta \gamma_i$: as the $\gamma_i$ differ, any symmetric $Y$ comes from one $A$ and one $\delta \Lambda$.
# A softmax does not see what is the same in all rows, so let $B$ be the rows of $W$ minus their mean. Its kernel has dimension $k$. *RMSNorm:* $B Y = 0$ says
# that $Y$ is a form on the kernel, $k(k+1)/2$ of them. *LayerNorm:* $n$ is centred and $a$ is free, so $B Y$ need only vanish on what is orthogonal to $\mathbf{1}$ and $\gamma$; then
# $Y$ is a form on the kernel plus one on the plane of $\mathbf{1}$ and $\gamma$, $k(k+1)/2 + 3$ of them. (The rows of $B Y$ lie in that plane. So $Y$, restricted to the row space of $B$,
# is a symmetric matrix whose columns lie in the plane's shadow, and there are three, since $v \ge 3$.) Now $A \mathbf{1} = 0$ asks for $E - 1$ conditions, as $\mathbf{1}^\top A \mathbf{1} = 0$ for every skew $A$.
# The constant is brought back by $\delta b = A b + (\mathbf{1}^\top b) f$ with $f$ read off the form, and $\delta b$ in the kernel of $B$ changes no logit but alike.
# ````
#
# ````{prf:proof}
# (of {prf:ref}`lem-14-heads`)
# A head sees its inputs through $(W_K \Lambda)^\top W_Q \Lambda$ on what varies: {prf:ref}`lem-directions`, and
# {prf:ref}`lem-commutant` with rotations. Its output is seen through $\Pi W_O W_V \Lambda$: {prf:ref}`lem-value-output`. $D \le m$ makes the products lose $D^2$ each. Constants: {prf:ref}`lem-key-bias` and
# {prf:ref}`lem-pooled-bias`.
# ````
#
# ````{prf:proof}
# (of {prf:ref}`lem-14-reach`)
# The first norm gives multiples of $\Pi (w_t + e_p)$, and the $w_t + e_p$ span $v + L - 1$ dimensions. The first position's query has only one key, and its softmax is 1 whatever
# it asks; the queries that matter come from $p \ge 2$, which span one dimension less. For the last claim let $u \perp \mathbf{1}$ be orthogonal to all
# $\Pi (w_t + e_p)$. Then $\|\Pi x\|$ keeps to first order and $\delta n = u / \sigma$, $\sigma$ the root in {eq}`eq-norm-reader`. There is a $\kappa$ with
# $\kappa^\top \Pi (w_t + e_p) = 1$ for all $t$ and $p$, as the span has as many dimensions as there are free embeddings; so $\delta n = u \kappa^\top n$, and $\delta(W \Lambda) = -W \Lambda u \kappa^\top$ takes
# it back. What is left is $u$ in the stream, and the output bias takes that.
# ````
#
# Fewer tokens than dimensions without learned positions are the extreme case: then the first attention layer reads a table of $v$ vectors, any table at all, and can make up for any $u$.
# `count` knows this case too.

# %% [markdown]
# ## The same symbols in code
#
# Symmetries are easier to believe in when they move weights by a finite amount. Here is a small network, not tied, without biases, and part 4 of
# {prf:ref}`lem-14-stream` for it: $x \to O x$ everywhere.

# %%
import itertools
from dataclasses import replace

import torch

from attnid import GPT, GPTConfig, count, figures, independent_directions, measure
from attnid.claims import check
from attnid.network import Network, NullSpace, random_parameters
from attnid.tensors import normal, relative_change

sizes = dict(vocab_size=7, block_size=5, n_layer=1, n_head=2, n_embd=4, mlp_width=4)
small = GPTConfig(**sizes, tied=False)
E = small.n_embd
p = random_parameters(small, seed=1)
network = Network(small)  # parameters, tokens (B, T) -> log-probabilities (B, T, V)
generator = torch.Generator().manual_seed(2)
tokens = torch.randint(small.vocab_size, (8, small.block_size), generator=generator)

# %% [markdown]
# Writers turn by $O$. Readers turn back, $W \Lambda \to W \Lambda O^\top$; the gain stays with the norm:
#
# $$
# W \;\to\; W\, \Lambda\, O^\top \Lambda^{-1} .
# $$

# %%
READS = {"attn.c_attn": "ln_1", "mlp.c_fc": "ln_2", "lm_head": "transformer.ln_f"}


def rotate(p, turn):
    """All weights of a network without biases, its stream turned by turn (E, E)."""
    moved = dict(p)
    for name, W in p.items():
        part = next((part for part in READS if part in name), None)
        if part is not None:
            gain = p[name.replace(part, READS[part])]
            moved[name] = W * gain @ turn.T / gain
        elif W.ndim == 2:
            moved[name] = turn @ W if "c_proj" in name else W @ turn.T
    return moved


# %% [markdown]
# LayerNorm asks for $O \mathbf{1} = \mathbf{1}$. Such an $O$ is the exponential of a skew matrix $A$ with $A \mathbf{1} = 0$.

# %%
centre = torch.eye(E, dtype=torch.float64) - 1 / E
A = centre @ normal(E, E, seed=3) @ centre
keeps_ones = torch.linalg.matrix_exp(A - A.T)
moves_ones = torch.linalg.qr(normal(E, E, seed=4)).Q
before = network(p, tokens)
check(
    "network",
    stream_turned=(network(rotate(p, keeps_ones), tokens) - before).abs().max(),
    ones_moved=(network(rotate(p, moves_ones), tokens) - before).abs().max(),
)
head = "lm_head.weight"
moved = relative_change(rotate(p, keeps_ones)[head], p[head])
print(f"the head's weights moved by {100 * moved:.0f} % of their size")

# %% [markdown]
# ## The check
#
# **Three counts.** For each make of network: the closed form; the package's generators, each tested by a Jacobian-vector product
# and all together for independence; and the rank of the Jacobian of the log-probabilities, which knows of no symmetry. Singular values fall
# into kept and dropped ones, and the gap between them must be a factor of $10^6$ at least.

# %%
layernorm, rmsnorm = dict(norm="layernorm"), dict(norm="rmsnorm")
short, long = dict(vocab_size=7, block_size=5), dict(vocab_size=3, block_size=8)
makes = (
    layernorm | short | dict(tied=True),
    layernorm | long | dict(tied=True, bias=True),
    layernorm | short | dict(bias=True),
    layernorm | long | dict(positions="rotary"),
    rmsnorm | short | dict(tied=True, bias=True, positions="rotary"),
    rmsnorm | short,
    rmsnorm | long | dict(tied=True),
    rmsnorm | short | dict(bias=True, positions="none"),
)
configs = [replace(small, **make) for make in makes]

# %%
measured = [measure(config) for config in configs]
check(
    "network",
    formula=[count(config).unidentified for config in configs],
    generators=[independent_directions(config, seed=3) for config in configs],
    measured=[measurement.nullity for measurement in measured],
    gap=[measurement.gap for measurement in measured],
)

# %%
print("tied   bias   norm       positions  tokens  unidentified")
for config, measurement in zip(configs, measured):
    print(f"{config.tied!s:6} {config.bias!s:6} {config.norm:10} ", end="")
    print(f"{config.positions:10} {config.vocab_size:6} {measurement.nullity:13}")

# %% [markdown]
# The package's tests go through all 48 combinations of these choices at one layer, and through two layers, one head, $\epsilon = 0$, and
# tokens and positions that together span less than the stream.

# %% [markdown]
# **nanoGPT.** At its own size no rank can be measured. The closed form can be evaluated, and the generators can be tried.

# %%
nanogpt = GPTConfig(65, 256, n_layer=6, n_head=6, n_embd=384)
plain, biased = count(nanogpt), count(replace(nanogpt, bias=True))
for term in biased.terms:
    print(f"{term:28} {plain.terms.get(term, 0):9,} {biased.terms[term]:9,}")
print(f"{'in all':28} {plain.unidentified:9,} {biased.unidentified:9,}")
print(f"{'of':28} {plain.parameters:9,} {biased.parameters:9,}")
# nanoGPT reports this many, leaving positions out
assert plain.parameters - 256 * 384 == 10_646_784
assert plain.unidentified == sum(plain.terms.values())
assert biased.unidentified == 461_359 and 0.957 < biased.share < plain.share < 0.959
check("network", nanogpt=[plain.unidentified, plain.parameters])

# %% [markdown]
# By this count the data sees 10,293,340 of 10,745,088 parameters, 95.8 %. One random member of every family, all added up into one direction with some
# entry in every tensor, must leave the log-probabilities where they are. The weights are nanoGPT's initial ones with noise added, since at the initial ones
# all gains are equal, which is not generic (see below).

# %%
generator = torch.Generator().manual_seed(4)
weights = {
    name: w.detach().double() + 0.02 * normal(*w.shape, seed=n)
    for n, (name, w) in enumerate(GPT(nanogpt).named_parameters())
}
null = NullSpace(nanogpt, weights)
assert {term: size for term, (size, _) in null.families.items()} == plain.terms

# %%
length = lambda d: sum(part.square().sum() for part in d.values()).sqrt()
total = {name: torch.zeros_like(w) for name, w in weights.items()}
for term in null.families:
    member = {name: part[0] for name, part in null.random(term, 1, seed=5).items()}
    total = {name: part + member[name] / length(member) for name, part in total.items()}
assert all(part.any() for part in total.values())

# %%
large, tokens = Network(nanogpt), torch.randint(65, (1, 16), generator=generator)
output = lambda parameters: large(parameters, tokens)
change = lambda d: torch.func.jvp(output, (weights,), (d,))[1].norm() / length(d)
noise = {name: normal(*w.shape, seed=6) for name, w in weights.items()}
check(
    "network",
    nanogpt_families=len(null.families),
    nanogpt_change=change(total) / change(noise),
)

# %% [markdown]
# ## The picture
#
# {numref}`fig-14-idle` sorts the idle parameters by cause, for nanoGPT as it is and with one choice changed at a time. Without learned
# positions the first layer meets 65 vectors only, and most of what its rows could read never comes; with 5,000 tokens it meets everything.

# %%
CAUSES = {
    "query-key circuits": ("query-key maps", "key constants"),
    "value-output circuits": ("value-output maps", "value constants"),
    "rotations and scale of the stream": ("residual rotations", "residual scale"),
    "inputs never met": ("inputs never met",),
    "norms and all-ones": (
        "norm gains",
        "norm biases",
        "centred inputs",
        "writing along ones",
    ),
    "shifts": (
        "embedding against positions",
        "embedding against values",
        "softmax shift",
    ),
}

# %%
variants = {
    "nanoGPT": {},
    "with biases": dict(bias=True),
    "not tied": dict(tied=False),
    "RMSNorm": dict(norm="rmsnorm"),
    "rotary positions": dict(positions="rotary"),
    "no positions": dict(positions="none"),
    "5,000 tokens": dict(vocab_size=5000),
}
terms = {
    name: count(replace(nanogpt, **fields)).terms for name, fields in variants.items()
}

# %% mystnb={"image": {"alt": "Stacked horizontal bars for seven makes of nanoGPT. The two circuits of the heads make about 295 thousand in each, except with rotary positions, where the query-key part nearly vanishes. Rotations of the stream add 51 thousand when tied, 73 thousand when not, and none with 5,000 tokens; inputs never met add 73 thousand with learned positions and 366 thousand without."}, "figure": {"caption": "Unidentified parameters of nanoGPT's Shakespeare model by cause, as it is and with one choice changed.", "name": "fig-14-idle"}}
add_up = lambda parts: {
    cause: sum(parts.get(term, 0) for term in among) for cause, among in CAUSES.items()
}
stacks = {name: add_up(parts) for name, parts in terms.items()}
assert all(sum(stacks[name].values()) == sum(terms[name].values()) for name in terms)
figures.idle_by_cause(stacks)

# %% [markdown]
# ## Break it
#
# **Tie the embeddings**, and rotations break, but only as far as the vocabulary holds the stream in place. {numref}`fig-14-rotations`
# has the number of rotations left over: measured, as the nullity minus all other terms.
#
# Under LayerNorm that number stands on the $E - 1$ conditions in the proof of {prf:ref}`lem-14-tied`. That they are as independent as they can be we have not
# proved. Their rank, at random gains and embeddings of all widths up to 12:


# %%
def conditions(E, v):
    """The matrix of Y -> A 1, over a basis of the forms Y of the proof."""
    gain = normal(E, seed=1).exp()
    rows = normal(v, E, seed=2)
    kernel = torch.linalg.svd(rows - rows.mean(0))[2][min(v - 1, E) :]
    plane = torch.stack((torch.ones(E).double(), gain))
    forms = [
        torch.outer(x, y) + torch.outer(y, x)
        for part in (kernel, plane)
        for x, y in itertools.combinations_with_replacement(part, 2)
    ]
    apart = gain[:, None] - gain + torch.eye(E)  # the diagonal of Y is the gain's
    return torch.stack([(Y / apart).fill_diagonal_(0).sum(1) for Y in forms])


tried = [(width, v) for width in range(4, 13) for v in range(3, width + 3)]
least = []
for width, v in tried:
    columns = conditions(width, v)
    values = torch.linalg.svdvals(columns)
    least.append(values[min(len(columns), width - 1) - 1] / values[0])
independent = sum(bool(value > 1e-4) for value in least)
assert independent == len(tried)
print(f"as independent as they can be: {independent} of {len(tried)} sizes tried")

# %% [markdown]
# The figure's own numbers:

# %% mystnb={"image": {"alt": "Free rotations against the number of tokens for a stream of six dimensions: with RMSNorm 10 at three tokens, falling to 0 at seven; with LayerNorm 8, 4, 1 and then 0. Horizontal lines at 15 and 10 show the numbers without tying. Measured points lie on the lines."}, "figure": {"caption": "Free rotations of a stream of $E = 6$ dimensions with tied embeddings, by formula (lines) and measured (marks). Thin: not tied.", "name": "fig-14-rotations"}}
base = GPTConfig(3, 7, n_layer=1, n_head=2, n_embd=6, mlp_width=2)
sizes = list(range(3, 10))
formula = {norm: [] for norm in ("RMSNorm", "LayerNorm")}
measured = {norm: {} for norm in formula}
for norm in formula:
    for size in sizes:
        config = replace(base, vocab_size=size, norm=norm.lower())
        parts = count(config).terms
        formula[norm].append(parts.get("residual rotations", 0))
        if size < 8:
            others = sum(parts.values()) - formula[norm][-1]
            measured[norm][size] = measure(config).nullity - others
            assert measured[norm][size] == formula[norm][-1]
figures.freed_rotations(sizes, formula, measured, {"RMSNorm": 15, "LayerNorm": 10})

# %% [markdown]
# **Swap the norm, drop epsilon.** RMSNorm does not centre: all that had to do with $\mathbf{1}$ is gone. And with $\epsilon = 0$, but only then, the stream has a scale.

# %%
base = replace(small, tied=True, bias=True)
layer, rms, exact = (
    measure(replace(base, **fields)).nullity
    for fields in ({}, dict(norm="rmsnorm"), dict(eps=0.0))
)
ones = sum(
    count(base).terms[term]
    for term in ("centred inputs", "writing along ones", "norm biases")
)
assert exact == layer + 1 and rms == layer - ones
print(f"LayerNorm {layer}, RMSNorm {rms}, LayerNorm with eps = 0 {exact}")

# %% [markdown]
# **Weights that are not generic.** A network that has not been trained yet has all gains equal to one. Then $\Lambda A - A \Lambda = 0$ in {prf:ref}`lem-14-tied`, and
# no vocabulary breaks a rotation: under RMSNorm the derivative is blind to all $E(E-1)/2$ of them until the gains come apart.

# %%
config = replace(small, tied=True, norm="rmsnorm")
equal = {
    name: torch.ones_like(w) if "ln_" in name else w
    for name, w in random_parameters(config).items()
}
generic, initial = measure(config).nullity, measure(config, parameters=equal).nullity
assert generic == count(config).unidentified and initial == generic + E * (E - 1) // 2
print(f"gains drawn at random {generic}, all equal to one {initial}")

# %% [markdown]
# ## What it means
#
# Of nanoGPT's 10,745,088 parameters the data sees, by this count, 10,293,340. The paper's accounting, $D^2$ for each circuit of each head, finds 294,912 of the 451,748
# that are idle: about two thirds. It is right about every head, and it is not the whole.
#
# Which of its numbers change? The share of 11/12 of the query and key weights is that of a layer with free inputs. Here is the share inside
# the network, for the layer that reads embeddings and for those that read the stream:

# %%
E, D, H = nanogpt.n_embd, nanogpt.head_dim, nanogpt.n_head
s, m = 65 + 256 - 1, E - 1
circuits, centring, never_met = H * D * D, 2 * E, E * ((m - s) + (m - s + 1))
for name, idle in (
    ("alone", circuits),
    ("above the first", circuits + centring),
    ("first layer", circuits + centring + never_met),
):
    print(f"{name:16} identified of its query and key weights:", end="")
    print(f" {100 * (1 - idle / (2 * E * E)):.1f} %")
assert never_met + E * (m - s) == plain.terms["inputs never met"]
assert (
    6 * 2 * circuits == plain.terms["query-key maps"] + plain.terms["value-output maps"]
)

# %% [markdown]
# ```{prf:remark} Departure from the paper
# :label: rem-14-paper
#
# The paper's $1 - 1/(2H)$ holds for each layer on its own. In nanoGPT's first layer a quarter of the query and key weights is idle, three times as much,
# because 65 characters and 256 positions span 320 of 384 dimensions. The bias counts of section 4.7, $HD$ numbers for the key biases and $HC$ for the value biases, stand unchanged in every layer.
# ```
#
# Two cautions. *Over all token sequences* is generous: real text uses few of them, and a direction that only impossible text would show is idle in practice.
# And *unidentified* is about first order at generic weights; with $\epsilon = 10^{-5}$ the scale of the stream is nearly idle, and this count has it as seen.

# %% [markdown]
# ## Exercises
#
# **1.** How many tokens does a tied nanoGPT need before no rotation of its stream is free? Guess first: is it about $E$, or less?

# %% tags=["hide-cell"]
terms_at = lambda size: count(replace(nanogpt, vocab_size=size)).terms
free = lambda size: terms_at(size).get("residual rotations", 0)
enough = next(size for size in range(65, 1000) if free(size) == 0)
k = nanogpt.n_embd - enough + 1
assert k * (k + 1) // 2 + 4 <= nanogpt.n_embd < (k + 1) * (k + 2) // 2 + 4
print(f"{enough} tokens, which leaves k = {k} of {nanogpt.n_embd} dimensions untold:")
print("LayerNorm's condition A 1 = 0 does the rest")

# %% [markdown]
# **2.** GPT-2 has 50,257 tokens, 1,024 positions, 12 layers, 12 heads, $E = 768$ and biases. What share of it is identified, and which terms of nanoGPT's list are gone?

# %% tags=["hide-cell"]
gpt2 = count(GPTConfig(50257, 1024, n_layer=12, n_head=12, n_embd=768, bias=True))
gone = sorted(biased.terms.keys() - gpt2.terms.keys())
assert gpt2.parameters == 124_439_808 and gone == [
    "embedding against values",
    "inputs never met",
    "residual rotations",
]
print(f"{100 * gpt2.share:.2f} % of {gpt2.parameters:,}; gone:")
print(", ".join(gone))

# %% [markdown]
# **3.** Part 2 of {prf:ref}`lem-14-stream` moves all tokens up and all positions down. Check that it is exact for a move as long as the weights themselves, with tied embeddings too.

# %% tags=["hide-cell"]
config = replace(small, tied=True)
p, network = random_parameters(config), Network(config)
u = 3 * normal(config.n_embd, seed=7)
wte, wpe = "transformer.wte.weight", "transformer.wpe.weight"
shifted = p | {wte: p[wte] + u, wpe: p[wpe] - u}
tokens = torch.randint(7, (8, 5), generator=generator)
assert (network(shifted, tokens) - network(p, tokens)).abs().max() < 1e-8
alone = network(p | {wte: p[wte] + u}, tokens)
assert (alone - network(p, tokens)).abs().max() > 1e-2
print("exact with positions, seen without them")

# %% [markdown]
# Next, {doc}`the atlas <15_an_atlas>` counts the attention layers of networks that people have published.
