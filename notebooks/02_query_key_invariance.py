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
# # Query-key invariance
#
# *Assumed: one attention head without biases or {term}`rotary positions <rotary position>`, plain softmax; $W_Q$ and $W_K$ are
# $D \times E$.*
#
# *In the ledger:* {ref}`Lemma 4.1 <ledger-lemma-4-1>`.
#
# ## The question
#
# {doc}`Chapter 1 <01_what_is_identified>` counted directions along which a layer's outputs do not change to first order. A
# count says how many. It does not say where they come from, nor where they lead: near almost all weights there is a surface of
# weights with the same outputs ({prf:ref}`thm-generic`), and we have not seen it.
#
# Here they get an origin. A head compares queries with keys in a space $\mathbb{R}^D$ that nobody ever looks at. What if we
# change the basis of that space? And is a change of basis all that can be done to a head unnoticed?

# %% [markdown]
# ## The claim
#
# The scores of a head at an input $X \in \mathbb{R}^{E \times L}$ are $(W_K X)^\top (W_Q X) = X^\top M X$. They see the
# weights only through the **{term}`score product`** $M = W_K^\top W_Q$.
#
# ```{prf:lemma} Query-key invariance (paper: Lemma 4.1)
# :label: lem-invariance
#
# Let $S \in \mathbb{R}^{D \times D}$ be nonsingular. The weights $(S W_Q,\; S^{-\top} W_K)$ have the same score product as
# $(W_Q, W_K)$. So they give the same scores for every input, and the layer has the same outputs, under any mask that leaves each
# query a key to see.
# ```
#
# Nothing was asked of the sizes or the ranks. Three special cases are familiar:
#
# - a **permutation** $S$ reorders the $D$ coordinates of the queries, and those of the keys alike, since $S^{-\top} = S$;
# - a **rotation** or reflection, any orthogonal $S$, turns queries and keys together, since again $S^{-\top} = S$;
# - a **scaling** $S = \mathrm{diag}(a)$, no $a_i$ zero, multiplies row $i$ of $W_Q$ by $a_i$ and divides row $i$ of $W_K$ by $a_i$.

# %% [markdown]
# All weights that these changes lead to are the {term}`orbit` of $(W_Q, W_K)$, all weights with the same score product its {term}`fibre`. The lemma makes
# no promise that the changes are all different, or that there are no others. For full-rank weights both hold.
#
# ```{prf:proposition} The orbit is the whole fibre (completes Lemma 4.1)
# :label: prop-orbit
#
# Let $D \le E$ and let $W_Q$, $W_K$ have rank $D$. Then
#
# 1. different $S$ give different weights, and the weights that the map $S \mapsto (S W_Q,\, S^{-\top} W_K)$ reaches make a
#    smooth manifold of dimension $D^2$;
# 2. every pair of $D \times E$ weights with the same score product is reached, by exactly one $S$.
# ```
#
# ```{prf:corollary} Identified share (paper: section 4.2)
# :label: cor-share
#
# For $D \le E$, of the $2DE$ query and key weights of a head $D^2$ are {term}`unidentified`. The identified {term}`share` is
#
# $$
# \frac{2DE - D^2}{2DE} = 1 - \frac{D}{2E}.
# $$
# ```
#
# A head as wide as its input, $D = E$, keeps one half. The narrowest, $D = 1$, keeps $1 - 1/(2E)$, never quite all. With the
# usual $D = E/H$ the share is $1 - 1/(2H)$: that is the paper's title in one line.

