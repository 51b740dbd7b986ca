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
# # A canonical factorisation
#
# *Assumed: {doc}`chapter 1 <01_what_is_identified>`, {prf:ref}`lem-invariance`, {prf:ref}`prop-orbit`, and the singular value decomposition.*
#
# *In the ledger:* {ref}`Lemma 4.2 <ledger-lemma-4-2>`, {ref}`section 4.3 <ledger-sec-4-3>`.
#
# ## The question
#
# All pairs $(S W_Q, S^{-\top} W_K)$ of a head give the same scores. Is there one among them that we can name, so that two heads compute the
# same scores exactly when their named pairs agree? And if so: how many numbers does it take to write that pair down? That would be a second
# way to count what is identified, by adding up what is left where chapter 1 subtracted what is lost.
#
# ## The claim
#
# Throughout $D \le E$, and $M = W_K^\top W_Q$ is the {term}`score product`, of rank at most $D$.
#
# ```{prf:lemma} Canonical factorisation (paper: Lemma 4.2)
# :label: lem-canonical
#
# For any $W_Q, W_K \in \mathbb{R}^{D \times E}$ there are $\sigma_1 \ge \dots \ge \sigma_D \ge 0$ and $U_Q, U_K \in \mathbb{R}^{D \times
# E}$ with orthonormal rows such that
#
# $$
# \bar W_Q = \mathrm{diag}(\sigma)\, U_Q, \qquad \bar W_K = \mathrm{diag}(\sigma)\, U_K
# $$
#
# have the same product: $\bar W_K^\top \bar W_Q = W_K^\top W_Q$. The numbers $\sigma$ are unique. If they are positive and distinct, the
# rows of $U_Q$ and $U_K$ are unique up to signs, one sign for row $d$ of both. If some positive $\sigma_d$ occurs $m$ times, the $m$ rows
# that belong to it are unique up to one orthogonal $m \times m$ matrix, the same for $U_Q$ and $U_K$.
# ```
#
# ```{prf:proposition} The same count again (paper: section 4.3)
# :label: prop-dimension-count
#
# The triples $(\sigma, U_Q, U_K)$ of {prf:ref}`lem-canonical` with positive, distinct $\sigma$ form a manifold of dimension
#
# $$
# D + 2 \Big( DE - \frac{D(D + 1)}{2} \Big) = 2DE + D - D(D + 1) = 2DE - D^2 ,
# $$
#
# and near each of them $(\sigma, U_Q, U_K) \mapsto M$ is one-to-one with an injective derivative. So the products $M$ form a set of this
# dimension. It is the rank of $(W_Q, W_K) \mapsto M$ at generic weights: $2DE - D^2$ numbers are identified, and $D^2$ of the $2DE$ are not.
# ```
#
# ## Proof
#
# ```{prf:proof}
# (of {prf:ref}`lem-canonical`) *Existence.* Let $M = \sum_{d = 1}^{D} s_d\, u_d v_d^\top$ be a singular value decomposition, with $s_1 \ge
# \dots \ge s_D \ge 0$; no more terms are needed, as $M$ has rank at most $D$. Let row $d$ of $U_K$ be $u_d^\top$, row $d$ of $U_Q$ be
# $v_d^\top$, and $\sigma_d = \sqrt{s_d}$. Then
#
# $$
# \bar W_K^\top \bar W_Q = U_K^\top\, \mathrm{diag}(\sigma)^2\, U_Q = \sum_{d = 1}^{D} s_d\, u_d v_d^\top = M .
# $$
#
# *Uniqueness.* Let $M = U_K^\top\, \mathrm{diag}(\sigma)^2\, U_Q$ be any such factorisation. As the rows of $U_Q$ are orthonormal, $M
# M^\top = U_K^\top\, \mathrm{diag}(\sigma)^4\, U_K$, an eigendecomposition: row $d$ of $U_K$ is a unit eigenvector with eigenvalue
# $\sigma_d^4$, and all other eigenvalues are zero. So $\sigma$ is unique. A simple positive eigenvalue leaves its row a sign; one of
# multiplicity $m$ leaves its $m$ rows an orthogonal matrix. Finally $U_K M = \mathrm{diag}(\sigma)^2\, U_Q$, so where $\sigma_d > 0$ the
# rows of $U_Q$ follow from those of $U_K$, and inherit the sign or the matrix.
# ```
#
# ```{prf:proof}
# (of {prf:ref}`prop-dimension-count`) *Dimension.* That the rows of $U$ are orthonormal, $U U^\top = I$, is $D(D + 1)/2$ equations, one for
# each entry on or above the diagonal. Their derivative at $U$ in the direction $\dot U$ is $\dot U U^\top + U \dot U^\top$. It takes every
# symmetric value $Y$, namely at $\dot U = \frac12 Y U$, so the equations are independent, and the matrices $U$ (a Stiefel manifold) have
# dimension $DE - D(D+1)/2$. Two of them and $D$ numbers $\sigma$ make the sum.
#
# *Injective derivative.* Write $s = \sigma^2$, let dots denote derivatives along a direction tangent to the manifold, and suppose that
# $\dot M = \dot U_K^\top \mathrm{diag}(s) U_Q + U_K^\top \mathrm{diag}(\dot s) U_Q + U_K^\top \mathrm{diag}(s) \dot U_Q = 0$. Both $A =
# \dot U_K U_K^\top$ and $B = \dot U_Q U_Q^\top$ are skew. Multiply by $U_K$ from the left and $U_Q^\top$ from the right:
#
# $$
# -A\, \mathrm{diag}(s) + \mathrm{diag}(\dot s) + \mathrm{diag}(s)\, B = 0 .
# $$
#
# The diagonal reads $\dot s = 0$. The entries $(i, j)$ and $(j, i)$ read $s_j A_{ij} = s_i B_{ij}$ and $s_i A_{ij} = s_j B_{ij}$. Their
# determinant $s_i^2 - s_j^2$ is not zero, so $A = B = 0$. What is left of $\dot M = 0$, multiplied by $U_K$ from the left, is
# $\mathrm{diag}(s)\, \dot U_Q = 0$; so $\dot U_Q = 0$ and likewise $\dot U_K = 0$. That the map is one-to-one near each point is
# {prf:ref}`lem-canonical`: the other triples with the same $M$ differ by signs, and are far away. Every $M$ of rank $D$ with distinct
# nonzero singular values comes from such a triple, which up to signs follows $M$ continuously. So these $M$ form a manifold of dimension
# $2DE - D^2$.
#
# *Rank.* A dimension of the set of all $M$ counts what is identified only if it is the rank of $(W_Q, W_K) \mapsto M$. Near a canonical pair the
# products lie in the manifold, so the rank there is no more than $2DE - D^2$. It is no less, as all of the manifold near by is
# reached from triples by way of canonical pairs, $(\sigma, U_Q, U_K) \mapsto (\bar W_Q, \bar W_K) \mapsto M$, with an injective derivative. Any other
# pair with such an $M$ is $(S \bar W_Q, S^{-\top} \bar W_K)$ by {prf:ref}`prop-orbit`, and has the same rank, since this change of the weights is
# linear, invertible and keeps $M$. Almost all pairs have such an $M$, and their outputs see $M$ by {prf:ref}`lem-two-products`.
# ```
#
# ## The same symbols in code
#
# The decomposition of $M$ gives the triple. Signs are a matter of convention; ours makes the entry of largest modulus in each row of $U_K$
# positive.

