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
# # Directional derivatives
#
# *Assumed: one attention head without biases or {term}`rotary positions <rotary position>`; sizes and ranks as each statement says.*
#
# *In the ledger:* {ref}`Lemma 4.3 <ledger-lemma-4-3>`, {ref}`Corollary 4.4 <ledger-cor-4-4>`, {ref}`Corollary 4.5 <ledger-cor-4-5>`.
#
# ## The question
#
# {doc}`Chapter 2 <02_query_key_invariance>` moved weights by any distance and kept the function exactly. Training does not move like that.
# An optimiser looks at derivatives and takes a short straight step. So which directions are invisible to derivatives? Are
# they only the tangents of what chapter 2 found, and what happens on a straight step of finite length?

# %% [markdown]
# ## The claim
#
# The {term}`score product` is $M = W_K^\top W_Q$. Move the weights in the direction $(\delta W_Q, \delta W_K)$; to first order $M$ changes
# by
#
# $$
# \delta M = W_K^\top\, \delta W_Q + \delta W_K^\top\, W_Q .
# $$ (eq-derivative)
#
# We call a direction **null**, or a {term}`null direction`, when $\delta M = 0$. Then the scores of the head have derivative zero, whatever the input.
#
# ```{prf:lemma} Null directions (paper: Lemma 4.3)
# :label: lem-directions
#
# Let $W_Q, W_K \in \mathbb{R}^{D \times E}$.
#
# 1. For every $T \in \mathbb{R}^{D \times D}$, invertible or not, $(T W_Q,\, -T^\top W_K)$ is null.
# 2. Let $D \le E$ and let both have rank $D$, with thin singular value decompositions $W_Q = U_Q \Sigma_Q V_Q^\top$ and
#    $W_K = U_K \Sigma_K V_K^\top$. For every $A \in \mathbb{R}^{D \times D}$, invertible or not, the following direction is null:
#
#    $$
#    \delta W_Q(A) = U_K \Sigma_K^{-1} A\, V_Q^\top, \qquad \delta W_K(A) = -\,U_Q \Sigma_Q^{-1} A^\top V_K^\top .
#    $$
# 3. Under the conditions of 2 the two families are one. Direction $A$ of the second is direction $T$ of the first for
#
#    $$
#    T = U_K \Sigma_K^{-1}\, A\, \Sigma_Q^{-1} U_Q^\top, \qquad\text{and back,}\qquad A = \Sigma_K U_K^\top\, T\, U_Q \Sigma_Q .
#    $$
# ```
#
# The second family is the paper's, which writes $S$ for $A$. What $A$ measures shows in one line: $W_K^\top\, \delta W_Q(A) = V_K\, A\, V_Q^\top$. So $A$ is what the queries'
# half of the direction would do to $M$, written in singular bases, and the keys' half takes it back. The first family is shorter, needs no decomposition, and is
# the derivative of chapter 2's action along $S = e^{tT}$ at $t = 0$. So the null directions come from the symmetry of {prf:ref}`lem-invariance`,
# and there are no others:
#
# ```{prf:corollary} Dimension and completeness (paper: Corollary 4.4)
# :label: cor-dimension
#
# For full-rank $W_Q$, $W_K$ and $D \le E$ the directions of {prf:ref}`lem-directions` form a linear space of dimension $D^2$, and every null direction is one of them.
# ```
#
# ```{prf:corollary} One up, one down (paper: Corollary 4.5)
# :label: cor-straight-line
#
# $(W_Q, -W_K)$ is null. It is the direction $T = I$, which under the conditions of part 2 is $A = \Sigma_K U_K^\top U_Q \Sigma_Q$.
# ```

