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
# # Biases
#
# *Assumed: {doc}`02_query_key_invariance`, {prf:ref}`lem-heads-apart`. Until we say otherwise each head has its own keys and values ($G = H$), and
# softmax takes the scores as they are, under a causal mask or none: no rotation, no cap, no norm, no sink.*
#
# *In the ledger:* {ref}`section 4.6 <ledger-sec-4-6>`, {ref}`Fact 4.7 <ledger-fact-4-7>`, {ref}`section 4.7.2 <ledger-sec-4-7-2>`,
# {ref}`centred inputs <ledger-layer-norm>`.
#
# ## The question
#
# Most libraries give a linear map a bias unless told not to. A layer of attention then has four more vectors: with tokens as columns,
#
# $$
# Q(X) = W_Q X + b_Q \mathbf{1}^\top, \quad K(X) = W_K X + b_K \mathbf{1}^\top, \quad V(X) = W_V X + b_V \mathbf{1}^\top
# $$
#
# in each head, where $\mathbf{1} \in \mathbb{R}^L$ is a vector of ones, and one output bias $b_O \in \mathbb{R}^E$ for the layer. In the
# usual case $D = C = E/H$ that makes $4E$ numbers beside $4E^2$ weights. Two things have to be settled. Does the change of basis of
# {prf:ref}`lem-invariance` survive? And how many of the $4E$ numbers can the outputs reveal? A third question is about constants as well: what does
# the layer not see of inputs of mean zero, which a layer normalisation without gain and bias puts out?

# %% [markdown]
# ## The claim
#
# ```{prf:proposition} Weights and biases move together (paper: section 4.6)
# :label: prop-joint-action
#
# Let $S \in \mathbb{R}^{D \times D}$ be nonsingular. The parameters
#
# $$
# (S W_Q,\; S b_Q,\; S^{-\top} W_K,\; S^{-\top} b_K)
# $$
#
# give the same scores as $(W_Q, b_Q, W_K, b_K)$, for every input. If only the weights move, the scores change by
#
# $$
# X^\top W_K^\top (S^{-1} - I)\, b_Q\, \mathbf{1}^\top \;+\; \mathbf{1}\, b_K^\top (S - I)\, W_Q X .
# $$
# ```
#
# The second term is constant down each column, that is, the same for all keys of a query. This is where softmax comes in.
#
# ```{prf:lemma} The key bias is idle (paper: Fact 4.7 and section 4.7.1)
# :label: lem-key-bias
#
# For every $u \in \mathbb{R}^n$ and $t \in \mathbb{R}$, $\mathrm{softmax}(u + t \mathbf{1}) = \mathrm{softmax}(u)$. Hence, where softmax takes the
# scores as they are,
#
# 1. the outputs do not depend on $b_K$, and the gradient of any loss with respect to it is zero;
# 2. the query and key parameters of a head act through the matrix $M = W_K^\top W_Q$ and the vector $c = W_K^\top b_Q \in \mathbb{R}^E$ alone. Every
#    unidentified direction keeps both to first order in each head, if all $W_O^h W_V^h \ne 0$, no two heads have the same $M$ and $c$, and the mask
#    is causal or none. Among layers of this kind the outputs determine both, up to the order of the heads;
# 3. if $W_Q$ and $W_K$ have rank $D$, a head $(W_Q', b_Q', W_K')$ has the same $M$ and $c$ only if it is $(S W_Q, S b_Q, S^{-\top} W_K)$ for
#    a nonsingular $S$.
# ```
#
# For $D \le E$ a head then loses $D^2$ numbers to the choice of basis, as without biases, and $D$ more to the key bias.
#
# ```{prf:lemma} Only the pooled value bias shows (paper: section 4.7.2)
# :label: lem-pooled-bias
#
# If the attention weights of each query sum to one, as those of a softmax do where each query sees at least one key, the value biases and the
# output bias act only through
#
# $$
# b_{V,O} = \sum_{h=1}^{H} W_O^h\, b_V^h + b_O \in \mathbb{R}^E .
# $$
#
# All $HC$ value biases can be moved into the output bias: of them only the {term}`pooled value bias`, their part of the sum, shows. Without an output
# bias, what shows of them has dimension $\min(HC, E)$ for generic $W_O$, and $HC - \min(HC, E)$ of them are {term}`unidentified` ($GC$ for $HC$
# where heads share their values).
# ```
#
# So a layer with all four biases can do without $HD + HC$ of them, $2E$ in the usual case: half. At generic weights the other $HD + E$ add
# $H \min(D, E) + E$ to what is identified: all of them if $D \le E$, while $c$ cannot show more than $E$ numbers of a wider head.
#
# ```{prf:lemma} Centred inputs
# :label: lem-centred-inputs
#
# Let $E \ge 3$, and let the inputs be what a layer normalisation without gain or bias puts out: all $x$ with $\mathbf{1}^\top x = 0$ and
# $\lVert x \rVert = \sqrt{E}$. Let the columns of $B \in \mathbb{R}^{E \times (E - 1)}$ be a basis of the vectors with mean zero.
#
# 1. Multiples of $\mathbf{1}^\top$ can be added to all rows of $W_Q$, $W_K$ and $W_V$.
# 2. With $B^\top M_h B$, $B^\top c_h$ and $N_h B$ in the place of $M_h$, $c_h$ and $N_h$, also in its hypotheses, {prf:ref}`lem-heads-apart` (1) holds.
# 3. Without biases and at generic weights, more directions are unidentified than with free inputs, by
#
#    $$
#    H \big( \min(2D,\, 2E - 1) + \min(C, E) \big) .
#    $$
#
#    This is one for each row of $W_Q$, $W_K$ and $W_V$ exactly if $D \le E - 1$ and $C \le E$, and then it holds with biases too.
# ```
#
# At $D = E$ the directions of part 1 are not all new. One in each head was idle before, that of $T = W_K^{-\top} \mathbf{1} \mathbf{1}^\top
# W_Q^{-1}$: it adds $T W_Q = W_K^{-\top} \mathbf{1} \mathbf{1}^\top$ to $W_Q$, multiples of $\mathbf{1}^\top$ in each row, and to $W_K$ too.

