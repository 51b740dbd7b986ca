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
# # Wider heads
#
# *Assumed: a layer without biases or {term}`rotary positions <rotary position>`, as in {doc}`05_many_heads`, but with any head width: $D$
# need not be $E/H$.*
#
# *In the ledger:* {ref}`section 4.8.1 <ledger-sec-4-8-1>`, {ref}`Figure 1 <ledger-fig-1>`.
#
# ## The question
#
# Why should a head be $E/H$ wide? {cite:t}`bhojanapalli2020` point out that a score matrix $X^\top W_K^\top W_Q X$ has rank at most
# $D$, so a head of width $D$ cannot make every pattern of attention over more than $D$ tokens. Splitting $E$ among more heads makes
# this worse. They set $D$ free of $E$ and $H$, widen the heads, and report better models.
#
# The last chapters point the other way: a narrow head identifies a larger share of its weights. What does width cost in identification,
# and does the published evidence say whether it matters?

# %% [markdown]
# ## The claim
#
# ```{prf:proposition} Wider heads (paper: section 4.8.1)
# :label: prop-wider
#
# A layer of $H$ heads with $C = D$ has $4HDE$ weights. At generic weights the query-key products and the value-output products identify
# the same number,
#
# $$
# H\, r (2E - r) \quad \text{each, with } r = \min(D, E) .
# $$
#
# 1. For $D \le E$, $HD^2$ of the $2HDE$ weights of each are {term}`unidentified`, a part $D/(2E)$ of them. The identified share
#    $1 - D/(2E)$ falls with $D$ and does not depend on $H$; the identified number $HD(2E - D)$ grows with $D$.
# 2. For $D \ge E$ the identified number stays at $HE^2$ each, and the share $E/(2D)$ tends to zero.
# ```
#
# With $C \ne D$ the same holds with $C$ in the place of $D$ for values and outputs. Two numbers, then, and they disagree: the *share*
# says that heads should be narrow, the *number* that they should be wide.
#
# ## Proof
#
# ```{prf:proof}
# By {prf:ref}`lem-heads-apart` a direction is unidentified exactly when it keeps each of the $2H$ products to first order (pairs of tokens are
# enough to see that), and the products have no weights in common. So the unidentified directions of the layer are sums of those of single products, which
# {prf:ref}`prop-count-r` counts: $2DE - r(2E - r)$ each, whatever $D$ and $E$. For $D \le E$ this is $D^2$; the number $D(2E - D)$ has
# derivative $2(E - D) \ge 0$ in $D$. For $D \ge E$ it is $E^2$ for all $D$, out of $2DE$.
# ```
#
# Widening a head from $D$ to $D + 1 \le E$ brings a row to $W_Q$ and a row to $W_K$, $2E$ numbers, and identifies
# $(D + 1)(2E - D - 1) - D(2E - D) = 2E - 2D - 1$ more: $2E - 1$ for the first row, one for the row that makes the head as wide as its
# tokens, none for later ones.

# %% [markdown]
# ## The same symbols in code

# %%
import torch

from attnid import Attention, count, exact_nullity, figures, forward
from attnid import independent_directions, measure
from attnid.claims import check
from attnid.tensors import normal, rank, relative_change


def identified(D, E, H=1):
    """What the query-key products of H heads identify, of 2 H D E weights."""
    r = min(D, E)
    return H * r * (2 * E - r)


gains = [identified(D + 1, 8) - identified(D, 8) for D in range(10)]
print("identified by each further row, E = 8:", gains)
assert gains == [15, 13, 11, 9, 7, 5, 3, 1, 0, 0]

# %% [markdown]
# ## The check
#
# Four ways first, for one head with $E = 4$ that is narrow, as wide as its tokens, and wider; its value has width one, and loses one number.

# %%
ones = [Attention(4, 1, head_dim=D, value_dim=1) for D in (1, 3, 4, 6)]
check(
    "sec-4.8.1",
    formula=[count(a).unidentified for a in ones],
    measured=[measure(a).nullity for a in ones],
    generators=[independent_directions(a) for a in ones],
    exact=[exact_nullity(a) for a in ones],
)

# %% [markdown]
# The share is the same for any $H$, and the two {term}`circuits <circuit>` need not be equally wide. With $D \ne C$ the layer loses
# $H(D^2 + C^2)$ as long as both are at most $E$.