# %% [markdown]
# All this is about derivatives. On a straight line of finite length something is left.
#
# ```{prf:proposition} The second order (paper: after Corollary 4.5)
# :label: prop-second-order
#
# Let $(\delta W_Q, \delta W_K) = (T W_Q, -T^\top W_K)$ and $t \in \mathbb{R}$.
#
# 1. Along the straight line the score product changes by exactly
#
#    $$
#    (W_K + t\, \delta W_K)^\top (W_Q + t\, \delta W_Q) - W_K^\top W_Q \;=\; t^2\, \delta W_K^\top\, \delta W_Q \;=\; -\,t^2\; W_K^\top T^2\, W_Q .
#    $$
# 2. For $W_Q$ and $W_K$ of rank $D \le E$ it stays the same all along the line if and only if $T^2 = 0$.
# 3. Along the curve $(e^{tT} W_Q,\, e^{-tT^\top} W_K)$, which leaves in the same direction, it does not change at all.
# ```

# %% [markdown]
# ## Proof
#
# ````{prf:proof}
# (of {prf:ref}`lem-directions`)
# *1.* $W_K^\top (T W_Q) + (-T^\top W_K)^\top W_Q = W_K^\top T W_Q - W_K^\top T W_Q = 0$.
#
# *3.* Here full rank makes $\Sigma_Q$ and $\Sigma_K$ invertible, and $U_Q$, $U_K$ are $D \times D$ and orthogonal. With this $T$,
#
# $$
# T W_Q = U_K \Sigma_K^{-1} A\, \Sigma_Q^{-1} U_Q^\top U_Q \Sigma_Q V_Q^\top = \delta W_Q(A), \qquad
# -T^\top W_K = -U_Q \Sigma_Q^{-1} A^\top \Sigma_K^{-1} U_K^\top U_K \Sigma_K V_K^\top = \delta W_K(A) .
# $$
#
# The map $A \mapsto T$ is linear and is undone by the second formula, so it is a bijection. *2.* follows from 1 and 3.
# ````
#
# ````{prf:proof}
# (of {prf:ref}`cor-dimension`)
# They are the image of the linear map $T \mapsto (T W_Q, -T^\top W_K)$. If $T W_Q = 0$, then $T = T W_Q W_Q^+ = 0$. So the map is injective and the image has
# dimension $D^2$. The null space of {eq}`eq-derivative` has dimension $D^2$ as well, by {prf:ref}`prop-count-r` with $r = D$; so it is the image.
#
# One can also find $T$ directly. Let $W_K^\top \delta W_Q = -\delta W_K^\top W_Q$. On the right the rows lie in the row space of $W_Q$, and $W_K^\top$ is injective, so the
# rows of $\delta W_Q$ lie there: $\delta W_Q = T W_Q$ with $T = \delta W_Q W_Q^+$. Put this in and cancel $W_Q$ from the right: $\delta W_K^\top = -W_K^\top T$.
# ````
#
# ````{prf:proof}
# (of {prf:ref}`cor-straight-line`)
# Put $T = I$ in parts 1 and 3 of {prf:ref}`lem-directions`.
# ````
#
# ````{prf:proof}
# (of {prf:ref}`prop-second-order`)
# *1.* Multiply out: the terms in $t$ are {eq}`eq-derivative` and vanish, the term in $t^2$ is $(-T^\top W_K)^\top T W_Q$. *2.* $W_K^\top$ is injective and $W_Q$ is onto, so
# $W_K^\top T^2 W_Q = 0$ only if $T^2 = 0$. *3.* $(e^{tT})^{-\top} = e^{-tT^\top}$: this is {prf:ref}`lem-invariance` with $S = e^{tT}$.
# ````
#
# ```{prf:remark} Departure from the paper
# :label: rem-interchanged
#
# In the paper's proof of Corollary 4.5 the labels of the two variations are interchanged: it computes $U_K \Sigma_K^{-1} A V_Q^\top = W_Q$ under the name
# $\delta W_K(A)$, and the other under the name $\delta W_Q(A)$. The matrices and the conclusion are right. The paper calls Corollary 4.4 trivially verifiable and claims that
# the dimension is $D^2$; that no other direction is null is our addition.
# ```
#
# ```{prf:remark} Departure from the paper
# :label: rem-second-order-sign
#
# By singular values the second-order term is $\delta W_K(A)^\top \delta W_Q(A) = -\,V_K\, A\, \Sigma_Q^{-1} U_Q^\top U_K \Sigma_K^{-1} A\, V_Q^\top$. The paper
# prints it with a plus sign; the minus sign of $\delta W_K(A)$ has been lost. The check below decides between the two.
# ```