# %% [markdown]
# ## Proof
#
# ```{prf:proof}
# (of {prf:ref}`prop-joint-action`)
# Append a one to every token and the bias to every weight matrix: with $\tilde X = \binom{X}{\mathbf{1}^\top}$, the scores are
# $\tilde X^\top\, (W_K \; b_K)^\top (W_Q \; b_Q)\, \tilde X$. This is a head without biases and with $E + 1$ in the place of $E$;
# {prf:ref}`lem-invariance` asks nothing of the sizes and moves both $D \times (E + 1)$ matrices as claimed. Multiplied out, the scores
# are
#
# $$
# X^\top W_K^\top W_Q X + X^\top W_K^\top b_Q \mathbf{1}^\top + \mathbf{1}\, b_K^\top W_Q X + b_K^\top b_Q\, \mathbf{1} \mathbf{1}^\top .
# $$
#
# Moving the weights alone keeps the first and the last term, and puts $S^{-1}$ before $b_Q$ in the second and $S$ before $W_Q$ in the
# third.
# ```
#
# ```{prf:proof}
# (of {prf:ref}`lem-key-bias`)
# The factor $e^t$ cancels from numerator and denominator. In the display above, the third and the fourth term are constant down
# each column, so softmax removes them: *1* follows, and the first half of *2*. What is left is a layer as in {eq}`eq-layer-seen`, with
# the $b_{V,O}$ of {prf:ref}`lem-pooled-bias` as its constant vector, and {prf:ref}`lem-heads-apart` is the second half. *3.* Since $W_Q$ has rank $D$, the columns of $M$ span the
# row space of $W_K$. This is a space of dimension $D$ and contained in the row space of $W_K'$, which has $D$ rows. So $W_K' = S^{-\top} W_K$ with
# a unique nonsingular $S$. Then $W_K^\top (S^{-1} W_Q' - W_Q) = 0$ and $W_K^\top (S^{-1} b_Q' - b_Q) = 0$, and $W_K^\top$ is injective.
# ```
#
# ```{prf:proof}
# (of {prf:ref}`lem-pooled-bias`)
# Let $\alpha^h$ be the attention weights of head $h$, one column for each query, so $\mathbf{1}^\top \alpha^h = \mathbf{1}^\top$. Then
# $W_O^h (W_V^h X + b_V^h \mathbf{1}^\top) \alpha^h = W_O^h W_V^h X \alpha^h + W_O^h b_V^h \mathbf{1}^\top$, and the last terms of all heads add
# to $b_O \mathbf{1}^\top$. Without $b_O$ their sum runs over the column space of $(W_O^1 \cdots W_O^H)$, an $E \times HC$ matrix; the heads that share
# a $b_V$ add up their $W_O^h$, which leaves $GC$ columns.
# ```
#
# ```{prf:proof}
# (of {prf:ref}`lem-centred-inputs`)
# *1.* $\mathbf{1}^\top x = 0$. *2.* That proof used its inputs three times. From one token, $\sum_h \dot N_h x + \dot b = 0$ with the derivative $\dot b$ of
# the constant vector, and with $x$ also $-x$ is an input, so $\dot b = 0$ and $\sum_h \dot N_h B = 0$. It then chose $y$ and $x = y + u$ with distinct $s_h = u^\top (M_h x + c_h)$ and
# no $N_h u$ zero. The inputs are a sphere in $E - 1 \ge 2$ dimensions, which is connected, and on which a polynomial that is not zero everywhere is not
# zero almost everywhere. For a fixed $x$ the differences $u$ span the space of $B$. So if $u^\top (A x + d) = 0$ for all pairs, then
# $B^\top (A x + d) = 0$ for all $x$, and for $-x$, so $B^\top d = 0$ and $B^\top A B = 0$. With $A = M_h - M_g$ and $d = c_h - c_g$ this shows that
# almost all pairs will do; with $\dot M_g$ and $\dot c_g$, that they are kept where they are seen.
# *3.* The map $W \mapsto W B$ is onto and forgets one number of each row, $H(2D + C)$ in all. Besides, the products $(W_K B)^\top (W_Q B)$ and
# $W_O (W_V B)$ lose what {eq}`eq-product-loses` says of $(D, E - 1, E - 1)$ and $(C, E - 1, E)$. Compared with $(D, E, E)$ the first is the same
# for $D \le E - 1$ and less by $2D - 2E + 1$ for $D \ge E$; compared with $(C, E, E)$ the second is the same for $C \le E$ and less by $C - E$
# beyond. With biases the first becomes $(D, E - 1, E)$ and is compared with $(D, E, E + 1)$: for $D \le E - 1$ both lose $D^2$.
# ```
#
# (For $E = 2$ there are two inputs, and what the proof asks of almost all pairs holds for both at generic weights.)