# %% [markdown]
# ## Proof
#
# ````{prf:proof}
# (of {prf:ref}`lem-invariance`)
# $(S^{-\top} W_K)^\top (S W_Q) = W_K^\top S^{-1} S\, W_Q = W_K^\top W_Q$. The outputs depend on $W_Q$ and $W_K$ through the
# scores alone: mask, softmax, values and output map come after.
# ````
#
# ````{prf:proof}
# (of {prf:ref}`prop-orbit`)
# *1.* $W_Q$ has a right inverse, $W_Q W_Q^+ = I$, so $S = W_Q' W_Q^+$ can be read off $W_Q' = S W_Q$. As $S$ is nonsingular, every
# direction at $S$ can be written $TS$, and the map's derivative there is $(T S W_Q,\, -T^\top S^{-\top} W_K)$. If it vanishes, then
# $T S W_Q = 0$; multiply by $W_Q^+ S^{-1}$ from the right to get $T = 0$. So the map is an injective immersion. As $W_Q' \mapsto W_Q' W_Q^+$
# is moreover a continuous inverse, it is an embedding, and its image a manifold.
#
# *2.* Let $W_K'^\top W_Q' = W_K^\top W_Q = M$. Since $W_K^\top$ is injective and $W_Q$ is onto, $M$ has rank $D$. So $W_Q'$
# and $W_K'$ have rank $D$ too, and the row spaces of $W_Q$ and $W_Q'$ both equal that of $M$. Two bases of one space differ
# by a unique nonsingular $S$: $W_Q' = S W_Q$. Now $W_K'^\top S\, W_Q = W_K^\top W_Q$, and $W_Q$ cancels by its right
# inverse: $W_K'^\top S = W_K^\top$, which says $W_K' = S^{-\top} W_K$.
# ````
#
# ````{prf:proof}
# (of {prf:ref}`cor-share`)
# {term}`Generic <generic>` weights have full rank. By {prf:ref}`prop-orbit` the weights with the same score product then make a set of
# dimension $D^2$; {prf:ref}`prop-count-r` with $r = D$ gives the same number from the rank of the derivative, $2DE - D(2E - D) = D^2$.
# ````
#
# ```{prf:remark} Departure from the paper
# :label: rem-dropped-transpose
#
# The paper's proof drops a transpose: it prints $W_K S^{-1} S\, W_Q = W_K W_Q$, a product of two $D \times E$ matrices that
# does not exist unless $D = E$. With $W_K^\top$ in place of $W_K$ its argument is the one above.
# ```

# %% [markdown]
# ## The same symbols in code

# %%
import copy
import math

import torch

from attnid import Attention, act_query_key, count, exact_nullity, forward
from attnid import independent_directions, load_corpus, measure
from attnid.claims import check
from attnid.layer.attention import project, random_inputs, scores
from attnid.figures import damage_by_condition, weights_and_pattern
from attnid.network.gpt import GPT, GPTConfig, head_weights, set_head_weights
from attnid.tensors import normal, rank, relative_change
from attnid.training.trainer import TrainingConfig, evaluate, get_batch, train

# %% [markdown]
# A random nonsingular $S$ of a chosen condition number $\kappa$ is a rotation, a scaling with singular values spread evenly (in
# the logarithm) from $\kappa^{-1/2}$ to $\kappa^{1/2}$, and another rotation:
#
# $$
# S = U\, \mathrm{diag}(\kappa^{-1/2}, \dots, \kappa^{1/2})\, V^\top .
# $$


# %%
def rotation(D, seed):
    return torch.linalg.qr(normal(D, D, seed=seed)).Q


def change_of_basis(D, condition, seed):
    exponents = torch.linspace(-0.5, 0.5, D, dtype=torch.float64)
    return rotation(D, 2 * seed) * condition**exponents @ rotation(D, 2 * seed + 1)


# %% [markdown]
# The action itself is two matrix products. The package has it as `act_query_key(S, W_Q, W_K)`; written out it is
#
# $$
# (W_Q,\, W_K) \;\longmapsto\; (S W_Q,\; S^{-\top} W_K).
# $$
#
# We try the three special cases and a general $S$ on random weights with $D = 4$ and $E = 12$.

# %%
D, E = 4, 12
W_Q, W_K = normal(2, D, E, seed=2)
M = W_K.mT @ W_Q
kinds = {
    "permutation": torch.eye(D, dtype=torch.float64)[[2, 0, 3, 1]],
    "rotation": rotation(D, seed=3),
    "scaling": torch.diag(torch.tensor([0.5, -3.0, 1.0, 7.0], dtype=torch.float64)),
    "general": change_of_basis(D, 100.0, seed=4),
}