# %%
any_H = [Attention(6, heads, head_dim=3) for heads in (1, 2, 3)]
unequal = [
    Attention(6, 2, head_dim=D, value_dim=C)
    for D, C in ((1, 6), (2, 5), (6, 1), (9, 3))
]
sums = [identified(a.D, 6, 2) + identified(a.C, 6, 2) for a in unequal]
check(
    "sec-4.8.1",
    any_H=[measure(a).rank / a.parameters for a in any_H],
    unequal=[measure(a).rank for a in unequal],
    sums=sums,
)

# %% [markdown]
# Now a layer with $E = 8$ and $H = 2$, where the usual width is 4, with heads from 1 to 12 wide. The formula of {prf:ref}`prop-wider`,
# `count` and the rank of the Jacobian have to agree exactly at each.


# %%
def share_of(D, E):
    return 1 - D / (2 * E) if D <= E else E / (2 * D)


E, H, widths = 8, 2, range(1, 13)
number, share = [], []
for width in widths:
    layer = Attention(E, H, head_dim=width)
    number.append(measure(layer).rank)
    assert number[-1] == count(layer).identified == 2 * identified(width, E, H)
    share.append(number[-1] / layer.parameters)
    assert abs(share[-1] - share_of(width, E)) < 1e-12
print("identified:", number)
print("share:     ", [round(s, 2) for s in share])

# %% [markdown]
# The share falls along a straight line to one half, and then like $1/D$.

# %% [markdown]
# ## A published table, read again
#
# In one of their experiments {cite:t}`bhojanapalli2020` fix everything but the head width: 24 layers, eight heads, $E = 512$, heads of
# width 32, 64 (the usual $E/H$), 128 and 256, tested on the question-answering benchmark SQuAD. Figure 1 of {cite:t}`morrow2026` sets
# the unidentified parameters beside their results. We type in its columns as printed: all parameters, those of attention, and the
# unidentified ones, in millions; and the gains in F1 and in exact match (EM), each over the row above.

# %%
layers, published = 24, {D: Attention(512, 8, head_dim=D) for D in (32, 64, 128, 256)}
printed = {  # D: total, attention, unidentified (millions), gain in F1, gain in EM
    32: (130, 12.6, 0.26, None, None),
    64: (142, 25.2, 1.05, 0.98, 1.22),
    128: (168, 50.4, 4.20, 0.09, 0.32),
    256: (218, 100.9, 16.82, 0.73, 0.63),
}

# %% [markdown]
# By {prf:ref}`prop-wider` each of the 24 layers has $HD^2$ unidentified parameters in its query-key products and as many in its
# value-output products: $24 \cdot 2 \cdot 8 \cdot D^2$ in all. `count` agrees.

# %%
recomputed = {D: layers * count(model).unidentified for D, model in published.items()}
ratios = []
print("  D   printed   recomputed   printed / recomputed")
for D, (_, _, unidentified, *_) in printed.items():
    ratios.append(unidentified / (recomputed[D] / 1e6))
    print(f"{D:3} {unidentified:8.2f}M {recomputed[D]:12,} {ratios[-1]:12.2f}")
by_hand = [layers * 2 * 8 * D**2 for D in printed]
check("fig-1", formula=list(recomputed.values()), by_hand=by_hand)
check("fig-1", ratios=ratios)

# %% [markdown]
# The printed column is two thirds of what the paper's own formula gives. We try several
# readings. First, the sizes are right: 24 layers of four matrices, with $HD$ biases to each, make the printed attention column to the
# last digit.

# %%
in_all = [
    layers * (model.parameters + 4 * model.H * model.D) / 1e6
    for model in published.values()
]
check("fig-1", tenths=[round(10 * millions) for millions in in_all])

readings = {
    "one circuit": lambda D, attention: layers * 8 * D**2 / 1e6,
    "both circuits, 16 layers": lambda D, attention: 16 * 2 * 8 * D**2 / 1e6,
    "attention x D / 3E": lambda D, attention: attention * D / (3 * 512),
    "both circuits, 24 layers": lambda D, attention: layers * 2 * 8 * D**2 / 1e6,
}
matches = []
for name, reading in readings.items():
    column = {D: round(reading(D, row[1]), 2) for D, row in printed.items()}
    matches.append(sum(column[D] == row[2] for D, row in printed.items()))
    values = " ".join(f"{value:6.2f}" for value in column.values())
    print(f"{name:26} {values}   {matches[-1]} of 4")
