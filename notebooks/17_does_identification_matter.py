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
# # Does identification matter?
#
# *Assumed: the count $1 - 1/(2H)$ of {doc}`05_many_heads`, the canonical form of {doc}`16_real_checkpoints`, and how {doc}`13_nanogpt` compares runs: in pairs, by seed.*
#
# *In the ledger:* {ref}`the hypothesis <ledger-hypothesis>`, {ref}`what idle parameters can do <ledger-idle-steering>`.
#
# ## The question
#
# The paper's introduction says what all its counting is for: *presuming* that more identified parameters mean more predictive capability at the same size, multi-head attention, rotary positions and grouped queries may owe some of their success to identification alone. It does not test the presumption. Can it be tested?
#
# What follows is a *pilot*: nothing of it was registered before it was run, rates are not tuned, and no run shows what identified parameters are worth at this size. It settles nothing. It shows how the question can be put, what these runs say, and what a study that answers would need.
#
# A comparison of one head with eight cannot do it, as the paper itself says: these are different families of functions. What is needed is attention that computes *the same functions* with more idle parameters, or with fewer. We have both.

# %% [markdown]
# ## The claim
#
# Take a head's scores through $M = W_K^\top W_Q$ (tokens as columns), and write $K = W_K$, $Q = W_Q$. We compare three sets of parameters for the same $M$:
#
# | | Parameters | Numbers of a head | Of these idle |
# |---|---|---|---|
# | *plain* | $K$, $Q$ | $2DE$ | $D^2$ |
# | *canonical* | $K$ with the columns $S$ held at a multiple of $I$, and $Q$ | $2DE - D^2$ | $0$ |
# | *factored* | $(I + A) K$ and $(I + B) Q$ with trained $D \times D$ matrices $A$, $B$ | $2DE + 2D^2$ | $3D^2$ |
#
# All three have $2DE - D^2$ identified parameters. What, then, can idle ones do?
#
# ```{prf:proposition} Idle parameters steer, and do no more
# :label: prop-idle-steering
#
# Let $L$ be a differentiable function of $M$ alone, and $G = \partial L / \partial M$.
#
# 1. The infimum of $L$ is the same over plain, canonical and factored parameters.
# 2. Under gradient flow, where plain and canonical $K$, $Q$ agree, and the factored ones at $A = B = 0$ too, $M$ moves by
#
# $$
# \dot M = - \begin{cases}
# K^\top K\, G + G\, Q^\top Q & \text{plain,} \\
# K^\top K\, G + \Pi\, G\, Q^\top Q & \text{canonical,} \\
# K^\top K\, G\, (I + Q^\top Q) + (I + K^\top K)\, G\, Q^\top Q & \text{factored,}
# \end{cases}
# $$ (eq-steering)
#
# where $\Pi$ sets the rows $S$ to zero. All three lower $L$ unless they stand still.
# ```
#
# So the number of idle parameters has no say in what a model can be. It has a say in how it gets there, as a preconditioner has: the same gradient, sent through another linear map. If fewer idle parameters make better models of the same family, it must be by better learning, and that is a matter for experiments.
#
# ```{prf:conjecture} More identified parameters make better models (paper: sections 1, 6)
# :label: conj-hypothesis
#
# Let a GPT be trained by a fixed recipe, and its validation loss be read at the end.
#
# 1. *The same functions:* the loss is lower without the idle parameters of attention (canonical), and higher with more of them (factored).
# 2. *The same size:* the loss is lower if the numbers that the canonical form saves are spent on a wider MLP.
# 3. *More heads:* at the same size the loss falls with the identified share $1 - 1/(2H)$.
# ```
#
# The third is where the paper starts from. It is the weakest test, since functions change as well, and with them the rate that would suit.