def action(S):
    return S @ W_Q, torch.linalg.inv(S).mT @ W_K


moved = {kind: action(S) for kind, S in kinds.items()}
check(
    "lemma-4.1",
    moved=[relative_change(new_Q, W_Q) for new_Q, _ in moved.values()],
    product=[relative_change(new_K.mT @ new_Q, M) for new_Q, new_K in moved.values()],
)
for kind, S in kinds.items():
    assert all(map(torch.equal, moved[kind], act_query_key(S, W_Q, W_K)))

# %% [markdown]
# The proof of completeness is a recipe: it finds $S$ from two pairs of weights that have the same product, as
# $S = W_Q' W_Q^+$. To put it to the test the second pair must come from elsewhere than from an $S$. Two decompositions of $M$ alone
# make such pairs: the singular value decomposition $M = U \Sigma V^\top$ gives $W_K' = \Sigma^{1/2} U^\top$ and $W_Q' = \Sigma^{1/2} V^\top$; and an
# orthonormal basis of the columns of $M$, the rows of $W_K'$, gives $W_Q' = W_K' M$.


# %%
def pairs_from(M, D):
    U, sigma, Vh = torch.linalg.svd(M)
    root = sigma[:D].sqrt()[:, None]
    yield root * Vh[:D], root * U[:, :D].mT
    orthonormal = torch.linalg.qr(M).Q[:, :D].mT
    yield orthonormal @ M, orthonormal


away = []
for other_Q, other_K in pairs_from(M, D):
    assert relative_change(other_K.mT @ other_Q, M) < 1e-12
    S = other_Q @ torch.linalg.pinv(W_Q)
    away += map(relative_change, action(S), (other_Q, other_K))
check("lemma-4.1", recovered=away)

# %% [markdown]
# ## The check: $D^2$ by six counts
#
# One head first. The orbit map $S \mapsto (S W_Q, S^{-\top} W_K)$ has $D^2$ inputs; that it is an immersion means that its
# {term}`Jacobian` has rank $D^2$. The product map $(W_Q, W_K) \mapsto W_K^\top W_Q$ has $2DE$ inputs, and its Jacobian must lose
# exactly $D^2$ of them. Both are small matrices, so we ask for their ranks.


# %%
def orbit_rank(W_Q, W_K, S):
    orbit = lambda S: torch.cat(act_query_key(S, W_Q, W_K)).flatten()
    return rank(torch.func.jacrev(orbit)(S).flatten(1))


def product_rank(W_Q, W_K):
    product = lambda weights: (weights[1].mT @ weights[0]).flatten()
    return rank(torch.func.jacrev(product)(torch.stack((W_Q, W_K))).flatten(1))


check(
    "lemma-4.1",
    orbit=orbit_rank(W_Q, W_K, kinds["general"]),
    lost=2 * D * E - product_rank(W_Q, W_K),
)

# %% [markdown]
# Then a whole layer of $H = 3$ such heads, which loses $H D^2 = 48$ in its queries and keys and as much in its values and output. The
# ways of counting are those of chapter 1, the rank with rounding and without. `measure` returns a basis of all that the outputs do not see, and we also take the rank of its
# query and key part, from which the share follows.

# %%
a = Attention(E, 3)
measured = measure(a)
null = measured.null_space
query_key = torch.cat([null[name].flatten(1) for name in ("W_Q", "W_K")], 1)
idle = rank(query_key, rtol=1e-6)
check(
    "lemma-4.1",
    formula=count(a).unidentified,
    measured=measured.nullity,
    generators=independent_directions(a),
    exact=exact_nullity(a),
    queries_and_keys=idle,
)
print(f"identified share of queries and keys {1 - idle / (2 * a.H * a.D * a.E):.3f}")

# %% [markdown]
# ## On weights that training has moved
#
# Random weights are one thing. Does the lemma hold for weights that have learnt something? It must, and a model that predicts
# text lets us see what is at stake. We train a small GPT in nanoGPT's shape {cite:p}`karpathy2022` (two layers, four heads,
# $E = 64$, so $D = 16$) on the embedded corpus, sentences drawn from a small grammar. Its entropy rate is known
# exactly: no model can have a lower expected loss.

