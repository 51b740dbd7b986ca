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
# # What is identified
#
# *Assumed: the rank and the null space of a matrix, and what a softmax does; for the section on foundations the constant rank theorem and
# Fubini's. Symbols are those of [](../book/notation.md).*
#
# *In the ledger:* {ref}`section 4.1 <ledger-ex-4-1>`, {ref}`what a product loses <ledger-product-loss>`, {ref}`the foundation
# <ledger-foundation>`.
#
# ## The question
#
# One attention head reads $L$ tokens, the columns of $X \in \mathbb{R}^{E \times L}$. It makes a query, a key and a value of each,
#
# $$
# Q(X) = W_Q X, \qquad K(X) = W_K X, \qquad V(X) = W_V X,
# $$
#
# compares every query with every key, turns each column of scores into weights by a softmax over the keys, and mixes the values:
#
# $$
# f(X) = W_O\, V(X)\, \mathrm{softmax}\big( K(X)^\top Q(X) \big) .
# $$
#
# The weights $W_Q, W_K$ are $D \times E$, $W_V$ is $C \times E$ and $W_O$ is $E \times C$: together $2DE + 2CE$ numbers, all of them
# trained. Suppose you could feed the head any input, as often as you like, and read its outputs exactly. How many of those numbers could
# you find out?
#
# Here is the head in six lines. Tokens are rows in the code, so every matrix of the text is transposed except the weights, which
# `torch.nn.Linear` stores as we do. Query $l$ sees keys $1, \dots, l$ only (the causal mask), and the package keeps the factor
# $1/\sqrt{D}$ that the text absorbs into the weights.

# %%
import torch

from attnid import Attention, act_query_key, count, exact_nullity, figures, forward
from attnid import generators, independent_directions, measure
from attnid.claims import check
from attnid.layer.measuring import MIN_GAP
from attnid.tensors import normal, rank


def one_head(W_Q, W_K, W_V, W_O, x):  # x: (L, E)
    q, k, v = x @ W_Q.mT, x @ W_K.mT, x @ W_V.mT  # (L, D), (L, D), (L, C)
    s = q @ k.mT / W_Q.shape[0] ** 0.5  # (L, L): how much query l asks for key m
    later = torch.ones_like(s, dtype=torch.bool).triu(1)
    p = s.masked_fill(later, -torch.inf).softmax(-1)  # rows sum to one
    return p @ v @ W_O.mT  # (L, E)


# %% [markdown]
# `Attention` describes a layer without holding its weights; `forward` runs it on weights given by name, with the heads in front. For one
# head the two programs agree.

# %%
head = Attention(8, 1, head_dim=3)  # E = 8, one head, D = C = 3
theta = head.random_parameters(seed=0)
x = normal(6, 8, seed=1)  # L = 6 tokens
ours = one_head(*(theta[name][0] for name in ("W_Q", "W_K", "W_V", "W_O")), x)
assert (ours - forward(head, theta, x)).abs().max() < 1e-12
for name, tensor in theta.items():
    print(name, tuple(tensor.shape))
print("in all", head.parameters)

# %% [markdown]
# Signatures in the package say what shapes they take, in the letters of the text: here is the change of basis that {doc}`02_query_key_invariance` is about. `*batch` is any
# number of dimensions in front, the same in all arguments, and a letter is one size wherever it stands. The tests enforce every one of them.

# %%
for name in ("S", "W_Q", "W_K"):
    print(f"{name:3}", act_query_key.__annotations__[name].__name__)