check("fig-1", readings=matches)

# %% [markdown]
# The printed attention column times $D/(3E)$ is the printed unidentified column, in all four rows. The proper factor is $D/(2E)$. A
# part of $D/(3E)$ is what one gets by setting the $D^2$ of the query-key product alone against three $D \times E$ matrices, $W_Q$,
# $W_K$ and $W_V$. Counting 16 layers in place of 24 gives the same two thirds, but misses the last digit in two rows. We cannot know
# what was done; the arithmetic says this much.
#
# ```{prf:remark} Departure from the paper
# :label: rem-07-figure-1
#
# In Figure 1 of the paper the unidentified parameters should be 0.39, 1.57, 6.29 and 25.17 million in place of 0.26, 1.05, 4.20 and
# 16.82. They are 0.30, 1.11, 3.74 and 11.54 per cent of all parameters, in place of 0.20, 0.74, 2.50 and 7.71. The
# trend stays, and so does the order of the rows.
# ```

# %%
# all in hundredths
totals = [row[0] for row in printed.values()]
thirds = [row[1] * D / (3 * 512) for D, row in printed.items()]
check("fig-1", millions=[round(n / 1e4) for n in recomputed.values()])
per_cent = [round(n / 1e2 / t) for n, t in zip(recomputed.values(), totals)]
printed_per_cent = [round(1e4 * n / t) for n, t in zip(thirds, totals)]
check("fig-1", per_cent=per_cent, printed_per_cent=printed_per_cent)

# %% [markdown]
# ### What the gains can tell
#
# The paper reads the table so: most of the gain comes with more identified parameters, not with heads much wider than usual. Let us put
# the gains beside all that changes from row to row.

# %%
rows, f1 = [], 0.0
print("  D   identified   share   F1 gained   per million identified")
for D, (*_, gain, _) in printed.items():
    model = published[D]
    n = layers * count(model).identified
    f1 += gain or 0
    rate = f"{gain / ((n - rows[-1][1]) / 1e6):.3f}" if rows else ""
    rows.append((D, n, count(model).share, layers * model.parameters, f1))
    print(f"{D:3} {n / 1e6:11.2f}M {rows[-1][2]:7.3f} {f1:11.2f} {rate:>15}")
assert [round(row[1] / 1e6, 2) for row in rows] == [12.19, 23.59, 44.04, 75.50]

# %% [markdown]
# Four things move together. The parameters grow, the identified parameters grow in number, the rank that scores can have grows, and the
# identified share falls. Each of them puts the four models into the same order.

# %%
columns = torch.tensor(rows, dtype=torch.float64)
grows = (columns.diff(dim=0) > 0).all(0) | -(columns.diff(dim=0) < 0).all(0).int()
print("width, identified, share, parameters, F1:", grows.tolist())
assert grows.tolist() == [1, 1, -1, 1, 1]
gained = torch.tensor([row[3:] for row in list(printed.values())[1:]])  # (3, 2)
first, middle, last = (gained / gained.sum(0)).tolist()
print(f"part gained in the step from 32 to 64: F1 {first[0]:.0%}, EM {first[1]:.0%}")
assert all(m < l for m, l in zip(middle, last))
check("fig-1", first_step=first)

# %% [markdown]
# So the table fits at least three explanations equally well:
#
# 1. *More parameters help*, identified or not, with returns that diminish.
# 2. *More identified parameters help.* They too grow from row to row, and by less in proportion than the attention parameters do.
# 3. *More rank helps*, as the authors of the experiment argue, and the falling share does no harm that can be seen.
#
# Read as a test of the *share*, the table speaks against it: the share falls from row to row and the scores rise. Read against the
# paper's sentence, the step from 32 to 64 does hold a little more than half of the gain; but the step from 128 to 256, to heads four
# times the usual width, gains more than the one before it, in both measures. And each row gives one number per measure, in the table as
# reprinted, without the spread over seeds that would tell whether 0.09 is more than nothing.
#
# ```{prf:remark} Departure from the paper
# :label: rem-07-gains
#
# The paper offers Figure 1 as a sign that identification is what pays. We take from it only that widening heads from $E/(2H)$ to $4E/H$
# did not hurt. To tell the explanations apart, one has to vary the share at a fixed number of identified parameters, or of all parameters;
# the exercises show how.
# ```

