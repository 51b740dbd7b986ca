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
# # Many heads
#
# *Assumed: no biases, no {term}`rotary positions <rotary position>`, plain softmax; {doc}`chapters 1 <01_what_is_identified>` and
# {doc}`2 <02_query_key_invariance>`. For one proof, what a pole of a function is.*
#
# *In the ledger:* {ref}`section 4.5 <ledger-sec-4-5>`, {ref}`Lemma 4.6 <ledger-lemma-4-6>`.
#
# ## The question
#
# A layer with $H$ heads adds up what they say:
#
# $$
# f(X) = \sum_{h=1}^{H} N_h\, X\, \mathrm{softmax}\big( X^\top M_h\, X \big), \qquad M_h = (W_K^h)^\top W_Q^h, \quad N_h = W_O^h W_V^h .
# $$
#
# The usual layer keeps its size whatever $H$ is, by cutting the heads narrower: $D = C = E/H$. It has $4E^2$ weights with one head and with
# twelve. Does it matter for identification into how many pieces they are cut? We know what one head loses, but not yet whether heads that
# stand side by side lose more: two heads share one output, and it is not obvious that the outputs can tell who said what.

# %% [markdown]
# ## The claim
#
# ```{prf:proposition} More heads, larger share (paper: section 4.5)
# :label: prop-share
#
# Let $H$ divide $E$ and $D = E/H$. Of the $2HDE = 2E^2$ query and key weights $H D^2 = E^2/H$ are {term}`unidentified`. The identified
# {term}`share` is
#
# $$
# 1 - \frac{E^2/H}{2E^2} = 1 - \frac{1}{2H} .
# $$
#
# It depends on $H$ only, grows with $H$, and lies between $1/2$ at $H = 1$ and $1 - 1/(2E)$ at $H = E$.
# ```
#
# ```{prf:lemma} Value-output invariance (paper: Lemma 4.6)
# :label: lem-value-output
#
# Let $W_O \in \mathbb{R}^{E \times C}$ and $W_V \in \mathbb{R}^{C \times E}$.
#
# 1. For every nonsingular $S \in \mathbb{R}^{C \times C}$ the pair $(W_O S^{-1},\, S W_V)$ has the same product $W_O W_V$.
# 2. For every $T \in \mathbb{R}^{C \times C}$, singular or not, the product has derivative zero along $(\delta W_O, \delta W_V) = (-W_O
#    T,\; T W_V)$.
# 3. If $C \le E$ and both matrices have rank $C$, these directions form a linear space of dimension $C^2$, and there are no others.
# ```
#
# Both statements concern a single product. What makes them add up over heads is this:
#
# ```{prf:lemma} Heads do not trade
# :label: lem-heads-apart
#
# Let $N_h \ne 0$ and $M_h \ne 0$ for all heads, and $M_h \ne \pm M_g$ for any two. A direction is unidentified exactly when it keeps, to
# first order, each of the $2H$ products $M_1, \dots, M_H, N_1, \dots, N_H$. Sequences of one and two tokens are enough to see that.
# ```
#
# ```{prf:corollary} The whole layer (paper: section 4.5)
# :label: cor-whole-layer
#
# Let $H$ divide $E$ and $D = C = E/H$. Of the $4E^2$ weights of a layer $H D^2 + H C^2 = 2E^2/H$ are unidentified, and the identified share
# is again $1 - 1/(2H)$.
# ```