# %% [markdown]
# ## The same symbols in code
#
# A layer with $E = 12$ and $H = 3$ heads, so $D = 4$, and a basis of all $T \in \mathbb{R}^{D \times D}$: the $D^2$ matrices with a single one.

# %%
import torch

from attnid import Attention, act_query_key, count, exact_nullity, forward
from attnid import generators, independent_directions, measure
from attnid.claims import check
from attnid.layer.attention import project, random_inputs, scores
from attnid.figures import straight_and_curved
from attnid.tensors import normal, rank, relative_change

a = Attention(12, 3)
H, D, E = a.H, a.D, a.E
p = a.random_parameters(seed=1)
x = random_inputs(a, batch=8, length=6, seed=2)
units = torch.eye(D * D, dtype=torch.float64).view(-1, D, D)

# %% [markdown]
# Both families for one head, as rows of length $2DE$ (queries first). Ours:
#
# $$
# (\delta W_Q,\, \delta W_K) = (T W_Q,\; -T^\top W_K) .
# $$


# %%
def our_directions(T, W_Q, W_K):
    return T @ W_Q, -T.mT @ W_K


def rows(direction):
    """Directions of one head (k, D, E), (k, D, E) as rows (k, 2DE)."""
    return torch.cat([part.flatten(1) for part in direction], 1)


# %% [markdown]
# The paper's:
#
# $$
# \delta W_Q(A) = U_K \Sigma_K^{-1} A\, V_Q^\top, \qquad \delta W_K(A) = -\,U_Q \Sigma_Q^{-1} A^\top V_K^\top .
# $$


# %%
def thin(*weights):
    return [torch.linalg.svd(W, full_matrices=False) for W in weights]


def paper_directions(A, W_Q, W_K):
    (U_Q, sigma_Q, Vh_Q), (U_K, sigma_K, Vh_K) = thin(W_Q, W_K)
    return U_K / sigma_K @ A @ Vh_Q, -U_Q / sigma_Q @ A.mT @ Vh_K


def T_from(A, W_Q, W_K):
    (U_Q, sigma_Q, _), (U_K, sigma_K, _) = thin(W_Q, W_K)
    return U_K / sigma_K @ A @ (U_Q / sigma_Q).mT


# %% [markdown]
# ## The check
#
# **The two families are one.** The paper's directions must keep the product, to first order and relative to what their queries' half does to
# it, for all basis matrices $A$, each of which has rank one. They must be independent. The formula for $T$ must turn them into ours, and
# $A = \Sigma_K U_K^\top U_Q \Sigma_Q$ must come out as $(W_Q, -W_K)$.


# %%
def null_to_first_order(direction, W_Q, W_K):
    dW_Q, dW_K = direction
    by_queries, by_keys = W_K.mT @ dW_Q, dW_K.mT @ W_Q
    return relative_change(by_queries, -by_keys)


def one_up_one_down(W_Q, W_K):
    """The paper's direction for the A that belongs to T = I."""
    (U_Q, sigma_Q, _), (U_K, sigma_K, _) = thin(W_Q, W_K)
    return paper_directions(sigma_K[:, None] * U_K.mT @ U_Q * sigma_Q, W_Q, W_K)


# %%
heads = list(zip(p["W_Q"], p["W_K"]))
theirs = [paper_directions(units, *head) for head in heads]
ours = [our_directions(T_from(units, *head), *head) for head in heads]
check(
    "lemma-4.3",
    first_order=[null_to_first_order(d, *head) for d, head in zip(theirs, heads)],
    independent=[rank(rows(directions)) for directions in theirs],
    one_family=[relative_change(rows(d), rows(e)) for d, e in zip(theirs, ours)],
)
scaled = [torch.cat(one_up_one_down(*head)) for head in heads]
up_down = [torch.cat((W_Q, -W_K)) for W_Q, W_K in heads]
check("cor-4.5", scaling=list(map(relative_change, scaled, up_down)))

