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
# *Assumed: {doc}`02_query_key_invariance`, and softmax as the only thing between scores and attention weights until we say otherwise.*
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
# {prf:ref}`lem-invariance` survive? And how many of the $4E$ numbers can the outputs reveal?

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
# For every $u \in \mathbb{R}^n$ and $\delta \in \mathbb{R}$, $\mathrm{softmax}(u + \delta \mathbf{1}) = \mathrm{softmax}(u)$. Hence
#
# 1. the outputs do not depend on $b_K$, and the gradient of any loss with respect to it is zero;
# 2. one head with $W_O W_V \ne 0$ determines, by its outputs, the matrix $M = W_K^\top W_Q$ and the vector $c = W_K^\top b_Q \in
#    \mathbb{R}^E$, and its query and key parameters act through these two alone.
# ```
#
# For $D \le E$ a head then loses $D^2$ numbers to the choice of basis, as without biases, and $D$ more to the key bias.
#
# ```{prf:lemma} Only the pooled value bias shows (paper: section 4.7.2)
# :label: lem-pooled-bias
#
# If the attention weights of each query sum to one, the value biases and the output bias act only through
#
# $$
# b_{V,O} = \sum_{h=1}^{H} W_O^h\, b_V^h + b_O \in \mathbb{R}^E .
# $$
#
# All $HC$ value biases can be moved into the output bias: of them only the {term}`pooled value bias`, their part of the sum, shows. Without an output
# bias, what shows of them has dimension $\min(HC, E)$ for generic $W_O$, and $HC - \min(HC, E)$ of them are {term}`unidentified`.
# ```
#
# So a layer with all four biases can do without $HD + HC$ of them, $2E$ in the usual case: half.

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
# The factor $e^\delta$ cancels from numerator and denominator. In the display above, the third and the fourth term are constant down
# each column, so softmax removes them: *1* follows, and the rest depends on $M$ and $c$. Conversely, a sequence of one token $x$ gives
# $N x$ plus a constant, $N = W_O W_V$, so $N$ is determined. Two tokens, $y$ and then $x$, give at $x$ that constant plus
# $N(y + p\,(x - y))$ with $p = 1/(1 + e^{-s})$ and $s = (x - y)^\top (M x + c)$. Where $N (x - y) \ne 0$, $p$ and so $s$ is determined; by
# continuity $s$ is determined for all $x, y$. So is $M x + c$ for every $x$, hence $c$ (at $x = 0$) and $M$.
# ```
#
# ```{prf:proof}
# (of {prf:ref}`lem-pooled-bias`)
# Let $P^h$ be the attention weights of head $h$, one column for each query, so $\mathbf{1}^\top P^h = \mathbf{1}^\top$. Then
# $W_O^h (W_V^h X + b_V^h \mathbf{1}^\top) P^h = W_O^h W_V^h X P^h + W_O^h b_V^h \mathbf{1}^\top$, and the last terms of all heads add
# to $b_O \mathbf{1}^\top$. Without $b_O$ their sum lies in the column space of $(W_O^1 \cdots W_O^H)$, an $E \times HC$ matrix.
# ```

# %% [markdown]
# ## The same symbols in code
#
# A layer of three heads with $E = 12$, $D = C = 4$ and all four biases, and a way to say how far two outputs are apart.

# %%
from dataclasses import replace

import torch

from attnid import Attention, act_query_key, count, figures, forward, measure
from attnid.layer.attention import project, scores


def normal(seed, *shape):
    return torch.randn(
        shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )


def apart(a, b):
    return float((a - b).norm() / b.norm())


# %%
layer = Attention(12, 3, bias="qkvo")
theta, x = (
    layer.random_parameters(seed=0),
    normal(1, 16, 10, 12),
)  # 16 sequences of 10 tokens
y = forward(layer, theta, x)

# %% [markdown]
# The change of basis, on all four or on some of them. Each head gets an $S$ of its own, and `act_query_key` returns the moved
# $W_Q, W_K, b_Q, b_K$ in this order.