# %% [markdown]
# ## The claim
#
# First what is counted; then the count where tokens are single numbers; then that of any head.
#
# ### What the word means
#
# Collect all parameters of a layer in one vector $\theta$ of $|\theta|$ numbers and write $f_\theta$ for the function it computes.
#
# ```{prf:definition} Unidentified
# :label: def-unidentified
#
# A direction $\delta\theta$ is *{term}`unidentified`* at $\theta$ if, to first order, no output changes along it:
#
# $$
# \frac{d}{dt}\, f_{\theta + t\, \delta\theta}(X) \Big|_{t = 0} = 0 \qquad \text{for every input } X \text{ of every length.}
# $$
#
# These directions form a linear space $\mathcal{N}(\theta)$. If there is a number $n$ with $\dim \mathcal{N}(\theta) = n$ at {term}`generic`
# $\theta$, that is, at all $\theta$ but a set of measure zero, then $n$ parameters of the layer are *unidentified*, $|\theta| - n$ are
# *{term}`identified`*, and their *{term}`share`* is $(|\theta| - n) / |\theta|$.
# ```
#
# Three remarks on the definition. It counts directions: as a rule no single weight is without effect, but certain joint changes of many
# weights are. It is a statement about the function and not about data, since it asks for every input. And it can be measured. Stack the
# derivatives of the outputs at inputs $X_1, \dots, X_m$ into a matrix $J$ with $|\theta|$ columns. Its null space contains $\mathcal{N}(\theta)$, and each
# new input either leaves that null space as it is or lowers its dimension; so finitely many inputs suffice. With the
# {term}`nullity`, the dimension of a null space, then
#
# $$
# \text{unidentified} = \text{nullity of } J, \qquad \text{identified} = \text{rank of } J .
# $$
#
# That there is such a number $n$, and that random weights and random inputs find it, is {prf:ref}`thm-generic` below.
#
# ### The smallest example
#
# ```{prf:example} Tokens that are numbers (paper: section 4.1)
# :label: ex-inner-product
#
# Let $E = 1$, so that a token is one number, the input is a row $x^\top$, and $W_Q, W_K \in \mathbb{R}^{D \times 1}$ are columns. The
# scores are
#
# $$
# (W_K x^\top)^\top (W_Q x^\top) = \omega\, x x^\top, \qquad \omega = W_K^\top W_Q \in \mathbb{R} .
# $$
#
# The $2D$ numbers in $W_Q$ and $W_K$ act through their inner product $\omega$ alone. One combination of them is identified and $2D - 1$ are
# not.
# ```
#
# The head is wider than its tokens here as soon as $D > 1$; that is why the count is $2D - 1$ and not the
# $D^2$ of the chapters to come. One formula covers both.
#
# ### The general count for one head
#
# ```{prf:lemma} Two products
# :label: lem-two-products
#
# The outputs of one head depend on its weights only through $M = W_K^\top W_Q$ and $N = W_O W_V$. If $N \neq 0$, and under a causal mask or
# none, a direction is unidentified exactly when it keeps both $M$ and $N$ to first order.
# ```
#
# ```{prf:lemma} What a product loses
# :label: lem-what-a-product-loses
#
# Let $A \in \mathbb{F}^{d \times a}$ and $B \in \mathbb{F}^{d \times b}$ have ranks $p$ and $q$, where $\mathbb{F}$ is $\mathbb{R}$ or
# $\mathbb{C}$. The pairs $(\delta A, \delta B)$ that keep $A^\top B$ to first order, $\delta A^\top B + A^\top \delta B = 0$, form a space of
# dimension
#
# $$
# d\,(a + b) - (q a + p b - p q) .
# $$
#
# Over $\mathbb{C}$ those that keep $A^* B$, with the conjugate transpose, form a real space of twice this dimension.
# ```
#
# ```{prf:proposition} How many numbers a product loses
# :label: prop-count-r
#
# Let $r = \min(D, E)$ and let $W_Q, W_K \in \mathbb{R}^{D \times E}$ have rank $r$, as generic ones do. The derivative of
# $(W_Q, W_K) \mapsto W_K^\top W_Q$ has rank $r (2E - r)$. So the number of unidentified parameters among the query and key weights is
#
# $$
# 2DE - r(2E - r) =
# \begin{cases}
# D^2 & \text{if } D \le E, \\
# 2DE - E^2 & \text{if } D \ge E .
# \end{cases}
# $$
# ```
#
# With $E = 1$ the second line is $2D - 1$. The same proposition, with $C$ in the place of $D$, counts what is lost in $W_O W_V$.
#
# ## Proof
#
# ```{prf:proof}
# (of {prf:ref}`lem-two-products`) Written out, $f(X) = W_O W_V\, X\, \mathrm{softmax}(X^\top W_K^\top W_Q X)$, which shows the first
# sentence, and that a direction keeping $M$ and $N$ to first order is unidentified. Conversely, take an unidentified direction and let
# $\dot M$ and $\dot N$ be the derivatives of $M$ and $N$ along it. A sequence of one token $x$ has output $N x$, so $\dot N x = 0$ for
# every $x$, and $\dot N = 0$. Now take two tokens, $y$ and then $x$. The output at $x$ is
#
# $$
# N \big( y + p\, (x - y) \big), \qquad p = \frac{1}{1 + e^{-s}}, \qquad s = (x - y)^\top M x .
# $$
#
# Its derivative along the direction is $p (1 - p) \cdot (x - y)^\top \dot M x \cdot N (x - y)$, and vanishes. Where $N(x - y) \ne 0$, which
# is so for almost all pairs, it follows that $(x - y)^\top \dot M x = 0$; by continuity this holds for all $x$ and $y$. Hence $\dot M x =
# 0$ for all $x$, and $\dot M = 0$.
# ```
#
# ```{prf:proof}
# (of {prf:ref}`lem-what-a-product-loses`) Write $Y = \delta A^\top$. The change $Y B + A^\top \delta B$ is linear in $(Y, \delta B)$. Its first
# term runs over all $a \times b$ matrices whose rows lie in the row space of $B$, of dimension $q$; its second over all whose columns lie in
# the column space of $A^\top$, of dimension $p$. Extend a basis of this column space to one of $\mathbb{F}^a$, and a basis of that row
# space to one of $\mathbb{F}^b$. Written in them the sums of both terms are exactly the matrices whose lower right block, of size $(a - p) \times (b - q)$, is zero. They have $ab - (a - p)(b - q) = qa + pb - pq$ free entries. This is the rank of the change, as a
# map from a space of dimension $d(a + b)$, and what is left is its nullity. With $Y = \delta A^*$ the same holds for $A^* B$, and
# $\delta A \mapsto \delta A^*$ keeps real dimensions.
# ```
#
# ```{prf:proof}
# (of {prf:ref}`prop-count-r`) Take $A = W_K$ and $B = W_Q$ in {prf:ref}`lem-what-a-product-loses`, so $d = D$, $a = b = E$ and $p = q = r$: the
# rank is $rE + rE - r^2 = r(2E - r)$. By {prf:ref}`lem-two-products` the unidentified directions in $(W_Q, W_K)$ are the null space, of
# dimension $2DE - r(2E - r)$.
# ```
#
# For $D \le E$ the product $M$ is a matrix of rank $D$, and $D(2E - D)$ is the dimension of the set of all $E \times E$ matrices of rank
# $D$: every such matrix is the product of some pair. {cite:t}`henry2025` study heads without a softmax by way of this set.
#
# ## The same symbols in code
#
# First {prf:ref}`ex-inner-product`. We take $D = 5$ and two pairs of weights that have nothing in common but their inner product.