# %% [markdown]
# **The outputs do not move.** $\delta M = 0$ is about one matrix. We ask the whole layer, softmax, values and all, for its derivative along each
# of the $H D^2 = 48$ directions that the package lists as generators. `torch.func.jvp` computes such a derivative without
# finite differences. A random direction of unit length sets the scale.


# %%
def output_derivative(direction):
    """How fast the outputs change along a direction, name -> tensor, made a unit."""
    full = {name: direction.get(name, torch.zeros_like(p[name])) for name in p}
    length = sum(part.square().sum() for part in full.values()).sqrt()
    return torch.func.jvp(lambda q: forward(a, q, x), (p,), (full,))[1].norm() / length


null = generators(a, p)["query-key maps"]
visible = output_derivative(dict(zip(("W_Q", "W_K"), normal(2, H, D, E, seed=3))))
each = [{name: part[i] for name, part in null.items()} for i in range(H * D**2)]
assert len(each) == len(null["W_Q"])
check("lemma-4.3", outputs=max(map(output_derivative, each)) / visible)

# %% [markdown]
# **The dimension, and nothing else.** Four spaces must be the same: the paper's directions for all heads, the package's generators, the null space of the
# derivative {eq}`eq-derivative` as an explicit matrix, and the query-key part of what `measure` finds from outputs alone. Two spaces of
# equal dimension are equal when the sine of their largest principal angle is zero.


# %%
def basis(rows):
    """An orthonormal basis, as columns, of the space that the rows span."""
    _, values, Vh = torch.linalg.svd(rows, full_matrices=False)
    return Vh[values > 1e-8 * values[0]].mT


def largest_sine(one, other):
    return torch.linalg.matrix_norm(other - one @ (one.mT @ other), 2)


def product(weights):
    return (weights[1].mT @ weights[0]).flatten()  # weights (2, H, D, E)


def query_key(directions):
    return torch.cat([directions[name].flatten(1) for name in ("W_Q", "W_K")], 1)


weights = torch.stack((p["W_Q"], p["W_K"]))
slopes = torch.func.jacrev(product)(weights).flatten(1)

# %% [markdown]
# The paper's directions are made head by head, so each is put at its head's place and is zero elsewhere.

# %%
at_head = torch.zeros(H, D * D, 2, H, D, E, dtype=torch.float64)
for h in range(H):
    at_head[h, :, :, h] = torch.stack(theirs[h], 1)
measured = measure(a, parameters=p)
spaces = {
    "the paper's directions": basis(at_head.flatten(0, 1).flatten(1)),
    "generators": basis(query_key(null)),
    "kernel of the derivative": torch.linalg.svd(slopes).Vh[rank(slopes) :].mT,
    "measured from outputs": basis(query_key(measured.null_space)),
}
for name, space in spaces.items():
    print(f"{name:25} dimension {space.shape[1]}")
by_generators = spaces["generators"]
others = [space for name, space in spaces.items() if name != "generators"]
check(
    "cor-4.4",
    dimensions=[space.shape[1] for space in spaces.values()],
    sines=[largest_sine(by_generators, space) for space in others],
)

# %% [markdown]
# And the whole layer, in all the ways of chapter 1: 48 for queries and keys, and as many for values and output.

# %%
check(
    "cor-4.4",
    formula=count(a).unidentified,
    measured=measured.nullity,
    generators=independent_directions(a),
    exact=exact_nullity(a),
)

# %% [markdown]
# Completeness has a sharper form. Take *any* null direction that was measured, a random mixture of all of them, and read $T$ off its queries,
# $T = \delta W_Q W_Q^+$, and then off its keys, $T^\top = -\delta W_K W_K^+$. They agree, head by head.

# %%
mix = normal(measured.nullity, seed=4)
parts = (measured.null_space[name] for name in ("W_Q", "W_K"))
dW_Q, dW_K = (torch.tensordot(mix, part, 1) for part in parts)
T_queries = dW_Q @ torch.linalg.pinv(p["W_Q"])
T_keys = -(dW_K @ torch.linalg.pinv(p["W_K"])).mT
check(
    "cor-4.4",
    one_T=relative_change(T_queries, T_keys),
    T_makes=relative_change(T_queries @ p["W_Q"], dW_Q),
)

