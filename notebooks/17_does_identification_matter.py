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
# Take a head's scores through $M = W_K^\top W_Q$ (tokens as columns). We compare three sets of parameters for the same $M$:
#
# | | Parameters | Numbers of a head | Of these idle |
# |---|---|---|---|
# | *plain* | $W_K$, $W_Q$ | $2DE$ | $D^2$ |
# | *canonical* | $W_K$ with $D$ columns $\mathcal{I}$ held at a multiple of $I$, and $W_Q$ | $2DE - D^2$ | $0$ |
# | *factored* | $(I + A) W_K$ and $(I + B) W_Q$ with trained $D \times D$ matrices $A$, $B$ | $2DE + 2D^2$ | $3D^2$ |
#
# All three have $2DE - D^2$ identified parameters. What, then, can idle ones do?
#
# ```{prf:proposition} Idle parameters steer, and do no more
# :label: prop-idle-steering
#
# Let the loss $\ell$ be a differentiable function of $M$ alone, and $\Gamma = \partial \ell / \partial M$.
#
# 1. The infimum of $\ell$ is the same over plain, canonical and factored parameters.
# 2. Under gradient flow, where plain and canonical $W_K$, $W_Q$ agree, and the factored ones at $A = B = 0$ too, $M$ moves by
#
# $$
# \dot M = - \begin{cases}
# W_K^\top W_K\, \Gamma + \Gamma\, W_Q^\top W_Q & \text{plain,} \\
# W_K^\top W_K\, \Gamma + \Pi\, \Gamma\, W_Q^\top W_Q & \text{canonical,} \\
# W_K^\top W_K\, \Gamma\, (I + W_Q^\top W_Q) + (I + W_K^\top W_K)\, \Gamma\, W_Q^\top W_Q & \text{factored,}
# \end{cases}
# $$ (eq-steering)
#
# where $\Pi$ sets the rows $\mathcal{I}$ to zero. All three lower $\ell$ unless they stand still.
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
# (of {prf:ref}`prop-idle-steering`) *1.* Every canonical $M$ is a plain one, and every factored $M$ is plain with the factors multiplied out; a plain $M$ is factored with $A = B = 0$. Conversely, plain weights whose $W_K[:, \mathcal{I}]$ is invertible can be made canonical with the same $M$ ({prf:ref}`prop-canonical-layer`), and such weights are dense in
# all plain ones; $\ell$ is continuous, so its infimum over them is that over all.
#
# *2.* From $dM = dW_K^\top W_Q + W_K^\top dW_Q$, the gradients are $\partial \ell/\partial W_Q = W_K \Gamma$ and $\partial \ell / \partial W_K = W_Q\, \Gamma^\top$. Plain: $\dot M = \dot W_K^\top W_Q + W_K^\top \dot W_Q = -(\Gamma\, W_Q^\top W_Q + W_K^\top W_K \Gamma)$. Canonical: $W_K$ moves in the columns outside $\mathcal{I}$ only, so $\dot W_K = - W_Q\, \Gamma^\top \Pi$. Factored, with
# $W_K' = (I + A) W_K$: at $A = 0$ the gradient in $A$ is $W_Q\, \Gamma^\top W_K^\top$, so $\dot W_K' = \dot A\, W_K + \dot W_K = - W_Q\, \Gamma^\top (W_K^\top W_K + I)$, and likewise $\dot W_Q' = - W_K \Gamma\, (W_Q^\top W_Q + I)$; insert these. Along the flow $\dot \ell = \langle \Gamma, \dot M \rangle$ is minus the squared norm of the gradient in the parameters.
# ```

# %% [markdown]
# ## The same symbols in code
#
# Part 1 of the proposition first. From a plain pair with the product $M$ we make a canonical and a factored pair with the same $M$, in rational arithmetic, where equal means equal.

# %%
from pathlib import Path

import numpy as np
import torch
import xarray as xr
from flint import fmpq, fmpq_mat

from attnid import Attention, count, figures, rebalance
from attnid.claims import check
from attnid.network.gpt import GPT, GPTConfig, head_weights
from attnid.tensors import normal, relative_change
from attnid.training.experiments import PRESETS
from attnid.training.parametrisations import Held, canonical_gpt, factored_gpt
from attnid.training.records import read_records, stack_seeds
from attnid.training.statistics import equivalence, sign_flip_p, t_interval