# %% [markdown]
# ## Proof
#
# ```{prf:proof}
# (of {prf:ref}`lem-value-output`)
# *1.* $W_O S^{-1} S\, W_V = W_O W_V$. *2.* The derivative is $\delta W_O\, W_V + W_O\, \delta W_V = -W_O T W_V + W_O T W_V = 0$. *3.* $W_V$
# has a right inverse, so $T W_V = 0$ only for $T = 0$; the map from $T$ to directions is injective, and its image has dimension $C^2$. Now
# read $W_O W_V$ as $(W_O^\top)^\top W_V$: it is the product of {prf:ref}`prop-count-r` with $W_V$ for $W_Q$, $W_O^\top$ for $W_K$, and $C$
# for $D$. So its {term}`null directions <null direction>` make a space of dimension $2CE - C(2E - C) = C^2$, which is the image.
# ```
#
# The next proof extends that of {prf:ref}`lem-two-products`, which used the shortest sequences there are. One head left one sigmoid; now
# there are $H$ of them in a sum, and their poles keep them apart.
#
# ```{prf:proof}
# (of {prf:ref}`lem-heads-apart`)
# The outputs depend on the products alone, so keeping these keeps the outputs. Conversely take an unidentified direction and let dots
# denote derivatives along it. A sequence of one token $y$ has output $\sum_h N_h\, y$. Hence $\sum_h \dot N_h = 0$.
#
# Now take two tokens, $y$ and then $x = y + u$. With $\sigma(z) = 1/(1 + e^{-z})$, the output at $x$ is
#
# $$
# \sum_h N_h \big( y + \sigma(s_h)\, u \big), \qquad s_h = u^\top M_h\, x .
# $$
#
# Keep $u$ and replace $x$ by $t x$ with a number $t$, so $y$ by $t x - u$. Then $s_h = a_h t$ with $a_h = u^\top M_h x$, and that the
# derivative vanishes reads, as $\sum_h \dot N_h\, y = 0$,
#
# $$
# \sum_h \Big( \sigma(a_h t)\; \dot N_h u \;+\; t\, \sigma'(a_h t)\; \dot a_h\, N_h u \Big) = 0
# \qquad \text{for all real } t, \quad \dot a_h = u^\top \dot M_h\, x .
# $$ (eq-sigmoids)
#
# Both sides are analytic, so this holds for complex $t$ off the poles. Choose $u$ and $x$ so that the numbers $|a_h|$ are distinct and not
# zero, and let $g$ be the head with the largest. The function $\sigma(z)$ has a pole at $z = i\pi$, where it is $1/(z - i\pi)$ plus
# something analytic. So $\sigma(a_g t)$ has a simple pole at $t_0 = i\pi/a_g$, and $t\, \sigma'(a_g t)$ has a double one. All other terms
# of {eq}`eq-sigmoids` are analytic there, for their poles lie at odd multiples of $i\pi/a_h$, farther from zero. So the double pole must
# vanish, $\dot a_g N_g u = 0$, and then the simple one, $\dot N_g u = 0$. Strike out head $g$ and go on with the largest $|a_h|$ that is
# left, until none is.
#
# What did we choose? The polynomials $a_h$, $a_h - a_g$ and $a_h + a_g$ in $(u, x)$ are not zero, because $M_h \ne 0$ and $M_h \ne \pm
# M_g$. So almost all pairs $(u, x)$ will do, and for almost all of them $N_h u \ne 0$ as well. For these, $\dot N_h u = 0$ and $u^\top \dot
# M_h\, x = 0$; by continuity both hold for all $u$ and $x$, and so $\dot N_h = 0$ and $\dot M_h = 0$.
# ```
#
# ```{prf:proof}
# (of {prf:ref}`prop-share` and {prf:ref}`cor-whole-layer`)
# Generic weights meet the hypotheses of {prf:ref}`lem-heads-apart`, and head $h$ has weights of its own. So the null space is the direct
# sum of the null spaces of the $2H$ products, of dimension $D^2$ each by {prf:ref}`cor-share`, or $C^2$ by {prf:ref}`lem-value-output`.
# With $D = C = E/H$ either sum is $H (E/H)^2 = E^2/H$, out of $2E^2$ weights.
# ```
#
# ```{prf:remark} Departure from the paper
# :label: rem-05-percent
#
# With six heads the paper turns the share $11/12$ into about 83 per cent. It is $91.7\%$; 83 per cent is the share with three heads, $5/6$.
# Its figure for eight heads, $15/16$ or 94 per cent, is right.
# ```
#
# ```{prf:remark} Departure from the paper
# :label: rem-05-svd
#
# For Lemma 4.6 the paper writes down directions built from singular value decompositions. As printed these have no minus sign, one has its
# factors in the wrong order, and $W_V$ is decomposed with the factors of $W_O$. With $W_O = U_O \Sigma_O V_O^\top$ and $W_V = U_V \Sigma_V
# V_V^\top$ they should read
#
# $$
# \delta W_O = -\,U_O\, S\, \Sigma_V^{-1} U_V^\top, \qquad \delta W_V = V_O\, \Sigma_O^{-1} S\, V_V^\top ,
# $$
#
# which are the directions of the lemma with $T = V_O \Sigma_O^{-1} S\, \Sigma_V^{-1} U_V^\top$.
# ```
#
# ```{prf:remark} Departure from the paper
# :label: rem-05-apart
#
# The paper multiplies the count of one head by $H$. That gives unidentified directions, but not yet all of them: {prf:ref}`lem-heads-apart`
# is our addition. {cite:t}`henry2026` studies the same question, which weights give the same function, for layers of many heads.
# ```