# %%
import math

import torch

from attnid import Attention, count, exact_nullity, figures
from attnid import independent_directions, measure
from attnid.claims import check
from attnid.tensors import normal, rank, relative_change


def fix_signs(sigma, U_Q, U_K):
    at = U_K.abs().argmax(-1, keepdim=True)
    sign = U_K.gather(-1, at).sign()  # (D, 1), one sign for a row of both
    return sigma, sign * U_Q, sign * U_K


def canonical(W_Q, W_K):
    U, s, Vh = torch.linalg.svd(W_K.mT @ W_Q)  # (E, E), (E,), (E, E)
    D = len(W_Q)
    return fix_signs(s[:D].sqrt(), Vh[:D], U[:, :D].mT)


# %% [markdown]
# It works, and it forms an $E \times E$ matrix of rank $D$ only to take it apart again. Thin QR factorisations avoid that. With
# $W_Q^\top = O_Q Y_Q$ and $W_K^\top = O_K Y_K$, where the columns of $O_Q$ and $O_K$ are orthonormal,
#
# $$
# M = O_K\, \big( Y_K Y_Q^\top \big)\, O_Q^\top ,
# $$
#
# and a decomposition $A\, \mathrm{diag}(s)\, B^\top$ of the small $D \times D$ matrix in the middle is all it takes: $U_K = (O_K A)^\top$
# and $U_Q = (O_Q B)^\top$. The cost falls from order $E^3$ to order $E D^2$.