# %% [markdown]
# ## The same symbols in code
#
# A layer of three heads with $E = 12$, $D = C = 4$ and all four biases.

# %%
from dataclasses import replace

import torch
from flint import fmpz_mat

from attnid import Attention, act_query_key, count, exact_nullity, figures, forward
from attnid import independent_directions, measure
from attnid.claims import check
from attnid.layer.attention import project, random_inputs, scores
from attnid.tensors import normal, rank, relative_change

layer = Attention(12, 3, bias="qkvo")
theta = layer.random_parameters(seed=0)
x = normal(16, 10, 12, seed=1)  # 16 sequences of 10 tokens
y = forward(layer, theta, x)

# %% [markdown]
# The change of basis, on all four or on some of them. Each head gets an $S$ of its own, and `act_query_key` returns the moved
# $W_Q, W_K, b_Q, b_K$ in this order.

# %%
ACTS = ("W_Q", "W_K", "b_Q", "b_K")
S = normal(3, 4, 4, seed=2)
moved = dict(zip(ACTS, act_query_key(S, *(theta[name] for name in ACTS))))


def changed(*biases):
    """How much the outputs change when the weights are moved, with these biases."""
    new = {name: moved[name] for name in ("W_Q", "W_K", *biases)}
    return relative_change(forward(layer, theta | new, x), y)


check(
    "sec-4.6",
    together=[changed("b_Q", "b_K"), changed("b_Q")],
    weights_alone=[changed("b_K"), changed()],
)

# %% [markdown]
# Moving the weights without $b_Q$ changes the outputs by more than a tenth of their size. Whether $b_K$ moves does not matter at all.
#
# Before softmax the change is the formula of {prf:ref}`prop-joint-action`
# (the transpose of it, since tokens are rows here, and divided by the package's $\sqrt D$):

# %%
weights_only = theta | {name: moved[name] for name in ("W_Q", "W_K")}
before, after = (
    scores(layer, p, *project(layer, p, x)[:2]) for p in (theta, weights_only)
)
I = torch.eye(4, dtype=torch.float64)
left, right = (S.inverse() - I) @ theta["b_Q"][..., None], (S - I) @ theta["W_Q"]
seen = torch.einsum("blf,hdf,hdi->bhl", x, theta["W_K"], left)
unseen = torch.einsum("hd,hdf,blf->bhl", theta["b_K"], right, x)
formula = (seen[:, :, None, :] + unseen[:, :, :, None]) / 2  # (B, H, query, key)
check("sec-4.6", size=relative_change(after - before, formula))

# %% [markdown]
# By {prf:ref}`lem-key-bias` (2) the outputs stay as they are exactly when $c = W_K^\top b_Q$ does, that is, for $D \le
# E$ and $W_K$ of full rank, when $S b_Q = b_Q$. Such an $S$ may be moved past the biases, and one that nearly fixes $b_Q$ does
# little harm.

# %%
b, w = theta["b_Q"], normal(3, 4, seed=3)
w = w - b * (w * b).sum(-1, keepdim=True) / b.square().sum(-1, keepdim=True)
S_fix = I + 0.5 * w[:, :, None] * w[:, None, :]  # w and b are orthogonal: S b_Q = b_Q
harm = []
for t in (0, 1e-4, 1e-2):
    W_Q, W_K = act_query_key(S_fix + t * I, theta["W_Q"], theta["W_K"])
    new = theta | {"W_Q": W_Q, "W_K": W_K}
    harm.append(relative_change(forward(layer, new, x), y))
assert harm[0] < 1e-12 and 50 < harm[2] / harm[1] < 200  # grows like t
print("S b_Q = b_Q, outputs the same to 1e-12:", harm[0] < 1e-12)

# %% [markdown]
# To test part 3 of {prf:ref}`lem-key-bias` we need heads with the same $M$ and $c$ that were not
# made by an $S$: orthonormal keys from a QR decomposition of $M$, and the queries and the bias that go with them. The $S$ is then
# computed from the keys alone, and has to carry the rest.

# %%
M = theta["W_K"].mT @ theta["W_Q"]  # (H, E, E)
c = theta["W_K"].mT @ theta["b_Q"][..., None]
frame = torch.linalg.qr(M[..., :4]).Q  # its columns span those of M
other = {"W_K": frame.mT, "W_Q": frame.mT @ M, "b_Q": (frame.mT @ c)[..., 0]}
S_T = theta["W_K"] @ torch.linalg.pinv(other["W_K"])  # S^T W_K' = W_K
S_b = (S_T.mT @ theta["b_Q"][..., None])[..., 0]
check(
    "sec-4.6",
    another_head=relative_change(forward(layer, theta | other, x), y),
    found_S=[
        relative_change(S_T.mT @ theta["W_Q"], other["W_Q"]),
        relative_change(S_b, other["b_Q"]),
    ],
)

# %% [markdown]
# ## The check
#
# First all four biases together, counted in the four ways of {doc}`05_many_heads`: $2HD^2 = 64$ numbers as without biases, and $HD + HC = 16$.

# %%
four_biases = Attention(8, 2, bias="qkvo")
check(
    "sec-4.6",
    formula=count(four_biases).unidentified,
    measured=measure(four_biases).nullity,
    generators=independent_directions(four_biases),
    exact=exact_nullity(four_biases),
)

# %% [markdown]
# ### The key bias, four ways
#
# *A large change.* Replace $b_K$ by anything: here by random numbers ten times the size of the old ones. The same is done to $b_Q$, as
# a control. *A derivative.* The derivative of the outputs along a random change of $b_K$, and the gradient of a random loss, against
# those of $b_Q$.


