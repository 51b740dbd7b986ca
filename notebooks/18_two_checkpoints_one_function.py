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
# # Two checkpoints, one function
#
# *Assumed: the two {term}`circuits <circuit>` of a head and what moves them ({doc}`02_query_key_invariance`, {doc}`05_many_heads`, {doc}`06_biases`), what the stream of a
# network hides ({doc}`14_a_whole_network`), and the runs of {doc}`13_nanogpt` at the size of a laptop. Nothing here is in the paper.*
#
# *In the ledger:* {ref}`what alignment can change <ledger-aligned-path>`, {ref}`two children <ledger-between-children>`, {ref}`two seeds <ledger-between-seeds>`.
#
# ## The question
#
# Two files hold two sets of weights. Are they one function? A number of each pair of weights that differs says nothing, for one function has a whole {term}`orbit` of weights.
# Compared must be what is {term}`identified`, and that is what the package's `compare` does. Where the two are one function, `align` brings the one set of weights onto the other.
#
# And where they are *not* one function, but two models trained for one task? People average such weights, and it works where the two have a parent in common, and fails where
# they have not. Is the failure only that the two stand in different gauges? Alignment costs no training and changes no function. So: how high is the loss on the straight line between two
# trained models, before and after they are aligned, and which symmetry buys how much of the difference?

# %% [markdown]
# ## The claim
#
# Write $A$ and $B$ for all the weights of two models of one make, and $\ell(A)$ for the loss. On the line between them stand $A_t = (1 - t) A + t B$. The **barrier** is how far
# the loss rises above the chord between its ends:
#
# $$
# b(A, B) = \max_{0 \le t \le 1} \big[ \ell(A_t) - (1 - t)\, \ell(A) - t\, \ell(B) \big] \ge 0 .
# $$ (eq-barrier)
#
# A *symmetry* $g$ moves weights and no output, whatever the weights. Those of this book are affine in the weights: changes of basis in a circuit, idle biases moved, heads,
# hidden units and coordinates of the stream in another order. *Aligning* $B$ with $A$ is to choose a symmetry $g$ and to put $g B$ in the place of $B$.
#
# ```{prf:proposition} What alignment can and cannot change
# :label: prop-18-path
#
# 1. The ends keep their losses: $\ell(g B) = \ell(B)$ for every symmetry $g$. So the chord stays; what changes is the line.
# 2. $b(g A, g B) = b(A, B)$ for every affine symmetry $g$: only the gauge of the one relative to the other counts.
# 3. If $B = g A$, then $b(A, g^{-1} B) = 0$, whatever $b(A, B)$ was.
# ```
#
# Why nearest in the sum of squares? Because of what happens to a product on the line. Let a head have the weights $W_Q, W_K$ in one model and $W_Q', W_K'$ in the other, with biases as
# one more column, and $M = W_K^\top W_Q$, $M' = W_K'^\top W_Q'$.
#
# ```{prf:proposition} Products on the line
# :label: prop-18-products
#
# The weights at $t$ have the product
#
# $$
# (1 - t)\, M + t\, M' - t (1 - t)\, (W_K' - W_K)^\top (W_Q' - W_Q),
# $$ (eq-line)
#
# whose last term is no larger than $\tfrac12 t (1 - t)\, d^2$ in the Frobenius norm, $d^2 = \|W_K' - W_K\|^2 + \|W_Q' - W_Q\|^2$. The same holds for $W_O W_V$.
# ```
#
# No gauge changes $M$ or $M'$. So a circuit that is aligned can at best go straight from the one to the other, and $d^2$, which `align` makes small, bounds how far it strays. Whether
# models halfway between $M$ and $M'$ are any good is nothing that a gauge could change.