# %% [markdown]
# ## Proof
#
# ```{prf:proof}
# (of {prf:ref}`prop-idle-steering`) *1.* Every canonical $M$ is a plain one, and every factored $M$ is plain with the factors multiplied out; a plain $M$ is factored with $A = B = 0$. Conversely, plain weights whose $K[:, S]$ is invertible can be made canonical with the same $M$ ({prf:ref}`prop-canonical-layer`), and such weights are dense in
# all plain ones; $L$ is continuous, so its infimum over them is that over all.
#
# *2.* From $dM = dK^\top Q + K^\top dQ$, the gradients are $\partial L/\partial Q = K G$ and $\partial L / \partial K = Q\, G^\top$. Plain: $\dot M = \dot K^\top Q + K^\top \dot Q = -(G Q^\top Q + K^\top K G)$. Canonical: $K$ moves in the columns outside $S$ only, so $\dot K = - Q\, G^\top \Pi$. Factored, with
# $K' = (I + A) K$: at $A = 0$ the gradient in $A$ is $Q\, G^\top K^\top$, so $\dot K' = \dot A K + \dot K = - Q\, G^\top (K^\top K + I)$, and likewise $\dot Q' = - K G\, (Q^\top Q + I)$; insert these. Along the flow $\dot L = \langle G, \dot M \rangle$ is minus the squared norm of the gradient in the parameters.
# ```

# %% [markdown]
# ## The same symbols in code
#
# Part 1 of the proposition first, at a random plain point: a canonical and a factored pair with its product, and the way back. Not every $M$ has a canonical pair, so part 1 speaks of an infimum: where $K[:, S]$ is singular, canonical products come as near as one likes.

# %%
from pathlib import Path

import numpy as np
import torch

from attnid import Attention, count, figures, rebalance
from attnid.training.experiments import PRESETS
from attnid.network.gpt import GPT, GPTConfig, head_weights
from attnid.training.parametrisations import Held, canonical_gpt, factored_gpt
from attnid.training.records import read_records
from attnid.training.statistics import equivalence, paired, sign_flip_p, t_interval

# %% tags=["claim-idle-steering"]
E, D = 8, 3
generator = torch.Generator().manual_seed(0)
draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)


def canonical_pair(K, Q):
    """The pair of the same product whose first D key columns are I; K[:, :D] must be invertible."""
    return torch.linalg.solve(K[:, :D], K), K[:, :D].mT @ Q


def factored_pair(K, Q, A, B):
    """Weights that the factors I + A and I + B turn into K and Q."""
    return tuple(
        torch.linalg.solve(torch.eye(D, dtype=K.dtype) + F, W)
        for F, W in ((A, K), (B, Q))
    )


K, Q, A, B = draw(D, E), draw(D, E), draw(D, D), draw(D, D)
(held, read), (inner, other) = canonical_pair(K, Q), factored_pair(K, Q, A, B)
same = lambda M: (M - K.mT @ Q).norm() < 1e-12 * (K.mT @ Q).norm()
assert (held[:, :D] - torch.eye(D)).abs().max() < 1e-12 and same(
    held.mT @ read
)  # the canonical pair is a plain one as it stands
assert same((inner + A @ inner).mT @ (other + B @ other)) and same(
    (K + 0 * A @ K).mT @ (Q + 0 * B @ Q)
)  # multiplied out, and A = B = 0

# %% tags=["claim-idle-steering"]
singular = K.clone()
singular[:, 0] = 0  # K[:, S] has rank D - 1, K has rank D
M = singular.mT @ Q
ranks = [
    int(torch.linalg.matrix_rank(W)) for W in (M, M[:D])
]  # a canonical M of rank D has D independent rows S
nudge = torch.cat(
    (torch.eye(D, dtype=torch.float64), torch.zeros(D, E - D, dtype=torch.float64)), 1
)
pairs = [canonical_pair(singular + size * nudge, Q) for size in (1e-1, 1e-3, 1e-5)]
gaps = [((K_.mT @ Q_ - M).norm() / M.norm()).item() for K_, Q_ in pairs]
print(
    f"rank of M {ranks[0]}, of its rows S {ranks[1]}: no canonical pair; canonical products come within {', '.join(f'{gap:.0e}' for gap in gaps)}"
)
assert ranks == [D, D - 1] and gaps[0] > 50 * gaps[1] > 2500 * gaps[2]

# %% [markdown]
# `canonical_gpt` and `factored_gpt` make the two other models from a GPT's own random weights, as the same function. Formula {eq}`eq-steering` against automatic differentiation, at a loss that is none in particular:

# %%
C, Q, free = draw(E, E), draw(D, E), draw(D, E - D)
K = torch.cat((torch.eye(D, dtype=torch.float64), free), 1)  # S are the first D columns
loss = lambda M: (C * M).sin().sum() + M.square().sum() / 7