# %%
def derivative(attention, theta, direction):
    """How fast the outputs change along a direction, zero where it names nothing."""
    full = {name: direction.get(name, torch.zeros_like(p)) for name, p in theta.items()}
    return torch.func.jvp(lambda p: forward(attention, p, x), (theta,), (full,))[1]


def bias_gradients(attention, seed=4):
    """Gradients of a mean squared error against random targets, bias by bias."""
    theta, target = attention.random_parameters(seed), normal(*x.shape, seed=seed + 1)
    loss = lambda p: (forward(attention, p, x) - target).square().mean()
    gradients = torch.func.grad(loss)(theta)
    return {name: g for name, g in gradients.items() if name.startswith("b_")}


# %%
new_b = 10 * normal(3, 4, seed=6)
outcome = {
    name: relative_change(forward(layer, theta | {name: new_b}, x), y)
    for name in ("b_K", "b_Q")
}
slope = {name: derivative(layer, theta, {name: new_b}).norm() for name in outcome}
gradient = {name: g.norm() for name, g in bias_gradients(layer).items()}
check("fact-4.7", large=outcome["b_K"], control=outcome["b_Q"])
check("fact-4.7", derivative=slope["b_K"] / slope["b_Q"])
check("fact-4.7", gradient=gradient["b_K"] / gradient["b_Q"])

# %% [markdown]
# *A rank.* The unidentified numbers of a layer with query and key biases, $64 + HD = 72$, in the four ways; then of three layers in which the
# key bias shows, and which a new key bias changes: with rotations, a cap on the scores, and a sink.

# %%
kinds = ({}, {"rotary": (1.0, 0.3)}, {"score": "softcap"}, {"score": "sink"})
biased = [Attention(8, 2, bias="qk", **seen_by) for seen_by in kinds]


def with_new_key_bias(attention):
    own, at = attention.random_parameters(0), random_inputs(attention, 4, 7, seed=3)
    replaced = own | {"b_K": normal(*own["b_K"].shape, seed=6)}
    outputs = (forward(attention, either, at) for either in (replaced, own))
    return relative_change(*outputs)


check(
    "fact-4.7",
    formula=[count(layer_k).unidentified for layer_k in biased],
    measured=[measure(layer_k).nullity for layer_k in biased],
    generators=[independent_directions(layer_k) for layer_k in biased],
    exact=[exact_nullity(layer_k) for layer_k in biased],
    shows=[with_new_key_bias(layer_k) for layer_k in biased[1:]],
)

# %% [markdown]
# *The other direction.* $M$ and $c$ can be read off. From single tokens we know $N$ and the constant $b_{V,O}$; at a pair
# $y$, $x = y + u$ the output $b_{V,O} + N y + p\, N u$ gives $p$, this the score $s = \log (p / (1 - p))$, and $s = u^\top (M x + c)$ is linear in $M$ and $c$.

# %%
one = Attention(4, 1, head_dim=2, value_dim=3, bias="qkvo")
hidden = one.random_parameters(seed=7)
says = lambda *tokens: forward(one, hidden, torch.stack(tokens, -2))[..., -1, :]
constant = says(torch.zeros(4).double())
by_unit = says(torch.eye(4, dtype=torch.float64)) - constant  # row i: N e_i
from_y, to_x = normal(60, 4, seed=8), normal(60, 4, seed=9)
u = to_x - from_y
told, whole = says(from_y, to_x) - constant - from_y @ by_unit, u @ by_unit
s = torch.logit((told * whole).sum(-1) / whole.square().sum(-1))
features = torch.cat((u[:, :, None] * to_x[:, None, :], u[:, :, None]), 2).flatten(1)
read = torch.linalg.lstsq(features, s[:, None]).solution.view(4, 5)  # (M c)
inside = torch.cat((hidden["W_Q"][0], hidden["b_Q"].mT), 1) / 2**0.5
check("fact-4.7", read_off=relative_change(read, hidden["W_K"][0].mT @ inside))

# %% [markdown]
# ### The value bias, three ways
#
# *A large change:* any new $b_V$, compensated in $b_O$ so that $b_{V,O}$ stays; without compensation the outputs move. *A derivative*
# along $(\delta b_V, \delta b_O) = (v, -\sum_h W_O^h v^h)$. *A rank*, of a layer with both biases, which loses $HC = 8$ beside its $64$, and of one with
# a sink, which does not.

# %%
pool = lambda b_V: torch.einsum("hec,hc->e", theta["W_O"], b_V)
shift = new_b - theta["b_V"]
compensated = theta | {"b_V": new_b, "b_O": theta["b_O"] - pool(shift)}
check(
    "sec-4.7.2",
    large=relative_change(forward(layer, compensated, x), y),
    control=relative_change(forward(layer, theta | {"b_V": new_b}, x), y),
    derivative=derivative(layer, theta, {"b_V": shift, "b_O": -pool(shift)}).norm()
    / derivative(layer, theta, {"b_V": shift}).norm(),
)

# %%
pooling = [Attention(8, 2, bias="vo"), Attention(8, 2, bias="vo", score="sink")]
check(
    "sec-4.7.2",
    formula=[count(layer_v).unidentified for layer_v in pooling],
    measured=[measure(layer_v).nullity for layer_v in pooling],
    generators=[independent_directions(layer_v) for layer_v in pooling],
    exact=[exact_nullity(layer_v) for layer_v in pooling],
)