# %% [markdown]
# ## Break it
#
# **Make the head wider than its tokens.** At $D = E$ the proof changes branch. Up to there each further row identifies something; beyond it
# none does, as $D = 9$ to $12$ above showed. One sees it in the function: whatever a head of width 12 does, a head of width 8 does too.


# %%
def narrowed(theta, E):
    """The same layer, D and C > E, with heads of width E and keys that are tokens."""
    H, D = theta["W_Q"].shape[:2]
    I = torch.eye(E, dtype=torch.float64).expand(H, E, E)
    M, N = theta["W_K"].mT @ theta["W_Q"], theta["W_O"] @ theta["W_V"]
    M = M * (E / D) ** 0.5  # the package divides scores by sqrt(D)
    return {"W_Q": M, "W_K": I, "W_V": N, "W_O": I}


wide, square = Attention(8, 2, head_dim=12), Attention(8, 2, head_dim=8)
theta, x = wide.random_parameters(seed=1), normal(16, 10, 8, seed=2)
narrow = forward(square, narrowed(theta, 8), x)
print(
    "numbers in the wide and in the narrowed layer:", wide.parameters, square.parameters
)
print("identified, in either:", count(wide).identified, count(square).identified)
check("sec-4.8.1", narrowed=relative_change(narrow, forward(wide, theta, x)))

# %% [markdown]
# **Rotate.** With rotary positions ({cite:t}`su2024`; the subject of {doc}`08_rotary_positions`) on all $D/2$ planes, at distinct frequencies
# between $0$ and $\pi$, a head loses $D$ and not $D^2$. The query-key products keep a share of $1 - D/(2DE) = 1 - 1/(2E)$ at any even $D$.