# %% tags=["claim-sec-4.6"]
S = normal(2, 3, 4, 4)
moved = dict(
    zip(
        ("W_Q", "W_K", "b_Q", "b_K"),
        act_query_key(S, theta["W_Q"], theta["W_K"], theta["b_Q"], theta["b_K"]),
    )
)
parts = {
    "weights, both biases": ("b_Q", "b_K"),
    "weights, query bias": ("b_Q",),
    "weights, key bias": ("b_K",),
    "weights alone": (),
}
change = {}
for name, biases in parts.items():
    changed = theta | {n: moved[n] for n in ("W_Q", "W_K", *biases)}
    change[name] = apart(forward(layer, changed, x), y)
    print(f"{name:21} outputs the same to 1e-12: {change[name] < 1e-12}")
assert max(change["weights, both biases"], change["weights, query bias"]) < 1e-12
assert min(change["weights, key bias"], change["weights alone"]) > 0.1

# %% [markdown]
# Moving the weights without $b_Q$ changes the outputs by more than a tenth of their size. Whether $b_K$ moves does not matter at all.
#
# The size of the change is not a matter of luck. Before softmax it is the formula of {prf:ref}`prop-joint-action`, to a relative
# $10^{-12}$ (the transpose of it, since tokens are rows here, and divided by the package's $\sqrt D$):

# %% tags=["claim-sec-4.6"]
weights_only = theta | {n: moved[n] for n in ("W_Q", "W_K")}
before, after = (
    scores(layer, p, *project(layer, p, x)[:2]) for p in (theta, weights_only)
)
I = torch.eye(4, dtype=torch.float64)
seen = torch.einsum(
    "blf,hdf,hde,he->bhl", x, theta["W_K"], torch.linalg.inv(S) - I, theta["b_Q"]
)
unseen = torch.einsum("hd,hde,hef,blf->bhl", theta["b_K"], S - I, theta["W_Q"], x)
predicted = (
    seen[:, :, None, :] + unseen[:, :, :, None]
) / 2  # (B, H, L queries, L keys); sqrt(D) = 2
assert apart(after - before, predicted) < 1e-12

# %% [markdown]
# By the second part of {prf:ref}`lem-key-bias` the outputs stay as they are exactly when $c = W_K^\top b_Q$ does, that is, for $D \le
# E$ and $W_K$ of full rank, when $S b_Q = b_Q$. An $S$ of that kind may be moved past the biases, and one that nearly fixes $b_Q$ does
# little harm.

# %%
b, w = theta["b_Q"], normal(3, 3, 4)
w = w - b * (w * b).sum(-1, keepdim=True) / b.square().sum(
    -1, keepdim=True
)  # orthogonal to b_Q, head by head
S_fix = I + 0.5 * w[:, :, None] * w[:, None, :]  # so that S b_Q = b_Q
harm = []
for t in (0, 1e-4, 1e-2):
    W_Q, W_K = act_query_key(S_fix + t * I, theta["W_Q"], theta["W_K"])
    harm.append(apart(forward(layer, theta | {"W_Q": W_Q, "W_K": W_K}, x), y))
assert harm[0] < 1e-12 and 50 < harm[2] / harm[1] < 200  # grows like t
print("S b_Q = b_Q, outputs the same to 1e-12:", harm[0] < 1e-12)

# %% [markdown]
# ## The check
#
# Each lemma is checked by a large change, a derivative and a rank; then the function that drops what is idle.
#
# ### The key bias, three ways
#
# *A large change.* Replace $b_K$ by anything: here by random numbers ten times the size of the old ones. The same is done to $b_Q$, as
# a control. *A derivative.* The derivative of the outputs along a random change of $b_K$, and the gradient of a random loss, against
# those of $b_Q$. *A rank.* How many numbers the layer identifies with a key bias and without one.


# %%
def derivative(attention, theta, direction):
    """How fast the outputs change along a direction, name -> tensor, which leaves other parameters alone."""
    full = {name: direction.get(name, torch.zeros_like(p)) for name, p in theta.items()}
    return torch.func.jvp(lambda p: forward(attention, p, x), (theta,), (full,))[1]