# %% [markdown]
# **The second order.** The change on a straight line is $t^2\, \delta W_K^\top \delta W_Q$ with no remainder: we check it at $t = 1$, a step longer than the
# weights themselves. The same cell decides the sign in the paper's formula: what it prints must be off by twice itself.

# %%
W_Q, W_K = heads[0]
A = normal(D, D, seed=5)
T = T_from(A, W_Q, W_K)
dW_Q, dW_K = paper_directions(A, W_Q, W_K)
moved = (W_K + dW_K).mT @ (W_Q + dW_Q) - W_K.mT @ W_Q
(U_Q, sigma_Q, Vh_Q), (U_K, sigma_K, Vh_K) = thin(W_Q, W_K)
printed = Vh_K.mT @ A @ (U_Q / sigma_Q).mT @ (U_K / sigma_K) @ A @ Vh_Q
assert torch.stack((dW_Q, dW_K)).norm() > torch.stack((W_Q, W_K)).norm()
check(
    "cor-4.5",
    second_order=relative_change(-W_K.mT @ T @ T @ W_Q, moved),
    minus_printed=relative_change(-printed, moved),
    printed=relative_change(printed, moved),
)

# %% [markdown]
# ## Straight lines and curves
#
# Now four ways to leave the same weights, each with the same speed: a random direction; a null direction with a random $T$ in each head; the
# curve $(e^{tT} W_Q, e^{-tT^\top} W_K)$ with the same $T$; and a null straight line with $T = u v^\top$, $v^\top u = 0$, so that $T^2 = 0$.


# %%
def unit_speed(T):
    """T (H, D, D), scaled so that its direction is as long as the weights."""
    dW_Q, dW_K = our_directions(T, p["W_Q"], p["W_K"])
    return T * weights.norm() / torch.stack((dW_Q, dW_K)).norm()


T = unit_speed(normal(H, D, D, seed=6))
u, v = normal(2, H, D, seed=7)
v = v - u * (u * v).sum(-1, keepdim=True) / u.square().sum(-1, keepdim=True)
shear = unit_speed(u[:, :, None] * v[:, None, :])
at_random = normal(2, H, D, E, seed=8)
at_random = at_random * weights.norm() / at_random.norm()
straight = lambda T, t: weights + t * torch.stack(our_directions(T, *weights))
exp = torch.linalg.matrix_exp
paths = {
    "random direction": lambda t: weights + t * at_random,
    "null direction": lambda t: straight(T, t),
    "null, $T^2 = 0$": lambda t: straight(shear, t),
    "curve $e^{tT}$": lambda t: torch.stack(act_query_key(exp(t * T), *weights)),
}

# %% [markdown]
# At each $t$ we record the relative change of the scores (before the softmax) and that of the layer's outputs.


# %%
def scores_and_outputs(weights):
    q = p | {"W_Q": weights[0], "W_K": weights[1]}
    queries, keys, _ = project(a, q, x)
    return scores(a, q, queries, keys), forward(a, q, x)


start = scores_and_outputs(weights)
steps = torch.logspace(-7, 0, 22, dtype=torch.float64)
ways = {
    name: [
        list(map(relative_change, scores_and_outputs(path(t)), start)) for t in steps
    ]
    for name, path in paths.items()
}
change = {name: torch.tensor(along) for name, along in ways.items()}  # (steps, 2)

# %% [markdown]
# A change proportional to $t^n$ is a line of slope $n$ in a log-log plot. We measure slopes from $t = 10^{-5}$ to $10^{-3}$, to within $0.01$, and ask that the other two paths stay
# at rounding error all the way to $t = 1$.