# %% [markdown]
# What all four biases add to the identified number is $H \min(D, E) + E$, here for narrow heads, and for one and two heads that are wider than
# their tokens.

# %%
widths = [Attention(4, 2), Attention(3, 1, head_dim=5), Attention(3, 2, head_dim=5)]
full = [replace(few, bias="qkvo") for few in widths]
check(
    "sec-4.7.2",
    adds=[few.H * min(few.D, few.E) + few.E for few in widths],
    adds_measured=[
        measure(more).rank - measure(few).rank for few, more in zip(widths, full)
    ],
)

# %% [markdown]
# ### Centred inputs
#
# *A large change:* multiples of $\mathbf{1}^\top$ in the rows of all three weights, for inputs that are centred and for inputs that are not. *A
# rank:* how many more numbers are idle when inputs are centred, for a layer with $D \le E - 1$ and $C \le E$, for two with $D = C = E$, where the
# simple rule says $12$ and $9$, and for one with $C > E$. *The overlap:* the direction of the $T$ above, in a head with $D = E$, has rows that are multiples
# of $\mathbf{1}^\top$, and keeps $M$.

# %%
centred = Attention(8, 2, inputs="centred")
p0, ones = centred.random_parameters(seed=0), torch.ones(8, dtype=torch.float64)
shifted = p0 | {
    name: p0[name] + normal(*p0[name].shape[:2], seed=1)[..., None] * ones
    for name in ("W_Q", "W_K", "W_V")
}
z = {
    kind: random_inputs(replace(centred, inputs=kind), 4, 7, 3)
    for kind in ("free", "centred")
}
moves = {
    kind: relative_change(
        forward(centred, shifted, z[kind]), forward(centred, p0, z[kind])
    )
    for kind in z
}
check("layer-norm", large=moves["centred"], control=moves["free"])

# %%
sizes = ((4, 2, 2, 2), (4, 1, 4, 4), (3, 1, 3, 3), (3, 1, 2, 5))  # E, H, D, C
pairs = [
    [Attention(E, H, head_dim=D, value_dim=C, inputs=i) for i in ("free", "centred")]
    for E, H, D, C in sizes
]
further = lambda idle: [idle(after) - idle(before) for before, after in pairs]
check(
    "layer-norm",
    lemma=[H * (min(2 * D, 2 * E - 1) + min(C, E)) for E, H, D, C in sizes],
    formula=further(lambda a: count(a).unidentified),
    measured=further(lambda a: measure(a).nullity),
    generators=further(independent_directions),
    exact=further(exact_nullity),
)

# %%
square_Q, square_K = normal(4, 4, seed=2), normal(4, 4, seed=3)
T = square_K.mT.inverse() @ torch.ones(4, 4).double() @ square_Q.inverse()
dQ, dK = T @ square_Q, -T.mT @ square_K
check(
    "layer-norm",
    overlap=[
        relative_change(d.mean(1, keepdim=True).expand(4, 4), d) for d in (dQ, dK)
    ],
    kept=(square_K.mT @ dQ + dK.mT @ square_Q).norm() / dQ.norm(),
)

# %% [markdown]
# ### The layer by hand
#
# Give the layer of {doc}`05_many_heads` with $E = 3$ and two heads the biases $b_Q^1 = \binom{1}{0}$, $b_Q^2 = \binom{0}{1}$, any $b_K$,
# $b_V^1 = \binom{1}{0}$, $b_V^2 = \binom{0}{1}$ and $b_O = (0, 0, 1)^\top$. Then $c_1 = (1, 1, 0)^\top$ and $c_2 = (0, 1, 1)^\top$, and what shows of the last
# three is $(1, 1, 0)^\top + (1, 0, 1)^\top + (0, 0, 1)^\top = (2, 1, 2)^\top$. Of $48 + 15 = 63$ numbers $32 + 4 + 3 = 39$ are identified: $c_h$
# moves in the two dimensions of the rows of $W_K^h$.
#
# With centred inputs the rule says $H(2D + C) = 12$ fewer, since $D = E - 1$. But for them this layer is not generic: in each $W_Q$, $W_K$ and
# $W_V$ the two rows add up to $\mathbf{1}^\top$, so that on centred inputs they are opposite, of rank one. By {prf:ref}`lem-what-a-product-loses`
# each of the four products then loses $10 - (4 + 3 - 2) = 5$ in place of $4$, and $39 - 12 - 4 = 23$ are left. The integers say so, and the outputs.

# %%
by_hand = {
    "W_Q": [[[1, 0, 1], [0, 1, 0]], [[0, 1, 1], [1, 0, 0]]],
    "W_K": [[[1, 1, 0], [0, 0, 1]], [[1, 0, 0], [0, 1, 1]]],
    "W_V": [[[1, 0, 0], [0, 1, 1]], [[0, 1, 0], [1, 0, 1]]],
    "W_O": [[[1, 0], [1, 1], [0, 1]], [[0, 1], [1, 0], [1, 1]]],
    "b_Q": [[1, 0], [0, 1]],
    "b_V": [[1, 0], [0, 1]],
    "b_O": [0, 0, 1],
}
by_hand = {name: torch.tensor(value).double() for name, value in by_hand.items()}