def bias_gradients(attention, seed=4):
    """The gradients of a mean squared error against random targets, bias by bias."""
    theta, target = attention.random_parameters(seed), normal(seed + 1, *x.shape)
    loss = lambda p: (forward(attention, p, x) - target).square().mean()
    return {
        name: g
        for name, g in torch.func.grad(loss)(theta).items()
        if name.startswith("b_")
    }


# %% tags=["claim-fact-4.7"]
new_b = 10 * normal(6, 3, 4)
assert (
    apart(forward(layer, theta | {"b_K": new_b}, x), y)
    < 1e-12
    < 0.1
    < apart(forward(layer, theta | {"b_Q": new_b}, x), y)
)

along_K, along_Q = (
    derivative(layer, theta, {name: new_b}).norm() for name in ("b_K", "b_Q")
)
assert along_K < 1e-12 * along_Q
gradient = bias_gradients(layer)
assert gradient["b_K"].norm() < 1e-12 * gradient["b_Q"].norm()

ranks = {
    bias: measure(replace(layer, bias=bias)).rank for bias in ("qkvo", "qvo", "kvo")
}
assert ranks["qkvo"] == ranks["qvo"] == count(layer).identified
assert (
    ranks["qkvo"] - ranks["kvo"] == layer.H * layer.D
)  # the query bias is seen, all of it
print("identified with all biases, without b_K, without b_Q:", *ranks.values())

# %% [markdown]
# ### The value bias, three ways
#
# *A large change:* any new $b_V$, compensated in $b_O$ so that $b_{V,O}$ stays; without compensation the outputs move. *A derivative*
# along $(\delta b_V, \delta b_O) = (v, -\sum_h W_O^h v^h)$. *A rank*, with the value bias and without.

# %% tags=["claim-sec-4.7.2"]
pool = lambda b_V: torch.einsum("hec,hc->e", theta["W_O"], b_V)
shift = new_b - theta["b_V"]
compensated = theta | {"b_V": new_b, "b_O": theta["b_O"] - pool(shift)}
assert apart(forward(layer, compensated, x), y) < 1e-12
assert apart(forward(layer, theta | {"b_V": new_b}, x), y) > 0.1

idle = derivative(layer, theta, {"b_V": shift, "b_O": -pool(shift)}).norm()
assert idle < 1e-12 * derivative(layer, theta, {"b_V": shift}).norm()

assert measure(replace(layer, bias="qko")).rank == ranks["qkvo"]
terms = count(layer).terms
assert (
    terms["key bias"] == terms["value bias"] == 12
    and measure(layer).nullity == count(layer).unidentified
)
print(terms)

# %% [markdown]
# ### The saving, as code
#
# Since these numbers do nothing, a layer can be rewritten without them. The function below takes a layer with all four biases to one
# that has $b_Q$ and $b_O' = b_O + \sum_h W_O^h b_V^h$ only. It refuses by name the layers for which that would not be the same
# function; why it must is the subject of the next section.


# %%
def drop_idle_biases(attention, theta):
    """The same layer with bias "qo": no key bias, and the value biases pooled into the output bias."""
    plain = {"rotary": (), "qk_norm": None, "bias": "qkvo"}
    for field, value in plain.items():
        if getattr(attention, field) != value:
            raise ValueError(
                f"{field}={getattr(attention, field)!r}: biases can be dropped only where it is {value!r}"
            )
    if attention.score in ("softcap", "sink"):
        raise ValueError(
            f"score={attention.score!r}: it sees a shift of the scores, so the key bias is not idle"
        )
    b_V = theta["b_V"].repeat_interleave(
        attention.H // attention.G, 0
    )  # head h reads group h // (H / G)
    pooled = theta["b_O"] + torch.einsum("hec,hc->e", theta["W_O"], b_V)
    kept = {name: p for name, p in theta.items() if name not in ("b_K", "b_V")}
    return replace(attention, bias="qo"), kept | {"b_O": pooled}