# %%
D = 5
thin = Attention(1, 1, head_dim=D, value_dim=1)  # E = 1
one = thin.random_parameters(seed=2)
omega = (one["W_K"].mT @ one["W_Q"]).item()
fresh = normal(1, D, 1, seed=3)  # a new W_K, and a W_Q with the old inner product
other = one | {"W_K": fresh, "W_Q": omega * fresh / fresh.square().sum()}
x = normal(32, 10, 1, seed=4)
assert (other["W_Q"] - one["W_Q"]).abs().max() > 0.1
assert (forward(thin, one, x) - forward(thin, other, x)).abs().max() < 1e-12

# %% [markdown]
# The product map of {prf:ref}`prop-count-r` and its {term}`Jacobian`, a matrix of $E^2$ rows and $2DE$ columns. Here $E = 1$, and it is the
# row $(W_K^\top, W_Q^\top)$.


# %%
def product(W_Q, W_K):
    return W_K.mT @ W_Q  # (E, E)


def product_jacobian(W_Q, W_K):
    blocks = torch.func.jacrev(product, argnums=(0, 1))(W_Q, W_K)
    rows = [block.flatten(2).flatten(0, 1) for block in blocks]
    return torch.cat(rows, 1)  # (E E, 2 D E)


row = product_jacobian(one["W_Q"][0], one["W_K"][0])
assert torch.equal(row, torch.cat((one["W_K"], one["W_Q"]), 1).flatten()[None])

# %% [markdown]
# ## The check
#
# The book counts everything in these ways.
#
# 1. **Formula.** `count` adds up closed forms, such as that of {prf:ref}`prop-count-r`, from the description of a layer.
# 2. **Rank.** `measure` draws random weights and enough random sequences, differentiates the outputs in all parameters, and counts singular
#    values. It bounds the count from above, since sequences that were not drawn can only show more. It knows of no symmetry; with the
#    other ways it shares the code of the layer itself and the scale of the inputs.
# 3. **{term}`Generators <generator>`.** `generators` writes directions down. Each is tried on the outputs, and then all are tried for
#    independence: this bounds the count from below. The list of what to write down is that of `count`, and both read off a layer's rotations
#    and norms by the same code. A symmetry that the formula forgets the generators forget with it, and only the rank can say so.
# 4. **Exact rank.** `exact_nullity` is a rank without rounding, of what a lemma says that the outputs see: here the products of
#    {prf:ref}`lem-two-products`. It knows of no symmetry either, and holds given the lemma, but for a chance of $10^{-5}$.
#
# So where the second and the third way meet, the number between them is certain, up to rounding. For the head above, with $E = 8$ and
# $D = C = 3$, each product loses $3^2 = 9$:

# %%
formula, measured = count(head), measure(head)
print(formula.terms, "unidentified", formula.unidentified, "of", formula.parameters)
print("rank", measured.rank, "nullity", measured.nullity)
assert formula.terms == {"value-output maps": 9, "query-key maps": 9}
assert (measured.rank, measured.nullity) == (formula.identified, 18) == (78, 18)

# %% [markdown]
# For the third way we differentiate `forward` ourselves, at sequences of our own, and let the Jacobian act on the generators. Directions
# are flattened in the order of `head.shapes`. The tolerance is $10^{-12}$ relative to the norms of both matrices.