# %%
def shown_by_hand(p, B):  # (M_h c_h), N_h for inputs in the columns of B, b_VO
    queries = torch.cat((p["W_Q"] @ B, p["b_Q"][..., None]), 2)
    seen = (p["W_K"] @ B).mT @ queries, p["W_O"] @ p["W_V"] @ B
    pooled = torch.einsum("hec,hc->e", p["W_O"], p["b_V"]) + p["b_O"]
    return torch.cat([part.flatten() for part in (*seen, pooled)])


def integer_rank(B):
    slopes = torch.func.jacrev(lambda p: shown_by_hand(p, B))(by_hand)
    rows = torch.cat([part.flatten(1) for part in slopes.values()], 1)
    return fmpz_mat(rows.long().tolist()).rank()


# %%
free_basis = torch.eye(3, dtype=torch.float64)
centred_basis = torch.tensor([[1, 0], [-1, 1], [0, -1]]).double()
on_paper = Attention(3, 2, head_dim=2, bias="qkvo")
written = by_hand | {"b_K": normal(2, 2, seed=4)}
ranks = [
    measure(replace(on_paper, inputs=kind), parameters=written).rank
    for kind in ("free", "centred")
]
check("sec-4.7.2", by_hand=[integer_rank(free_basis), ranks[0]])
check("layer-norm", by_hand=[integer_rank(centred_basis), ranks[1]])
c_h = (by_hand["W_K"].mT @ by_hand["b_Q"][..., None])[..., 0]
pooled = shown_by_hand(by_hand, free_basis)[-3:]
print("c_1, c_2:", c_h.long().tolist(), " pooled:", pooled.long().tolist())

# %% [markdown]
# ### The saving, as code
#
# The function below takes a layer with all four biases to one that has $b_Q$ and $b_O' = b_O + \sum_h W_O^h b_V^h$ only. It refuses by name
# layers for which that may be another function; the next section says why.