def velocity(product, *parameters):
    """dM/dt under gradient flow of loss(product(parameters)), by forward differentiation along minus the gradient."""
    gradient = torch.func.grad(lambda p: loss(product(*p)))(parameters)
    return torch.func.jvp(
        lambda *p: product(*p), parameters, tuple(-g for g in gradient)
    )[1]


# %% tags=["claim-idle-steering"]
G = torch.func.grad(loss)(K.mT @ Q)
P, R, I = K.mT @ K, Q.mT @ Q, torch.eye(E, dtype=torch.float64)
outside = torch.diag((torch.arange(E) >= D).double())
zero = torch.zeros(D, D, dtype=torch.float64)
pairs = {
    "plain": (-(P @ G + G @ R), velocity(lambda K, Q: K.mT @ Q, K, Q)),
    "canonical": (
        -(P @ G + outside @ G @ R),
        velocity(lambda X, Q: torch.cat((K[:, :D], X), 1).mT @ Q, free, Q),
    ),
    "factored": (
        -(P @ G @ (I + R) + (I + P) @ G @ R),
        velocity(lambda A, B, K, Q: (K + A @ K).mT @ (Q + B @ Q), zero, zero, K, Q),
    ),
}
for name, (formula, found) in pairs.items():
    assert (formula - found).abs().max() < 1e-12 * found.abs().max() and (
        G * found
    ).sum() < 0
directions = [found / found.norm() for _, found in pairs.values()]
print(
    "cosines between the three velocities:",
    " ".join(
        f"{(a * b).sum():.2f}"
        for a, b in zip(directions, directions[1:] + directions[:1])
    ),
)
assert (
    max((a * b).sum() for a, b in zip(directions, directions[1:] + directions[:1]))
    < 0.99
)

# %% [markdown]
# The same gradient, three directions. Now the models. All start as one function:

# %%
laptop = PRESETS["comparison"].model
config = GPTConfig(65, **laptop, bias=True)
tokens = torch.randint(65, (2, 64), generator=torch.Generator().manual_seed(1))
models = {
    "plain": GPT(config, 0),
    "canonical": canonical_gpt(config, 0),
    "factored": factored_gpt(config, 0),
}
with torch.no_grad():
    outputs = {name: model(tokens)[0] for name, model in models.items()}
assert all(
    (logits - outputs["plain"]).abs().max() < 1e-5 for logits in outputs.values()
)

H, L = laptop["n_head"], laptop["n_layer"]
layer = Attention(laptop["n_embd"], H, bias="qkvo")
held = count(layer).unidentified
extra = 2 * H * layer.D**2
print(f"an attention layer: {layer.parameters:,} parameters, of which idle {held:,}")
for name, size, idle in (
    ("canonical", layer.parameters - held, 0),
    ("plain", layer.parameters, held),
    ("factored", layer.parameters + extra, held + extra),
):
    print(f"{name:10} {size:7,} trained, share identified {1 - idle / size:.3f}")
assert (
    sum(p.numel() for p in models["factored"].parameters())
    == sum(p.numel() for p in models["plain"].parameters()) + L * extra
)

# %% [markdown]
# In the canonical model values and their output maps are in canonical form as well, and idle biases are held at zero, so that none of a *layer's* numbers is idle as long as the layer is looked at alone. In the factored one only queries and keys have more of them.
#
# ### Idle in the attention circuits, not in the network
#
# The network is another matter. Norms, the residual stream and the embeddings leave numbers idle too ({doc}`14_a_whole_network`), and no arm of this study holds these. What is held are the terms of the attention circuits; the null space of the plain network contains their directions, and the canonical form keeps a complement of them, so what is left idle is the difference. On a small network it can be measured:

# %%
CIRCUITS = ("query-key maps", "value-output maps", "key constants", "value constants")
whole = count(config)
left = whole.unidentified - sum(whole.terms[term] for term in CIRCUITS)
print(
    f"plain: {whole.unidentified:,} of {whole.parameters:,} numbers idle; canonical: still {left:,}; held: {whole.unidentified - left:,}"
)
assert (
    whole.unidentified - left == L * held
    and abs(left / whole.unidentified - 0.236) < 0.001
)