# %% [markdown]
# ## The same symbols in code
#
# First the fractions, exactly. Twelve heads and ninety-six are added to the paper's examples.

# %% tags=["claim-sec-4.5"]
from fractions import Fraction

import torch

from attnid import (
    Attention,
    act_query_key,
    act_value_output,
    count,
    figures,
    forward,
    generators,
    measure,
)


def share(H):
    return 1 - Fraction(1, 2 * H)


assert (share(1), share(6), share(8)) == (
    Fraction(1, 2),
    Fraction(11, 12),
    Fraction(15, 16),
)
assert round(100 * share(6)) == 92 and round(100 * share(8)) == 94  # not 83
for H in (1, 2, 6, 8, 12, 96):
    print(f"{H:2} heads: {str(share(H)):>7} = {float(100 * share(H)):.1f}%")

# %% [markdown]
# Then the layer. Written with its products it is
#
# $$
# f(X) = \sum_{h} N_h\, X\, \mathrm{softmax}( X^\top M_h\, X ),
# $$
#
# and this is the same function as the package's `forward`, which never forms them.


# %%
def from_products(M, N, x):  # (H, E, E), (H, E, E), (L, E)
    s = x @ M.mT @ x.mT  # (H, L, L): query l, key m
    later = torch.ones_like(s, dtype=torch.bool).triu(1)
    p = s.masked_fill(later, -torch.inf).softmax(-1)
    return (p @ x @ N.mT).sum(0)  # heads are added


def normal(seed, *shape):
    return torch.randn(
        shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )


layer = Attention(12, 3)  # E = 12, H = 3, D = C = 4
p, x = layer.random_parameters(seed=0), normal(1, 6, 12)
M = p["W_K"].mT @ p["W_Q"] / layer.D**0.5  # the factor that the text absorbs
N = p["W_O"] @ p["W_V"]
y = forward(layer, p, x)
assert (from_products(M, N, x) - y).abs().max() < 1e-12

# %% [markdown]
# Every head may change both of its bases, independently of the others. Here are $2H$ unrelated changes at once: all weights are new, and
# the outputs agree to $10^{-11}$.

# %% tags=["claim-lemma-4.6"]
S, T = normal(2, 3, 4, 4), normal(3, 3, 4, 4)  # one of each for every head
W_Q, W_K = act_query_key(S, p["W_Q"], p["W_K"])
W_V, W_O = act_value_output(T, p["W_V"], p["W_O"])  # (T W_V, W_O T^{-1})
moved = {"W_Q": W_Q, "W_K": W_K, "W_V": W_V, "W_O": W_O}
assert (forward(layer, moved, x) - y).abs().max() < 1e-11 * y.abs().max()
assert all((moved[name] - p[name]).norm() > 0.5 * p[name].norm() for name in p)

# %% [markdown]
# ## The check
#
# **Lemma 4.6** for one pair with $C = 4$ and $E = 12$. The Jacobian of $(W_O, W_V) \mapsto W_O W_V$ is a matrix with $E^2$ rows and $2CE$
# columns. It must lose $C^2 = 16$ of them, and lose exactly the directions $(-W_O T, T W_V)$.


# %% tags=["claim-lemma-4.6"]
def rank(matrix):
    return int(torch.linalg.matrix_rank(matrix, rtol=1e-10))


def derivative(W_O, W_V, dO, dV):
    return dO @ W_V + W_O @ dV