# %%
rotary_share = {}
for width in range(2, 13, 2):
    turns = tuple(0.3 + 0.4 * plane for plane in range(width // 2))
    layer = Attention(8, 2, head_dim=width, value_dim=1, rotary=turns)
    terms = count(layer).terms
    assert terms["query-key maps"] == layer.H * width
    assert measure(layer).nullity == layer.H * width + terms["value-output maps"]
    rotary_share[width] = 1 - terms["query-key maps"] / (2 * layer.H * width * layer.E)
    assert abs(rotary_share[width] - (1 - 1 / (2 * layer.E))) < 1e-12
print(f"share of the query-key weights, any width: {rotary_share[12]:.4f}")

# %% [markdown]
# This needs sequences of every length. Among at most $L$ tokens there are $L$ distances, from $0$ to $L - 1$, and the scores of a head see one
# $E \times E$ matrix for each; of that at distance $0$, where a token meets itself, only the symmetric part. So a head identifies at most
# $(L - 1) E^2 + E(E + 1)/2$ query and key numbers, however wide it is, and the share tends to zero again. With $E = C = 2$ and $L = 4$ that is
# $15$, and $4$ more for the values.

# %%
turns = [0.3 + 0.37 * plane for plane in range(8)]
turning = [
    Attention(2, 1, head_dim=D, value_dim=2, rotary=turns[: D // 2])
    for D in (4, 8, 12, 16)
]


def seen_by(attention, tokens):
    """The rank of the Jacobian over 60 sequences of this length."""
    at, x = attention.random_parameters(seed=1), 2 * normal(60, tokens, 2, seed=3)
    blocks = torch.func.jacrev(lambda p: forward(attention, p, x))(at).values()
    return rank(torch.cat([block.flatten(3).flatten(0, 2) for block in blocks], 1))


check("sec-4.8.1", four_tokens=[seen_by(a, 4) for a in turning])
check("sec-4.8.1", any_length=[measure(a).rank for a in turning])

# %% [markdown]
# {numref}`fig-wider-heads` puts it all together for the small layer. The share is highest for the narrowest plain heads, the number for
# the widest, up to $D = E$; rotary heads have no such conflict.

# %% mystnb={"image": {"alt": "Two charts over the head width from 1 to 12. Left: the identified share of plain heads falls on a straight line from nearly one to one half at width 8, then along a flatter curve; measured dots lie on it. A dashed horizontal line near one shows the query-key share of rotary heads. Right: the straight line of all weights rises away from the curve of identified ones, which bends over and stays flat from width 8 on."}, "figure": {"caption": "Heads of width $D$ in a layer with $E = 8$ and $H = 2$. Left: the identified share of plain layers, and of the query-key weights of rotary ones, with sequences of any length (dashed). Right: all weights (dashed) and those identified. Lines are the formulas, dots are measured ranks; the dotted line marks $D = E$.", "name": "fig-wider-heads"}}
figures.wider_heads(8, 2, widths, share, number, rotary_share)

# %% [markdown]
# ```{prf:remark} Departure from the paper
# :label: rem-07-beyond
#
# The paper calls $D = E$ the extreme, since a larger $D$ would bring in unidentified interactions on purpose. A smaller $D$ brings them
# in as well, $D^2$ of them per product. What changes at $D = E$ is that nothing else is brought in: each further row costs $2E$ numbers
# and identifies none. And that holds for plain heads only. In rotary heads with distinct frequencies there is no such extreme for sequences of any
# length; with at most $L$ tokens the bound above sets one, at a width of about $LE/2$ for large $E$ and $L$.
# ```

# %% [markdown]
# ## What it means
#
# Each further row identifies fewer numbers than the one before. In a plain layer the $(D + 1)$-th row of each head brings $2E$ new numbers to a
# product and, for $D < E$, $2E - 2D - 1$ new identified ones: nearly all for a narrow head, about half at $D = E/2$, none at $D = E$.
# The share alone cannot say where between many narrow heads and a few wide ones the best balance lies, as the paper asks, since it is best for
# $D = 1$ whatever the task. Neither can a table in which everything grows together.

# %% [markdown]
# ## Exercises
#
# **1.** Find two layers of the same $E$ with the same number of identified parameters, one with heads of half the width of its tokens
# and one with heads of the full width. Which has more parameters?
#
# ```{admonition} Answer
# :class: dropdown
#
# A product identifies $\frac34 E^2$ numbers at $D = E/2$ and $E^2$ at $D = E$. So four heads of half the width identify as much as
# three of the full width. The four have $4 \cdot 2E^2 = 8E^2$ weights in both circuits, the three $3 \cdot 4E^2 = 12 E^2$. Training
# such pairs would compare different shares at the same number, though not at the same number of heads.
# ```

# %% tags=["hide-cell"]
half, full = Attention(4, 4, head_dim=2), Attention(4, 3, head_dim=4)
assert measure(half).rank == measure(full).rank == 6 * 4**2
assert (half.parameters, full.parameters) == (8 * 4**2, 12 * 4**2)
print("identified 96 of", half.parameters, "and of", full.parameters)

# %% [markdown]
# **2.** With $E$ and the number $n = 2HDE$ of query and key weights given, $H$ and $D$ are free. Which choice identifies most, and how
# much does the usual one, $D = E/H$, fall short?
#
# ```{admonition} Answer
# :class: dropdown
#
# The identified number is $n (1 - D/(2E))$ for $D \le E$, largest at $D = 1$, with $H = n/(2E)$ heads. For $n = 2E^2$ that is $E$ heads
# of width 1 and $2E^2 - E$ numbers, against $2E^2 - E^2/H$: the usual choice falls short by $E(E/H - 1)$.
# ```


# %% tags=["hide-cell"]
def query_key(heads):  # a value-output product of rank one identifies 2 E - 1
    return measure(Attention(6, heads, value_dim=1)).rank - heads * (2 * 6 - 1)


for heads in (1, 2, 3, 6):
    assert query_key(6) - query_key(heads) == 6 * (6 // heads - 1)

# %% [markdown]
# **3.** At which width does a further row of each head identify less than half of the numbers it brings? And what is the share there?
#
# ```{admonition} Answer
# :class: dropdown
#
# Row $D + 1$ identifies $2E - 2D - 1$ of $2E$, which is less than $E$ once $D \ge E/2$. At $D = E/2$ the share is $3/4$.
# ```

# %% tags=["hide-cell"]
for E in (8, 64, 512):
    first = next(D for D in range(E) if identified(D + 1, E) - identified(D, E) < E)
    assert first == E // 2 and identified(first, E) / (2 * first * E) == 3 / 4

# %% [markdown]
# **Next:** rotary positions changed the count in passing here. {doc}`08_rotary_positions` finds out exactly how, and for which
# frequencies.