# %%
def canonical_thin(W_Q, W_K):
    O_Q, Y_Q = torch.linalg.qr(W_Q.mT)  # (E, D), (D, D)
    O_K, Y_K = torch.linalg.qr(W_K.mT)
    A, s, Bh = torch.linalg.svd(Y_K @ Y_Q.mT)  # (D, D), (D,), (D, D)
    return fix_signs(s.sqrt(), Bh @ O_Q.mT, A.mT @ O_K.mT)


# %% [markdown]
# ## The check
#
# A head with $E = 12$ and $D = 6$. Both computations agree, the rows are orthonormal, and the product is what it was.

# %%
D, E = 6, 12
head = Attention(E, 1, head_dim=D)
W_Q, W_K = (head.random_parameters(seed=0)[name][0] for name in ("W_Q", "W_K"))
sigma, U_Q, U_K = canonical(W_Q, W_K)
bar_Q, bar_K = sigma[:, None] * U_Q, sigma[:, None] * U_K
far = lambda ours, theirs: list(map(relative_change, ours, theirs))
one = torch.eye(D, dtype=torch.float64)
check(
    "lemma-4.2",
    factors=relative_change(bar_K.mT @ bar_Q, W_K.mT @ W_Q),
    orthonormal=[relative_change(U @ U.mT, one) for U in (U_Q, U_K)],
    thin=far((sigma, U_Q, U_K), canonical_thin(W_Q, W_K)),
)
print("sigma:", [round(value, 2) for value in sigma.tolist()])

# %% [markdown]
# *It names the class.* Any other pair with the same scores must lead to the same triple. We move the pair by a random nonsingular $S$,
# whose condition number costs a few digits. And we make one without an $S$, with an orthonormal basis of the columns of $M$ for keys.

# %%
S = normal(D, D, seed=1)
moved_Q, moved_K = S @ W_Q, torch.linalg.inv(S).mT @ W_K
columns = torch.linalg.qr(W_K.mT @ W_Q).Q[:, :D].mT
away = []
for pair in ((moved_Q, moved_K), (columns @ W_K.mT @ W_Q, columns)):
    assert min(far(pair, (W_Q, W_K))) > 0.5
    away += far(canonical(*pair), (sigma, U_Q, U_K))
check("lemma-4.2", named=away)

# %% [markdown]
# *Its {term}`Gram matrices <Gram matrix>`.*
# $\bar W_Q \bar W_Q^\top = \mathrm{diag}(\sigma)\, U_Q U_Q^\top \mathrm{diag}(\sigma) = \mathrm{diag}(\sigma^2)$, and
# the same for the keys. Whatever the Gram matrices $P_Q = W_Q W_Q^\top$ and $P_K = W_K W_K^\top$ were, in {term}`canonical form` they are
# diagonal and equal, as {numref}`fig-canonical` shows.