# %% [markdown]
# ## Proof
#
# ```{prf:proof}
# (of {prf:ref}`prop-18-path`) *1* is what a symmetry is. *2.* An affine $g$ has $g((1 - t) A + t B) = (1 - t)\, g A + t\, g B$. So the models on the line from $g A$ to $g B$ are the images of those on the
# line from $A$ to $B$, and have the same losses. *3.* The line from $A$ to $g^{-1} B = A$ is one point. And $b \ge 0$, since at $t = 0$ the bracket of {eq}`eq-barrier` is 0.
# ```
#
# ```{prf:proof}
# (of {prf:ref}`prop-18-products`) Multiply out: the product is $(1-t)^2 M + t (1-t) (W_K^\top W_Q' + W_K'^\top W_Q) + t^2 M'$. Insert $(1-t)^2 = (1-t) - t(1-t)$ and
# $t^2 = t - t(1-t)$, and what has the factor $t (1-t)$ is $-(W_K' - W_K)^\top (W_Q' - W_Q)$. Its norm is at most $\|W_K' - W_K\|\, \|W_Q' - W_Q\| \le d^2 / 2$.
# ```
#
# **Which symmetries there are.** Chapter 14 has counted them. In a GPT with LayerNorm and tied embeddings each circuit has a change of basis, $D^2$ directions; idle key biases, and value biases against the
# output bias; $H!$ orders of the heads in a layer and $F!$ of the $F$ units of an MLP. Of the stream there is little: tying breaks most
# rotations ({prf:ref}`lem-14-tied`), and those that it leaves go with changes of the last gain, and depend on the gains and the tokens of the very model; they are no affine group, and we do not use them.
# What is left is the *order* of the stream's $E$ coordinates, the same for everything that reads and writes them, and one sign for all, which we leave.
#
# All rotations that keep $\mathbf{1}$ come back if the models are written in another form: gains and shifts of the norms in the maps that read them, and a head of its own beside the embedding ({prf:ref}`lem-14-stream`, part 4). Each function stays.
# But folding a gain is a product, $W \operatorname{diag}(\gamma)$, and not affine. It is no symmetry of the old form but a change of form, the line between two folded models is another line, and the models on it are in general none of the tied family.

# %% [markdown]
# ## The same symbols in code
#
# First files. A small GPT is saved twice, the second time with each head moved by a random matrix, and a third one from another seed.

# %%
import tempfile
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from attnid import GPT, GPTConfig, align, compare, count
from attnid import figures, fingerprint, load_corpus
from attnid.claims import check
from attnid.layer.description import Attention
from attnid.layer.gauge import act_query_key, act_value_output
from attnid.models.examples import save_gpt
from attnid.models.interpolation import POINTS, barrier, losses_between, read_pairs
from attnid.models.nanogpt import load_nanogpt
from attnid.models.nearest import nearest_parameters
from attnid.models.versions import nearest_gauge_of
from attnid.network import random_parameters
from attnid.network.gpt import head_weights, set_head_weights
from attnid.tensors import normal, relative_change
from attnid.training.children import Person, trained
from attnid.training.statistics import t_interval

# %%
folder = Path(tempfile.mkdtemp())
one, moved = save_gpt(folder, "one.pt"), save_gpt(folder, "moved.pt", gauge=True)
other = save_gpt(folder, "other.pt", seed=1)

# %%
for name, path in (("moved", moved), ("other", other)):
    found, apart = compare(one, path), fingerprint(one).distance(fingerprint(path))
    print(
        f"{name}: one function: {found.same}; moved along {found.moved} directions;",
        end="",
    )
    print(f" fingerprints within 1e-9: {apart < 1e-9}")
report = align(one, moved, folder / "aligned.pt")
print(f"distance of the weights before: {report['before']:.1f}")
check(
    "aligned-path",
    same=[compare(one, moved).same, compare(one, other).same],
    directions=compare(one, moved).moved,
    file_aligned=report["after"],
)

# %% [markdown]
# Two heads have a change of basis of $4 \times 4$ in each of two circuits, 64 numbers, and all of them were moved. Now one head is put off the orbit, its queries by a
# thousandth; `compare` names it, in whatever gauge it is.