# %%
assert abs(steps[6] - 1e-5) < 1e-12 and abs(steps[12] - 1e-3) < 1e-10
growth = {name: (c[12] / c[6]).log10() / 2 for name, c in change.items()}
off_one = (growth["random direction"] - 1).abs()
off_two = (growth["null direction"] - 2).abs()
check("cor-4.5", off_one=off_one, off_two=off_two)
worst = {name: c.max(0).values for name, c in change.items()}
check(
    "cor-4.5", squares_to_zero=worst["null, $T^2 = 0$"], curve=worst["curve $e^{tT}$"]
)

# %% mystnb={"image": {"alt": "Two log-log panels, change of scores and change of outputs against the step t from 1e-7 to 1. In both the random direction rises with slope one and the null direction with slope two. The curve and the null line with T squared zero stay flat below 1e-14."}, "figure": {"caption": "Four ways to leave the same weights. Along a random direction scores and outputs change in proportion to $t$, along a null direction in proportion to $t^2$. Along the curve of chapter 2, and along the straight lines with $T^2 = 0$, there is nothing but rounding.", "name": "fig-second-order"}}
straight_and_curved(steps, change)

# %% [markdown]
# In {numref}`fig-second-order` the null direction all but meets the random one at $t = 1$: over a step as long as the weights it changes half as much. At $t = 10^{-3}$ it
# changes less than a thousandth as much.

# %%
fewer = change["random direction"] / change["null direction"]
assert 1 < fewer[21].min() < fewer[21].max() < 3 and fewer[12].min() > 1000

# %% [markdown]
# ## Break it
#
# **The wrong sign, or one half only.** $(T W_Q, +T^\top W_K)$ looks much the same, and so does $(T W_Q, 0)$. Both are more than half as visible as a random direction.

# %%
dW_Q, dW_K = our_directions(T, p["W_Q"], p["W_K"])
wrong = ({"W_Q": dW_Q, "W_K": -dW_K}, {"W_Q": dW_Q})
check("lemma-4.3", wrong=[output_derivative(d) / visible for d in wrong])
assert output_derivative({"W_Q": dW_Q, "W_K": dW_K}) < 1e-10 * visible

# %% [markdown]
# **Weights without full rank.** The paper's construction then has no $\Sigma^{-1}$ to use, and ours misses something.
#
# ```{prf:proposition} Deficient ranks (beyond the paper)
# :label: prop-deficient-rank
#
# Let $W_Q$ and $W_K$ have ranks $r_Q$ and $r_K$, with $D$ and $E$ in any order. The null directions form a space of dimension
#
# $$
# 2DE - E\,(r_Q + r_K) + r_Q\, r_K ,
# $$
#
# of which the directions $(T W_Q, -T^\top W_K)$ make $D^2 - (D - r_Q)(D - r_K)$.
# ```
#
# ```{prf:proof}
# The first number is that of {prf:ref}`lem-what-a-product-loses` with $A = W_K$ and $B = W_Q$. For the second, $T W_Q = 0$ and $T^\top W_K = 0$ say that $T$ vanishes on the
# column space of $W_Q$ and has its image orthogonal to that of $W_K$, which leaves $(D - r_K) \times (D - r_Q)$ free entries.
# ```
#
# For $D \le E$ and full rank both numbers are $D^2$ (for $D > E$ both are $2DE - E^2$). With $D \le E$, lower one rank by one, $r_Q = D - 1$, and the null space has $D^2 + E - D$ dimensions while the family $T$ still makes $D^2$. The
# $E - D$ new directions have a plain meaning. Some unit vector $u$ has $u^\top W_Q = 0$: no query has a component along $u$. So the keys may do there as they please:
# $\delta W_K = u w^\top$ with any $w \in \mathbb{R}^E$, and the product stays the same for steps of any length. There are $E$ such $w$; those in the row space of $W_K$, $D$ dimensions, were in the family already.


# %%
def with_rank(W, r):
    U, sigma, Vh = torch.linalg.svd(W, full_matrices=False)
    return U[..., :r] * sigma[..., None, :r] @ Vh[..., :r, :]