# %%
def drop_idle_biases(attention, theta):
    """The same layer with bias "qo": no key bias, value biases in the output bias."""
    plain = {"rotary": (), "qk_norm": None, "bias": "qkvo"}
    for field, value in plain.items():
        if getattr(attention, field) != value:
            found = f"{field}={getattr(attention, field)!r}"
            raise ValueError(
                f"{found}: biases can be dropped only where it is {value!r}"
            )
    if attention.score in ("softcap", "sink"):
        raise ValueError(f"score={attention.score!r}: it sees a shift of the scores")
    # head h reads the values of group h // (H / G)
    b_V = theta["b_V"].repeat_interleave(attention.H // attention.G, 0)
    pooled = theta["b_O"] + torch.einsum("hec,hc->e", theta["W_O"], b_V)
    kept = {name: p for name, p in theta.items() if name not in ("b_K", "b_V")}
    return replace(attention, bias="qo"), kept | {"b_O": pooled}


# %%
for kind in ({}, {"causal": False}, {"score": "alibi"}, {"heads": 6, "kv_heads": 2}):
    old = replace(layer, **kind)
    its = old.random_parameters(seed=7)
    lean, rest = drop_idle_biases(old, its)
    assert relative_change(forward(lean, rest, x), forward(old, its, x)) < 1e-12
    assert old.parameters - lean.parameters == old.G * (old.D + old.C)
    assert count(old).identified == count(lean).identified == measure(lean).rank
less = drop_idle_biases(layer, theta)[0].parameters
print("numbers before and after:", layer.parameters, less)
assert layer.parameters - less == 2 * layer.E

# %%
for field, value in {
    "rotary": (0.7,),
    "score": "sink",
    "qk_norm": "head",
    "bias": "qkv",
}.items():
    refused = replace(layer, **{field: value})
    try:
        drop_idle_biases(refused, refused.random_parameters(seed=7))
        raise AssertionError(field)
    except ValueError as refusal:
        assert field in str(refusal)
        print(refusal)

# %% [markdown]
# ## Break it: where the lemmas fail
#
# The lemmas rest on three properties. The key bias is idle because it reaches a query's scores as *one number for all keys*, and
# because softmax *does not see such a number*. The value biases pool because attention weights *sum to one*. Common parts of
# transformers take these away:
#
# - **{term}`Rotary positions <rotary position>`** {cite:p}`su2024` turn a key, bias included, by an angle that depends on its position
#   $m$. The scores then hold $b_K^\top R_{n-m} W_Q x_n$, which differs from key to key: the bias has become a preference for certain
#   distances.
# - **{term}`Soft-capping <soft-capping>`** passes each score through a bounded curve, $s \mapsto \kappa \tanh(s/\kappa)$, before softmax.
#   A common shift moves the scores to where the curve is flatter, and changes their differences.
# - **A learned {term}`sink`** adds to the keys of every query one more, with a learned score and no value. A common shift of the real keys
#   changes how much the sink takes. And the weights of the real keys no longer sum to one, so $b_V$ arrives scaled by what the sink
#   left.
# - **Normalised keys**: where a key is divided by its length, its bias changes the direction of each key differently.
# - **No output bias**: $b_V$ has nothing to be absorbed in.
# - **A query that sees no key**: a mask for padding, say, may leave a query nothing, and libraries then put out zeros in place of a softmax. The
#   weights of that query do not sum to one, and what it says is $b_O$ alone.
#
# How many numbers does a bias add to what is identified? We measure a layer with it and without it, and ask `count` the same.


# %%
def added(letter, bias="qkvo", **options):
    """How many numbers a bias has, and by how many it raises the identified count."""
    has = Attention(4, 2, head_dim=4, bias=bias, **{"value_dim": 2} | options)
    lacks = replace(has, bias=bias.replace(letter, ""))
    measured = measure(has).rank - measure(lacks).rank
    assert measured == count(has).identified - count(lacks).identified
    return has.parameters - lacks.parameters, measured


cases = {
    "plain": {},
    "ALiBi": {"score": "alibi"},
    "rotary, all planes": {"rotary": (0.7, 1.9)},
    "rotary, half": {"rotary": (0.7,)},
    "soft-capped": {"score": "softcap"},
    "learned sink": {"score": "sink"},
    "normalised keys": {"qk_norm": "head"},
    "no b_O, HC < E": {"bias": "qkv", "value_dim": 1},
    "no b_O, HC = E": {"bias": "qkv"},
    "no b_O, HC > E": {"bias": "qkv", "value_dim": 3},
}

# %% [markdown]
# The layer has $E = 4$, $H = 2$ and $D = 4$, and $C = 2$ where nothing else is said. Each entry reads *identified of all*.

# %%
print(f"{'':20}{'key bias':>10}{'value bias':>13}")
sees = {"k": [], "v": []}
for name, options in cases.items():
    entries = {letter: added(letter, **options) for letter in sees}
    for letter, (_, seen) in entries.items():
        sees[letter].append(seen)
    key, value = (f"{seen} of {has}" for has, seen in entries.values())
    print(f"{name:20}{key:>10}{value:>13}")
check("fact-4.7", adds=sees["k"])
check("sec-4.7.2", adds_elsewhere=sees["v"])

# %% [markdown]
# A head in which half the coordinates are rotated shows half its key bias. ALiBi, which subtracts a multiple of the distance from each score,
# changes nothing. Without an output bias the value biases are seen up to the dimension $E$ of the space they are pooled in: for
# $HC = 6 > E = 4$, two of them are idle.
#
# An optimiser meets all this as a gradient. {numref}`fig-bias-gradients` has the gradients of the four biases at random parameters and
# a random loss; only in the plain layer is that of $b_K$ zero to rounding. The idle directions of the value bias involve $b_O$
# too and show as a relation: where $b_V$ pools, its gradient in head $h$ is $(W_O^h)^\top$ times that of
# $b_O$, and so says nothing more.

# %%
options = {
    "plain": {},
    "rotary": {"rotary": (0.7, 1.9)},
    "soft-capped": {"score": "softcap"},
    "learned sink": {"score": "sink"},
}
norms = {}
for name, kind in options.items():
    drawn = replace(layer, **kind)
    g, W_O = bias_gradients(drawn), drawn.random_parameters(seed=4)["W_O"]
    norms[name] = {bias: float(slope.norm()) for bias, slope in g.items()}
    quiet = norms[name]["b_K"] / norms[name]["b_O"]
    assert quiet < 1e-13 if name == "plain" else quiet > 1e-2
    more = relative_change(g["b_V"], torch.einsum("hec,e->hc", W_O, g["b_O"]))
    assert (more < 1e-12) == (name != "learned sink")

# %% mystnb={"image": {"alt": "Four groups of four bars on a logarithmic axis, for a plain, a rotary, a soft-capped and a sink layer. All bars are within two powers of ten of one, except that of the key bias in the plain layer, which lies at rounding level, more than ten orders of magnitude below."}, "figure": {"caption": "Norms of the gradients of the four biases of a layer, over that of the output bias, at random parameters and targets. The key bias of the plain layer has no gradient but rounding (shaded); anything that makes a common shift visible gives it one.", "name": "fig-bias-gradients"}}
figures.bias_gradients(norms)

# %% [markdown]
# ### Dropout on the attention weights
#
# During training many models drop attention weights after softmax: each is kept and divided by $r$ with probability $r$, and set to zero
# otherwise. In a given pass the weights of a query then do not sum to one. So $b_V$ does not pool in that pass, though it does
# on average. Dropout comes after softmax and leaves $b_K$ idle. To see it, we write the forward pass with an explicit mask.


# %%
def forward_with_mask(attention, theta, x, mask):
    q, k, v = project(attention, theta, x)
    later = torch.ones(x.shape[-2], x.shape[-2], dtype=torch.bool).triu(1)
    alpha = scores(attention, theta, q, k).masked_fill(later, -torch.inf).softmax(-1)
    heads = torch.einsum("...hlm,hec,...hmc->...le", mask * alpha, theta["W_O"], v)
    return heads + theta["b_O"]


def dropout_mask(seed, keep, *shape):
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(shape, generator=generator, dtype=torch.float64) < keep) / keep


pass_mask = dropout_mask(8, 0.8, 16, 3, 10, 10)  # (B, H, L, L)
assert relative_change(forward_with_mask(layer, theta, x, torch.ones(1)), y) < 1e-12

# %% [markdown]
# With $r = 1/2$ the average can be taken exactly: a mask $m$ and its complement $2 - m$ are equally likely, and their mean is all
# ones.

# %%
new_K = theta | {"b_K": new_b}
one_pass = [
    forward_with_mask(layer, p, x, pass_mask) for p in (theta, compensated, new_K)
]
half = dropout_mask(9, 0.5, 16, 3, 10, 10)
mean = [
    sum(forward_with_mask(layer, p, x, m) for m in (half, 2 - half)) / 2
    for p in (theta, compensated)
]
check("sec-4.7.2", one_pass=relative_change(one_pass[1], one_pass[0]))
check("sec-4.7.2", on_average=[relative_change(m, y) for m in mean])
check("fact-4.7", dropout=relative_change(one_pass[2], one_pass[0]))