W_O, W_V = p["W_O"][0], p["W_V"][0]
blocks = torch.func.jacrev(lambda O, V: O @ V, argnums=(0, 1))(W_O, W_V)
J = torch.cat([block.flatten(2).flatten(0, 1) for block in blocks], 1)  # (E E, 2 C E)
units = torch.eye(16, dtype=torch.float64).view(16, 4, 4)  # a basis of all T
dO, dV = -W_O @ units, units @ W_V
assert J.shape[1] - rank(J) == rank(torch.cat((dO.flatten(1), dV.flatten(1)), 1)) == 16
assert derivative(W_O, W_V, dO, dV).abs().max() < 1e-12

# %% [markdown]
# The construction from singular values, corrected ({prf:ref}`rem-05-svd`), with a random $S$: zero to rounding, and equal to the direction
# with the $T$ given there. As printed in the paper, even with the right decomposition of $W_V$, the derivative is far from zero; mending the sign
# alone is not enough, nor is mending the order alone.

# %% tags=["claim-lemma-4.6"]
(U_O, s_O, V_Oh), (U_V, s_V, V_Vh) = (
    torch.linalg.svd(W, full_matrices=False) for W in (W_O, W_V)
)
S, V_O = normal(4, 4, 4), V_Oh.mT
dO, dV = -U_O @ S / s_V @ U_V.mT, V_O / s_O @ S @ V_Vh
T = V_O / s_O @ S / s_V @ U_V.mT
assert derivative(W_O, W_V, dO, dV).abs().max() < 1e-12
assert (dO + W_O @ T).abs().max() < 1e-12 and (dV - T @ W_V).abs().max() < 1e-12
wrong_order = V_O @ S / s_O @ V_Vh
for printed in ((-dO, wrong_order), (dO, wrong_order), (-dO, dV)):
    assert derivative(W_O, W_V, *printed).norm() > 0.1 * S.norm()

# %% [markdown]
# **Heads apart.** The heart of the proof is that the constant $1$ and the $2H$ functions $\sigma(a_h t)$ and $t\, \sigma'(a_h t)$ are
# linearly independent when the numbers $|a_h|$ are distinct. We sample them and ask for the rank. Equal or opposite $a_h$ lose two.


# %%
def independent(a):
    t = torch.linspace(-8, 8, 200, dtype=torch.float64)[:, None]
    sigma = torch.sigmoid(a * t)  # (200, H)
    return rank(torch.cat((torch.ones_like(t), sigma, t * sigma * (1 - sigma)), 1))


ranks = [
    independent(torch.tensor(a, dtype=torch.float64))
    for a in ((0.5, 1.3, -3.0), (0.5, 1.3, 1.3), (0.5, 1.3, -1.3))
]
print("rank for distinct, equal and opposite:", ranks)
assert ranks == [7, 5, 5]

# %% [markdown]
# The lemma also promises that one and two tokens are enough. So the Jacobian of the layer over pairs of tokens must already have the full
# rank, which is $4E^2 - 2E^2/H = 480$ for our layer. We differentiate `forward` at 200 random pairs.


# %%
def jacobian(layer, p, x):
    blocks = torch.func.jacrev(lambda q: forward(layer, q, x))(p)
    return torch.cat(
        [blocks[name].flatten(0, x.ndim - 1).flatten(1) for name in layer.shapes], 1
    )


by_pairs = rank(jacobian(layer, p, normal(5, 200, 2, 12)))
assert by_pairs == count(layer).identified == 4 * 12**2 - 2 * 12**2 // 3 == 480
print("identified by pairs of tokens:", by_pairs, "of", layer.parameters)

# %% [markdown]
# **The share, measured.** All six ways of cutting $E = 12$: for each $H$ that divides 12 the closed form, explicit directions, and the rank
# of the layer's Jacobian over random sequences, which knows nothing of heads or products. The measured null space is also split by
# {term}`circuit`.


# %% tags=["claim-sec-4.5", "claim-lemma-4.6"]
def dimension_in(null_space, names):
    return rank(torch.cat([null_space[name].flatten(1) for name in names], 1))