null_dimension, family = [], []
for r_Q, r_K in ((4, 4), (3, 4), (3, 3), (1, 2), (0, 4)):
    W_Q, W_K = with_rank(heads[0][0], r_Q), with_rank(heads[0][1], r_K)
    slopes = torch.func.jacrev(product)(torch.stack((W_Q, W_K))).flatten(1)
    null_dimension.append(2 * D * E - rank(slopes))
    family.append(rank(rows(our_directions(units, W_Q, W_K))))
    assert null_dimension[-1] == 2 * D * E - E * (r_Q + r_K) + r_Q * r_K
    assert family[-1] == D**2 - (D - r_Q) * (D - r_K)
check("lemma-4.3", deficient=null_dimension, family=family)

# %% [markdown]
# The whole layer agrees. With one singular value of one head's $W_Q$ set to zero, `measure` finds $E - D = 8$ more null directions than `count`, which speaks of generic
# parameters only. And the step along $u w^\top$ can be as long as we like.

# %%
deficient = {name: part.clone() for name, part in p.items()}
deficient["W_Q"][0] = with_rank(p["W_Q"][0], D - 1)
extra = measure(a, parameters=deficient).nullity - count(a).unidentified
check("lemma-4.3", gained=extra)
u = torch.linalg.svd(deficient["W_Q"][0]).U[:, -1]
far = {name: part.clone() for name, part in deficient.items()}
far["W_K"][0] += 100 * torch.outer(u, normal(E, seed=9))
assert relative_change(far["W_K"][0], p["W_K"][0]) > 10
assert relative_change(forward(a, far, x), forward(a, deficient, x)) < 1e-9

# %% [markdown]
# ## What it means
#
# A loss depends on the weights of a head through its outputs, so its derivative along a null direction is zero. That derivative is the inner product of the direction with the gradient.
# **A gradient is orthogonal to every null direction**, whatever the loss and the data. We check it with a loss that means nothing, to a cosine of $10^{-12}$, on every
# direction that was measured, those of values and outputs included.

# %%
target = normal(*x.shape, seed=10)
loss = lambda q: (forward(a, q, x) - target).square().mean()
gradient = torch.cat([part.flatten() for part in torch.func.grad(loss)(p).values()])
directions = torch.cat([measured.null_space[name].flatten(1) for name in p], 1)
cosines = directions @ gradient / (directions.norm(dim=1) * gradient.norm())
assert len(cosines) == count(a).unidentified == 96 and cosines.abs().max() < 1e-12
print(f"gradient against {len(cosines)} null directions: largest cosine below 1e-12")

# %% [markdown]
# So a step of plain gradient descent has no component along the directions that are null *where it is taken*. Two things soften this. The null space turns as the weights move, so many
# orthogonal steps can add up to a displacement that is not orthogonal. And an optimiser that rescales the gradient entry by entry, remembers old gradients, or
# decays weights steps along null directions too; such a component changes the function to second order, as {prf:ref}`prop-second-order` says.
# What gradient flow conserves for this reason, and how real optimisers depart from it, is the subject of the chapters on training.

# %% [markdown]
# ## Exercises
#
# **1. How many straight lines lie in the orbit?** For $D = 2$, which $T$ have $T^2 = 0$? Do they form a linear space?
#
# ```{admonition} Answer
# :class: dropdown
#
# $T^2 = 0$ means $T = u v^\top$ with $v^\top u = 0$ when $D = 2$: trace and determinant vanish. That is a cone of dimension two in the four-dimensional space of all $T$, and not a linear space: the sum of two such
# matrices, say $e_1 e_2^\top + e_2 e_1^\top$, has a square of $I$. So the orbit is curved, with straight lines in it, as a hyperboloid has.
# ```

# %% tags=["hide-cell"]
e = torch.eye(2, dtype=torch.float64)
up, down = torch.outer(e[0], e[1]), torch.outer(e[1], e[0])
assert torch.equal(up @ up, 0 * e) and torch.equal(down @ down, 0 * e)
assert torch.equal((up + down) @ (up + down), e)
angle = normal(1, seed=11)
u = torch.cat((angle.cos(), angle.sin()))
nilpotent = torch.outer(u, torch.stack((-u[1], u[0])))
assert (nilpotent @ nilpotent).norm() < 1e-14
print("each of two squares is zero, that of their sum is the identity")