# %% tags=["claim-sec-4.7.2", "claim-fact-4.7"]
for old in (
    layer,
    replace(layer, causal=False),
    replace(layer, score="alibi"),
    Attention(12, 6, 2, bias="qkvo"),
):
    p = old.random_parameters(seed=7)
    new, q = drop_idle_biases(old, p)
    assert apart(forward(new, q, x), forward(old, p, x)) < 1e-12
    assert old.parameters - new.parameters == old.G * (old.D + old.C)
    assert (
        count(old).identified
        == count(new).identified
        == measure(new).rank
        == measure(old).rank
    )
assert layer.parameters - drop_idle_biases(layer, theta)[0].parameters == 2 * layer.E
print(
    "numbers before and after:",
    layer.parameters,
    drop_idle_biases(layer, theta)[0].parameters,
)

# %%
for field, value in {
    "rotary": (0.7,),
    "score": "sink",
    "qk_norm": "head",
    "bias": "qkv",
}.items():
    other = replace(layer, **{field: value})
    try:
        drop_idle_biases(other, other.random_parameters(seed=7))
        raise AssertionError(field)
    except ValueError as refusal:
        assert field in str(refusal)
        print(refusal)

# %% [markdown]
# ## Break it: where the lemmas fail
#
# Both lemmas lean on one property each. The key bias is idle because it reaches a query's scores as *one number for all keys*, and
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
#
# How many numbers does a bias add to what is identified? We measure a layer with it and without it, and ask `count` the same.


# %%
def added(letter, bias="qkvo", **options):
    """How many numbers the bias `letter` has, and by how many it raises the identified count; measured, and by formula."""
    full = Attention(8, 2, bias=bias, **options)
    less = replace(full, bias=bias.replace(letter, ""))
    measured = measure(full).rank - measure(less).rank
    assert measured == count(full).identified - count(less).identified
    return full.parameters - less.parameters, measured


cases = {
    "plain": {},
    "ALiBi": {"score": "alibi"},
    "rotary, all planes": {"rotary": (0.7, 1.9)},
    "rotary, half": {"rotary": (0.7,)},
    "soft-capped": {"score": "softcap"},
    "learned sink": {"score": "sink"},
    "normalised keys": {"qk_norm": "head"},
    "no b_O, HC < E": {"bias": "qkv", "value_dim": 3},
    "no b_O, HC = E": {"bias": "qkv"},
    "no b_O, HC > E": {"bias": "qkv", "value_dim": 6},
}

# %% [markdown]
# The layer has $E = 8$, $H = 2$ and $D = 4$, and $C = 4$ where nothing else is said. Each entry reads *identified of all*.

# %% tags=["claim-fact-4.7", "claim-sec-4.7.2"]
table = {
    name: (added("k", **options), added("v", **options))
    for name, options in cases.items()
}
print(f"{'':20}{'key bias':>10}{'value bias':>13}")
for name, ((has_K, sees_K), (has_V, sees_V)) in table.items():
    print(f"{name:20}{f'{sees_K} of {has_K}':>10}{f'{sees_V} of {has_V}':>13}")
sees = {name: (K[1], V[1]) for name, (K, V) in table.items()}
assert sees == {
    "plain": (0, 0),
    "ALiBi": (0, 0),
    "rotary, all planes": (8, 0),
    "rotary, half": (4, 0),
    "soft-capped": (8, 0),
    "learned sink": (8, 8),
    "normalised keys": (8, 0),
    "no b_O, HC < E": (0, 6),
    "no b_O, HC = E": (0, 8),
    "no b_O, HC > E": (0, 8),
}