# %%
corpus = load_corpus("embedded")
shape = dict(block_size=64, n_layer=2, n_head=4, n_embd=64)
model = GPT(GPTConfig(len(corpus.vocabulary), **shape), seed=0)
untrained = copy.deepcopy(model).double()
recipe = TrainingConfig(400, batch_size=8, learning_rate=1e-2, warmup=30, seed=0)
train(model, corpus, recipe)
model = model.double()  # from here on in float64
loss = evaluate(model, corpus.val, batches=4, context=50)
assert corpus.entropy_rate - 3 * loss.error < loss.loss < corpus.entropy_rate + 0.2
symbols = len(corpus.vocabulary)
print(f"guessing among {symbols} characters costs {math.log(symbols):.2f} nats each")
print(f"floor {corpus.entropy_rate:.2f} nats, reached {loss.loss:.1f}")
for layer in range(2):
    old, new = head_weights(untrained, layer), head_weights(model, layer)
    assert all((new[n] - old[n]).norm() > 2 * old[n].norm() for n in ("W_Q", "W_K"))

# %% [markdown]
# Most of the way from a guess to the floor is done, and the last assertion says that the query and key weights have travelled more than twice their initial length to get there.
#
# Now each head of each layer is given a basis of its own. The condition numbers grow geometrically over the heads,
# from 1 (a rotation) to $10^6$.


# %%
def change_bases(model, conditions, seed):
    """A copy with head h of every layer moved by an S of condition conditions[h]."""
    moved, D = copy.deepcopy(model), model.config.head_dim
    for layer in range(model.config.n_layer):
        seeds = range(8 * seed + 4 * layer, 8 * seed + 4 * layer + 4)
        S = torch.stack([change_of_basis(D, c, s) for c, s in zip(conditions, seeds)])
        weights = head_weights(model, layer)
        W_Q, W_K = act_query_key(S, weights["W_Q"], weights["W_K"])
        set_head_weights(moved, layer, W_Q=W_Q, W_K=W_K)
    return moved


conditions = torch.logspace(0, 6, 4, dtype=torch.float64).tolist()
moved = change_bases(model, conditions, seed=4)

# %% [markdown]
# Two numbers decide. How far have the weights moved, relative to their own size, head by head? And how far have the
# logits, relative to the largest of them, over eight validation sequences?


# %%
@torch.no_grad()
def logits_of(model, dtype=torch.float64):
    return copy.deepcopy(model).to(dtype)(tokens)[0].double()


tokens, _ = get_batch(corpus.val, 64, 8, torch.Generator().manual_seed(5))
moves = [
    relative_change(new, old)
    for layer in range(2)
    for name in ("W_Q", "W_K")
    for new, old in zip(*(head_weights(m, layer)[name] for m in (moved, model)))
]
before, after = logits_of(model), logits_of(moved)
assert min(moves) > 1  # every head by more than its own size
assert all(abs(m - 2**0.5) < 0.2 for m in moves[::4]) and min(moves[3::4]) > 100
assert (after - before).abs().max() < 1e-9 * before.abs().max()
print(f"least relative change of a head's weights: {min(moves):.1f}; logits the same")

# %% [markdown]
# The rotated heads move least, by about $\sqrt2$ times their own length, which is what two unrelated vectors of equal length
# are apart. Those with condition number $10^6$ move by hundreds of times their length. The logits agree to a relative $10^{-9}$.
#
# With the logits the loss stays. It stays layer by layer as well: changing the bases of one layer only is enough to see that no
# other layer is compensating.

# %%
one_layer = copy.deepcopy(model)
set_head_weights(one_layer, 1, **{n: head_weights(moved, 1)[n] for n in ("W_Q", "W_K")})
for changed in (moved, one_layer):
    new_loss = evaluate(changed, corpus.val, batches=4, context=50).loss
    assert abs(new_loss - loss.loss) < 1e-9
print("validation loss the same to 1e-9, one layer moved or both")