def rank_of(model, tokens):
    """The rank of the log-probabilities' Jacobian in all of a model's parameters, moved to a random place nearby."""
    parameters = {
        name: p.detach() + 0.3 * draw(*p.shape)
        for name, p in model.double().named_parameters()
    }
    logs = lambda p: torch.func.functional_call(model, p, (tokens,))[0].log_softmax(-1)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        jacobian = torch.cat(
            [
                part.flatten(3).flatten(0, 2)
                for part in torch.func.jacrev(logs)(parameters).values()
            ],
            1,
        )
    values = torch.linalg.svdvals(jacobian)
    rank = int((values > 1e-9 * values[0]).sum())
    assert values[rank] < 1e-6 * values[rank - 1]
    return rank


# %%
small = GPTConfig(7, 5, n_layer=1, n_head=2, n_embd=4, mlp_width=4, bias=True)
sequences = torch.randint(7, (40, 5), generator=torch.Generator().manual_seed(1))
numbers = {}
for name, model in {
    "plain": GPT(small, 0),
    "canonical": canonical_gpt(small, 0),
    "factored": factored_gpt(small, 0),
}.items():
    trained = sum(p.numel() for p in model.parameters()) - sum(
        int(part.mask.sum()) for part in model.modules() if isinstance(part, Held)
    )
    numbers[name] = (trained, trained - rank_of(model, sequences))
    print(
        f"a small network, {name:9}: {numbers[name][0]} numbers trained, measured idle {numbers[name][1]}"
    )
terms = count(small).terms
assert (
    numbers["plain"][1] == sum(terms.values())
    and numbers["canonical"][1]
    == sum(terms.values()) - sum(terms[term] for term in CIRCUITS)
    > 0
)
assert numbers["factored"][1] == numbers["plain"][1] + 2 * 2 * small.head_dim**2

# %% [markdown]
# So about a quarter of the idle numbers stay in the canonical model, and the study is about idle numbers *of the attention circuits*.
#
# ### The gauge of the start differs too
#
# The arms start as one function, from other weights. By {eq}`eq-steering` it matters how long these are:

# %%
squares = {}
for name, model in (("plain", models["plain"]), ("canonical", models["canonical"])):
    layers = [head_weights(model, layer) for layer in range(L)]
    squares[name] = {
        W: sum(layer[W].square().sum().item() for layer in layers)
        for W in ("W_Q", "W_K", "W_V", "W_O")
    }
    print(
        f"{name:9} at the start, sums over layers: "
        + ", ".join(f"||{W}||^2 = {value:.1f}" for W, value in squares[name].items())
    )
longer = {W: squares["canonical"][W] / squares["plain"][W] for W in squares["plain"]}
assert (
    all(1.6 < longer[W] < 1.8 for W in ("W_Q", "W_K"))
    and 4.5 < longer["W_O"] < 5.1
    and 0.55 < longer["W_V"] < 0.65
)

# %% [markdown]
# The canonical model starts with queries and keys whose squared norms are 1.7 times the plain ones, and with output maps almost five times as long in the square, against values that are shorter. So its difference to the plain model mixes two things: idle numbers that are held, and another start. No run here starts at the canonical weights and holds nothing, so the two cannot be told apart.
#
# ## The check
#
# The recipe is AdamW's of {doc}`13_nanogpt` at the size of a laptop: 4 layers, $E = 128$, 2,000 steps of 12 texts of 64 characters, no dropout. The unit is the seed. Runs of one seed see the same batches, and those of 1 and 2 start from the same function, the wider MLP's apart, whose random weights are drawn in another order. The
# margin below which we call a difference of the final loss none is that of chapter 13, 0.02 nats; no known cost stands behind it.
#
# All runs are judged on the same 640 windows of the validation text. An interval over seeds leaves their error out: it speaks of other seeds, on these windows.

# %% tags=["claim-hypothesis"]
runs = read_records(Path("results") / "comparison")
origins = [record.provenance for seeds in runs.values() for record in seeds.values()]
for key in ("data", "data_sha256", "torch", "device"):
    print(f"{key}: {', '.join(sorted({origin[key] for origin in origins}))}")