# %% [markdown]
# A head in which half the coordinates are rotated shows half its key bias. ALiBi subtracts a multiple of the distance from each score
# and takes nothing away. Without an output bias the value biases are seen up to the dimension $E$ of the space they are pooled in: for
# $HC = 12 > E = 8$, four of them are idle.
#
# An optimiser meets all this as a gradient. {numref}`fig-bias-gradients` has the gradients of the four biases at random parameters and
# a random loss; only in the plain layer is that of $b_K$ zero to rounding. The idle directions of the value bias cannot be seen in such
# bars, as each involves $b_O$ too. They show as a relation: where $b_V$ pools, its gradient in head $h$ is $(W_O^h)^\top$ times that of
# $b_O$, and so holds no news.

# %%
options = {
    "plain": {},
    "rotary": {"rotary": (0.7, 1.9)},
    "soft-capped": {"score": "softcap"},
    "learned sink": {"score": "sink"},
}
norms = {
    name: {b: float(g.norm()) for b, g in bias_gradients(replace(layer, **o)).items()}
    for name, o in options.items()
}
for name, norm in norms.items():
    quiet = norm["b_K"] < 1e-13 * norm["b_O"]
    assert quiet == (name == "plain") and (quiet or norm["b_K"] > 1e-2 * norm["b_O"])
    other = replace(layer, **options[name])
    g, W_O = bias_gradients(other), other.random_parameters(seed=4)["W_O"]
    pooled = apart(g["b_V"], torch.einsum("hec,e->hc", W_O, g["b_O"])) < 1e-12
    assert pooled == (name != "learned sink")

# %% mystnb={"image": {"alt": "Four groups of four bars on a logarithmic axis, for a plain, a rotary, a soft-capped and a sink layer. All bars are within two powers of ten of one, except that of the key bias in the plain layer, which lies at rounding level, more than ten orders of magnitude below."}, "figure": {"caption": "Norms of the gradients of the four biases of a layer, over that of the output bias, at random parameters and targets. The key bias of the plain layer has no gradient but rounding (shaded); anything that makes a common shift visible gives it one.", "name": "fig-bias-gradients"}}
figures.bias_gradients(norms)

# %% [markdown]
# ### Dropout on the attention weights
#
# During training many models drop attention weights after softmax: each is set to zero with probability $1 - \pi$ and divided by $\pi$
# otherwise. In a given pass the weights of a query then do not sum to one. So $b_V$ does not pool in that pass, though it does
# on average. Dropout comes after softmax and leaves $b_K$ idle. To see it, we write the forward pass with an explicit mask.


# %%
def forward_with_mask(attention, theta, x, mask):
    q, k, v = project(attention, theta, x)
    later = torch.ones(x.shape[-2], x.shape[-2], dtype=torch.bool).triu(1)
    p = scores(attention, theta, q, k).masked_fill(later, -torch.inf).softmax(-1)
    return (
        torch.einsum("...hlm,hec,...hmc->...le", mask * p, theta["W_O"], v)
        + theta["b_O"]
    )


def dropout_mask(seed, keep, *shape):
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(shape, generator=generator, dtype=torch.float64) < keep) / keep


pass_mask = dropout_mask(8, 0.8, 16, 3, 10, 10)  # (B, H, L, L)
assert apart(forward_with_mask(layer, theta, x, torch.ones(1)), y) < 1e-12

# %% [markdown]
# With $\pi = 1/2$ the average can be taken exactly: a mask $m$ and its complement $2 - m$ are equally likely, and their mean is all
# ones.

# %% tags=["claim-sec-4.7.2"]
one_pass = [
    forward_with_mask(layer, p, x, pass_mask)
    for p in (theta, compensated, theta | {"b_K": new_b})
]
assert apart(one_pass[1], one_pass[0]) > 0.1  # b_V no longer pools,
assert apart(one_pass[2], one_pass[0]) < 1e-12  # and b_K is still idle

half = dropout_mask(9, 0.5, 16, 3, 10, 10)
mean = [
    sum(forward_with_mask(layer, p, x, m) for m in (half, 2 - half)) / 2
    for p in (theta, compensated)
]
assert (
    apart(mean[0], mean[1]) < 1e-12 and apart(mean[0], y) < 1e-12
)  # on average it pools
print(
    "pools in one pass:",
    apart(one_pass[1], one_pass[0]) < 1e-12,
    " on average:",
    apart(mean[0], mean[1]) < 1e-12,
)