# %% [markdown]
# The rank says how much a single pass reveals. The outputs are affine in $(b_V, b_O)$, so their Jacobian in these $HC + E = 24$ numbers is a
# fixed matrix: of rank $E$ without dropout, and of full rank in one pass with it. One query that sees no key is enough for that too: it shows
# $b_O$, and the others the sum, which is all of $b_V$ since here $HC = E$.


# %%
def bias_rank(mask):
    run = lambda b: forward_with_mask(layer, theta | b, x, mask)
    J = torch.func.jacfwd(run)({name: theta[name] for name in ("b_V", "b_O")})
    return rank(torch.cat([J[name].flatten(3) for name in J], -1).flatten(0, 2))


padding = torch.ones(10, 10).double()
padding[0] = 0  # the first query sees nothing
check("sec-4.7.2", ranks=[bias_rank(m) for m in (torch.ones(1), pass_mask, padding)])

# %% [markdown]
# ## What it means
#
# In a plain layer the four biases hold $2HD + HC + E$ numbers, of which $H \min(D, E) + E$ are identified: the query bias, through $W_K^\top
# b_Q$, and one vector of size $E$. $b_K$ and $b_V$ can be left out before training or dropped after it. The saving is small, $2E$ against
# the $2E^2/H$ that the choice of bases costs.
#
# A method that moves the weights of a head to a better basis has to take $b_Q$ along, or it changes the model:
# {prf:ref}`prop-joint-action` is the reason. And whether $b_K$ is idle is a question about the whole layer, since rotations,
# caps, sinks and norms each let it show.
#
# ```{prf:remark} Departure from the paper
# :label: rem-06-softmax
#
# The paper finds the key bias without effect in any head that uses softmax, and the value biases redundant in any layer with several
# heads. Both hold for the plain layer. The first fails for rotary positions, which the paper takes up in its section 4.8.2, and for
# capped scores, sinks and normalised keys; the second where attention weights do not sum to one, and, in part, where there is no output
# bias. One head or many makes no difference to it.
# ```

# %% [markdown]
# ## Exercises
#
# **1.** Let $D > E$. How many of the $D(2E + 2)$ query and key parameters of a head, biases included, are unidentified?
#
# ```{admonition} Answer
# :class: dropdown
#
# The outputs see $(M \; c) = W_K^\top (W_Q \; b_Q)$, an $E \times (E + 1)$ matrix that can be any matrix when $D \ge E$. So $E(E + 1)$
# numbers are identified, and $2D(E + 1) - E(E + 1) = (2D - E)(E + 1)$ are not, $D$ of these in $b_K$.
# ```

# %% tags=["hide-cell"]
wide = Attention(3, 1, head_dim=5, value_dim=1, bias="qk")
lost = (2 * wide.D - wide.E) * (wide.E + 1)
print("unidentified query and key parameters:", lost)
assert count(wide).unidentified == measure(wide).nullity == lost + 1  # 1 in the values

# %% [markdown]
# **2.** In a rotary head some planes turn and some do not. Which part of the key bias is idle? What if a plane turns by $2\pi$ at each
# position?
#
# ```{admonition} Answer
# :class: dropdown
#
# The part in coordinates that do not turn: there the bias meets every key alike. A plane that turns by a full circle at each
# step does not turn, as far as whole positions go.
# ```

# %% tags=["hide-cell"]
bias = 10 * normal(3, 4, seed=10)
halves = {"still": [0, 0, 1, 1], "turning": [1, 1, 0, 0]}
for angles in ((0.7, 0.0), (0.7, 2 * torch.pi)):
    rotary = replace(layer, rotary=angles)
    assert count(rotary).terms["key bias"] == rotary.H * 2
    reference, moves = forward(rotary, theta, x), {}
    for name, half_of in halves.items():
        new = theta | {"b_K": theta["b_K"] + bias * torch.tensor(half_of)}
        moves[name] = relative_change(forward(rotary, new, x), reference)
    assert moves["still"] < 1e-12 < 0.01 < moves["turning"]

# %% [markdown]
# **3.** In exact arithmetic no gradient method ever moves $b_K$. In single precision its gradient is rounding noise. Does plain gradient
# descent move it? Does Adam, whose first step is $\eta\, g / (|g| + \epsilon)$ with $\epsilon = 10^{-8}$?
#
# ```{admonition} Answer
# :class: dropdown
#
# Gradient descent moves it by $\eta$ times the noise, which is next to nothing. Adam divides the noise by the sum of its size and
# $\epsilon$, and so multiplies it by at least $1/(10^{-6} + 10^{-8})$ as long as it stays below $10^{-6}$. The key bias wanders, and
# the outputs do not mind.
# ```

# %% tags=["hide-cell"]
single = {name: p.float() for name, p in layer.random_parameters(seed=4).items()}
x_32, target = x.float(), normal(*x.shape, seed=5).float()
loss = lambda p: (forward(layer, p, x_32) - target).square().mean()
g = torch.func.grad(loss)(single)["b_K"]
adam = g / (g.abs() + 1e-8)
assert 0 < g.abs().max() < 1e-6  # noise, but not zero
assert adam.abs().max() > 5e5 * g.abs().max()
stepped = single | {"b_K": single["b_K"] - adam}
assert (
    relative_change(forward(layer, stepped, x_32), forward(layer, single, x_32)) < 1e-5
)

# %% [markdown]
# **Next:** {doc}`07_wider_heads` returns to the weights and asks what happens when a head is wider than $E/H$.