# %% [markdown]
# **2. Is the loss flat to second order?** Let $\Gamma = \partial\ell / \partial M$ for a loss $\ell$. Show that its second derivative along the null direction $T$ is $-2 \langle \Gamma,\, W_K^\top T^2 W_Q \rangle$.
# When is it zero? What does this say about the Hessian's null space during training, and at a minimum?
#
# ```{admonition} Answer
# :class: dropdown
#
# On the line $M(t) = M - t^2\, W_K^\top T^2 W_Q$, so $\ell(t) = \ell - t^2 \langle \Gamma, W_K^\top T^2 W_Q \rangle + O(t^4)$. At a stationary point of the loss in the weights
# $W_K \Gamma = 0$, so it vanishes, even if $\Gamma \ne 0$; the gradient is zero all along the orbit, so the $D^2$ null directions lie in the null space of the Hessian. Elsewhere it need not, and can have either sign: a null direction of the Jacobian is not a flat direction of the loss away from a stationary point. The cell takes the second derivative by nested
# automatic differentiation: for a random $T$, for $T = I$, and for a $T$ with $T^2 = -I$, which gives it the opposite sign.
# ```

# %% tags=["hide-cell"]
W_Q, W_K = p["W_Q"][0], p["W_K"][0]
loss_of_product = lambda M: ((x @ M.mT @ x.mT).softmax(-1) @ x - target).square().mean()
Gamma = torch.func.grad(loss_of_product)(W_K.mT @ W_Q)
zero, one = torch.zeros((), dtype=torch.float64), torch.ones((), dtype=torch.float64)
Omega, seconds = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64), []
identity = torch.eye(D, dtype=torch.float64)
for direction in (T[0], identity, torch.block_diag(Omega, Omega)):
    dW_Q, dW_K = our_directions(direction, W_Q, W_K)
    along = lambda t: loss_of_product((W_K + t * dW_K).mT @ (W_Q + t * dW_Q))
    first = lambda t: torch.func.jvp(along, (t,), (one,))[1]
    second = torch.func.jvp(first, (zero,), (one,))[1]
    predicted = -2 * (Gamma * (W_K.mT @ direction @ direction @ W_Q)).sum()
    assert first(zero).abs() < 1e-12 and second.abs() > 1e-6
    assert (second - predicted).abs() < 1e-9 * predicted.abs()
    seconds.append(second)
assert seconds[1] * seconds[2] < 0
print("second derivatives as predicted, and of both signs")

# %% [markdown]
# **3. What a step that ignores the geometry does.** Adam's first step is, but for its small constant, the sign of the gradient. What share of its squared length lies in the query-key null space? What would
# a random direction's share be on average?
#
# ```{admonition} Answer
# :class: dropdown
#
# A random direction, equally likely to point anywhere in the $2HDE$ query and key weights, has a share of $HD^2 / (2HDE) = D/(2E)$ on average, here $1/6$: the trace of the projection over the dimension. The gradient has none. Its signs
# have a share of 0.07 here: taking signs undoes the orthogonality. The training chapters follow this share, which the paper calls $\rho$, through real runs.
# ```

# %% tags=["hide-cell"]
along = spaces["generators"].mT  # orthonormal rows
share = lambda step: (along @ step).square().sum(0) / step.square().sum(0)
grads = torch.func.grad(loss)(p)
g = torch.cat([grads[name].flatten() for name in ("W_Q", "W_K")])
random_share = share(normal(2 * H * D * E, 2000, seed=12)).mean()
assert share(g) < 1e-20 and abs(share(g.sign()) - 0.07) < 0.005
assert abs(random_share - D / (2 * E)) < 0.01
print(f"signs {share(g.sign()):.2f}")
print(f"random directions {random_share:.2f}, D/(2E) = {D / (2 * E):.2f}")

# %% [markdown]
# **Next:** several heads, and the other half of the layer. Everything here was one head's $W_Q$ and $W_K$; what remains is to add up the heads, and to see that $W_O W_V$ loses its own $C^2$ in the same manner.