# %% [markdown]
# {numref}`fig-invariance-pattern` shows one of these heads at work on a sentence: its weights in the two bases, and
# the attention it pays. To draw it we need the head's input, which is what the first block makes of the sentence, normalised.


# %%
@torch.no_grad()
def attention_pattern(model, text, layer):
    """Attention (H, L, L) that one layer pays on a text; row: query, column: key."""
    idx = corpus.encode(text)[None]
    x = model.transformer.wte(idx) + model.transformer.wpe(torch.arange(len(text)))
    for block in model.transformer.h[:layer]:
        x = block(x)
    a, weights = Attention(64, 4), head_weights(model, layer)
    q, k, _ = project(a, weights, model.transformer.h[layer].ln_1(x))
    later = torch.ones(len(text), len(text), dtype=torch.bool).triu(1)
    return scores(a, weights, q, k)[0].masked_fill(later, -torch.inf).softmax(-1)


sentence = "The owls by the gates sing."
patterns = [attention_pattern(m, sentence, layer=1) for m in (model, moved)]
assert (patterns[0] - patterns[1]).abs().max() < 1e-9

# %% mystnb={"image": {"alt": "Two rows of three heat maps. In the upper row the query weights, the key weights and the attention pattern of a trained head; in the lower row the same after a change of basis. The weights look quite different, the two triangular attention patterns are the same."}, "figure": {"caption": "One trained head in two bases. Above, as training left it; below, after a change of basis with condition number 100. Nothing in the weights looks alike, and the attention that each character of the sentence (rows) pays to itself and to earlier ones (columns; colour: root of the probability) is the same to $10^{-9}$.", "name": "fig-invariance-pattern"}}
head = 1
states = [
    (head_weights(m, 1)["W_Q"][head], head_weights(m, 1)["W_K"][head], pattern[head])
    for m, pattern in zip((model, moved), patterns)
]
weights_and_pattern(*states, sentence)

# %% [markdown]
# ## What rounding makes of it
#
# The lemma is exact; arithmetic is not. A computed score $q^\top k$ carries an error of up to about $u\, \|q\|\, \|k\|$, where
# $u$ is the rounding unit of the number format, however small $q^\top k$ is. After the change of basis,
#
# $$
# \|S q\|\, \|S^{-\top} k\| \;\le\; \|S\|\, \|S^{-1}\|\, \|q\|\, \|k\| \;=\; \kappa(S)\, \|q\|\, \|k\| .
# $$
#
# So the error that a change of basis can add grows like $u\, \kappa(S)$, and stops only when nothing of the logits is left. We move all
# heads by random $S$ of one condition number, always in float64, then round the weights to each format, run the model in that format,
# and compare it with the unmoved model in the same format.

# %%
formats = {name: getattr(torch, name) for name in ("float64", "float32", "bfloat16")}
conditions, draws = torch.logspace(0, 6, 13, dtype=torch.float64), 5
reference = {name: logits_of(model, dtype) for name, dtype in formats.items()}
damage = {name: torch.empty(len(conditions), draws).double() for name in formats}
for i, condition in enumerate(conditions.tolist()):
    for draw in range(draws):
        moved_now = change_bases(model, [condition] * 4, seed=100 * i + draw)
        for name, dtype in formats.items():
            change = logits_of(moved_now, dtype) - reference[name]
            damage[name][i, draw] = change.abs().max() / reference[name].abs().max()

# %% [markdown]
# On logarithmic axes growth in proportion to $\kappa$ is a line of slope 1. We measure the slope over condition numbers from $10^2$ to
# $10^5$, on the median draw, to within 0.3: there rounding of $S$ itself no longer hides the growth, and saturation has not begun.

# %%
for name in ("float64", "float32"):
    middle = damage[name].median(1).values.log10()
    slope = (middle[10] - middle[4]) / 3  # from 1e2 to 1e5
    assert abs(slope - 1) < 0.3
    print(f"{name}: slope {slope:.0f}")
assert damage["float64"].max() < 1e-9
assert 0.005 < damage["float32"][-1].median() < 0.1
coarse = damage["bfloat16"]
assert coarse[0].max() < 0.05 and coarse[conditions > 999].min() > 0.1
assert coarse[conditions > 9999].min() > 0.5