final = {
    name: {seed: record.final_loss for seed, record in seeds.items()}
    for name, seeds in runs.items()
}
assert all(
    len(final[case]) == 10 for case in ("adamw", "canonical", "spent", "factored")
)
print(
    f"plain AdamW, H = 4: validation loss {t_interval(list(final['adamw'].values()))}"
)
errors = [record.validation["error"][-1] for record in runs["adamw"].values()]
over_seeds = np.std(list(final["adamw"].values()), ddof=1) / len(final["adamw"]) ** 0.5
print(
    f"standard error of a loss: {over_seeds:.4f} over seeds; {np.mean(errors):.4f} over windows, in one run"
)
assert abs(over_seeds - 0.0019) < 1e-4 and abs(np.mean(errors) - 0.0092) < 1e-4

# %% [markdown]
# The loss of one model is known to 0.009 only, as far as windows go, almost five times what the seeds alone suggest. Much of that cancels in the difference of two models on the same windows. How much, the records do not hold: they keep each run's loss and its error, and not the losses of single windows.
#
# ### 1 and 2. The same functions, the same size

# %% tags=["claim-hypothesis"]
rows, differs = {}, {}
for case in ("canonical", "factored", "spent"):
    difference = paired(final[case], final["adamw"])
    interval, test = t_interval(difference), equivalence(difference, 0.02)
    rows[case], differs[case] = (difference, interval), interval
    print(
        f"{case:10} - plain: {interval}; equivalent within 0.02: p = {test.p:.0e}; different: p = {sign_flip_p(difference):.3f}"
    )
    assert test.p < 0.01
assert (
    round(differs["factored"].estimate, 3) == -0.008
    and 3 * sign_flip_p(rows["factored"][0]) < 0.05
)
assert (
    differs["factored"].high < 0
    and differs["canonical"].low < 0 < differs["canonical"].high
    and differs["spent"].low < 0 < differs["spent"].high
)

# %% mystnb={"image": {"alt": "Three rows of ten dots, each with an interval, in a shaded band of plus or minus 0.02 nats. Canonical and spent lie around zero, factored lies below zero."}, "figure": {"caption": "Final validation loss against plain AdamW, paired by seed: dots are seeds, bars 95 % intervals, the band the margin. Less is better.", "name": "fig-hypothesis"}}
figures.intervals(rows, 0.02, "difference of the validation loss, nats per character")

# %% [markdown]
# All three lie within the margin ({numref}`fig-hypothesis`). With the idle numbers of its attention held, an eighth of the attention's numbers, and the gauge of the start changed, the loss is the same to that margin. With as many numbers spent on a wider MLP it is so too. The model with the *most* idle parameters is better than the plain one,
# by 0.008 nats: little, but clear of zero (also as one of three comparisons), on these windows and at this rate.
#
# ### What is missing: an assay
#
# Does "the same within 0.02" say that idle numbers cost nothing? Only where numbers that are *not* idle cost something, and no run here shows that they do at this size. No arm takes identified numbers away. One adds some: the wider MLP against the canonical model.

# %% tags=["claim-hypothesis"]
wider = {**laptop, "mlp_width": runs["spent"][0].settings["model"]["mlp_width"]}
grown, idle_grown = (
    getattr(count(GPTConfig(65, **wider, bias=True)), name) - getattr(whole, name)
    for name in ("parameters", "unidentified")
)
added = paired(final["spent"], final["canonical"])
print(
    f"wider MLP: {grown:,} numbers more, {idle_grown:,} of them idle; spent - canonical: {t_interval(added)}; equivalent within 0.02: p = {equivalence(added, 0.02).p:.0e}"
)
assert equivalence(added, 0.02).p < 0.01 and grown - idle_grown > 0.9 * L * held

# %% [markdown]
# Almost as many *identified* numbers as the idle ones that were held, added, change the loss by less than the margin as well. So this study cannot say that idle numbers cost nothing, nor that they cost less than others: at this size and length it has no evidence that any numbers of this amount matter.
#
# ### 3. More heads

# %% tags=["claim-hypothesis"]
by_heads = {
    1: final["heads-1"],
    2: final["heads-2"],
    4: {seed: final["adamw"][seed] for seed in final["heads-1"]},
} | {H: final[f"heads-{H}"] for H in (8, 16, 32)}
for H, losses in by_heads.items():
    difference = (
        "" if H == 4 else f"; against H = 4: {t_interval(paired(losses, by_heads[4]))}"
    )
    print(
        f"H = {H:2}, share {1 - 1 / (2 * H):.3f}: loss {t_interval(list(losses.values()))}{difference}"
    )