E, measured = 12, {}
for H in (1, 2, 3, 4, 6, 12):
    layer = Attention(E, H)
    found, formula = measure(layer), count(layer)
    circuits = [
        dimension_in(found.null_space, names)
        for names in (("W_Q", "W_K"), ("W_O", "W_V"))
    ]
    written = generators(layer, layer.random_parameters(seed=6))
    assert (
        circuits
        == [
            len(written[term]["W_Q"])
            for term in ("query-key maps", "value-output maps")
        ]
        == [E**2 // H] * 2
    )
    assert (
        found.nullity == formula.unidentified == 2 * E**2 // H
        and layer.parameters == 4 * E**2
    )
    measured[H] = found.rank / layer.parameters
    assert measured[H] == formula.share and abs(measured[H] - share(H)) < 1e-12
    print(
        f"{H:2} heads of width {layer.D:2}: rank {found.rank} of {layer.parameters}, share {measured[H]:.3f}"
    )

# %% [markdown]
# Six heads instead of one turn 288 identified numbers into 528, without a single weight more.
#
# ## What it costs
#
# Not for nothing. Each $M_h$ is a product of an $E \times D$ and a $D \times E$ matrix, so its rank is at most $D = E/H$. A rank-$E$ score
# matrix is out of reach as soon as $H > 1$. How far out? By the theorem of Eckart and Young the best approximation of a target $M$ with
# singular values $s_1 \ge s_2 \ge \dots$ by a matrix of rank $D$ keeps the first $D$ of them, and its relative error is
#
# $$
# \varepsilon_D = \sqrt{ \frac{s_{D+1}^2 + \dots + s_E^2}{s_1^2 + \dots + s_E^2} } .
# $$


# %%
def best_errors(M, ranks):
    energy = torch.linalg.svdvals(M).square()
    return torch.stack([(energy[D:].sum() / energy.sum()).sqrt() for D in ranks])


E = 64
heads = [1, 2, 4, 8, 16, 32, 64]
targets = {
    "orthogonal": torch.linalg.qr(normal(7, E, E)).Q,
    "normal entries": normal(8, E, E),
    "spectrum $1/i$": torch.diag(1 / torch.arange(1, E + 1, dtype=torch.float64)),
}
errors = {name: best_errors(M, [E // H for H in heads]) for name, M in targets.items()}

# %% [markdown]
# The hardest target is an orthogonal matrix, which stretches every direction by the same factor; "attend to tokens like me", $M = I$, is
# one. All its $s_i$ are equal, so $\varepsilon_D^2 = 1 - D/E = 1 - 1/H$. Beside the share $1 - 1/(2H)$ this reads
#
# $$
# \varepsilon^2 = 2 \cdot \text{share} - 1 .
# $$
#
# For this target the share is bought with error: a point of share costs two of squared error. A matrix of independent normal entries is a little easier, and a spectrum
# that falls off is easier still. We check all of this, and that weights of width $D$ read off the truncated decomposition do attain
# $\varepsilon_D$.

# %%
exact = torch.tensor([2 * float(share(H)) - 1 for H in heads], dtype=torch.float64)
assert (errors["orthogonal"].square() - exact).abs().max() < 1e-12
U, s, Vh = torch.linalg.svd(targets["normal entries"])
for H, error in zip(heads, errors["normal entries"]):
    W_Q, W_K = Vh[: E // H], (U[:, : E // H] * s[: E // H]).mT
    assert (
        abs((W_K.mT @ W_Q - targets["normal entries"]).norm() / s.norm() - error)
        < 1e-12
    )
for easier, harder in zip(list(errors.values())[1:], errors.values()):
    assert (easier[1:] < harder[1:]).all()
at_eight = {name: f"{values[heads.index(8)]:.0%}" for name, values in errors.items()}
print("relative error with 8 heads:", at_eight)

# %% mystnb={"image": {"alt": "Left: the identified share rises with the number of heads along the curve one minus one over two H, from one half at one head to above 0.95 at twelve; measured points lie on it, and the values for 6 and 8 heads are marked eleven twelfths and fifteen sixteenths. Right: the error of the best approximation rises with the number of heads too, fastest for an orthogonal target, slowest for one whose spectrum falls off."}, "figure": {"caption": "Left: the share of identified parameters, by formula (line) and measured for $E = 12$ (dots). The paper's two examples are ringed. Right: what one head can no longer do: relative error of the best score product of rank $E/H$, for three targets with $E = 64$.", "name": "fig-share-and-error"}}
figures.share_and_error(measured, heads, errors)

# %% [markdown]
# {numref}`fig-share-and-error` shows both sides of the bargain over the same axis. {numref}`fig-stripe` shows what the right side means.
# The target there makes token $i$ look for token $i + 1$: a narrow stripe beside the diagonal of a $24 \times 24$ score product.

# %%
token = torch.arange(24, dtype=torch.float64)
stripe = torch.exp(-(token[:, None] - token - 1).square())  # row: key, column: query
U, s, Vh = torch.linalg.svd(stripe)
views = {H: U[:, : 24 // H] * s[: 24 // H] @ Vh[: 24 // H] for H in (1, 2, 4, 12)}
missed = [float((view - stripe).norm() / stripe.norm()) for view in views.values()]
print("missed with 1, 2, 4, 12 heads:", ", ".join(f"{m:.0%}" for m in missed))
assert [round(m, 2) for m in missed] == [0, 0.35, 0.65, 0.89]

# %% mystnb={"image": {"alt": "Four square heat maps. With one head a sharp stripe runs beside the diagonal. With two heads it is paler; with four it is a broad, pale stripe on a faint chequered ground; with twelve only two wide blurs are left."}, "figure": {"caption": "The best score product that one head of width $24/H$ can form for the target \"look for the next token\" (first panel, which a single head of full width attains). The layer identifies more and more of its weights from left to right.", "name": "fig-stripe"}}
figures.stripes(views)

# %% [markdown]
# This is one head against one target. A layer has $H$ heads, and their ranks add up to $HD = E$ whatever $H$ is; but they do not add up
# inside a softmax, since each head has its own. {cite:t}`bhojanapalli2020` call this the {term}`low-rank bottleneck`, and widen the heads again.
# {doc}`Chapter 7 <07_wider_heads>` looks at what that does to the share.
#
# ## Break it
#
# **Tie the scores of two heads.** Give heads 1 and 2 the same $W_Q$ and $W_K$, so that $M_1 = M_2$. Then they pay the same attention, and
# the layer sees of $N_1$ and $N_2$ only the sum. The two act as one head with values of width $2C$:
#
# $$
# N_1 + N_2 = \begin{pmatrix} W_O^1 & W_O^2 \end{pmatrix} \begin{pmatrix} W_V^1 \\ W_V^2 \end{pmatrix} ,
# $$
#
# and such a product loses $(2C)^2$ numbers where two separate ones lose $2C^2$. So $2C^2 = 32$ directions should appear with $C = 4$. The
# query and key weights gain none: moving $M_1$ alone still pulls the two apart.

# %%
layer, C = Attention(12, 3), 4
p = layer.random_parameters(seed=9)
null_of = lambda parameters: measure(layer, parameters=parameters).null_space
tied = {name: W.clone() for name, W in p.items()}
for name in ("W_Q", "W_K"):
    tied[name][1] = tied[name][0]
parts = [
    [dimension_in(null_of(q), names) for names in (("W_Q", "W_K"), ("W_O", "W_V"))]
    for q in (p, tied)
]
print("query-key and value-output, generic:", parts[0], "scores tied:", parts[1])
assert parts == [[48, 48], [48, 48 + 2 * C**2]]

# %% [markdown]
# **Tie the values instead.** Now let two heads have the same $W_V$ and $W_O$, and different scores. {prf:ref}`lem-heads-apart` asks that no
# $N_h$ vanish, not that they differ. So nothing should happen, and nothing does.

# %%
same_values = {name: W.clone() for name, W in p.items()}
for name in ("W_V", "W_O"):
    same_values[name][1] = same_values[name][0]
assert measure(layer, parameters=same_values).nullity == count(layer).unidentified == 96
print("unidentified, values tied:", measure(layer, parameters=same_values).nullity)

# %% [markdown]
# **Permute the heads.** The order of a sum does not matter, so reordering the heads keeps the function. That is one more symmetry, $H!$
# more sets of weights with the same outputs. But it is a jump. No small step leads from one order to another, so it adds isolated copies
# and no direction: the counts above are complete.

# %%
order = [2, 0, 1]
permuted = {name: W[order] for name, W in p.items()}
x = normal(10, 7, 12)
assert (forward(layer, permuted, x) - forward(layer, p, x)).abs().max() < 1e-12
assert all((permuted[name] - p[name]).norm() > p[name].norm() for name in p)
assert (
    measure(layer, parameters=permuted).nullity
    == measure(layer, parameters=p).nullity
    == 96
)

# %% [markdown]
# **Keep the width.** The share grows because $D = E/H$ shrinks. Hold $D$ fixed and add heads: the share of $1 - D/(2E)$ does not move.

# %%
shares = [
    measure(Attention(6, H, head_dim=3)).rank / Attention(6, H, head_dim=3).parameters
    for H in (1, 2, 4)
]
assert all(abs(s - (1 - 3 / (2 * 6))) < 1e-12 for s in shares)
print("D = 3, E = 6, and 1, 2, 4 heads:", shares)

# %% [markdown]
# ## What it means
#
# Splitting a layer into heads is usually explained by what the heads attend to. Here it appears as bookkeeping: every product of two
# matrices through a space of width $D$ pays $D^2$ for the freedom to choose a basis there, and $H$ small squares cost less than one large
# one. The weights of a one-head layer describe half as many numbers as there are weights; those of a twelve-head layer, 23 of 24.
#
# The same small squares are what limits each head. The share says how economical the description is, and nothing about whether what it
# describes is what one needs. With $H = E$ heads nearly every weight is identified and each head compares tokens by a single number.
#
# ## Exercises
#
# **1.** How many heads does it take to identify 99 per cent of the weights? What is the width of a head then, if $E = 768$?
#
# ```{admonition} Answer
# :class: dropdown
#
# $1/(2H) \le 1/100$ means $H \ge 50$. The next divisor of 768 is 64, with heads of width 12; it gives $127/128$.
# ```

# %% tags=["hide-cell"]
H = min(H for H in range(1, 769) if 768 % H == 0 and share(H) >= Fraction(99, 100))
assert min(H for H in range(1, 100) if share(H) >= Fraction(99, 100)) == 50
assert (H, 768 // H, share(H)) == (64, 12, Fraction(127, 128))

# %% [markdown]
# **2.** {prf:ref}`lem-heads-apart` excludes $M_2 = -M_1$. Is a layer with two such heads an exception in truth, or only one that the proof
# does not cover?
#
# ```{admonition} Answer
# :class: dropdown
#
# Only of the proof, if $N_1$ and $N_2$ are generic. With two tokens $\sigma(-z) = 1 - \sigma(z)$. The poles tell us that $\dot N_1 - \dot
# N_2 = 0$, and with the other heads gone $\sum_h \dot N_h = 0$ says $\dot N_1 + \dot N_2 = 0$; so both vanish. For the scores, what is left
# is $\dot a_1 N_1 u + \dot a_2 N_2 u = 0$, and $N_1 u$ and $N_2 u$ are linearly independent for almost all $u$. The count stays.
# ```

# %% tags=["hide-cell"]
opposite = {name: W.clone() for name, W in p.items()}
opposite["W_Q"][1], opposite["W_K"][1] = -opposite["W_Q"][0], opposite["W_K"][0]
assert measure(layer, parameters=opposite).nullity == 96
assert rank(jacobian(layer, opposite, normal(11, 200, 2, 12))) == layer.parameters - 96

# %% [markdown]
# **3.** Tie the scores of $k$ heads. How many directions appear, and what becomes of the advantage of many heads when all $H$ are tied?
#
# ```{admonition} Answer
# :class: dropdown
#
# The $k$ heads act as one with values of width $kC$, so $(kC)^2 - kC^2 = k(k-1)\,C^2$ directions appear. With $k = H$ and $C = E/H$ the
# value-output part loses $E^2$, as a single head would: for the values the advantage of many heads is gone entirely. It is the different
# attention of the heads that keeps their values apart.
# ```

# %% tags=["hide-cell"]
small = Attention(8, 4)  # C = 2
p = small.random_parameters(seed=12)
for k in (1, 2, 3, 4):
    tied = {name: W.clone() for name, W in p.items()}
    for name in ("W_Q", "W_K"):
        tied[name][:k] = tied[name][0]
    nullity = measure(small, parameters=tied).nullity
    assert nullity == count(small).unidentified + k * (k - 1) * 2**2
assert dimension_in(measure(small, parameters=tied).null_space, ("W_O", "W_V")) == 8**2

# %% [markdown]
# **Next:** real layers often have biases. {doc}`Chapter 6 <06_biases>` lets the change of basis act on them, and finds biases that nothing
# can identify.