# %%
saved = torch.load(moved, weights_only=True)
queries = saved["model"]["transformer.h.0.attn.c_attn.weight"][4:8]  # of head 1
queries *= 1.001
torch.save(saved, folder / "off.pt")
(found,) = compare(one, folder / "off.pt").differences
print(f"layer {found.layer}, head {found.head}, {found.circuit}: {found.size:.1e}")
check("aligned-path", named=[found.layer, found.head], off_by=found.size)

# %% [markdown]
# **The line.** {eq}`eq-line` on random weights, and how near its bound the last term comes before and after the second pair is brought nearest to the first.

# %%
E, D, t = 12, 4, 0.3
W_Q, W_K, other_Q, other_K = (normal(D, E, seed=seed) for seed in range(4))
product = lambda W_Q, W_K: W_K.mT @ W_Q


def on_the_line(other_Q, other_K):
    """The product at t; what the formula says of it; its last term, and the bound."""
    mix = lambda ours, theirs: (1 - t) * ours + t * theirs
    found = product(mix(W_Q, other_Q), mix(W_K, other_K))
    strays = t * (1 - t) * product(other_Q - W_Q, other_K - W_K)
    chord = mix(product(W_Q, W_K), product(other_Q, other_K))
    d2 = (other_Q - W_Q).square().sum() + (other_K - W_K).square().sum()
    return found, chord - strays, strays.norm(), t * (1 - t) * d2 / 2


# %%
S = normal(D, D, seed=5)
far = on_the_line(*act_query_key(S, other_Q, other_K))
stacked = {"W_Q": W_Q[None], "W_K": W_K[None], "W_V": W_Q[None], "W_O": W_K.mT[None]}
theirs = stacked | {
    "W_Q": S @ other_Q[None],
    "W_K": torch.linalg.solve(S.mT, other_K)[None],
}
nearest = nearest_parameters(Attention(E, 1, head_dim=D), stacked, theirs)
near = on_the_line(nearest["W_Q"][0], nearest["W_K"][0])
check(
    "aligned-path",
    product_on_the_line=[relative_change(line[0], line[1]) for line in (far, near)],
    strays_over_bound=[line[2] / line[3] for line in (far, near)],
    strays_less=near[2] / far[2],
)

# %% [markdown]
# ## The check
#
# **One model in two gauges.** A small GPT is trained for a few seconds on the text that the package carries in itself. Then all its circuits are moved, its heads and its hidden units
# reordered: the same function. The line between the two passes through models that are much worse, until the second is aligned.


# %%
def in_another_gauge(model, seed):
    """A copy of the function: circuits moved, heads and units in another order."""
    new = deepcopy(model)
    H, D, order = new.config.n_head, new.config.head_dim, [1, 0]
    for layer, block in enumerate(new.transformer.h):
        p = head_weights(new, layer)
        S, V = (
            normal(H, D, D, seed=seed + layer),
            normal(H, D, D, seed=seed + layer + 9),
        )
        p["W_Q"], p["W_K"], p["b_Q"], p["b_K"] = act_query_key(
            S, p["W_Q"], p["W_K"], p["b_Q"], p["b_K"]
        )
        p["W_V"], p["W_O"] = act_value_output(V, p["W_V"], p["W_O"])
        p["b_V"] = (V @ p["b_V"][..., None])[..., 0]
        heads = {n: w if n == "b_O" else w[order] for n, w in p.items()}
        set_head_weights(new, layer, **heads)
        with torch.no_grad():
            for w in (block.mlp.c_fc.weight, block.mlp.c_fc.bias):
                w.copy_(w.flip(0))
            block.mlp.c_proj.weight.copy_(block.mlp.c_proj.weight.flip(1))
    return new