E, D = 8, 3
identity = fmpq_mat([[int(i == j) for j in range(D)] for i in range(D)])
product = lambda W_K, W_Q: W_K.transpose() * W_Q


# %%
def integers(rows, columns, seed):
    """A random matrix of integers between -99 and 99, over the rational numbers."""
    draw = torch.Generator().manual_seed(seed)
    return fmpq_mat(torch.randint(-99, 100, (rows, columns), generator=draw).tolist())


def held_columns(W_K):
    """The first D columns of a matrix."""
    return fmpq_mat([row[:D] for row in W_K.table()])


def canonical_pair(W_K, W_Q):
    """The pair of the same product with the first D columns of W_K made I."""
    return held_columns(W_K).inv() * W_K, held_columns(W_K).transpose() * W_Q


def factored_pair(W_K, W_Q, A, B):
    """The weights that the factors I + A and I + B turn into W_K and W_Q."""
    return (identity + A).inv() * W_K, (identity + B).inv() * W_Q


# %%
agree = {"canonical": 0, "factored": 0}
for seed in range(0, 80, 4):
    W_K, W_Q = integers(D, E, seed), integers(D, E, seed + 1)
    A, B = integers(D, D, seed + 2), integers(D, D, seed + 3)
    held, read = canonical_pair(W_K, W_Q)
    inner, other = factored_pair(W_K, W_Q, A, B)
    multiplied = (identity + A) * inner, (identity + B) * other
    same = lambda keys, queries: product(keys, queries) == product(W_K, W_Q)
    agree["canonical"] += held_columns(held) == identity and same(held, read)
    agree["factored"] += same(*multiplied)
check("idle-steering", canonical=agree["canonical"], factored=agree["factored"])

# %% [markdown]
# The ways back need no computation: a canonical pair is a plain one as it stands, and a plain one is factored with $A = B = 0$. But not every $M$ has a canonical pair, which is why part 1 speaks of an infimum. Let $W_K$ have rank $D$ and a zero column in $\mathcal{I}$. The rows $\mathcal{I}$ of a canonical $M$ are a multiple of $W_Q$, and so have the rank of the whole $M$; those of this one have less. But it has neighbours: with $W_K + \varepsilon\, [I \; 0]$ for $W_K$ the canonical product is off by $\varepsilon\, [I \; 0]^\top W_Q$ and no more.

# %%
unit = fmpq_mat([[int(i == j) for j in range(E)] for i in range(D)])  # [I 0]
W_K = fmpq_mat([[0, *row[1:]] for row in integers(D, E, seed=80).table()])
M = product(W_K, W_Q)
near = 0
for size in (fmpq(1, 10), fmpq(1, 1000), fmpq(1, 100000)):
    neighbour = canonical_pair(W_K + unit * size, W_Q)
    near += product(*neighbour) - M == unit.transpose() * W_Q * size
held_rows = fmpq_mat(M.table()[:D])
check("idle-steering", no_pair=[M.rank(), held_rows.rank()], near=near)

# %% [markdown]
# The same by measurement: what each of the three reaches from a random start, minimising the distance of $M$ to a random matrix. The least that rank $D$ allows is known (Eckart and Young): the root of the sum of the other squared singular values.

# %%
products = {
    "plain": lambda W_K, W_Q: W_K.mT @ W_Q,
    "canonical": lambda free, W_Q: torch.cat((torch.eye(D).double(), free), 1).mT @ W_Q,
    "factored": lambda A, B, W_K, W_Q: (W_K + A @ W_K).mT @ (W_Q + B @ W_Q),
}
shapes = {"plain": (E, E), "canonical": (E - D, E), "factored": (D, D, E, E)}  # columns
target = normal(E, E, seed=1)
least = torch.linalg.svdvals(target)[D:].norm()