# %%
def jacobian(attention, theta, x):
    blocks = torch.func.jacrev(lambda p: forward(attention, p, x))(theta)
    rows = {name: block.flatten(0, x.ndim - 1) for name, block in blocks.items()}
    return as_rows(attention, rows)  # (outputs, parameters)


def as_rows(attention, directions):
    return torch.cat([directions[name].flatten(1) for name in attention.shapes], 1)


J = jacobian(head, theta, normal(8, 6, 8, seed=5))  # 8 sequences of 6 tokens
null = torch.cat([as_rows(head, part) for part in generators(head, theta).values()])
assert (J @ null.mT).norm() < 1e-12 * J.norm() * null.norm()
assert rank(null) == len(null) == 18
assert rank(J) == head.parameters - 18

# %% [markdown]
# A rank is a decision about which singular values are zero, and rounding makes none of them exactly zero. What makes the decision safe is
# shown in {numref}`fig-cliff`: the 96 singular values fall off a cliff. `measure` reports the ratio across it, the {term}`gap`, and refuses to
# answer when the ratio is below $10^6$. It also checks, on fresh and longer sequences, that the directions it dropped still change nothing
# (`residual`).

# %%
assert len(measured.spectrum) == head.parameters
assert measured.gap > 1e10 > MIN_GAP == 1e6 and measured.residual < 1e-10
print("gap above 1e10:", measured.gap > 1e10)

# %% mystnb={"image": {"alt": "Singular values on a logarithmic scale. Seventy-eight descend slowly over about two orders of magnitude; the other eighteen lie at the level of rounding, more than ten orders of magnitude below, with an empty band between."}, "figure": {"caption": "The singular values of the Jacobian of one head with $E = 8$ and $D = C = 3$, as `measure` takes them: after the columns of $W_O$ are projected out of the others, which changes no rank. Nothing lies between what counts and what is rounding.", "name": "fig-cliff"}}
figures.cliff(measured.spectrum, measured.rank)

# %% [markdown]
# {prf:ref}`lem-what-a-product-loses` next, over both fields and for both transposes. A complex matrix is two real ones, so we differentiate
# in real numbers and read real dimensions, for four pairs of ranks with $d = 4$, $a = 5$, $b = 3$.


# %%
def complex_normal(*shape, seed):
    return torch.view_as_complex(normal(*shape, 2, seed=seed))


def real_nullity(change, *shapes):
    """The real dimension of what a linear map sends to zero."""
    start = [torch.zeros(shape, dtype=torch.float64) for shape in shapes]
    blocks = torch.func.jacrev(change, argnums=tuple(range(len(shapes))))(*start)
    slopes = torch.cat([block.flatten(-len(shapes[0])) for block in blocks], -1)
    return slopes.shape[-1] - rank(slopes.flatten(0, -2))


def kept(A, B, star=lambda W: W.mT):
    """How many directions (dA, dB) keep star(A) B to first order."""
    if not A.is_complex():
        change = lambda dA, dB: star(dA) @ B + star(A) @ dB
        return real_nullity(change, A.shape, B.shape)
    whole, parts = torch.view_as_complex, torch.view_as_real
    change = lambda dA, dB: parts(star(whole(dA)) @ B + star(A) @ whole(dB))
    return real_nullity(change, (*A.shape, 2), (*B.shape, 2))


# %%
d, a, b = 4, 5, 3
ranks = ((4, 3), (2, 3), (1, 2), (3, 1))


def pairs(draw):
    """A (d, a) and B (d, b) of each pair of ranks."""
    for p, q in ranks:
        A = draw(d, p, seed=21) @ draw(p, a, seed=22)
        yield A, draw(d, q, seed=23) @ draw(q, b, seed=24)


conjugate = lambda W: W.mH
check(
    "product-loss",
    formula=[d * (a + b) - (q * a + p * b - p * q) for p, q in ranks],
    real=[kept(A, B) for A, B in pairs(normal)],
)
check(
    "product-loss",
    complex=[kept(A, B) for A, B in pairs(complex_normal)],
    conjugate=[kept(A, B, conjugate) for A, B in pairs(complex_normal)],
)

# %% [markdown]
# Now {prf:ref}`prop-count-r` on a grid of sizes, wide and narrow heads alike: its formula against the rank of the explicit Jacobian of the
# product, `count`, and `measure`. The measured null space covers all parameters; by {prf:ref}`lem-two-products` its
# part in $W_Q$ and $W_K$ has the dimension we want.


# %%
def lost(D, E):
    r = min(D, E)
    return 2 * D * E - r * (2 * E - r)


def measured_lost(attention):
    null = measure(attention).null_space
    return rank(torch.cat((null["W_Q"].flatten(1), null["W_K"].flatten(1)), 1))


def product_lost(attention, seed):
    drawn = attention.random_parameters(seed=seed)
    slopes = product_jacobian(drawn["W_Q"][0], drawn["W_K"][0])
    return slopes.shape[1] - rank(slopes)