slopes = [
    np.polyfit(
        np.log2(list(by_heads)), [losses[seed] for losses in by_heads.values()], 1
    )[0]
    for seed in by_heads[1]
]
print(f"change of the loss when H doubles: {t_interval(slopes)}")
assert t_interval(slopes).low > 0 and round(t_interval(slopes).estimate, 3) == 0.006

# %% mystnb={"image": {"alt": "Losses of five seeds for 1, 2, 4, 8, 16 and 32 heads, with their means joined by a line that rises from 1.88 to 1.91; the upper axis gives the identified share, from 0.5 to 0.98."}, "figure": {"caption": "The final validation loss rises with the number of heads, while the identified share, above, rises too. Dots are seeds, diamonds their means.", "name": "fig-heads-loss"}}
figures.heads_and_loss({H: list(losses.values()) for H, losses in by_heads.items()})

# %% [markdown]
# By this recipe the loss *rises* with the share ({numref}`fig-heads-loss`). This does not show that identification hurts: what changes most is the family of functions ({doc}`05_many_heads` has the trade between a head's rank and their number), and each family may want its own rate. Over $H$ a correlation of loss and share can have either sign.
#
# ## Break it
#
# **The recipe.** By {eq}`eq-steering` the factored model moves $M$ further for the same gradient, as a larger rate does. And the recipe's rate was the paper's, for a larger model and longer training. Take five of the models at twice the rate, three seeds each. Whether the rate changes what a parametrisation does is a question of its own: the difference to plain at one rate, minus that at the other, seed by seed.

# %% tags=["claim-hypothesis"]
doubled = {
    name.removesuffix("-rate-0.002"): losses
    for name, losses in final.items()
    if name.endswith("-rate-0.002")
}
recipe = {
    case: {seed: final[case][seed] for seed in losses}
    for case, losses in doubled.items()
}  # the same seeds
gain = {case: paired(losses, recipe[case]) for case, losses in doubled.items()}
for case, change in gain.items():
    print(f"{case:10} at twice the rate - at the recipe's: {t_interval(change)}")
assert all(
    -0.11 < change.min() and change.max() < -0.04 and t_interval(change).high < 0
    for change in gain.values()
)
advantage = t_interval(paired(final["adamw"], final["factored"])).estimate
print(
    f"plain's gain is {-gain['adamw'].mean() / advantage:.0f} times the factored model's advantage"
)
assert 10 < -gain["adamw"].mean() / advantage < 12

# %% tags=["claim-hypothesis"]
against, interaction = {}, {}
for case in (case for case in doubled if case != "adamw"):
    fast, slow = (
        paired(doubled[case], doubled["adamw"]),
        paired(recipe[case], recipe["adamw"]),
    )
    against[case], interaction[case] = fast, fast - slow
    print(
        f"{case:10} - plain, at twice the rate: {t_interval(fast)}; equivalent within 0.02: p = {equivalence(fast, 0.02).p:.3f}"
    )
    print(
        f"{'':10} that minus the same at the recipe's rate: {t_interval(fast - slow)}, sign flips p = {sign_flip_p(fast - slow):.2f}"
    )
least = sign_flip_p(np.array([1.0, 2.0, 3.0]))
print(f"least p that sign flips of three seeds can have: {least}")
found = t_interval(interaction["factored"])
assert [round(value, 3) for value in found[:3]] == [
    0.006,
    -0.036,
    0.048,
] and least == 0.25
assert (
    equivalence(against["factored"], 0.02).p
    > 0.05
    > equivalence(interaction["factored"], 0.05).p
)

# %% [markdown]
# Each model gains 0.04 to 0.11 nats in every seed. The recipe's rate is far from the best at this size, and plain AdamW gains eleven times the factored model's advantage by it.
#
# What becomes of that advantage is open. The rate changes it by +0.006, with an interval from -0.036 to 0.048: it may be gone, or be several times as large. At twice the rate the factored model cannot even be called equivalent to the plain one ($p = 0.06$). Three seeds tell that the change is below 0.05 and no more; by sign flips no three seeds can have a $p$ below 0.25.
#
# And the heads?