# %%
def reached(kind):
    """The least distance to the target that a search from a random start finds."""
    start = [normal(D, columns, seed=9 + i) for i, columns in enumerate(shapes[kind])]
    parameters = [(part / 2).requires_grad_() for part in start]
    search = torch.optim.LBFGS(
        parameters, max_iter=2000, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def distance():
        search.zero_grad()
        loss = (products[kind](*parameters) - target).square().sum()
        loss.backward()
        return loss

    search.step(distance)
    return distance().detach().sqrt()


# %%
check("idle-steering", infimum=max(reached(kind) for kind in products) / least - 1)

# %% [markdown]
# Formula {eq}`eq-steering` against automatic differentiation, at a loss that is none in particular:

# %%
Z, W_Q, free = normal(E, E, seed=2), normal(D, E, seed=3), normal(D, E - D, seed=4)
one, zero = torch.eye(D).double(), torch.zeros(D, D).double()
W_K = torch.cat((one, free), 1)  # the first D columns are held
loss = lambda M: (Z * M).sin().sum() + M.square().sum() / 7


def velocity(product, *parameters):
    """dM/dt under gradient flow of loss(product(parameters)), by differentiation."""
    gradient = torch.func.grad(lambda p: loss(product(*p)))(parameters)
    downhill = tuple(-part for part in gradient)
    return torch.func.jvp(product, parameters, downhill)[1]


# %%
Gamma = torch.func.grad(loss)(W_K.mT @ W_Q)
keys, queries, I = W_K.mT @ W_K, W_Q.mT @ W_Q, torch.eye(E).double()
outside = torch.diag((torch.arange(E) >= D).double())  # sets the held rows to zero
formulas = {
    "plain": -(keys @ Gamma + Gamma @ queries),
    "canonical": -(keys @ Gamma + outside @ Gamma @ queries),
    "factored": -(keys @ Gamma @ (I + queries) + (I + keys) @ Gamma @ queries),
}
points = {
    "plain": (W_K, W_Q),
    "canonical": (free, W_Q),
    "factored": (zero, zero, W_K, W_Q),
}
found = {kind: velocity(products[kind], *points[kind]) for kind in products}
a, b, c = (found[kind] / found[kind].norm() for kind in products)
check(
    "idle-steering",
    slope=max((Gamma * found[kind]).sum() / Gamma.norm() for kind in products),
    cosines=max((a * b).sum(), (a * c).sum(), (b * c).sum()),
    velocity=max(relative_change(found[kind], formulas[kind]) for kind in products),
)

# %% [markdown]
# The same gradient, three directions, all of them downhill. Now the models. `canonical_gpt` and `factored_gpt` make the two others from a GPT's own random weights, as the same function:

# %%
laptop = PRESETS["comparison"].model
H, n_layer = laptop["n_head"], laptop["n_layer"]
config = GPTConfig(65, **laptop, bias=True)
MAKE = {"plain": GPT, "canonical": canonical_gpt, "factored": factored_gpt}
models = {kind: make(config, 0) for kind, make in MAKE.items()}
tokens = torch.randint(65, (2, 64), generator=torch.Generator().manual_seed(1))
with torch.no_grad():
    outputs = {kind: model(tokens)[0] for kind, model in models.items()}
for logits in outputs.values():
    assert (logits - outputs["plain"]).abs().max() < 1e-5

# %%
layer = Attention(laptop["n_embd"], H, bias="qkvo")
held, extra = count(layer).unidentified, 2 * H * layer.D**2
trained_idle = {
    "canonical": (layer.parameters - held, 0),
    "plain": (layer.parameters, held),
    "factored": (layer.parameters + extra, held + extra),
}
for kind, (trained, idle) in trained_idle.items():
    share = 1 - idle / trained
    print(f"{kind:9}: {trained:,} numbers a layer, {idle:6,} idle, share {share:.3f}")
size = lambda kind: sum(p.numel() for p in models[kind].parameters())
assert size("factored") - size("plain") == n_layer * extra

# %% [markdown]
# In the canonical model values and their output maps are in canonical form as well, and idle biases are held at zero, so that none of a *layer's* numbers is idle as long as the layer is looked at alone. In the factored one only queries and keys have more of them.
#
# ### Idle in the attention circuits, not in the network
#
# The network is another matter. Norms, the residual stream and the embeddings leave numbers idle too ({doc}`14_a_whole_network`), and no arm of this study holds these. What is held are the terms of the attention circuits; the null space of the plain network contains their directions, and the canonical form keeps a complement of them, so what is left idle is the difference. On a small network it can be measured:

# %%
CIRCUITS = ("query-key maps", "value-output maps", "key constants", "value constants")
in_circuits = lambda counted: sum(counted.terms[term] for term in CIRCUITS)
whole = count(config)
idle, left = whole.unidentified, whole.unidentified - in_circuits(whole)
print(f"plain: {idle:,} of {whole.parameters:,} idle; canonical: still {left:,}")
assert idle - left == n_layer * held and abs(left / idle - 0.236) < 0.001


# %%
def trained(model):
    """How many numbers of a model are trained."""
    masks = [part.mask.sum() for part in model.modules() if isinstance(part, Held)]
    return sum(p.numel() for p in model.parameters()) - int(sum(masks))


def rank_of(model, tokens):
    """The rank of the Jacobian of all log-probabilities, at random weights nearby."""
    named = enumerate(model.double().named_parameters())
    weights = {n: p.detach() + 0.3 * normal(*p.shape, seed=i) for i, (n, p) in named}
    logs = lambda p: torch.func.functional_call(model, p, (tokens,))[0].log_softmax(-1)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        parts = torch.func.jacrev(logs)(weights).values()
    jacobian = torch.cat([part.flatten(3).flatten(0, 2) for part in parts], 1)
    values = torch.linalg.svdvals(jacobian)
    found = int((values > 1e-9 * values[0]).sum())
    assert values[found] < 1e-6 * values[found - 1]
    return found


# %%
small = GPTConfig(7, 5, n_layer=1, n_head=2, n_embd=4, mlp_width=4, bias=True)
sequences = torch.randint(7, (40, 5), generator=torch.Generator().manual_seed(1))
counted = count(small)
plain, fewer = counted.unidentified, counted.unidentified - in_circuits(counted)
more = plain + 2 * small.n_head * small.head_dim**2
small_models = [make(small, 0) for make in MAKE.values()]
print("numbers trained in a small network:", [trained(model) for model in small_models])
check(
    "hypothesis",
    idle_formula=[plain, fewer, more],
    idle_measured=[
        trained(model) - rank_of(model, sequences) for model in small_models
    ],
)

# %% [markdown]
# So about a quarter of the idle numbers stay in the canonical model, and the study is about idle numbers *of the attention circuits*.
#
# ### The gauge of the start differs too
#
# The arms start as one function, from other weights. By {eq}`eq-steering` it matters how long these are. Squared norms, summed over layers:

# %%
MAPS = ("W_Q", "W_K", "W_V", "W_O")
squares = {}
for kind in ("plain", "canonical"):
    layers = [head_weights(models[kind], number) for number in range(n_layer)]
    total = lambda W: sum(weights[W].square().sum().item() for weights in layers)
    squares[kind] = np.array([total(W) for W in MAPS])
    sums = ", ".join(f"{W} {square:.1f}" for W, square in zip(MAPS, squares[kind]))
    print(f"{kind:9} at the start, squared norms: {sums}")
longer = squares["canonical"] / squares["plain"]
assert (longer > [1.6, 1.6, 0.55, 4.5]).all() and (longer < [1.8, 1.8, 0.65, 5.1]).all()

# %% [markdown]
# The canonical model starts with queries and keys whose squared norms are 1.7 times the plain ones, and with output maps almost five times as long in the square, against values that are shorter. So its difference to the plain model mixes two things: idle numbers that are held, and another start. No run here starts at the canonical weights and holds nothing, so the two cannot be told apart.
#
# ## The check
#
# The recipe is AdamW's of {doc}`13_nanogpt` at the size of a laptop: 4 layers, $E = 128$, 2,000 steps of 12 texts of 64 characters, no dropout. The unit is the seed. Runs of one seed see the same batches, and those of 1 and 2 start from the same function, the wider MLP's apart, whose random weights are drawn in another order. The
# margin below which we call a difference of the final loss none is that of chapter 13, 0.02 nats; no known cost stands behind it.
#
# All runs are judged on the same 640 windows of the validation text. An interval over seeds leaves their error out: it speaks of other seeds, on these windows.

# %%
runs = read_records(Path("results") / "comparison")
origins = [record.provenance for seeds in runs.values() for record in seeds.values()]
for key in ("data", "data_sha256", "torch", "device"):
    print(f"{key}: {', '.join(sorted({origin[key] for origin in origins}))}")

last = lambda metrics: metrics.validation_loss.isel(validation_step=-1)
final = {run: last(stack_seeds(seeds)) for run, seeds in runs.items()}  # each (seed,)
interval = lambda values, level=0.95: t_interval(values, level)
ends = lambda values, level=0.95: interval(values, level)[1:3]

# %% [markdown]
# A difference of two of these pairs them by seed, and keeps the seeds that both have.

# %%
plain = final["adamw"]
print(f"plain AdamW, H = 4: validation loss {interval(plain)}")
errors = [record.validation["error"][-1] for record in runs["adamw"].values()]
seeds, windows = plain.std(ddof=1).item() / plain.size**0.5, np.mean(errors)
print(f"standard error of a loss: {seeds:.4f} over seeds; {windows:.4f} over windows")
assert abs(seeds - 0.0019) < 1e-4 and abs(windows - 0.0092) < 1e-4

# %% [markdown]
# The loss of one model is known to 0.009 only, as far as windows go, almost five times what the seeds alone suggest. Much of that cancels in the difference of two models on the same windows. How much, the records do not hold: they keep each run's loss and its error, and not the losses of single windows.
#
# ### 1 and 2. The same functions, the same size
#
# A difference is said to be none where its whole interval lies within the margin, and to be there where it lies clear of zero: both are harder to reach with noisier data. We compare four times, three against plain and once more below, so for these the level is $1 - 0.05/4$: all four intervals hold at once with 95 %.

# %%
ALL_FOUR = 1 - 0.05 / 4
ARMS = ("canonical", "factored", "spent")
difference = {arm: final[arm] - plain for arm in ARMS}
for arm in ARMS:
    p = sign_flip_p(difference[arm])
    print(f"{arm:9} - plain: {interval(difference[arm])}; different: p = {p:.3f}")
check("hypothesis", seeds=[plain.size, *(difference[arm].size for arm in ARMS)])
all_four = {arm: ends(difference[arm], ALL_FOUR) for arm in ARMS}
check("hypothesis", canonical=all_four["canonical"], spent=all_four["spent"])
check("hypothesis", factored=all_four["factored"])
assert round(difference["factored"].mean().item(), 3) == -0.008

# %% mystnb={"image": {"alt": "Three rows of ten dots, each with an interval, in a shaded band of plus or minus 0.02 nats. Canonical and spent lie around zero, factored lies below zero."}, "figure": {"caption": "Final validation loss against plain AdamW, paired by seed: dots are seeds, bars 95 % intervals, the band the margin. Less is better.", "name": "fig-hypothesis"}}
rows = {arm: (difference[arm].values, interval(difference[arm])) for arm in ARMS}
figures.intervals(rows, 0.02, "difference of the validation loss, nats per character")

# %% [markdown]
# All three lie within the margin ({numref}`fig-hypothesis`). With the idle numbers of its attention held, an eighth of the attention's numbers, and the gauge of the start changed, the loss is the same to that margin. With as many numbers spent on a wider MLP it is so too. The model with the *most* idle parameters is better than the plain one,
# by 0.008 nats: little, but clear of zero (also as one of the four comparisons), on these windows and at this rate.
#
# ### What is missing: an assay
#
# Does "the same within 0.02" say that idle numbers cost nothing? Only where numbers that are *not* idle cost something, and no run here shows that they do at this size. No arm takes identified numbers away. One adds some: the wider MLP against the canonical model.

# %%
added = final["spent"] - final["canonical"]
print(f"wider MLP - canonical: {interval(added)}")
check("hypothesis", identified_added=ends(added, ALL_FOUR))
width = runs["spent"][0].settings["model"]["mlp_width"]
wider = count(GPTConfig(65, **laptop, mlp_width=width, bias=True))
grown, idle_grown = wider.parameters - size("plain"), wider.unidentified - idle
print(f"the wider MLP has {grown:,} numbers more, {idle_grown} of them idle")
assert grown - idle_grown > 0.9 * n_layer * held

# %% [markdown]
# Almost as many *identified* numbers as the idle ones that were held, added, change the loss by less than the margin as well. So this study cannot say that idle numbers cost nothing, nor that they cost less than others: at this size and length it has no evidence that any numbers of this amount matter.
#
# ### 3. More heads

# %%
name = lambda heads: "adamw" if heads == 4 else f"heads-{heads}"
HEADS = [1, 2, 4, 8, 16, 32]
of_heads = xr.concat([final[name(H)] for H in HEADS], "heads", join="inner")
of_heads = of_heads.assign_coords(heads=HEADS)  # (heads, seed)
for heads, losses in zip(HEADS, of_heads):
    against = f"; against 4: {interval(losses - plain)}" if heads != 4 else ""
    print(f"H = {heads:2}: {interval(losses)}{against}")

# %%
per_doubling = np.polyfit(np.log2(HEADS), of_heads, 1)[0]  # (seed,)
print(f"change of the loss when H doubles: {t_interval(per_doubling)}")
check("hypothesis", per_doubling=t_interval(per_doubling)[1:3])
assert round(per_doubling.mean(), 3) == 0.006

# %% mystnb={"image": {"alt": "Losses of five seeds for 1, 2, 4, 8, 16 and 32 heads, with their means joined by a line that rises from 1.88 to 1.91; the upper axis gives the identified share, from 0.5 to 0.98."}, "figure": {"caption": "The final validation loss rises with the number of heads, while the identified share, above, rises too. Dots are seeds, diamonds their means.", "name": "fig-heads-loss"}}
figures.heads_and_loss({H: losses.values for H, losses in zip(HEADS, of_heads)})

# %% [markdown]
# By this recipe the loss *rises* with the share ({numref}`fig-heads-loss`). This does not show that identification hurts: what changes most is the family of functions ({doc}`05_many_heads` has the trade between a head's rank and their number), and each family may want its own rate. Over $H$ a correlation of loss and share can have either sign.
#
# ## Break it
#
# **The recipe.** By {eq}`eq-steering` the factored model moves $M$ further for the same gradient, as a larger rate does. And the recipe's rate was the paper's, for a larger model and longer training. Take five of the models at twice the rate, three seeds each. Whether the rate changes what a parametrisation does is a question of its own: the difference to plain at one rate, minus that at the other, seed by seed.

# %%
FAST = "-rate-0.002"
doubled = [run.removesuffix(FAST) for run in final if run.endswith(FAST)]
gain = {run: final[run + FAST] - final[run] for run in doubled}
for run in doubled:
    print(f"{run:9} at twice the rate - at the recipe's: {interval(gain[run])}")
    assert -0.11 < gain[run].min() and gain[run].max() < -0.04
check("hypothesis", twice_the_rate=ends(gain["adamw"]))
times = (gain["adamw"].mean() / difference["factored"].mean()).item()
print(f"plain's gain is {times:.0f} times the factored model's advantage")
assert 10 < times < 12

# %%
against, interaction = {}, {}
for run in ("canonical", "factored", "heads-1", "heads-16"):
    against[run] = final[run + FAST] - final["adamw" + FAST]
    interaction[run] = gain[run] - gain["adamw"]  # what the rate changes of that
    p = equivalence(against[run], 0.02).p
    print(f"{run:9} - plain at twice the rate: {interval(against[run])}")
    print(f"{'':11} equivalent within 0.02: p = {p:.3f}")
    print(f"{'':11} what the rate changes of it: {interval(interaction[run])}")
print(f"least p of sign flips of three seeds: {sign_flip_p(np.array([1.0, 2.0, 3.0]))}")
check("hypothesis", interaction=ends(interaction["factored"]))
assert interaction["factored"].seed.values.tolist() == [0, 1, 2]  # paired by seed
found = interval(interaction["factored"])[:3]
assert [f"{value:.3f}" for value in found] == ["0.006", "-0.036", "0.048"]
assert equivalence(against["factored"], 0.02).p > 0.05

# %% [markdown]
# Each model gains 0.04 to 0.11 nats in every seed. The recipe's rate is far from the best at this size, and plain AdamW gains eleven times the factored model's advantage by it.
#
# What becomes of that advantage is open. The rate changes it by +0.006, with an interval from -0.036 to 0.048: it may be gone, or be several times as large. At twice the rate the factored model cannot even be called equivalent to the plain one ($p = 0.06$). Three seeds tell that the change is below 0.05 and no more; by sign flips no three seeds can have a $p$ below 0.25.
#
# And the heads?

# %%
at_recipe = {run: final[run] - plain for run in ("heads-1", "heads-16")}
rates = {"the recipe's": at_recipe, "twice that": against}
for run in at_recipe:
    for rate, differences in rates.items():
        low, high = ends(differences[run], 1 - 0.05 / 2)
        print(f"{run:8} - 4 heads, rate {rate:12}: {interval(differences[run])}")
        print(f"{'':11} at 97.5 %, for two comparisons: {low:.3f} to {high:.3f}")
check("hypothesis", sixteen_heads=ends(against["heads-16"], 1 - 0.05 / 2))
assert at_recipe["heads-16"].mean() > 0 > ends(at_recipe["heads-16"])[0]
assert ends(at_recipe["heads-1"])[1] < 0 < ends(against["heads-1"])[0]
assert ends(against["heads-1"], 1 - 0.05 / 2)[0] < 0
assert ends(interaction["heads-1"])[0] < 0 < ends(interaction["heads-1"])[1]

# %% [markdown]
# Four heads do better than sixteen at either rate, at the recipe's in the mean only, at twice the rate clearly. Against one head the sign changes: worse than one at the recipe's rate, better at twice the rate. But the second interval holds zero once it is one of two comparisons, and so does that of the change itself. That the order of the heads depends on the rate is a suspicion worth more seeds, and no finding.
#
# **The proposition.** It needs a loss of $M$ alone. Let weights decay, as AdamW's do, and the loss is one of $W_K$ and $W_Q$: its infimum over a fibre is reached at balanced weights ({prf:ref}`prop-least-norm`), which canonical ones are not. Then idle parameters do change what is best.

# %%
W_K, W_Q = normal(D, E, seed=5), normal(D, E, seed=6)
# canonical, with the same M
held_K, held_Q = torch.linalg.solve(W_K[:, :D], W_K), W_K[:, :D].mT @ W_Q
scale = (held_Q.norm() / held_K.norm()).sqrt()  # makes both norms equal
least = 2 * torch.linalg.svdvals(W_K.mT @ W_Q).sum().item()
pairs = {
    "plain": (W_K, W_Q),
    "balanced": rebalance(W_Q, W_K),
    "canonical": (scale * held_K, held_Q / scale),
}
squares = {kind: sum(W.square().sum().item() for W in pairs[kind]) for kind in pairs}
assert relative_change(held_K.mT @ held_Q, W_K.mT @ W_Q) < 1e-12
for kind, square in squares.items():
    print(f"{kind:9}: squared norms over the least for this M {square / least:.2f}")
assert abs(squares["balanced"] / least - 1) < 1e-10
assert squares["canonical"] > squares["plain"] > least

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
# Others have gone at the same numbers by experiment, and report that they matter for training. Biases that are drawn anew for each batch and never learned break the rotations of a head's queries and of its values, and help simple optimizers at 124 million
# parameters {cite:p}`silverstein2026`. Preconditioners that respect the symmetries keep a step off the orbits, where Adam's drifts along them {cite:p}`shirodkar2026`; others are built to suit the symmetry of each kind of weight {cite:p}`lau2026`. All three speak of
# how idle numbers let training move, as {prf:ref}`prop-idle-steering` does, and not of how many numbers a model identifies. We have tried none of them.
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
# **1.** Two plain pairs with the same $M$ see the same gradient $\Gamma$. When does gradient flow move $M$ alike from both?
#
# ```{admonition} Answer
# :class: dropdown
#
# When $W_K^\top W_K$ and $W_Q^\top W_Q$ agree, by {eq}`eq-steering`; for pairs of full rank, if they differ by an orthogonal $S$. (With $D < E$ it is the only way to move alike for every $\Gamma$. With $D = E$ there are others: $(a I, b I)$ and $(b I, a I)$.) So the idle directions that a rotation makes have no effect even on training by gradient flow; those that stretch do. AdamW, which works entry by entry, tells rotations apart as well.
# ```

# %% tags=["hide-cell"]
stretch = normal(D, D, seed=7)
plain_velocity = lambda W_K, W_Q: velocity(products["plain"], W_K, W_Q)
for name, S in (("rotated", torch.linalg.qr(stretch).Q), ("stretched", stretch)):
    moved = plain_velocity(torch.linalg.inv(S).mT @ W_K, S @ W_Q)
    same = relative_change(moved, plain_velocity(W_K, W_Q)) < 1e-12
    print(f"{name}: the same velocity within 1e-12: {same}")
    assert same == (name == "rotated")

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
shares = " ".join(f"{share(n):.3f}" for n in (0, 1, 2, 10, 100))
print("share with 0, 1, 2, 10, 100 factors:", shares)
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
small_difference = difference["canonical"]
spread = small_difference.std(ddof=1) / small_difference.mean()
needed = (2 * 1.96 * spread.item()) ** 2
print(f"more than a hundred seeds: {needed > 100}")
assert needed > 100

# %% [markdown]
# *Next:* {doc}`18_two_checkpoints_one_function` asks what two trained models have in common: whether two files hold one function, and how high the loss is between two that do not.