# %% [markdown]
# The rank says how much a single pass reveals. The outputs are affine in $(b_V, b_O)$, so their Jacobian in these $HC + E$ numbers is a
# fixed matrix: of rank $E$ without dropout, and of full rank in one pass with it.


# %%
def bias_rank(mask):
    run = lambda b: forward_with_mask(layer, theta | b, x, mask)
    J = torch.func.jacfwd(run)({name: theta[name] for name in ("b_V", "b_O")})
    columns = torch.cat([J[name].flatten(3) for name in J], -1).flatten(0, 2)
    return int(torch.linalg.matrix_rank(columns, rtol=1e-10))


assert (
    bias_rank(torch.ones(1)) == layer.E
    and bias_rank(pass_mask) == layer.E + layer.H * layer.C
)
print(
    "numbers seen of",
    layer.E + layer.H * layer.C,
    "without and with dropout:",
    bias_rank(torch.ones(1)),
    bias_rank(pass_mask),
)

# %% [markdown]
# ## What it means
#
# In a plain layer the four biases hold $2HD + HC + E$ numbers, of which $HD + E$ are identified: the query bias, through $W_K^\top
# b_Q$, and one vector of size $E$. The others can be left out before training or dropped after it. The saving is small, $2E$ against
# the $2E^2/H$ that the choice of bases costs, but it is free.
#
# Two warnings go with it. A method that moves the weights of a head to a better basis has to take $b_Q$ along, or it changes the model:
# {prf:ref}`prop-joint-action` is the reason. And whether $b_K$ is dead weight is a question about the whole layer, since rotations,
# caps, sinks and norms each bring it to life.
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
assert (
    count(wide).unidentified - 1 == lost == measure(wide).nullity - 1
)  # 1 for the values
print("unidentified query and key parameters:", lost)

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
bias = 10 * normal(10, 3, 4)
for angles in ((0.7, 0.0), (0.7, 2 * torch.pi)):
    rotary = replace(layer, rotary=angles)
    assert count(rotary).terms["key bias"] == rotary.H * 2
    still, turning = (
        theta | {"b_K": theta["b_K"] + bias * torch.tensor(part)}
        for part in ([0, 0, 1, 1], [1, 1, 0, 0])
    )
    reference = forward(rotary, theta, x)
    assert (
        apart(forward(rotary, still, x), reference)
        < 1e-12
        < 0.01
        < apart(forward(rotary, turning, x), reference)
    )

# %% [markdown]
# **3.** In exact arithmetic no gradient method ever moves $b_K$. In single precision its gradient is rounding noise. Does plain gradient
# descent move it? Does Adam, whose first step is $\eta\, g / (|g| + \epsilon)$ with $\epsilon = 10^{-8}$?
#
# ```{admonition} Answer
# :class: dropdown
#
# Gradient descent moves it by $\eta$ times the noise, which is next to nothing. Adam divides the noise by its own size and by
# $\epsilon$, and so multiplies it by at least $1/(10^{-6} + 10^{-8})$ as long as it stays below $10^{-6}$. The key bias wanders, and
# the outputs do not mind.
# ```

# %% tags=["hide-cell"]
single = {name: p.float() for name, p in layer.random_parameters(seed=4).items()}
target = normal(5, *x.shape).float()
loss = lambda p: (forward(layer, p, x.float()) - target).square().mean()
g = torch.func.grad(loss)(single)["b_K"]
adam = g / (g.abs() + 1e-8)
assert 0 < g.abs().max() < 1e-6  # noise, but not zero
assert adam.abs().max() > 5e5 * g.abs().max()
assert (
    apart(
        forward(layer, single | {"b_K": single["b_K"] - adam}, x.float()),
        forward(layer, single, x.float()),
    )
    < 1e-5
)

# %% [markdown]
# **Next:** biases are a side show. {doc}`07_wider_heads` returns to the weights and asks what happens when a head is wider than $E/H$.