# %% tags=["claim-hypothesis"]
at_recipe = {case: paired(final[case], by_heads[4]) for case in ("heads-1", "heads-16")}
for case in at_recipe:
    for rate, difference in (
        ("the recipe's rate", at_recipe[case]),
        ("twice the rate", against[case]),
    ):
        both = t_interval(difference, 1 - 0.05 / 2)
        print(
            f"{case:8} - 4 heads, {rate:17}: {t_interval(difference)}; at 97.5 %, for two comparisons: {both.low:.3f} to {both.high:.3f}"
        )
assert (
    at_recipe["heads-16"].mean() > 0 > t_interval(at_recipe["heads-16"]).low
    and against["heads-16"].min() > 0.03
)
assert t_interval(at_recipe["heads-1"]).high < 0 < t_interval(against["heads-1"]).low
assert (
    t_interval(against["heads-1"], 1 - 0.05 / 2).low
    < 0
    < t_interval(against["heads-16"], 1 - 0.05 / 2).low
)
assert (
    t_interval(interaction["heads-1"]).low < 0 < t_interval(interaction["heads-1"]).high
)

# %% [markdown]
# Four heads do better than sixteen at either rate, at the recipe's in the mean only, at twice the rate clearly. Against one head the sign changes: worse than one at the recipe's rate, better at twice the rate. But the second interval holds zero once it is one of two comparisons, and so does that of the change itself. That the order of the heads depends on the rate is a suspicion worth more seeds, and no finding.
#
# **The proposition.** It needs a loss of $M$ alone. Let weights decay, as AdamW's do, and the loss is one of $K$ and $Q$: its infimum over a fibre is reached at balanced weights ({prf:ref}`prop-least-norm`), which canonical ones are not. Then idle parameters do change what is best.

# %%
K, Q = draw(D, E), draw(D, E)
held_K = torch.linalg.solve(
    K[:, :D], K
)  # the canonical pair of the same M, at the scale that makes both norms equal
held_Q = K[:, :D].mT @ Q
scale = (held_Q.norm() / held_K.norm()).sqrt()
decay = lambda K, Q: (K.square().sum() + Q.square().sum()).item()
nuclear = torch.linalg.svdvals(K.mT @ Q).sum().item()
canonical_decay = decay(scale * held_K, held_Q / scale)
assert (
    torch.allclose(held_K.mT @ held_Q, K.mT @ Q)
    and abs(decay(*rebalance(Q, K)) - 2 * nuclear) < 1e-10 * nuclear
)
print(
    f"squared norms over their least for one M: plain {decay(K, Q) / (2 * nuclear):.2f}, balanced 1, canonical {canonical_decay / (2 * nuclear):.2f}"
)
assert canonical_decay > decay(K, Q) > 2 * nuclear