# %% mystnb={"image": {"alt": "Worst relative change of the logits against the condition number of S, both axes logarithmic, for three number formats. The float64 and float32 points rise side by side with slope one, almost nine decades apart; the bfloat16 points start near one hundredth and level off at about one from a condition number of ten thousand on."}, "figure": {"caption": "Worst relative change of the trained model's logits when all its heads change basis, against the condition number of the change, five random draws each (dots; lines through the medians). Grey: the unit of rounding times the condition number. In exact arithmetic every point would be zero.", "name": "fig-invariance-condition"}}
units = {name: torch.finfo(dtype).eps / 2 for name, dtype in formats.items()}
damage_by_condition(conditions, damage, units)

# %% [markdown]
# {numref}`fig-invariance-condition` is a warning to whoever edits checkpoints. In float64 every change of basis on the axis is harmless. In
# float32 one of condition $10^6$ moves the logits by per cents. In bfloat16 $10^3$ moves them by more than a tenth, and from $10^4$ on the
# model is another model. The directions are still unidentified; the format has too few digits for the change.

# %% [markdown]
# ## Break it
#
# **A singular $S$.** Then there is no $S^{-\top}$; the pseudoinverse is the best substitute. The product becomes
# $W_K^\top S^+ S\, W_Q$, with the projection $S^+ S$ in the middle, and it loses one rank for each singular value that is zero.

# %%
values = torch.tensor([1.0, 2.0, 3.0, 0.0], dtype=torch.float64)
S = rotation(D, seed=5) * values @ rotation(D, seed=6)
flattened = (torch.linalg.pinv(S, rtol=1e-10).mT @ W_K).mT @ (S @ W_Q)
assert relative_change(flattened, M) > 0.1
print("rank of the score product:", rank(M), "before,", rank(flattened), "after")
assert rank(M) == D == rank(flattened) + 1

# %% [markdown]
# **One side only.** Move the queries of the trained model and leave the keys. We take the gentlest change there is, a rotation of each
# head: lengths are kept, the scores are not.

# %%
half_moved, rotated = copy.deepcopy(model), change_bases(model, [1.0] * 4, seed=6)
for layer in range(2):
    set_head_weights(half_moved, layer, W_Q=head_weights(rotated, layer)["W_Q"])
broken = evaluate(half_moved, corpus.val, batches=4, context=50).loss
assert (logits_of(rotated) - before).abs().max() < 1e-9 * before.abs().max()
assert (logits_of(half_moved) - before).abs().max() > 0.1 * before.abs().max()
assert broken > loss.loss + 0.3
print("queries and keys rotated: logits unchanged; queries only: loss up by over 0.3")

# %% [markdown]
# **Weights without their biases.** With biases the query is $W_Q x + b_Q$ and the key $W_K x + b_K$, and the change of basis must
# carry the biases too, as one more column of each map. A chapter on biases returns to this. Here we only look.

# %%
biased = Attention(12, 3, bias="qk")
p = biased.random_parameters(seed=7)
x = random_inputs(biased, batch=4, length=6, seed=8)
S = torch.stack([change_of_basis(biased.D, 10.0, seed) for seed in range(biased.H)])
names = ("W_Q", "W_K", "b_Q", "b_K")
everything = p | dict(zip(names, act_query_key(S, *(p[n] for n in names))))
weights_only = p | dict(zip(names[:2], act_query_key(S, p["W_Q"], p["W_K"])))
y = forward(biased, p, x)
relative = lambda q: relative_change(forward(biased, q, x), y)
assert relative(everything) < 1e-12 and relative(weights_only) > 0.1
print("biases carried along: the same outputs; left behind: changed by over a tenth")

# %% [markdown]
# **Heads wider than their input.** For $D > E$ the lemma still holds, but $S$ is no longer visible in $S W_Q$: the orbit map stops being
# an immersion. A change $T$ with $T W_Q = 0$ and $T^\top W_K = 0$ does nothing at all, and there are $(D - E)^2$ dimensions of such $T$.
# What is left is $D^2 - (D - E)^2 = 2DE - E^2$, which is the count of {prf:ref}`prop-count-r` with $r = E$. At $E = 1$ it is $2D - 1$, the
# paper's first example ({prf:ref}`ex-inner-product`).