# %%
widths, counts = range(1, 9), {}
for E in (1, 2, 4):
    layers = [Attention(E, 1, head_dim=D, value_dim=1) for D in widths]
    counts[E] = [lost(D, E) for D in widths], [measured_lost(a) for a in layers]
    assert counts[E][0] == [count(layer).terms["query-key maps"] for layer in layers]
    assert counts[E][0] == [product_lost(a, seed=a.D) for a in layers] == counts[E][1]
check("product-loss", E1=counts[1][1])
check("product-loss", E2=counts[2][1])
check("product-loss", E4=counts[4][1])

# %% [markdown]
# The first line of the grid holds {prf:ref}`ex-inner-product`, which the paper counts in words. Its row in the ledger asks for the count of
# whole layers, which loses one number in $W_O W_V$ besides, by every way there is. `independent_directions` does for any layer what we did
# with generators above, and `exact_nullity` takes random integers for weights and reckons modulo a prime. `check` compares what each way finds
# with the {doc}`ledger <../book/ledger>`, complains if anything differs, and prints the agreement in a line.

# %%
thins = [Attention(1, 1, head_dim=n, value_dim=1) for n in (1, 3, 5)]
check(
    "ex-4.1",
    formula=[count(thin).unidentified for thin in thins],
    measured=[measure(thin).nullity for thin in thins],
    generators=[independent_directions(thin) for thin in thins],
    exact=[exact_nullity(thin) for thin in thins],
)

# %% [markdown]
# The simplest head of all has $E = D = 1$: two numbers, of which only the product matters. We give it a
# task, to imitate a head with $W_K W_Q = 1$, and compute its mean squared error over a grid of weights.

# %%
tiny = Attention(1, 1)
base, x = tiny.random_parameters(seed=6), normal(16, 6, 1, seed=7)


def loss(w_Q, w_K):
    weights = lambda q, k: base | {"W_Q": q.view(1, 1, 1), "W_K": k.view(1, 1, 1)}
    one = torch.ones(1, dtype=torch.float64)
    target = forward(tiny, weights(one, one), x)
    return (forward(tiny, weights(w_Q, w_K), x) - target).square().mean()


w = torch.linspace(-3, 3, 121, dtype=torch.float64)
row = torch.func.vmap(loss, in_dims=(0, None))
losses = torch.func.vmap(row, in_dims=(None, 0))(w, w)  # rows: w_K, columns: w_Q

# %% [markdown]
# The level sets are the hyperbolas $W_K W_Q = \omega$. Along each the loss is constant to rounding, and the {term}`null direction`
# $(\delta W_Q, \delta W_K) = (W_Q, -W_K)$ is its tangent; so the gradient has no component along it.

# %%
steps = torch.linspace(0.2, 5, 50, dtype=torch.float64)
for omega in (-2.0, 0.5, 2.0):
    along = torch.stack([loss(q, omega / q) for q in steps])
    assert along.max() - along.min() < 1e-12 and along.min() > 1e-6
    w_Q, w_K = steps[9], omega / steps[9]
    d_Q, d_K = torch.func.grad(loss, argnums=(0, 1))(w_Q, w_K)
    assert abs(d_Q * w_Q - d_K * w_K) < 1e-12 < min(abs(d_Q), abs(d_K))

# %% mystnb={"image": {"alt": "Left: a filled contour map of the error over the two weights; its valleys are the two branches of a hyperbola, in orange, and black arrows lie along this and other hyperbolas. Right: for E = 1, 2 and 4 the number of unidentified weights rises with the head width along the curve D squared until D equals E, and then along a straight line; measured points lie on the lines."}, "figure": {"caption": "Left: the root mean square error of a head with two numbers (pale is low) is constant along hyperbolas, some of them drawn in white; arrows are null directions. The best weights, in orange, form a curve. Right: the count of unidentified query and key weights follows $D^2$ up to $D = E$ (ringed) and then a straight line of slope $2E$. Lines are the formula, dots are measured.", "name": "fig-hyperbolas"}}
figures.hyperbolas_and_counts(w, losses.sqrt(), 1.0, counts)