# %%
text = load_corpus("embedded").val
model = load_nanogpt(trained(Person(0), folder, preset="smoke", steps=200)).double()
second = load_nanogpt(trained(Person(1), folder, preset="smoke", steps=200)).double()
same = in_another_gauge(model, seed=1)
line = lambda a, b: losses_between(a, b, text, windows=32)
aligned = line(model, nearest_gauge_of(model, same))
both = line(same, in_another_gauge(second, seed=1))
check(
    "aligned-path",
    barrier_before=barrier(line(model, same)),
    barrier_after=barrier(aligned),
    ends=relative_change(aligned[[0, -1]], line(model, same)[[0, -1]]),
    both_moved=relative_change(both, line(model, second)),
)

# %% [markdown]
# The last number is part 2 of {prf:ref}`prop-18-path`: the model and one from another seed, moved alike, have the same losses all along the line, which is measured at eleven points.

# %% [markdown]
# ## Two children, two seeds
#
# Now models at the size of a laptop: 4 layers, 4 heads, $E = 128$, tiny Shakespeare, AdamW, all as in {doc}`13_nanogpt`. A *parent* is trained for 1,000 steps. Each of its two *children* goes on from its weights for 1,000 more,
# with a new optimizer, the same schedule, and batches of its own. Two kinds of pairs:
#
# - **children**: both children of one parent, which differ in the order of their data since they were born;
# - **independent**: a child of one parent and a child of the next, which have nothing in common but the recipe.
#
# No model is in two pairs of a kind. But independent pairs are links of a ring, and neighbours share a parent, so their intervals are somewhat too hopeful. Losses are taken at eleven points, on the first 16,384 characters of the validation text, always the same: an interval here speaks of other
# pairs, not of other texts. Ten pairs are few; so what the ledger claims is what every single pair shows. The second model of each pair is rewritten by more and more symmetries:
#
# | Version | What may move |
# |---|---|
# | as trained | nothing |
# | circuits | each head's change of basis, $D^2$ numbers a circuit, biases along |
# | heads | also the order of the heads |
# | units | also the order of the MLPs' units: what `align` does |
# | stream | also the order of the stream's 128 coordinates |
# | norms | as "units", both models folded and with a head of their own |
# | rotations | as "norms", and the stream turned by any rotation that keeps $\mathbf{1}$ |
#
# Where the stream moves, stream and layers are matched in turn until nothing gains; the first turn goes by what needs no matching inside a layer: embeddings, norms and output biases. Tokens and positions are the same in both models, so these point out which direction is which.
# All matching is by weights alone; no text is looked at. By chapter 14's count, the symmetries that are not orders have so many directions:

# %%
laptop = GPTConfig(65, 64, n_layer=4, n_head=4, n_embd=128, bias=True)
for tied in (True, False):
    terms = count(replace(laptop, tied=tied)).terms
    circuits = terms["query-key maps"] + terms["value-output maps"]
    turns = terms.get("residual rotations", 0)
    print(
        f"tied: {tied}; directions of circuits: {circuits:,}, of rotations: {turns:,}"
    )

# %%
records = read_pairs(Path("results") / "interpolation")  # {kind: [PairRecord]}
whole = [record for pairs in records.values() for record in pairs]
for key in ("data_sha256", "torch", "date", "preset", "steps"):
    found = sorted({str(record.provenance[key]) for record in whole})
    print(f"{key}: {', '.join(found)}")
for kind, pairs in records.items():
    ends = [loss for r in pairs for loss in r.losses["as trained"][:: len(POINTS) - 1]]
    print(f"{kind}: {len(pairs)} pairs, losses from {min(ends):.2f} to {max(ends):.2f}")

# %%
VERSIONS = [*whole[0].losses]
height = {
    kind: {v: np.array([r.barriers[v] for r in pairs]) for v in VERSIONS}
    for kind, pairs in records.items()
}
away = {
    kind: {v: np.array([r.distances[v] for r in pairs]) for v in VERSIONS}
    for kind, pairs in records.items()
}
for kind in records:
    print(f"{kind}{'':{18 - len(kind)}}distance   barrier, nats per character")
    for version in VERSIONS:
        mean = away[kind][version].mean()
        print(f"  {version:16}{mean:8.2f}   {t_interval(height[kind][version])}")