# %%
as_given = (W_Q @ W_Q.mT, W_K @ W_K.mT, W_K.mT @ W_Q)
in_form = (bar_Q @ bar_Q.mT, bar_K @ bar_K.mT, bar_K.mT @ bar_Q)
assert max(far(in_form[:2], 2 * (torch.diag(sigma**2),))) < 1e-12
assert relative_change(*as_given[:2]) > 0.1

# %% mystnb={"image": {"alt": "Six matrices as coloured squares, in two rows. Above, as given: two different Gram matrices with entries everywhere, and the product. Below, in canonical form: both Gram matrices are the same diagonal with decreasing entries, and the product looks exactly as above."}, "figure": {"caption": "A head with $E = 12$ and $D = 6$, as given and in canonical form (red is positive, blue negative; one scale for the Gram matrices, one for the product). The Gram matrices become one diagonal matrix; the product, which is all that the scores see, stays.", "name": "fig-canonical"}}
figures.canonical_form(as_given, in_form)

# %% [markdown]
# *Its dimension*, in four ways. The first two follow {prf:ref}`prop-dimension-count`. Collect $\sigma$, $U_Q$ and $U_K$ in one vector of
# $2DE + D$ numbers; the constraints are a map from it, the product is another, and automatic differentiation gives both Jacobians. The rank
# of the first says how many numbers orthonormality takes away.


# %%
def unpack(t, D, E):
    return t[:D], t[D : D + D * E].view(D, E), t[D + D * E :].view(D, E)


def constraints(t, D, E):
    _, U_Q, U_K = unpack(t, D, E)
    return torch.cat(
        [(U @ U.mT - torch.eye(D, dtype=torch.float64)).flatten() for U in (U_Q, U_K)]
    )  # (2 D D,)


def product(t, D, E):
    sigma, U_Q, U_K = unpack(t, D, E)
    return (U_K.mT @ torch.diag(sigma**2) @ U_Q).flatten()  # (E E,)


# %% [markdown]
# The second way is the rank of the product's derivative along the directions tangent to the manifold, which are the null space of the first
# Jacobian: the last rows of $V^\top$ in a full singular value decomposition.


# %%
def tangent_product(t, D, E):
    slopes = torch.func.jacrev(constraints)(t, D, E)
    tangent = torch.linalg.svd(slopes).Vh[rank(slopes) :].mT  # orthonormal columns
    return torch.func.jacrev(product)(t, D, E) @ tangent


def pack(sigma, U_Q, U_K):
    return torch.cat((sigma, U_Q.flatten(), U_K.flatten()))


# %% [markdown]
# The third way leaves the canonical form aside: the rank of $(W_Q, W_K) \mapsto W_K^\top W_Q$ at the pair as given.


# %%
def direct_product(W_Q, W_K):
    blocks = torch.func.jacrev(lambda q, k: k.mT @ q, argnums=(0, 1))(W_Q, W_K)
    rows = [block.flatten(2).flatten(0, 1) for block in blocks]
    return torch.cat(rows, 1)  # (E E, 2 D E)


def dimensions(layer, D, E):
    """The dimension by the constraints, along their tangents, and by the weights."""
    W_Q, W_K = (layer.random_parameters(seed=2)[name][0] for name in ("W_Q", "W_K"))
    t = pack(*canonical(W_Q, W_K))
    free = len(t) - rank(torch.func.jacrev(constraints)(t, D, E))
    return free, rank(tangent_product(t, D, E)), rank(direct_product(W_Q, W_K))


sizes = ((1, 1), (1, 4), (2, 2), (2, 5), (3, 4), (4, 7))  # D and E
layers = [Attention(E, 1, head_dim=D, value_dim=1) for D, E in sizes]
found = [dimensions(layer, *size) for layer, size in zip(layers, sizes)]
first, second, third = zip(*found)
check("sec-4.3", constraints=first, tangents=second, weights=third)

# %% [markdown]
# The fourth looks at the whole layer, in all the ways of chapter 1. Its one value loses one number, and the rest is $D^2$.