# %% [markdown]
# ## What it means
#
# | | The hypothesis says | The pilot says, at the recipe's rate |
# |---|---|---|
# | 1 | attention without idle parameters: better | the same within 0.02 nats, from a start with another gauge |
# | 1 | more idle parameters: worse | better by 0.008 nats; whether that stays at twice the rate is open |
# | 2 | idle ones turned into a wider MLP: better | the same within 0.02 nats |
# | 3 | more heads, so a larger share: better | worse, by 0.006 nats for each doubling; other functions as well |
#
# The hypothesis is neither supported nor refuted. The runs show no gain from identification. They could hardly have shown one: at this size as many identified numbers, added, change the loss no more than the margin either. A presumption of which nothing follows here is no error of the paper, and the {doc}`errata <../book/errata>` do not list it.
#
# What stands without any run is {prf:ref}`prop-idle-steering`: idle parameters change how training moves, and not what it can reach. And what taking them out of the attention saves is an eighth of its parameters, at a loss that is the same within the margin.
#
# What these runs cannot say besides: they are of one size, one text, one optimizer and one recipe; 2,000 steps are short; the rate is tuned for no model. The intervals are over seeds and leave the windows out. Idle numbers are also treated unlike others in small ways: the factors' own numbers decay towards the identity, and held numbers do not decay at all.
# At the size of today's models ({doc}`15_an_atlas`) the share in question is a few percent or less.
#
# ## What would change our mind
#
# A study that answers first needs a size at which parameters count. There, taking away as many *identified* numbers as the attention has idle ones, by narrower heads or a narrower MLP, must cost clearly more than the study can detect, say twice as much. Half of that cost is then the margin of "none". With it:
#
# - *For the hypothesis:* attention with its idle numbers held is better, by more than the margin, than a model that starts from the very same weights and holds nothing; each at its own best rate, on more than one text and with more than one optimizer.
# - *Against it:* the two are equivalent within that margin, or the one with idle numbers is better, under the same conditions.
# - *Against our reading of either:* a difference that stays when the optimizer acts on the product $M$ alone. All parametrisations must then coincide, so a difference would be a fault of the study.
# - *Neither:* no size can be found at which as many identified numbers matter. Then that is the finding.
#
# Besides these, such a study needs an arm whose updates lose their part in the null space, so that start and numbers are the same and only the movement along the orbits is gone; rates and decay tuned for each arm on other seeds and other text than it is judged by; some twenty fresh seeds, the whole of the other text, and intervals over seeds and windows;
# the interaction of arm and rate tested as such, and all contrasts corrected for their number; and all of this, the analysis included, registered before the first run that counts. The runs of this chapter are not of that kind, and their seeds are spent.
#
# ```{prf:remark} Departure from the paper
# :label: rem-17-hypothesis
#
# The paper presumes the hypothesis, says so, and offers identification as a possible confound of other explanations. In 1 the functions that can be had are the same and so is the function at the start, which separates identification from what a model can be. It does not separate it from the gauge of the start, nor from how fast the recipe moves $M$.
# ```
#
# ## Exercises
#
# **1.** Two plain pairs with the same $M$ see the same gradient $G$. When does gradient flow move $M$ alike from both?
#
# ```{admonition} Answer
# :class: dropdown
#
# When $K^\top K$ and $Q^\top Q$ agree, by {eq}`eq-steering`: for pairs of full rank, exactly if they differ by a rotation $S$. So the idle directions that a rotation makes have no effect even on training by gradient flow; those that stretch do. AdamW, which works entry by entry, tells rotations apart as well.
# ```

# %% tags=["hide-cell"]
S = draw(D, D)
rotation = torch.linalg.qr(S).Q
plain = lambda K, Q: velocity(lambda K, Q: K.mT @ Q, K, Q)
change = {
    name: (
        (plain(torch.linalg.inv(T).mT @ K, T @ Q) - plain(K, Q)).norm()
        / plain(K, Q).norm()
    ).item()
    for name, T in (("rotated", rotation), ("stretched", S))
}
print(
    f"rotated: the same velocity within 1e-12: {change['rotated'] < 1e-12}; stretched: {change['stretched'] < 1e-12}"
)
assert change["rotated"] < 1e-12 and change["stretched"] > 0.1

# %% [markdown]
# **2.** How small can the identified share of a head's query and key parameters be made, at the same functions?
#
# ```{admonition} Answer
# :class: dropdown
#
# As small as one likes: put $n$ trained $D \times D$ matrices before each map. The head has $2DE + 2nD^2$ numbers, of which $2DE - D^2$ are identified as before. A share, then, is a property of how functions are written down.
# ```

# %% tags=["hide-cell"]
share = lambda n, D=32, E=128: (2 * D * E - D**2) / (2 * D * E + 2 * n * D**2)
print(
    "share with 0, 1, 2, 10, 100 factors:",
    " ".join(f"{share(n):.3f}" for n in (0, 1, 2, 10, 100)),
)
assert share(1) < share(0) == 1 - 1 / 8 and share(10_000) < 1e-3

# %% [markdown]
# **3.** The canonical model's loss differs from the plain one's by less than its interval is wide. How many seeds would it take to see that difference, if it is real, with an interval of half its width?
#
# ```{admonition} Answer
# :class: dropdown
#
# An interval is as wide as $2 t s / \sqrt{n}$, with $s$ the standard deviation of a difference between seeds. Solve $t s / \sqrt{n} = |d| / 2$ for $n$: with the numbers found, more than ten times as many.
# ```

# %% tags=["hide-cell"]
difference = paired(final["canonical"], final["adamw"])
needed = (2 * 1.96 * difference.std(ddof=1) / difference.mean()) ** 2
print(f"more than a hundred seeds: {needed > 100}")
assert needed > 100

# %% [markdown]
# *Next:* this is the last chapter. The {doc}`ledger <../book/ledger>` gathers what became of every statement, the {doc}`errata <../book/errata>` what has to be corrected in the paper.
