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
# # Grouped queries
#
# *Assumed: {prf:ref}`prop-orbit` (one pair of maps), {prf:ref}`lem-heads-apart` (many heads), and for rotations {doc}`08_rotary_positions`. No biases, plain softmax, a causal mask or none.*
#
# *In the ledger:* {ref}`section 4.9 <ledger-sec-4-9>`, {ref}`Llama-2-70B <ledger-llama>`.
#
# ## The question
#
# Keys and values are what a model has to remember of the text so far, so it pays to have few of them. In grouped-query attention
# ({cite:t}`ainslie2023`) $H$ query heads are served by $G$ key and value heads, $H/G$ by each. With everything numbered from zero, query head $h$ reads group
#
# $$
# g(h) = \lfloor h G / H \rfloor .
# $$
#
# $G = H$ is the plain layer, $G = 1$ is called multi-query attention. A change of basis of a group's keys must now be followed by all $H/G$ of its query heads, so there is
# less freedom. How much less, and is the larger identified share a gain? And what is the right number for a large model in use,
# Llama-2-70B, which has groups *and* {term}`rotary positions <rotary position>`?
#
# ## The claim
#
# ```{prf:proposition} Grouped queries (paper: section 4.9, with necessity)
# :label: prop-groups
#
# In each group, of $n = H/G$ query heads, let the key map $W_K$ have rank $D$, so $D \le E$, and the stack $[W_Q^1 \cdots W_Q^n] \in \mathbb{R}^{D \times nE}$ of its query maps as well.
#
# 1. Other weights of the group have the same $n$ products, $W_K'^\top W_Q'^j = W_K^\top W_Q^j$ for all $j$, if and only if
#
#    $$
#    W_Q'^j = S\, W_Q^j \quad (j = 1, \dots, n), \qquad W_K' = S^{-\top} W_K
#    $$
#
#    with one nonsingular $S \in \mathbb{R}^{D \times D}$ for the whole group. It is unique.
# 2. At {term}`generic` weights $G D^2$ of the $(H + G) D E$ query and key weights of the layer are {term}`unidentified`. The identified
#    {term}`share` is
#
#    $$
#    1 - \frac{G D}{(H + G) E}, \qquad \text{and} \quad 1 - \frac{1}{H (n + 1)} \quad \text{if } D = E/H .
#    $$
#
# 3. Let $W_V$ have rank $C$, so $C \le E$, and the stack of the output maps $W_O^j$, one above the other in $\mathbb{R}^{nE \times C}$, as well. Other weights of the group have the same $n$ products $W_O^j W_V$
#    if and only if they are $(S W_V,\; W_O^j S^{-1})$ with one nonsingular $S$, which is unique. At generic weights $G C^2$ of $(H + G) C E$ are unidentified.
# ```
#
# ```{prf:proposition} Groups with rotary positions (paper: section 4.9)
# :label: prop-groups-rotary
#
# Let queries and keys be turned by their positions, let the mask be causal or none, and ranks be as in {prf:ref}`prop-groups`. Its part 1 holds for the products at all offsets of a set with two neighbours, with $S$
# in the {term}`commutant` of $R$. At generic weights $G$ times the dimension of the commutant ({prf:ref}`lem-commutant`) query and key weights are
# unidentified: $G D$ for distinct frequencies. Values and outputs are not turned and keep their $G C^2$.
# ```
#
# ```{prf:remark} Departure from the paper
# :label: rem-09-values
#
# The paper counts $G D^2$ and $G D$ for queries and keys, as we do, and says nothing about the values, although its Lemma 4.6 applies. With groups and rotary positions
# these are no afterthought: they are nearly all of what is left. It also calls the transformations with one $S$ for each group a complete description, having looked at those of the form $(A_h W_Q^h, B_g W_K^g)$; part 1 shows
# that *all* weights with the same products have this form.
# ```
#
# ## Proof
#
# ```{prf:proof}
# (of {prf:ref}`prop-groups`) *1.* "If" is {prf:ref}`lem-invariance`, head by head. For "only if" put the query maps side by side,
#
# $$
# \bar W_Q = [W_Q^1 \cdots W_Q^n] \in \mathbb{R}^{D \times nE}, \qquad W_K^\top \bar W_Q = [M^1 \cdots M^n] .
# $$
#
# The $n$ products are one product, of two maps of rank $D$. The proof of {prf:ref}`prop-orbit` uses ranks alone, not that $W_Q$ and $W_K$ have equally many columns: $\bar W_Q$ and $\bar W_Q'$ have the row
# space of $W_K^\top \bar W_Q$, so $\bar W_Q' = S \bar W_Q$ with a unique nonsingular $S$, and cancelling $\bar W_Q$ on the right leaves $W_K'^\top S = W_K^\top$.
#
# *2.* By {prf:ref}`lem-heads-apart`, which is about products and does not ask who owns the factors, and whose conditions generic weights meet with shared keys too, a direction is unidentified exactly when it keeps all $H$ products $M_h$ and all $N_h$ to first order. Groups share no
# weights. In a group $W_K^\top \bar W_Q$ is a product of factors of rank $D$ with $E$ and $nE$ columns, which loses $D (E + nE) - (DE + D n E - D^2) = D^2$ numbers by
# {prf:ref}`lem-what-a-product-loses`. With $D = E/H$ the ratio $G D^2 / ((H + G) D E)$ is
# $G / ((H + G) H) = 1/((n + 1) H)$.
#
# *3.* With the stack $\bar W_O \in \mathbb{R}^{nE \times C}$ the products of the group are $\bar W_O W_V$: once more one product of maps of rank $C$, with $W_V$ for $\bar W_Q$ and $\bar W_O^\top$ for $W_K$.
# ```
#
# ```{prf:proof}
# (of {prf:ref}`prop-groups-rotary`) The products at offset $\delta$ are $W_K^\top R_\delta \bar W_Q$. {prf:ref}`prop-rotary`, which lets queries and keys differ in their number of columns, applies with $\bar W_Q$ for $W_Q$. That the outputs show
# every product of every head is {prf:ref}`lem-rotary-heads`, which does not ask who owns the factors either.
# ```
#
# ## The same symbols in code
#
# A layer with groups in eight lines. Which head reads which group is an argument, so that we can try others.