# %%
orbits = []
for n, width in ((4, 12), (5, 5), (5, 3), (4, 1)):  # D and E
    pair = normal(2, n, width, seed=9)
    orbits.append(orbit_rank(*pair, torch.eye(n, dtype=torch.float64)))
    assert orbits[-1] == 2 * n * width - product_rank(*pair)
    assert orbits[-1] == count(Attention(width, 1, head_dim=n)).terms["query-key maps"]
    print(f"D = {n}, E = {width:2}: D^2 = {n**2:2}, orbit {orbits[-1]:2}")
check("lemma-4.1", widths=orbits)

# %% [markdown]
# **The mask.** Under any mask the outputs are a function of the scores, so the $D^2$ directions stay idle. That there are no others is
# {prf:ref}`lem-two-products`, whose proof looks at a token that sees itself and one more; without a mask there are such tokens, and under
# a causal one. Under a mask that shows each token itself alone there are none. All weights of attention are 1 then, and all
# $2DE$ numbers idle. And a query that sees no key has no weights at all: its softmax divides zero by zero.


# %%
def masked(query_map, key_map, value_map, inputs, seen):
    """One head (L, E) -> (L, E); seen (L, L): at which keys a query may look."""
    asked = inputs @ query_map.mT @ (inputs @ key_map.mT).mT
    shares = asked.masked_fill(~seen, -torch.inf).softmax(-1)
    return shares @ inputs @ value_map.mT


def idle_under(seen):
    """How many query and key numbers no output shows, with E = 6 and D = 3."""
    maps = (*normal(2, 3, 6, seed=10), normal(6, 6, seed=11), normal(40, 4, 6, seed=12))
    parts = torch.func.jacrev(masked, argnums=(0, 1))(*maps, seen)
    rows = torch.cat([part.flatten(-2).flatten(0, 2) for part in parts], 1)
    assert rows.isfinite().all()
    return rows.shape[1] - (rank(rows) if rows.any() else 0)


every = torch.ones(4, 4, dtype=torch.bool)
alone = torch.eye(4, dtype=torch.bool)
check("lemma-4.1", masks=[idle_under(seen) for seen in (every, every.tril(), alone)])
empty = masked(*normal(2, 3, 6), normal(6, 6), normal(1, 4, 6), ~every)
assert empty.isnan().all()

# %% [markdown]
# ## What it means
#
# The space in which a head compares queries with keys has no coordinates of its own. Rows of $W_Q$, single query features, the angle
# between two queries, the norm of $W_K$: none of them is a property of the function. What is, is the product $M = W_K^\top W_Q$, a matrix of rank at most $D$,
# which {cite:t}`elhage2021` call the QK {term}`circuit`. Whoever interprets, merges or compares heads by their weights has to choose
# a basis first, or use quantities that do not depend on it. {cite:t}`zhang2025` match the rotations among these changes of basis before they fuse two models.
# {cite:t}`zhao2025` survey such symmetries in neural networks at large.
#
# It does not follow that the model is too large by that share, nor that training wastes that much. A redundant description of a
# function can be easier to train, or harder; the later parts of the book look at what optimisers do along these directions.

# %% [markdown]
# ## Exercises
#
# **1. Which part is rotations?** How many of the $D^2$ dimensions do the rotations make, the scalings, and the permutations? Which
# directions does $D^2$ count that are in none of the three?
#
# ```{admonition} Answer
# :class: dropdown
#
# Near $S = I$ a rotation is $I + \epsilon T$ with $T$ skew: $D(D-1)/2$ dimensions, a little under half. Scalings are $T$ diagonal: $D$ more.
# Permutations are isolated points and make none. The other $D(D-1)/2$ are symmetric $T$ with zero diagonal: stretches along axes that are not
# the coordinate axes. Rotations and scalings together *generate* them, as the singular value decomposition of $S$ shows, although their
# tangent spaces do not span them. The cell below counts.
# ```