# %% [markdown]
# {numref}`fig-hyperbolas` shows on its left what being unidentified looks like to an optimiser: the best weights form a curve, and no data
# will ever prefer one of its points to another. On its right the count bends at $D = E$. Up to there the product $M$ gains rank with each
# new row of $W_Q$ and $W_K$. From there on $M$ has all the rank it can have, and each new pair of rows adds $2E$ {term}`idle` directions.
#
# ## The foundation
#
# Every number above was found at one random $\theta$ and finitely many random inputs, and was then said of the layer. This section shows
# why that may be done, what a count to first order says of finite changes, and where both fail.
#
# A function is *real-analytic* if near each point it is the sum of a power series. Polynomials, $\exp$ and $\tanh$ are, and so is what sums,
# products, compositions and quotients without a zero below make of them. So the outputs of a layer are real-analytic in $\theta$
# and $X$ together, for all values of both, when queries and keys are not divided by their norms: scores are
# polynomials, or a $\tanh$ of them, and a softmax divides by a sum of exponentials. What we need of such a function is that on a connected
# open set it is zero everywhere, or only on a closed set of measure zero. (On a line its zeros are isolated unless it is zero throughout;
# Fubini's theorem goes from there to more variables, one by one.)
#
# ```{prf:theorem} One count for almost all weights
# :label: thm-generic
#
# Let $f_\theta(X)$ be real-analytic in $\theta \in \mathbb{R}^{|\theta|}$ and $X \in \mathbb{R}^{E \times L}$ together, for every length $L$,
# and let $r$ be the largest value of $|\theta| - \dim \mathcal{N}(\theta)$.
#
# 1. $\dim \mathcal{N}(\theta) = |\theta| - r$ at all $\theta$ but a closed set $Z$ of measure zero.
# 2. There are $m \le r$ lengths such that, for almost every $\theta$ and almost all inputs $X_1, \dots, X_m$ of these lengths, the null space
#    of $J$ is $\mathcal{N}(\theta)$. At any $\theta$, if the outputs at one further random input do not change along the null space of $J$, then
#    almost surely those at no input of the same length do.
# 3. Each $\theta_0 \notin Z$ has a neighbourhood $U$ in which the parameters with the same outputs, $\{\theta \in U : f_\theta = f_{\theta_0}\}$,
#    are a smooth manifold of dimension $|\theta| - r$. Its tangent space at each of its points $\theta$ is $\mathcal{N}(\theta)$.
# ```
#
# ```{prf:proof}
# Let $|\theta| - \dim \mathcal{N}(\theta^*) = r$. Choose inputs one after another, each of which lowers the nullity of $J$ at $\theta^*$, until the null
# space is $\mathcal{N}(\theta^*)$. There are $m \le r$ of them, $X^*_1, \dots, X^*_m$, and some $r \times r$ minor $g(\theta, X_1, \dots, X_m)$ of $J$ is not zero
# at $(\theta^*, X^*_1, \dots, X^*_m)$. It is a real-analytic function. Wherever $g \ne 0$, the null space of $J$ has dimension $|\theta| - r$ at
# most; it contains $\mathcal{N}(\theta)$, which has dimension $|\theta| - r$ at least; so they are equal.
#
# *1.* As a function of $\theta$ alone, at the inputs $X^*$, $g$ is zero on a set of measure zero only, and $Z$ lies in that set. $Z$ is closed,
# for where a minor of size $r$ is not zero, it is not zero nearby.
#
# *2.* As a function of all its variables $g$ is zero on a set of measure zero only. By Fubini's theorem almost every $\theta$ has $g \ne 0$ at
# almost all inputs. For the second statement fix $\theta$ and $J$. The derivatives of $f_\theta(X)$ along a basis of the null space of $J$ are
# real-analytic in $X$. If one of them is not zero at some $X$ of a length, it is not zero at almost every $X$ of that length.
#
# *3.* Choose inputs at which $J$ has rank $r$ at $\theta_0$, and let $F(\theta) = (f_\theta(X_1), \dots, f_\theta(X_m))$, whose derivative is $J$. Near
# $\theta_0$ the rank of $J$ stays $r$, and its null space is $\mathcal{N}(\theta)$. By the constant rank theorem $\{\theta \in U : F(\theta) = F(\theta_0)\}$
# is, for a suitable $U$, a connected manifold with tangent spaces $\mathcal{N}(\theta)$. Along it the outputs at any other input have derivative zero,
# and so are constant: it is the set of all $\theta \in U$ with $f_\theta = f_{\theta_0}$.
# ```
#
# Part 3 is what makes a count of derivatives a statement about functions: near almost every $\theta$ the idle directions are those of a
# surface on which nothing changes at all. On $Z$ they need not be. The function $f_\theta(x) = \theta^3 x$ of one parameter has derivative
# zero at $\theta = 0$, and yet no other $\theta$ gives the same outputs. A head does likewise where $W_Q = W_K = 0$: there all
# $2DE$ directions in them keep $M$ to first order, and most of them lead away from the function.

# %%
cube = lambda t: t**3 * normal(4, seed=25)
slope = lambda t: torch.func.jacrev(cube)(torch.tensor(t).double())[:, None]
x = normal(8, 6, 8, seed=5)
silent = theta | {name: torch.zeros_like(theta[name]) for name in ("W_Q", "W_K")}
check(
    "foundation",
    draws=[measure(head, seed=seed).nullity for seed in range(5)],
    cube=[rank(slope(t)) for t in (0.0, 0.5)],
    silent=[head.parameters - rank(jacobian(head, p, x)) for p in (silent, theta)],
)