# %%
def above_chord(record, version):
    """The losses above the chord between their ends, at each point."""
    losses, t = np.array(record.losses[version]), np.array(POINTS)
    return losses - (1 - t) * losses[0] - t * losses[-1]


SHOWN = ("as trained", "circuits", "units", "stream", "rotations")
lines = {
    kind: {v: np.array([above_chord(r, v) for r in pairs]) for v in SHOWN}
    for kind, pairs in records.items()
}

# %% mystnb={"image": {"alt": "Two panels of loss above the chord against the share of the second model. Left, children: all versions lie on one another, at or just below zero. Right, independent models: as trained, circuits and units rise to about one nat halfway, the stream to about three quarters, rotations to less than a quarter."}, "figure": {"caption": "The loss on the line between two models above the chord between its ends, as trained and by more and more symmetries. Every pair is a thin line, the mean of the pairs a thick one; the scales of the panels differ.", "name": "fig-18-lines"}}
figures.lines_between(lines, POINTS)

# %% [markdown]
# **Children.** There is no barrier. Halfway the loss of every pair lies even a little below the chord: the mean of two children's weights is slightly better than two children in the mean. And they have hardly left each
# other's gauge: the best change of basis for each head brings their weights nearer by less than two parts in a hundred, and heads, units and coordinates are best left where they are. Alignment has nothing to buy here.

# %%
nearer = away["children"]["circuits"] / away["children"]["as trained"]
assert ((0.98 < nearer) & (nearer < 1)).all()
for version in ("heads", "units", "stream"):  # nothing is reordered
    assert np.allclose(away["children"][version], away["children"]["circuits"])
middle = POINTS.index(0.5)
halfway = lines["children"]["as trained"][:, middle]
bought = lines["children"]["rotations"][:, middle] - halfway
print(f"children, halfway, above the chord: {t_interval(halfway)}")
print(f"what all symmetries together change there: {t_interval(bought)}")
check(
    "between-children",
    barriers=height["children"]["as trained"],
    halfway=halfway,
    bought=bought,
)

# %% [markdown]
# **Independent models.** Here the barrier is about a nat, on losses of less than two. All that `align` does, every circuit in its best gauge, heads and units in their best order, takes away a twentieth of it. The order of the stream's
# coordinates takes away more than a third. Only with rotations of the stream is most of it gone, six sevenths; a barrier of a sixth of a nat stays.

# %%
before = height["independent"]["as trained"]
left = {v: height["independent"][v] / before for v in VERSIONS}  # of the barrier
for version in VERSIONS[1:]:
    print(f"{version:16} leaves of the barrier: {t_interval(left[version])}")
for version, share in (("units", 0.95), ("stream", 0.63), ("rotations", 1 / 7)):
    assert abs(left[version].mean() - share) < 0.01
check(
    "between-seeds",
    as_trained=before,
    circuits_leave=left["circuits"],
    align_leaves=left["units"],
    rotations_leave=left["rotations"],
)

# %% [markdown]
# Do the gauges of attention count for nothing, then, and the stream for all? Leave one symmetry out and keep the others, and it turns out that they buy *together*. With the stream turned but the circuits left as they were, half of the barrier is back,
# and two fifths of it with the units left in their order; the order of the heads is worth a tenth. That is as one would expect: as long as the streams of two models have nothing to do with each other, the best change of basis
# for a head compares maps out of two different spaces, and is best for nothing.

# %%
costs = {}
for name in ("circuits", "heads", "units"):
    costs[name] = left[f"without {name}"] - left["rotations"]
    print(f"without {name:9} more of the barrier is left: {t_interval(costs[name])}")
assert abs(costs["circuits"].mean() - 1 / 2) < 0.05
assert abs(costs["units"].mean() - 2 / 5) < 0.05
assert abs(costs["heads"].mean() - 1 / 10) < 0.05
check(
    "between-seeds",
    without_circuits=costs["circuits"],
    without_units=costs["units"],
    still_there=height["independent"]["rotations"],
)