# %%
def left(unidentified):
    """What is left of the query and key numbers, for a way of counting."""
    return [2 * a.D * a.E - (unidentified(a) - 1) for a in layers]


check(
    "sec-4.3",
    formula=left(lambda a: count(a).unidentified),
    measured=left(lambda a: measure(a).nullity),
    generators=left(independent_directions),
    exact=left(exact_nullity),
)

# %% [markdown]
# ## Break it
#
# **Let two singular values meet.** {prf:ref}`prop-dimension-count` asks for distinct $\sigma$, and its proof divides by $s_i^2 - s_j^2$. At
# $s_i = s_j$ the equations allow $A_{ij} = B_{ij} \ne 0$: turning rows $i$ and $j$ of both factors together moves the triple and not the
# product. The canonical coordinates then fail as polar coordinates fail at the origin. A value that occurs $m$ times costs $m(m-1)/2$
# dimensions of the *coordinates*; the count of what is identified stays, as the third way shows at the same points.

# %%
D, E = 4, 7
_, U_Q, U_K = canonical(*normal(2, D, E, seed=2))
strengths = torch.tensor(
    [[2, 1.5, 1, 0.5], [2, 1, 1, 0.5], [2, 1, 1, 1], [1, 1, 1, 1]], dtype=torch.float64
)
factors = lambda sigma: (sigma[:, None] * U_Q, sigma[:, None] * U_K)
check(
    "sec-4.3",
    meeting=[rank(tangent_product(pack(s, U_Q, U_K), D, E)) for s in strengths],
    meeting_weights=[rank(direct_product(*factors(s))) for s in strengths],
)

# %% [markdown]
# That the ambiguity is one common rotation, as {prf:ref}`lem-canonical` says, is seen at once: with $\sigma_2 = \sigma_3$ we turn rows 2
# and 3 of both factors by the same angle, then by different ones, and then turn them where $\sigma_2 \ne \sigma_3$.


# %%
def turn(angle):  # rows 2 and 3 of four
    turned = torch.eye(4, dtype=torch.float64)
    c, s = math.cos(angle), math.sin(angle)
    turned[1:3, 1:3] = torch.tensor([[c, s], [-s, c]], dtype=torch.float64)
    return turned


def change_of_product(sigma, by_Q, by_K):
    turned = pack(sigma, turn(by_Q) @ U_Q, turn(by_K) @ U_K)
    as_before = pack(sigma, U_Q, U_K)
    return relative_change(product(turned, D, E), product(as_before, D, E))


assert change_of_product(strengths[1], 0.8, 0.8) < 1e-12
assert change_of_product(strengths[1], 0.8, 0.3) > 0.01
assert change_of_product(strengths[0], 0.8, 0.8) > 0.01

# %% [markdown]
# The failure is not sudden. In {numref}`fig-meeting` two singular values of $M$ approach each other. The least change of $M$ that a unit
# step of the canonical coordinates makes falls in proportion to their distance, while for $(W_Q, W_K)$ the least change over steps across
# the null space stays where it is.

# %%
gaps = torch.logspace(0, -6, 13, dtype=torch.float64) / 4
least = {"canonical": [], "direct": []}
for gap in gaps.tolist():
    values = torch.tensor([4, 1 + gap / 2, 1 - gap / 2, 0.25], dtype=torch.float64)
    sigma = values.sqrt()
    slopes = {
        "canonical": tangent_product(pack(sigma, U_Q, U_K), D, E),
        "direct": direct_product(*factors(sigma)),
    }
    for name in least:
        spectrum = torch.linalg.svdvals(slopes[name])
        least[name].append(spectrum[2 * D * E - D**2 - 1].item())
ratio = (least["canonical"][4] / least["canonical"][-1]) / (gaps[4] / gaps[-1])
assert abs(ratio - 1) < 0.01
assert max(least["direct"]) / min(least["direct"]) < 1.01