# %% [markdown]
# With norms on queries and keys the outputs are real-analytic only where no query and no key is zero. For free inputs and $D, E \ge 2$ such zeros have
# codimension two or more. What is left without them is connected, and the theorem holds on it by the same proof; but the second half of part 2
# and part 3 ask that every $W_Q$ and $W_K$ has rank two or more. (In part 3 look at the inputs that meet no zero along a path in the manifold,
# which are almost all.) For $D = 1$ the zeros cut the parameters into pieces, and
# each piece can have a count of its own. Take $E = 1$ and two heads with $D = C = 1$. A normalised query is the sign of
# $w_Q x$, so the score of a query at token $x$ with a key at token $y$ is $\epsilon\, \mathrm{sign}(x)\, \mathrm{sign}(y)$ with $\epsilon =
# \mathrm{sign}(w_Q w_K)$. To first order $w_Q$ and $w_K$ do nothing, and
#
# $$
# f(X) = w_O^1 w_V^1\, g_{\epsilon_1}(X) + w_O^2 w_V^2\, g_{\epsilon_2}(X) ,
# $$
#
# where $g_\epsilon(X)$ is the mean of the tokens under the weights that these scores make. If $\epsilon_1 = \epsilon_2$, the outputs show the sum of
# the two products, one number of eight, and 7 are unidentified. If not, they show both products: at the tokens $1, -1$ the second output
# of $g_\epsilon$ is $-\tanh \epsilon$, and the first is 1, so $g_+$ and $g_-$ are independent. Then 6 are unidentified. Both happen on
# half of all weights, so {prf:ref}`def-unidentified` gives this layer no number, and `count` refuses it.

# %%
signs = Attention(1, 2, head_dim=1, value_dim=1, qk_norm="head")
p = {name: part.abs() for name, part in signs.random_parameters(seed=26).items()}
found = []
for pair in ((1, 1), (1, -1), (-1, 1), (-1, -1)):  # the signs of the two heads
    W_K = p["W_K"] * torch.tensor(pair).view(2, 1, 1)
    found.append(measure(signs, parameters=p | {"W_K": W_K}).nullity)
check("foundation", signs=found)

# %% [markdown]
# ## Break it
#
# **Change the head.** {prf:ref}`prop-count-r` is about plain heads. A rotation of queries and keys by position ({cite:t}`su2024`) puts
# another matrix between $W_K^\top$ and $W_Q$ for each distance of two tokens, and fewer changes of weights keep all these products. A key
# bias adds $D$ more numbers, none of them identified. Both are the business of later chapters; here we only watch the count move.

# %%
variants = {
    "plain": {},
    "rotated": {"rotary": (0.7,)},
    "query bias": {"bias": "q"},
    "key bias": {"bias": "k"},
}
found = {}
for name, options in variants.items():
    layer = Attention(4, 1, head_dim=2, value_dim=1, **options)
    assert measure(layer).nullity == count(layer).unidentified
    found[name] = dict(count(layer).terms)
    assert found[name].pop("value-output maps") == 1
    print(f"{name:>10}: {found[name]}")
assert found == {
    "plain": {"query-key maps": 4},
    "rotated": {"query-key maps": 2},
    "query bias": {"query-key maps": 4},
    "key bias": {"query-key maps": 4, "key bias": 2},
}

# %% [markdown]
# **Drop "generic".** Let $W_Q$ have rank 1 where it could have rank 2. The block of zeros in the proof of
# {prf:ref}`lem-what-a-product-loses`, with $W_K$ for $A$ and $W_Q$ for $B$, grows to $(E - 2) \times (E - 1)$, and with $E = 4$ the count rises
# from 4 to $16 - 10 = 6$ at this point of parameter space.

# %%
layer = Attention(4, 1, head_dim=2, value_dim=1)
special = layer.random_parameters(seed=8)
special["W_Q"] = normal(1, 2, 1, seed=9) @ normal(1, 1, 4, seed=10)  # rank one
assert 2 * 2 * 4 - rank(product_jacobian(special["W_Q"][0], special["W_K"][0])) == 6
assert measure(layer, parameters=special).nullity == 6 + 1  # and 1 for the values
assert measure(layer).nullity == 4 + 1

# %% [markdown]
# **Drop "every input".** A single token can only attend to itself: whatever its score, its weight is 1. Over sequences of length 1 all of
# $W_Q$ and $W_K$ is without effect, and nothing but $W_O W_V$ shows. Length 2 is enough, as in the proof of {prf:ref}`lem-two-products`.

# %%
p = layer.random_parameters(seed=11)
inputs = [normal(40, length, 4, seed=12) for length in (1, 2, 6)]
ranks = [rank(jacobian(layer, p, x)) for x in inputs]
print("identified by sequences of length 1, 2, 6:", ranks)
assert ranks == [7, 19, 19]  # W_O W_V: 4 + 4 - 1; M: 2 (8 - 2) = 12