# %% [markdown]
# More pairs are a command away. It trains what is missing, goes on where it was stopped, and adds a record for each pair to those that this page reads (a checkpoint took five minutes of one busy core):
#
# ```
# python -m attnid.pairs FOLDER --pairs 10
# ```

# %% [markdown]
# ## Break it
#
# **The wrong group.** Keys that go along with the queries, $(S W_Q, S W_K)$ in place of $(S W_Q, S^{-\top} W_K)$: a rotation passes, anything else makes another function.


# %%
def moved_along(model, S):
    """A copy of a model with S on queries and keys alike, biases too."""
    new = deepcopy(model)
    for layer in range(model.config.n_layer):
        p = head_weights(model, layer)
        both = {n: S @ p[n] for n in ("W_Q", "W_K")}
        set_head_weights(new, layer, **both | {n: p[n] @ S.T for n in ("b_Q", "b_K")})
    return new


stretch = normal(model.config.head_dim, model.config.head_dim, seed=3)
at_end = lambda S: line(model, moved_along(model, S))[-1] - line(model, model)[-1]
check(
    "aligned-path",
    rotated_alike=at_end(torch.linalg.qr(stretch).Q).abs(),
    stretched_alike=at_end(stretch),
)

# %% [markdown]
# **A group too large.** In a rotary model only what commutes with the rotations may move ({prf:ref}`lem-commutant`). Align one as if it did not turn: the general linear group is larger, and the weights come nearer. They are another model's.

# %%
rotary = GPTConfig(7, 5, 1, 2, 8, positions="rotary", tied=False)
ours, theirs = (GPT(rotary).double() for _ in range(2))
for seed, gpt in enumerate((ours, theirs)):
    gpt.load_state_dict(random_parameters(rotary, seed))
a, b = (head_weights(gpt, 0) for gpt in (ours, theirs))
tokens = torch.randint(7, (8, 5), generator=torch.Generator().manual_seed(4))
change, apart = {}, {}
for group, turns in (("commutes", rotary.rotary), ("general", ())):
    p = nearest_parameters(Attention(8, 2, rotary=turns), a, b)
    rewritten = deepcopy(theirs)
    set_head_weights(rewritten, 0, **p)
    change[group] = (rewritten(tokens)[0] - theirs(tokens)[0]).abs().max()
    apart[group] = sum((p[n] - a[n]).square().sum() for n in a).sqrt()
check(
    "aligned-path",
    rotary_right=change["commutes"],
    rotary_wrong=change["general"],
    nearer=apart["general"] / apart["commutes"],
)