# %% mystnb={"image": {"alt": "Two curves on logarithmic axes. The one for the weights is flat. The one for canonical coordinates falls on a straight line of slope one as the distance of the two singular values goes to zero."}, "figure": {"caption": "The least change of $M$ over unit steps. Canonical coordinates lose a direction where two singular values of $M$ meet; the weights themselves do not.", "name": "fig-meeting"}}
figures.coordinates_that_fail(gaps, least["canonical"], least["direct"])

# %% [markdown]
# **Let the head be wider than its tokens.** For $D > E$ no $D \times E$ matrix has orthonormal rows, so there is nothing to factor with,
# and the formula $2DE - D^2$ goes wrong: for $D > 2E$ it is negative. The product has only $r = \min(D, E)$ singular values. With $r \times
# E$ factors the sum is $r + 2 \big( rE - r(r + 1)/2 \big) = r(2E - r)$, which is $E^2$ for $D \ge E$, in agreement with
# {prf:ref}`prop-count-r`.

# %%
wide = []
for n, r in ((3, 2), (5, 2), (6, 3)):  # D and E
    W_Q, W_K = normal(2, n, r, seed=4)
    U, s, Vh = torch.linalg.svd(W_K.mT @ W_Q)
    small = pack(s.sqrt(), Vh, U.mT)  # r numbers and two r x E factors
    wide.append([rank(tangent_product(small, r, r)), rank(direct_product(W_Q, W_K))])
    layer = Attention(r, 1, head_dim=n, value_dim=1)
    assert 2 * n * r - (measure(layer).nullity - 1) == r**2 != 2 * n * r - n**2
check("sec-4.3", wide=wide)

# %% [markdown]
# ## What it means
#
# Two heads compute the same scores exactly when their triples agree, signs and repeated or vanishing values aside. So the triple is what an experiment
# could find out about the query and key weights: $D$ strengths $\sigma_d^2$, and for each strength a direction of tokens that ask ($v_d$)
# and a direction of tokens that are asked ($u_d$). The word "identified" has a concrete meaning here: these are the identified parameters,
# in a shape that one can look at. Signs and order do not enter the count, as they leave only finitely many choices.
#
# The form has one more use. Its Gram matrices are *{term}`balanced`*, $P_Q = P_K$. Training by {term}`gradient flow` keeps
# $P_Q - P_K$ as it was at the start, which is the subject of Part II, and {term}`rebalancing` a head there means to bring it into this form,
# up to a common rotation.
#
# ```{prf:remark} Departure from the paper
# :label: rem-canonical-shape
#
# The printed lemma needs five repairs. It puts no bound on $D$, but orthonormal factors exist only for $D \le E$. It gives the factors the
# shape $E \times D$, while the weights that they are to make are $D \times E$. Its proof orders the singular values as non-decreasing and
# yet has the last $E - D$ of them vanish; non-increasing is meant. It cuts out the first $D$ *rows* of $U$ and $V$, where singular vectors
# are columns. And it gives $U$ to the queries and $V$ to the keys. But $M = W_K^\top W_Q = U \Sigma V^\top$ needs $U$ for the keys and $V$
# for the queries, as above; the other way round makes $M^\top$.
# ```

# %%
printed = []
for D, E in ((3, 3), (3, 8)):
    W_Q, W_K = normal(2, D, E, seed=5)
    M, (sigma, U_Q, U_K) = W_K.mT @ W_Q, canonical(W_Q, W_K)
    swapped = (sigma[:, None] * U_Q).mT @ (sigma[:, None] * U_K)
    assert relative_change(swapped, M.mT) < 1e-12
    U, s, Vh = torch.linalg.svd(M)
    by_rows = Vh.mT[:D].mT @ torch.diag(s[:D]) @ U[:D]  # rows of U and V, to the letter
    printed += [relative_change(wrong, M) for wrong in (swapped, by_rows, by_rows.mT)]
check("lemma-4.2", printed=printed)