# %% tags=["hide-cell"]
units = torch.eye(D * D, dtype=torch.float64).view(-1, D, D)


def dimension(T):
    """Dimension of the span of the directions (T W_Q, -T^T W_K), T (k, D, D)."""
    return rank(torch.cat((T @ W_Q, -T.mT @ W_K), 1).flatten(1))


skew, diagonal = units - units.mT, torch.diag_embed(torch.eye(D, dtype=torch.float64))
sizes = [dimension(T) for T in (skew, diagonal, torch.cat((skew, diagonal)), units)]
assert sizes == [D * (D - 1) // 2, D, D * (D + 1) // 2, D**2]
print("rotations, scalings, both, all:", sizes)

# %% [markdown]
# **2. Store only what is identified.** Choose $S$ for each head of the trained model so that the first $D$ columns of $S W_Q$ are the
# identity matrix, which then need not be stored. How many numbers remain, what is the share, and are the logits the same? When does the choice fail?
#
# ```{admonition} Answer
# :class: dropdown
#
# Let $A$ be the first $D$ columns of $W_Q$ and take $S = A^{-1}$. There remain $D(E - D) + DE = 2DE - D^2$ numbers a head, exactly the identified
# number; with four heads the share is $7/8$. It fails when $A$ is singular, and loses digits when $A$ is nearly so: the condition number of $A$ is
# what {numref}`fig-invariance-condition` has on its axis. This is the most economical way to write a head down, not a good one to compute with.
# ```

# %% tags=["hide-cell"]
compact, stored, H, D, E = copy.deepcopy(model), 0, 4, 16, 64
identity = torch.eye(D, dtype=torch.float64)
for layer in range(2):
    weights = head_weights(model, layer)
    S = torch.linalg.inv(weights["W_Q"][..., :D])
    W_Q, W_K = act_query_key(S, weights["W_Q"], weights["W_K"])
    assert (W_Q[..., :D] - identity).abs().max() < 1e-9
    stored += W_Q[..., D:].numel() + W_K.numel()
    W_Q = torch.cat((identity.expand(H, D, D), W_Q[..., D:]), -1)
    set_head_weights(compact, layer, W_Q=W_Q, W_K=W_K)
whole = 2 * H * 2 * D * E
assert stored == 2 * H * (2 * D * E - D**2)
assert (logits_of(compact) - before).abs().max() < 1e-7 * before.abs().max()
print(f"{stored} of {whole} numbers, share {stored / whole}; logits the same")

# %% [markdown]
# **3. Weight decay has an opinion.** The loss does not change along the orbit; $\|W_Q\|_F^2 + \|W_K\|_F^2$ does. Which scalar $S = cI$
# makes it smallest, and what does the optimum look like?
#
# ```{admonition} Answer
# :class: dropdown
#
# $c^2 \|W_Q\|^2 + c^{-2} \|W_K\|^2$ is smallest at $c^2 = \|W_K\| / \|W_Q\|$, where the two terms are equal, and its value is
# $2\, \|W_Q\|\, \|W_K\|$. Weight decay breaks the tie that the loss leaves: it identifies, along this direction, what the data cannot.
# ```

# %% tags=["hide-cell"]
W_Q, W_K = head_weights(model, 0)["W_Q"][0], head_weights(model, 0)["W_K"][0]
squares = lambda c: (c * W_Q).square().sum() + (W_K / c).square().sum()
best = (W_K.norm() / W_Q.norm()).sqrt()
assert abs(squares(best) - 2 * W_Q.norm() * W_K.norm()) < 1e-12 * squares(best)
assert all(squares(best * factor) > squares(best) for factor in (0.9, 0.99, 1.01, 1.1))
assert ((best * W_Q).norm() - (W_K / best).norm()).abs() < 1e-10
print("smallest where both have the same norm")

# %% [markdown]
# **Next:** if a head can be written in any basis, is there one that deserves to be preferred? {doc}`Chapter 3
# <03_canonical_factorisation>` picks a canonical one, and counts $D^2$ a second time on the way.