# %% [markdown]
# ## What it means
#
# | | Children of one parent | Independent models |
# |---|---|---|
# | barrier as trained | none | about one nat |
# | what `align` may move: circuits, heads, units | nothing to buy | a twentieth, by itself |
# | also the order of the stream | nothing to buy | more than a third of the barrier |
# | also rotations of the stream, in another form of the model | nothing to buy | six sevenths of it; not all |
#
# Said plainly: for two models that share a parent, alignment is not needed, and for two that do not, the symmetries *inside* the layers, which are those that this book counts for attention, are useless alone. They are half of what works once the stream is turned.
# And that asks for another form of the model, for tied embeddings allow few rotations, and other ones in each model. `compare` and `align` answer the question of one function; they are no way to merge two.
#
# **What others found**, on other models and texts, so that numbers stand beside ours and not against them. Vision models become stable to the order of their data early in training, and end in one linearly connected region from then on {cite:p}`frankle2020`: our children do.
# By permutations of units alone, {cite:t}`ainsworth2023` have a barrier of zero between independently trained ResNets on CIFAR-10, and a counterexample to its being always so. For transformers of different seeds there are two studies with barriers in nats a token; their numbers are quoted from summaries of the papers' tables.
#
# | Models | What may move, matched by | Barrier before | after | left |
# |---|---|---|---|---|
# | MultiBERTs, masked words {cite:p}`verma2024` | heads and coordinates inside a head, units matched before and after; by what they compute | 4.31 | 3.71 | 86 % |
# | small GPT-2, tiny Shakespeare {cite:p}`theus2025` | circuits, heads, units, rotations of the stream; by weights | 2.02 | 0.34 | 17 % |
# | the same | the same; by descent on the loss halfway | 2.02 | 0.02 | 1 % |
# | the same, BookCorpus | as two rows above; by weights | 4.34 | 1.56 | 36 % |
#
# The second row is of the same text and a like size as ours, with the maps of our "rotations", matched by weights alone as ours are; and what it leaves, 17 %, is about what we are left with, 14 %. The third says that the rest is a matter of the matching and not of the models: on such a text the same maps, chosen by the loss, leave next to nothing. The last row says that this need not be so on every text.
#
# **What these runs cannot say besides.** One size, one text, one recipe, and 2,000 steps are short. Least squares weighs all numbers alike, whether the function feels them or not. And a low barrier between two models says that their mean is no worse than they are, not that it is better.
#
# ## Exercises
#
# **1.** How near can two heads come, whatever the gauge of the second? Show that $d$ of {prf:ref}`prop-18-products` obeys $\sigma d + d^2 / 2 \ge \|M' - M\|$ with
# $\sigma^2 = \|W_K\|_2^2 + \|W_Q\|_2^2$ (spectral norms of the head that stays).
#
# ```{admonition} Answer
# :class: dropdown
#
# With $\delta W_Q = W_Q' - W_Q$ and $\delta W_K$ likewise, $M' - M = W_K^\top \delta W_Q + \delta W_K^\top W_Q + \delta W_K^\top \delta W_Q$. The first two terms are at most $\|W_K\|_2 \|\delta W_Q\| + \|W_Q\|_2 \|\delta W_K\| \le \sigma d$ by
# Cauchy and Schwarz, the last at most $d^2/2$. So $d \ge \sqrt{\sigma^2 + 2 \|M' - M\|} - \sigma$: what is identified sets a distance that no alignment removes.
# ```

# %% tags=["hide-cell"]
sigma2 = sum(torch.linalg.matrix_norm(W, 2) ** 2 for W in (W_Q, W_K))
gap = (product(W_Q, W_K) - product(other_Q, other_K)).norm()
least = (sigma2 + 2 * gap).sqrt() - sigma2.sqrt()
found = sum((nearest[n] - stacked[n]).square().sum() for n in ("W_Q", "W_K")).sqrt()
print(f"no gauge below {least:.2f}; the nearest found: {found:.2f}")
assert 0 < least < found

# %% [markdown]
# **2.** Two models that were matched are folded: the gains $\gamma$, $\gamma'$ go into the maps $W$, $W'$ that read them. How far is the middle of the folded pair from the middle of the pair, folded?
#
# ```{admonition} Answer
# :class: dropdown
#
# By $\tfrac14 (W' - W) \operatorname{diag}(\gamma' - \gamma)$: a product again, and {eq}`eq-line` once more, at $t = \tfrac12$. It is zero where gains or maps agree.
# ```

# %% tags=["hide-cell"]
W, other_W = normal(3, E, seed=6), normal(3, E, seed=7)
gain, other_gain = 1 + 0.1 * normal(E, seed=8), 1 + 0.1 * normal(E, seed=9)
middle_of = lambda x, y: (x + y) / 2
folded = middle_of(W * gain, other_W * other_gain)
unfolded = middle_of(W, other_W) * middle_of(gain, other_gain)
expected = (other_W - W) * (other_gain - gain) / 4
assert relative_change(folded - unfolded, expected) < 1e-12
print(f"relative to the map: {relative_change(folded, unfolded):.3f}")

# %% [markdown]
# *Next:* {doc}`19_gates_and_relative_biases` counts what layers have been given since: gates, and learned numbers for the distance of two tokens.