# %% [markdown]
# ## Exercises
#
# The first two go on with the last head above, $D = 3$ and $E = 8$.
#
# **1.** Which $S$ takes $(W_Q, W_K)$ to its canonical form, when both have rank $D$?
#
# ```{admonition} Answer
# :class: dropdown
#
# From $S W_Q = \bar W_Q$ it follows that $S = \bar W_Q W_Q^\top (W_Q W_Q^\top)^{-1}$. This is a solution, because $W_Q$ and $\bar W_Q$ have
# the same row space, that of $M$. Then $\bar W_K^\top S W_Q = M = W_K^\top W_Q$, and as the rows of $W_Q$ are independent, $\bar W_K^\top S
# = W_K^\top$, that is, $\bar W_K = S^{-\top} W_K$.
# ```

# %% tags=["hide-cell"]
bar_Q, bar_K = sigma[:, None] * U_Q, sigma[:, None] * U_K
S = bar_Q @ W_Q.mT @ torch.linalg.inv(W_Q @ W_Q.mT)
assert relative_change(S @ W_Q, bar_Q) < 1e-12
assert relative_change(torch.linalg.inv(S).mT @ W_K, bar_K) < 1e-12

# %% [markdown]
# **2.** The canonical pair is the smallest of its class: it has the least $\|W_Q\|^2 + \|W_K\|^2$. Show it, and find the other smallest
# pairs.
#
# ```{admonition} Answer
# :class: dropdown
#
# $\|W_Q\|^2 + \|W_K\|^2 \ge 2 \|W_Q\| \|W_K\| \ge 2 \sum_d s_d$: the second step holds since $\sum_d s_d = \mathrm{tr}(U_K W_K^\top W_Q
# U_Q^\top) \le \|W_K U_K^\top\| \|W_Q U_Q^\top\| \le \|W_K\| \|W_Q\|$, rows being orthonormal. The canonical pair has $2 \sum_d \sigma_d^2 =
# 2 \sum_d s_d$. So has $(O \bar W_Q, O \bar W_K)$ with any orthogonal $O$. There are no others: equality throughout forces $W_Q = A U_Q$ and
# $W_K = A U_K$ with the same $A$, and $A^\top A = \mathrm{diag}(\sigma)^2$ makes $A = O\, \mathrm{diag}(\sigma)$.
# ```

# %% tags=["hide-cell"]
size = lambda *pair: sum(W.square().sum().item() for W in pair)
least_size = 2 * (sigma**2).sum().item()
assert abs(size(bar_Q, bar_K) - least_size) < 1e-12
for seed in range(50):
    S = normal(D, D, seed=seed)
    common = torch.linalg.qr(S).Q
    assert size(S @ bar_Q, torch.linalg.inv(S).mT @ bar_K) > least_size + 1e-6
    assert abs(size(common @ bar_Q, common @ bar_K) - least_size) < 1e-12

# %% [markdown]
# **3.** Let one singular value of $M$ be zero, so that $\sigma_D = 0$. How far is the triple unique now?
#
# ```{admonition} Answer
# :class: dropdown
#
# The last rows of $U_Q$ and $U_K$ are multiplied by zero. Each may be any unit vector orthogonal to the rows above it, and the two need not
# be chosen together. Each choice is a point of a sphere of dimension $E - D$, so the coordinates lose $2(E - D)$ dimensions there. They
# lose one more, as $M$ depends on $\sigma_D^2$, whose derivative is zero. At such a point the weights lose dimensions as well: they are not
# of full rank if they are in canonical form.
# ```

# %% tags=["hide-cell"]
D, E = 3, 8
flat = torch.cat((sigma[:-1], torch.zeros(1).double()))
full, less = 2 * D * E - D**2, 2 * (E - D) + 1
assert rank(tangent_product(pack(flat, U_Q, U_K), D, E)) == full - less
assert rank(direct_product(flat[:, None] * U_Q, flat[:, None] * U_K)) < full

# %% [markdown]
# Next, {doc}`04_directional_derivatives` finds the $D^2$ lost dimensions a third time, as directions along which the derivative of the
# product vanishes.