# %%
import math

import torch
from flint import fmpz_mat

from attnid import Attention, act_query_key, act_value_output, count, exact_nullity
from attnid import figures, forward, generators, independent_directions, measure
from attnid.claims import check
from attnid.tensors import normal, rank, relative_change


def layer(p, x, group):  # x: (L, E); query head h reads key and value head group[h]
    later = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
    y = torch.zeros_like(x)
    for h, g in enumerate(group):
        q, k, v = x @ p["W_Q"][h].mT, x @ p["W_K"][g].mT, x @ p["W_V"][g].mT
        s = (q @ k.mT / math.sqrt(q.shape[1])).masked_fill(later, -torch.inf)
        y = y + s.softmax(-1) @ v @ p["W_O"][h].mT
    return y


# %% [markdown]
# Here $H = 4$ heads share $G = 2$ groups, so heads 0 and 1 read group 0, heads 2 and 3 read group 1.

# %%
H, G, D, E = 4, 2, 3, 12
served = H // G  # query heads of a group
grouped = Attention(E, H, G)  # D = C = E // H
p, x = grouped.random_parameters(seed=1), normal(9, E, seed=2)
y = forward(grouped, p, x)
blocks = [h // served for h in range(H)]
assert blocks == [0, 0, 1, 1] and (layer(p, x, blocks) - y).abs().max() < 1e-12

# %% [markdown]
# **One $S$ for each group.** The key map takes $S^{-\top}$ and every query map of the group takes $S$; values and outputs likewise with a matrix of their own.
# The outputs stay, to $10^{-10}$. With another matrix for each query *head* they cannot: the key map can follow only one of them.


# %%
def move(S, S_V):  # of queries and keys, of values; one matrix for each query head
    first = list(range(0, H, served))  # the heads whose matrices the groups follow
    W_Q, W_O = S @ p["W_Q"], p["W_O"] @ torch.linalg.inv(S_V)
    _, W_K = act_query_key(S[first], p["W_Q"][first], p["W_K"])
    W_V, _ = act_value_output(S_V[first], p["W_V"], p["W_O"][first])
    return {"W_Q": W_Q, "W_K": W_K, "W_V": W_V, "W_O": W_O}


for_groups = [normal(G, D, D, seed=seed) for seed in (3, 4)]
shared = [S.repeat_interleave(served, 0) for S in for_groups]
single = [normal(H, D, D, seed=seed) for seed in (3, 4)]
assert relative_change(move(*shared)["W_Q"], p["W_Q"]) > 1
check(
    "sec-4.9",
    identity=relative_change(forward(grouped, move(*shared), x), y),
    one_for_each_head=relative_change(forward(grouped, move(*single), x), y),
)

# %% [markdown]
# **And nothing else.** For a trial of "only if" we need weights that were not made by some $S$: take the products of the first group, forget its weights, and make others from a singular value decomposition of the stack
# $[M^1 \cdots M^n] = U \Sigma V^\top$ of rank $D$, namely $W_K' = U^\top$ and $\bar W_Q' = \Sigma V^\top$. From each query head we read off a matrix $W_Q'^j (W_Q^j)^+$. It is the same $S$ for all, and the keys have followed.

# %%
W_Q, W_K = p["W_Q"][:served], p["W_K"][0]
U, s, Vh = torch.linalg.svd(torch.cat([W_K.mT @ W for W in W_Q], 1))  # (E, n E)
new_K, new_Q = U[:, :D].mT, torch.stack((s[:D, None] * Vh[:D]).split(E, 1))
S = new_Q @ torch.linalg.pinv(W_Q)  # (n, D, D): one for each head
assert relative_change(new_Q, W_Q) > 0.5
pairs = ((S[1], S[0]), (new_Q, S @ W_Q), (new_K, torch.linalg.inv(S[0]).mT @ W_K))
check("sec-4.9", recovered=max(relative_change(*pair) for pair in pairs))

# %% [markdown]
# **By hand.** Take the layer that {doc}`chapter 5 <05_many_heads>` works out with a pencil, $E = 3$, $D = 2$, $H = 2$, and let both heads read the keys of the first:
#
# $$
# W_K = \begin{pmatrix} 1 & 1 & 0 \\ 0 & 0 & 1 \end{pmatrix}, \quad
# W_Q^1 = \begin{pmatrix} 1 & 0 & 1 \\ 0 & 1 & 0 \end{pmatrix}, \quad
# W_Q^2 = \begin{pmatrix} 0 & 1 & 1 \\ 1 & 0 & 0 \end{pmatrix}, \quad
# M^1 = \begin{pmatrix} 1 & 0 & 1 \\ 1 & 0 & 1 \\ 0 & 1 & 0 \end{pmatrix}, \quad
# M^2 = \begin{pmatrix} 0 & 1 & 1 \\ 0 & 1 & 1 \\ 1 & 0 & 0 \end{pmatrix} .
# $$
#
# All ranks are 2. To keep $M^j$ is to move $W_Q^j$ by $T_j W_Q^j$ and $W_K$ by $-T_j^\top W_K$ ({prf:ref}`cor-dimension`). There is one $W_K$, and its rows are independent, so $T_1 = T_2$: 4 idle numbers of 18, where two heads with keys
# of their own have 8 of 24. One of the four, with $T = \begin{pmatrix} 0 & 1 \\ 0 & 0 \end{pmatrix}$, is
#
# $$
# \delta W_Q^1 = \begin{pmatrix} 0 & 1 & 0 \\ 0 & 0 & 0 \end{pmatrix}, \quad
# \delta W_Q^2 = \begin{pmatrix} 1 & 0 & 0 \\ 0 & 0 & 0 \end{pmatrix}, \quad
# \delta W_K = \begin{pmatrix} 0 & 0 & 0 \\ -1 & -1 & 0 \end{pmatrix} .
# $$
#
# If the plane makes a quarter turn at each step, as in {doc}`chapter 8 <08_rotary_positions>`, the four become two. In whole numbers, and the four also by the outputs of a layer with these weights:

# %%
hand_Q = torch.tensor([[[1, 0, 1], [0, 1, 0]], [[0, 1, 1], [1, 0, 0]]])
hand_K = torch.tensor([[[1, 1, 0], [0, 0, 1]], [[1, 0, 0], [0, 1, 1]]])
turns = torch.tensor([[[1, 0], [0, 1]], [[0, -1], [1, 0]]])  # R_0 and R_1


def idle_by_hand(keys, group, turns):  # exact: the rank of a matrix of integers
    rows = []
    for unit in torch.eye(12 + keys.numel(), dtype=torch.int64):
        dQ, dK = unit[:12].view(2, 1, 2, 3), unit[12:].view(-1, 1, 2, 3)[group]
        change = keys[group][:, None].mT @ turns @ dQ + dK.mT @ turns @ hand_Q[:, None]
        rows.append(change.flatten().tolist())
    return len(rows) - fmpz_mat(rows).rank()


hand = Attention(3, 2, 1, head_dim=2, value_dim=1)
weights = {"W_Q": hand_Q.double(), "W_K": hand_K[:1].double()}
weights = hand.random_parameters(seed=6) | weights
cases = ((hand_K, [0, 1], 1), (hand_K[:1], [0, 0], 1), (hand_K[:1], [0, 0], 2))
check(
    "sec-4.9",
    by_hand=[idle_by_hand(keys, group, turns[:n]) for keys, group, n in cases],
    hand_measured=measure(hand, parameters=weights).nullity - 1,  # one in the values
)

# %% [markdown]
# **Who reads whom.** The other natural rule is $h \bmod G$. With the same weights it makes another function: loading a checkpoint with the wrong rule gives a
# model that runs and is wrong. It is the function of the right rule after sorting the heads by the group they read, so nothing changes in any count.

# %%
dealt = [h % G for h in range(H)]
order = sorted(range(H), key=lambda h: dealt[h])  # heads of group 0 first
sorted_heads = p | {"W_Q": p["W_Q"][order], "W_O": p["W_O"][order]}
assert (layer(p, x, dealt) - y).norm() > 0.1 * y.norm()
assert (layer(p, x, dealt) - forward(grouped, sorted_heads, x)).abs().max() < 1e-12


# %% [markdown]
# Directions in $(W_Q, W_K)$ that keep the products of all heads, by either rule:


# %%
def idle(p, group):
    see = lambda W_Q, W_K: torch.stack(
        [W_K[g].mT @ W_Q[h] for h, g in enumerate(group)]
    )
    parts = torch.func.jacrev(see, argnums=(0, 1))(p["W_Q"], p["W_K"])
    J = torch.cat([part.flatten(3).flatten(0, 2) for part in parts], 1)
    return J.shape[1] - rank(J)


assert idle(p, blocks) == idle(p, dealt) == G * D**2
assert count(grouped).terms["query-key maps"] == G * D**2

# %% [markdown]
# ## The check
#
# $H = 8$ heads of width $D = 2$ on $E = 16$, with $G = 8, 4, 2, 1$ groups, without rotation and with the one plane turning. `count` adds up {prf:ref}`prop-groups` and
# {prf:ref}`prop-groups-rotary`; `measure` takes the rank of the outputs' Jacobian, in all weights at once, and we take the part of its null space in $W_Q$ and $W_K$.


# %%
def measured_lost(attention):
    null = measure(attention).null_space
    return rank(torch.cat((null["W_Q"].flatten(1), null["W_K"].flatten(1)), 1))


groups, kinds = (8, 4, 2, 1), {"plain": (), "rotary": (0.7,)}
formulas = {"plain": [g * 2**2 for g in groups], "rotary": [g * 2 for g in groups]}
described = {
    name: [Attention(16, 8, g, value_dim=1, rotary=planes) for g in groups]
    for name, planes in kinds.items()
}
losses = {
    name: [measured_lost(a) for a in layers] for name, layers in described.items()
}
check("sec-4.9", table_formula=formulas, table_measured=losses)
weights = [(8 + g) * 2 * 16 for g in groups]
print("G  H/G  weights  identified share  with rotation")
for g, n, lost, turned in zip(groups, weights, *formulas.values()):
    assert abs(lost / n - 1 / (8 * (8 // g + 1))) < 1e-12
    print(f"{g}  {8 // g:3}  {n:7}  {1 - lost / n:16.4f}  {1 - turned / n:13.4f}")

# %% [markdown]
# The share rises from $15/16$ to $71/72$. The generators say the same on the layer above, with $G D^2 = 18$ directions for each
# {term}`circuit`: we let the Jacobian of our own `layer` act on them.

# %%
sequences = normal(4, 9, E, seed=5)
outputs = lambda q: torch.cat([layer(q, z, blocks) for z in sequences])
parts = torch.func.jacrev(outputs)(p)
J_rows = torch.cat([parts[name].flatten(2).flatten(0, 1) for name in grouped.shapes], 1)
directions = torch.cat(
    [
        torch.cat([part[name].flatten(1) for name in grouped.shapes], 1)
        for part in generators(grouped, p).values()
    ]
)
assert rank(directions) == len(directions) == 2 * G * D**2 == measure(grouped).nullity
assert (J_rows @ directions.mT).norm() < 1e-12 * J_rows.norm() * directions.norm()

# %% [markdown]
# Whole layers with two groups, one group, and two groups that turn, by every way there is:

# %%
wholes = Attention(8, 4, 2), Attention(8, 4, 1), Attention(8, 4, 2, rotary=(0.7,))
check(
    "sec-4.9",
    formula=[count(a).unidentified for a in wholes],
    measured=[measure(a).nullity for a in wholes],
    generators=[independent_directions(a) for a in wholes],
    exact=[exact_nullity(a) for a in wholes],
)

# %% [markdown]
# ## Llama-2-70B
#
# Its published configuration has $E = 8192$, $H = 64$, $G = 8$, $D = C = 128$, 80 layers, and rotary positions with base $10^4$ on all 64 planes. The frequencies are distinct, so
#
# $$
# \underbrace{G D}_{\text{queries and keys}} = 8 \cdot 128 = 1{,}024, \qquad \underbrace{G C^2}_{\text{values and outputs}} = 8 \cdot 128^2 = 131{,}072
# $$
#
# numbers of each layer are unidentified. Below is the count for this layer and for what it would be without groups, without rotations, or without both.

# %%
turning = tuple(1e4 ** (-i / 64) for i in range(64))
variants = {
    "plain": {},
    "groups": {"kv_heads": 8},
    "rotary": {"rotary": turning},
    "both\n(Llama 2)": {"kv_heads": 8, "rotary": turning},
}
found = {name: count(Attention(8192, 64, **v)) for name, v in variants.items()}
layers = {
    name: (c.terms["query-key maps"], c.terms["value-output maps"])
    for name, c in found.items()
}
assert layers["plain"] == (1_048_576, 1_048_576)
assert layers["groups"] == (131_072, 131_072) and layers["rotary"] == (8_192, 1_048_576)
llama, plain_share = found["both\n(Llama 2)"], found["plain"].share
check("llama", formula=llama.terms)
lost, total = llama.unidentified, llama.parameters
print(f"one layer: {lost:,} of {total:,} ({100 * (1 - llama.share):.2f}%)")
print(f"80 layers: queries and keys {80 * 1024:,}, values and outputs {80 * 131072:,}")
print(f"plain layer: {100 * (1 - plain_share):.2f}%")

# %% [markdown]
# This layer is too large to differentiate. A smaller one has the same ratio $H/G = 8$, planes that turn at different rates, and narrow heads.

# %%
small = Attention(16, 8, 1, 4, 4, rotary=(1.0, 0.01))
measured = measure(small)
assert count(small).terms == {"value-output maps": 4**2, "query-key maps": 4}
assert measured.residual < 1e-8
check(
    "llama",
    small_measured=measured.nullity,
    small_generators=independent_directions(small),
)

# %% mystnb={"image": {"alt": "Left: bars on a logarithmic scale for four variants of one layer. Queries and keys go from 1,048,576 for the plain layer to 131,072 with groups, 8,192 with rotary positions and 1,024 with both; values and outputs stay at 1,048,576 without groups and 131,072 with them. Right: the unidentified share of query and key weights grows with the number of groups from about 1.4 to 6.2 percent without rotation, and half of that with; measured points lie on the lines."}, "figure": {"caption": "Left: unidentified numbers in one layer of the size of Llama-2-70B's, by circuit. Right: unidentified share of the query and key weights against the number of groups, $H = 8$, $D = 2$, $E = 16$; lines are the formulas, markers are measured.", "name": "fig-groups"}}
lines = [1, 2, 3, 4, 5, 6, 7, 8]
shares = {
    "plain": [g * 2 / ((8 + g) * 16) for g in lines],
    "rotary": [g / ((8 + g) * 16) for g in lines],
}
measured_points = {
    name: (groups, [lost / n for lost, n in zip(found_lost, weights)])
    for name, found_lost in losses.items()
}
figures.grouped_and_rotary(layers, lines, shares, measured_points)

# %% [markdown]
# ```{prf:remark} Departure from the paper
# :label: rem-09-llama
#
# The paper gives 131,072 against 1,048,576 for Llama-2-70B, a factor of 8, directly after stating $G D$ for layers with both groups and rotations. Those numbers are $G D^2$ and $H D^2$: groups only. The model has rotary positions,
# so its query-key count is $G D = 1{,}024$ and the factor is $H D^2 / (G D) = 1{,}024$. The number 131,072 does occur in the model, as the count of its value-output circuit, which the paper leaves out. Of the 10,567,680
# unidentified attention weights in 80 layers 99% are in values and outputs ({numref}`fig-groups`).
# ```

# %%
assert 80 * (1024 + 131072) == 10_567_680 and 131072 / (1024 + 131072) > 0.99
assert 64 * 128**2 // (8 * 128) == 1024

# %% [markdown]
# ## Break it
#
# **Make heads wider than $E$.** For $D > E$ each of the $n = H/G$ products is any $E \times E$ matrix, so a group shows $n E^2$ numbers and hides
#
# $$
# D E (1 + n) - n E^2 .
# $$
#
# For $n = 1$ this is $2DE - E^2$, the number of {prf:ref}`prop-count-r`. It exceeds $D^2$ by $(D - E)(nE - D)$, which is negative for a head on its own and positive as soon as $nE > D$.

# %%
for G_wide, per_group in ((4, 21), (2, 27), (1, 39)):
    wide, sharing = Attention(3, 4, G_wide, 5), 4 // G_wide
    assert per_group == 5 * 3 * (1 + sharing) - sharing * 3**2
    assert per_group == 5**2 + (5 - 3) * (sharing * 3 - 5)
    assert set(count(wide).terms.values()) == {G_wide * per_group}
    assert measure(wide).nullity == 2 * G_wide * per_group
    print(f"D = 5, E = 3, H/G = {sharing}: {per_group} for each group, D^2 = 25")

# %% [markdown]
# **Lower the rank of one query map.** {prf:ref}`prop-groups` asks for the rank of the stack only. Let head 0 lose one rank. In a plain layer its keys gain $E - D$ idle directions
# ({prf:ref}`prop-deficient-rank`). In a group nothing happens: the other head's queries still see every key.


# %%
def lower_first_rank(p):
    U, sigma, Vh = torch.linalg.svd(p["W_Q"][0], full_matrices=False)
    lower = U[:, :-1] * sigma[:-1] @ Vh[:-1]
    return p | {"W_Q": torch.cat((lower[None], p["W_Q"][1:]))}


plain = Attention(E, H)
q = plain.random_parameters(seed=6)
lowered = {
    a: measure(a, parameters=lower_first_rank(w)) for a, w in ((plain, q), (grouped, p))
}
gained = [found.nullity - count(a).unidentified for a, found in lowered.items()]
print("idle directions gained: plain", gained[0], "grouped", gained[1])
assert gained == [E - D, 0]

# %% [markdown]
# **Tie two heads.** {prf:ref}`lem-heads-apart` wants the products $M_h$ to differ. Give two heads of a group the same query map: they then attend alike, only the sum of their output maps acts, and $E C$ directions, raising
# one and lowering the other, are idle.

# %%
tied = measure(grouped, parameters=p | {"W_Q": p["W_Q"][[0, 0, 2, 3]]})
assert tied.nullity - count(grouped).unidentified == E * grouped.C == 36

# %% [markdown]
# **Write the same function without groups.** Repeat each group's keys and values for its $H/G$ heads, as many programs do before they run. The outputs are the same; as a point of the plain layer's
# larger parameter space it has that layer's count, $H D^2 + H C^2$. What is unidentified belongs to a parametrisation, not to a function.

# %%
repeated = p | {name: p[name].repeat_interleave(served, 0) for name in ("W_K", "W_V")}
assert (forward(plain, repeated, x) - y).abs().max() < 1e-12
assert measure(plain, parameters=repeated).nullity == 2 * H * D**2 == 72
assert measure(grouped, parameters=p).nullity == 2 * G * D**2 == 36

# %% [markdown]
# ## What it means
#
# Groups and rotations both raise the identified share, in different ways. A rotation adds nothing to the weights and takes freedom away: more of the *same* parameters are identified. Groups take weights away, and
# the freedom that came with them. With $D < E$ the number of identified query and key weights,
#
# $$
# (H + G) D E - G D^2 = H D E + G D (E - D),
# $$
#
# *falls* as $G$ falls. A larger share of fewer weights is not by itself an advantage, and the table above is no argument for sharing keys; the argument for that is memory.
#
# ## Exercises
#
# **1.** Which $G$ gives the largest share of identified query and key weights, and which the largest number? Use $E = 16$, $H = 8$, $D = 2$.
#
# ```{admonition} Answer
# :class: dropdown
#
# By the formula above the number is largest for $G = H$, here $512 - 32 = 480$. The share $1 - GD/((H + G)E)$ is largest for $G = 1$, where the number is $288 - 4 = 284$: the smallest of all.
# ```

# %% tags=["hide-cell"]
layer_of = {g: Attention(16, 8, g) for g in groups}
size = {g: (8 + g) * 32 for g in groups}
number = {g: size[g] - count(a).terms["query-key maps"] for g, a in layer_of.items()}
print(number)
assert max(groups, key=number.get) == 8 and number[8] == 480 and number[1] == 284
assert max(groups, key=lambda g: number[g] / size[g]) == 1

# %% [markdown]
# **2.** {cite:t}`ainslie2023` turn a plain layer into a grouped one by averaging the key and value heads of each group, and train on. Is the result determined by the function of the plain layer?
#
# ```{admonition} Answer
# :class: dropdown
#
# No. Each key head is written in a basis of its own, which the function does not fix ({prf:ref}`lem-invariance`). Two plain layers with the same outputs have different averages. Averaging assumes that the bases agree; one could align them first.
# With rotary positions only a scale and a phase for each plane are left to differ in the keys; the values keep all their $C^2$.
# ```

# %% tags=["hide-cell"]
moved = act_query_key(normal(H, D, D, seed=7), q["W_Q"], q["W_K"])
same = q | dict(zip(("W_Q", "W_K"), moved))


def pooled(w):
    mean = {name: w[name].unflatten(0, (G, served)).mean(1) for name in ("W_K", "W_V")}
    return w | mean


assert relative_change(forward(plain, same, x), forward(plain, q, x)) < 1e-9
averages = [forward(grouped, pooled(w), x) for w in (q, same)]
assert relative_change(averages[1], averages[0]) > 0.1

# %% [markdown]
# **3.** Keys are stored in a cache, often with few bits, and it would help if the rows of $W_K$ were orthonormal. Can this be had for nothing? How much freedom is left afterwards? What changes with rotary positions?
#
# ```{admonition} Answer
# :class: dropdown
#
# Take $W_K = A U$ with orthonormal rows of $U$ (a QR factorisation of $W_K^\top$) and move by the $S$ with $S^\top = A$, so that $S^{-\top} W_K = U$. What is left are the orthogonal $S$, of dimension $D(D - 1)/2$ for each group. With
# rotary positions there are only scales and phases: each plane can be given a set size and its two rows turned until they are orthogonal, but they cannot be made equally long, nor different planes orthogonal.
# ```

# %% tags=["hide-cell"]
S = torch.stack([torch.linalg.qr(W.mT).R for W in p["W_K"]])  # W_K = S^T U
W_K = torch.linalg.inv(S).mT @ p["W_K"]
white = p | {"W_Q": S.repeat_interleave(served, 0) @ p["W_Q"], "W_K": W_K}
assert (W_K @ W_K.mT - torch.eye(D, dtype=torch.float64)).abs().max() < 1e-12
assert relative_change(forward(grouped, white, x), y) < 1e-10

# %% [markdown]
# **Next:** {doc}`10_no_single_head` asks the opposite question: whether a layer with one head can be made to identify as much as one with many.