# %% [markdown]
# ## What it means
#
# A head has $2DE$ query and key weights and $r(2E - r)$ numbers that its outputs can reveal. The difference is no matter of too little data
# or of a poor optimiser: it is there with every input in hand. For the heads in use, where $D \le E$, the difference is $D^2$, and it
# is a small part of $2DE$ when $D$ is small beside $E$. This ratio, and what splitting a layer into many heads does to
# it, is what the rest of this part is about.
#
# ```{prf:remark} Departure from the paper
# :label: rem-trainable
#
# Of the example with $E = 1$ the paper says that $2D - 1$ of the $2D$ values cannot influence the output. Each of the $2D$ values does
# influence it, through $\omega$. What has no influence, to first order, is a $(2D - 1)$-dimensional space of joint changes; what is left is
# one combination of all the values. The paper's own later remark, that one cannot point at the idle parameters, says as much.
# ```
#
# ## Exercises
#
# **1.** For $E = 1$ and $D = 3$ write down a basis of the five unidentified directions in $(W_Q, W_K)$.
#
# ```{admonition} Answer
# :class: dropdown
#
# Two directions $(a, 0)$ with $a$ orthogonal to $W_K$, two directions $(0, b)$ with $b$ orthogonal to $W_Q$, and $(W_Q, -W_K)$. The last is
# independent of the others when $\omega \ne 0$, since $W_Q$ is then not orthogonal to $W_K$.
# ```

# %% tags=["hide-cell"]
W_Q, W_K = normal(3, 1, seed=13), normal(3, 1, seed=14)
across = lambda v: torch.linalg.svd(v).U[:, 1:].mT  # two rows, orthogonal to v
zeros = torch.zeros(2, 3, dtype=torch.float64)
a_rows, b_rows = (across(W_K), zeros), (zeros, across(W_Q))
basis = torch.cat(
    (torch.cat(a_rows, 1), torch.cat(b_rows, 1), torch.cat((W_Q, -W_K)).mT)
)
assert rank(basis) == 5 == lost(3, 1)
assert (product_jacobian(W_Q, W_K) @ basis.mT).abs().max() < 1e-12

# %% [markdown]
# **2.** Queries may come from tokens in $\mathbb{R}^b$ and keys from others in $\mathbb{R}^a$, as in cross-attention. For $W_Q \in
# \mathbb{R}^{D \times b}$ and $W_K \in \mathbb{R}^{D \times a}$ of full rank, what does $W_K^\top W_Q$ lose, and which ranks make it lose least?
#
# ```{admonition} Answer
# :class: dropdown
#
# {prf:ref}`lem-what-a-product-loses` with $d = D$: for $D \le a, b$ it is $D(a + b) - (Da + Db - D^2) = D^2$ again, whatever $a$ and $b$ are. For
# $D \ge a, b$ it is $D(a + b) - ab$. Written as $d(a + b) - ab + (a - p)(b - q)$, the loss never rises with $p$ or $q$, so it is
# least where both are as large as they can be: in the generic case.
# ```

# %% tags=["hide-cell"]
for D, a, b in ((2, 3, 5), (3, 3, 4), (6, 3, 5)):
    W_Q, W_K = normal(D, b, seed=15), normal(D, a, seed=16)
    assert kept(W_K, W_Q) == (D**2 if D <= min(a, b) else D * (a + b) - a * b)
A, B = normal(4, 5, seed=17), normal(4, 2, seed=18) @ normal(2, 3, seed=19)
cut = lambda W, k: normal(4, k, seed=20) @ normal(k, W.shape[1], seed=21)  # rank k
falls = [kept(cut(A, k), B) for k in (1, 2, 3)] + [kept(A, B)]
assert falls == sorted(falls, reverse=True)

# %% [markdown]
# **3.** How many sequences of three tokens does it take to identify all that can be identified of a head with $E = 3$ and $D = C = 2$?
#
# ```{admonition} Answer
# :class: dropdown
#
# The head has 24 parameters and loses $2^2 + 2^2$, so 16 are identified, 8 of them in $M$. A sequence of three tokens shows $M$ through three
# numbers: a difference of two scores at its second token, and two such differences at its third. So it takes three sequences, and three are enough.
# ```

# %% tags=["hide-cell"]
small = Attention(3, 1, head_dim=2)
p, x = small.random_parameters(seed=19), normal(6, 3, 3, seed=20)
ranks = [rank(jacobian(small, p, x[:n])) for n in range(1, 7)]
print("rank after 1, 2, ... sequences:", ranks)
assert ranks[1] < ranks[2] == ranks[-1] == count(small).identified == 16

# %% [markdown]
# Next, {doc}`02_query_key_invariance` finds the $D^2$ directions of a head with $D \le E$ as a group of changes that leave every score
# exactly as it was.
