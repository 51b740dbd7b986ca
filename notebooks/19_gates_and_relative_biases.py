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
# # Gates and relative biases
#
# *Assumed: the {term}`circuits <circuit>` of {doc}`05_many_heads`, {prf:ref}`lem-heads-apart` and {prf:ref}`lem-what-a-product-loses`; {term}`generic` weights,
# plain softmax, no rotation, until we break that. Nothing here is in the paper.*
#
# *In the ledger:* {ref}`output gates <ledger-gates>`, {ref}`biases of offsets <ledger-relative-bias>`, {ref}`keys and queries of offsets <ledger-relative-content>`.
#
# ## The question
#
# Two parts that attention layers have been given since stand at either end of the scores. A *gate* multiplies what a head has read before $W_O$ mixes it.
# *Relative positions* add learned numbers to the scores, which depend on how far apart query and key are. Each brings parameters of its own.
# Are these identified? And do they tell apart what was {term}`idle` before?
#
# A gate stands between two factors of which only the product was seen, so the count may fall. Learned offsets stand before
# a softmax, which ignores shifts, so it may rise. Both happen.

# %% [markdown]
# ## The claim
#
# **Gates.** The gate of a head is $\sigma(W_G x)$, from the input $x$ of the same token, with $\sigma(z) = 1/(1 + e^{-z})$: one number a head, $W_G \in \mathbb{R}^{1 \times E}$, or one a channel, $W_G
# \in \mathbb{R}^{C \times E}$. It has no bias here. The output at the last token $x$ of $X$ is
#
# $$
# f(X)_x = \sum_{h=1}^{H} W_O^h \big( \sigma(W_G^h x) \circ (W_V^h X + b_V^h \mathbf{1}^\top)\, \alpha_h(X) \big) + b_O
# $$ (eq-gated)
#
# with weights $\alpha_h(X)$ from the softmax, and a single gate multiplying all channels. Call $w_i$ the rows of all $W_G$, and $A_i$ what the gate $\sigma(w_i^\top x)$ multiplies: $W_O^h [W_V^h \; b_V^h]$ for a head $i = h$, or the product of
# column $c$ of $W_O^h$ and row $c$ of $[W_V^h \; b_V^h]$ for a channel $i = (h, c)$.
#
# ```{prf:proposition} What gates tell apart
# :label: prop-gate
#
# Let $w_i \ne 0$, $w_i \ne \pm w_j$ for $i \ne j$, let all $A_i$ have a nonzero part without the bias, and $(M_h, c_h) \ne (M_g, c_g)$ for any two heads, as in {prf:ref}`lem-heads-apart`.
#
# 1. A direction is unidentified exactly when it keeps, to first order, all $w_i$, all $A_i$, $b_O$, and all $(M_h, c_h)$.
# 2. So gates are identified. With *one gate a head* the layer has as many unidentified parameters as without gates, if it has no value bias. The value bias, which was idle beside an output bias, is identified with the value weights: it is one more column.
# 3. With *one gate a channel* only $(a\, W_V[c, :],\, a\, b_V[c],\, a^{-1} W_O[:, c])$ is left of the value-output circuit, one number for each of the $GC$ channels of values, at all widths: $GC$ in the place of $GC^2$.
# ```
#
# **Offsets.** Let the score of key $z$ for query $x$ depend on the offset $\delta$, position of the query less that of the key. The learned numbers are clipped: from some $\delta = t$ on all offsets are alike.
# For a model without a mask there is another end on the other side. Scores are $s_\delta(x, z)$, one such function a head, affine in $z$, with $s_\delta = s_t$ for $\delta \ge t$.
#
# ```{prf:lemma} What the outputs see of scores that know offsets
# :label: lem-offsets-apart
#
# Let $N_h \ne 0$, and let the slope of $z \mapsto s^h_\delta(x, z)$ be nonzero and differ from that of any other head for almost all $x$. A direction is unidentified exactly when it keeps, to first order, all $N_h$, the output bias, and for each head, as functions of $x$, $y$ and $z$,
#
# $$
# s_\delta(x, z) - s_t(x, y) \quad (\delta \ne 0) \qquad \text{and} \qquad s_0(x, x) - s_t(x, y) .
# $$
# ```
#
# At offset 0 a token meets itself alone, and less is seen there. Two kinds are in use. T5 {cite:p}`raffel2020` adds one number to the score for each head and offset, $s_\delta(x, z) = z^\top (M x + c) + B_\delta$ (`R_B` in the code).
# DeBERTa {cite:p}`he2021` has for each offset a key $r_\delta \in \mathbb{R}^D$ that meets the query, *content to position*, and a query $p_\delta \in \mathbb{R}^D$ that meets the key, *position to content* (`R_K` and `R_Q`): with
# $q = W_Q x + b_Q$ and $k = W_K z + b_K$,
#
# $$
# s_\delta(x, z) = q^\top k + q^\top r_\delta + k^\top p_\delta .
# $$ (eq-content)
#
# {cite:t}`shaw2018` have the first of the two terms, from one table for all heads (and another for the values, which we leave out).
#
# ```{prf:proposition} A bias for each offset
# :label: prop-relative-bias
#
# Let $M_h \ne 0$ differ from head to head. Learned numbers $B_\delta$ add one unidentified direction a head to those of the layer without them: all of a head's numbers moved alike.
# ```
#
# ```{prf:proposition} A key and a query for each offset
# :label: prop-relative-content
#
# Under a causal mask, with $n \ge 2$ offsets, $D \le E$ and keys of its own, a head has these unidentified directions among its queries, keys and offsets, and no others.
#
# 1. *Change of basis*, $D^2$: $(T W_Q,\, T b_Q,\, T p_\delta;\; -T^\top W_K,\, -T^\top b_K,\, -T^\top r_\delta)$ for any square $T$.
# 2. *Shift of the offsets' keys*, $D$: all $r_\delta$ moved by one vector. All $p_\delta$ moved alike is seen.
# 3. *At a token's own offset*, $\max(0, 2D - E)$: $(\dot r_0, \dot p_0)$ with $W_Q^\top \dot r_0 + W_K^\top \dot p_0 = 0$, if there are no biases.
# 4. *Biases against offsets*, if $2D \le E$: $b_Q$ moved by $v$ and all $p_\delta$ by $-v$, $b_K$ moved by $w$, with $v^\top (r_\delta - r_t) + w^\top (p_\delta - p_t) = 0$ for all $\delta$. These are $\max(0, D - (n - 1))$ with one of the two biases and $\max(0, 2D - (n - 1))$ with both.
# ```

# %% [markdown]
# ## Proof
#
# ```{prf:proof}
# (of {prf:ref}`prop-gate`)
# *1.* The outputs depend on the quantities named, so keeping these keeps the outputs. Conversely, let dots be derivatives along an unidentified direction. A sequence of one token $x$ has all weight on itself. Put $x = t u$ with a number $t$, $a_i = w_i^\top u$, and write
# $A_i \bar x = t\, A_i' u + p_i$ for $A_i = [A_i' \; p_i]$. The output's derivative vanishes,
#
# $$
# \sum_i \big( \sigma'(a_i t)\, \dot a_i t\, A_i \bar x + \sigma(a_i t)\, \dot A_i \bar x \big) + \dot b_O = 0 ,
# $$
#
# for all real $t$, so for all complex $t$ off the poles. Choose $u$ so that the $|a_i|$ are distinct and not zero and no $A_i' u$ is zero, as almost every $u$ is. The poles of term $i$ are at $t = (2k + 1)\, \pi \mathrm{i} / a_i$, so the term with the largest
# $|a_i|$ owns $t_0 = \pi \mathrm{i} / a_i$. Near $z = \pi \mathrm{i}$, $\sigma(z) = 1/(z - \pi \mathrm{i}) + \dots$ and $\sigma'(z) = -1/(z - \pi \mathrm{i})^2 + \dots$. The double pole must vanish: $\dot a_i t_0 (t_0 A_i' u + p_i) = 0$. As $t_0$ is imaginary and all else real,
# the bracket is not zero, so $\dot a_i = 0$. Then the simple one: $t_0 \dot A_i' u + \dot p_i = 0$, so both parts are zero. Strike out term $i$ and go on. For almost all $u$ this gives $\dot w_i^\top u = 0$ and $\dot A_i' u = 0$, so $\dot w_i = 0$, $\dot A_i = 0$, and then $\dot b_O = 0$.
#
# Now fix the query $x$. As a function of the other tokens the layer is one without gates, whose value-output product is $N_h(x) = W_O^h \operatorname{diag}(\sigma(W_G^h x))\, W_V^h = \sum_i \sigma(w_i^\top x) A_i'$ over the $i$ of head $h$. Its derivative is zero by what has been shown, and
# it is not zero, for almost all $x$, by the same poles. So in {eq}`eq-repeats` the double poles alone are left, and give $\dot s_h = 0$ for all $u$ and $x$, from which $\dot M_h = 0$ and $\dot c_h = 0$ follow as there.
#
# *2.* With one gate a head, what is kept is what {prf:ref}`lem-heads-apart` names, and the $w_i$, on which nothing else depends. A value bias makes $b_O$ and $A_i$ separate, instead of one sum.
# *3.* $A_i$ has one column times one row; with groups, row $c$ of $[W_V \; b_V]$ meets the columns $c$ of all $W_O$ that read it, stacked. By {prf:ref}`lem-what-a-product-loses` with $d = p = q = 1$ a product of $1 \times a$ and $1 \times b$ loses $a + b - (a + b - 1) = 1$.
# ```
#
# ```{prf:proof}
# (of {prf:ref}`lem-offsets-apart`)
# Take $x$ last, with $z$ at offset $j \ge 1$, and $y$ everywhere else, any number of times. Divide all weights of head $h$ by that of a $y$ far away. The output at $x$ is then
#
# $$
# \sum_h N_h \Big( y + \frac{q_x\, (x - y) + q_z\, (z - y)}{m + d_h} \Big) + b , \qquad q_x = e^{s_0(x, x) - s_t(x, y)}, \quad q_z = e^{s_j(x, z) - s_t(x, y)} ,
# $$
#
# where $m$ counts the $y$ far away and $d_h = q_x + q_z + \sum_{\delta} e^{s_\delta(x, y) - s_t(x, y)}$ over the places $\delta$ near by that are left. As a function of $m$ it is rational, and its derivative along the direction vanishes for infinitely many $m$. The $d_h$ are distinct for almost all
# $x, y, z$: through $z$ they differ by exponentials of different slopes. So each head has its pole, $m = -d_h$, alone. The double one is $-\dot d_h N_h (q_x (x - y) + q_z (z - y))$, so $\dot d_h = 0$. Only one summand of $d_h$ has $z$ in it: $\dot q_z = (\dot s_j(x, z) - \dot s_t(x, y))\, q_z$
# does not depend on $z$. A polynomial times an exponential of nonzero slope is constant only if it is zero. So $s_j(x, z) - s_t(x, y)$ is kept; this holds for every $j \ge 1$, and with $z = y$ for the summands near by. What is left of $\dot d_h = 0$ is $\dot q_x = 0$. Then the simple pole:
# $\dot N_h (q_x (x - y) + q_z (z - y)) = 0$, so $\dot N_h = 0$, and at last $\dot b = 0$. Without a mask put $z$ behind $x$, with some more $y$ there: these summands are kept in the same way.
# ```
#
# ```{prf:proof}
# (of {prf:ref}`prop-relative-bias`)
# By {prf:ref}`lem-offsets-apart` a direction is unidentified exactly when it keeps $N_h$, $b$ and the numbers $(z - y)^\top (M x + c) + B_\delta - B_t$. With $z = y$ these are the differences of the $B_\delta$; then $M$ and $c$ remain, as without offsets. Differences are kept by one direction a head.
# ```
#
# ```{prf:proof}
# (of {prf:ref}`prop-relative-content`)
# Let $\zeta_\delta = r_\delta - r_t$, $\pi_\delta = p_\delta + b_Q$ and $\kappa_\delta = b_Q^\top \zeta_\delta + b_K^\top (\pi_\delta - \pi_t)$. Written out,
#
# $$
# s_\delta(x, z) - s_t(x, y) = (z - y)^\top M x + x^\top W_Q^\top \zeta_\delta + z^\top W_K^\top \pi_\delta - y^\top W_K^\top \pi_t + \kappa_\delta .
# $$
#
# So $M$, $W_Q^\top \zeta_\delta$ and $W_K^\top \pi_\delta$ are kept for $\delta \ne 0$, all $\kappa_\delta$, and for $\delta = 0$, where $z = x$, the sum $W_Q^\top \zeta_0 + W_K^\top \pi_0$. As $M$ is kept, $\dot W_Q = T W_Q$ and $\dot W_K = -T^\top W_K$ for one $T$ ({prf:ref}`prop-count-r`). Both maps have rank $D$, so
# $W_Q^\top (\dot\zeta_\delta + T^\top \zeta_\delta) = 0$ and $W_K^\top (\dot\pi_\delta - T \pi_\delta) = 0$ mean that $\zeta_\delta$ and $\pi_\delta$ follow $T$. Take the direction of *1* away: now $\dot W_Q$, $\dot W_K$ and, off $\delta = 0$, $\dot\zeta_\delta$ and $\dot\pi_\delta$ are zero.
# At $\delta = 0$ what is left solves $W_Q^\top \dot\zeta_0 + W_K^\top \dot\pi_0 = 0$, $E$ equations of rank $\min(E, 2D)$ for $2D$ numbers, which is *3*. Where $2D \le E$ they have no solution but zero; with $\dot b_Q = v$ and $\dot b_K = w$, $\dot\pi_\delta = 0$ says $\dot p_\delta = -v$, and
# $\dot\kappa_\delta = v^\top \zeta_\delta + w^\top (\pi_\delta - \pi_t)$. These are $n - 1$ equations of full rank at generic weights, which is *4*. The $r_\delta$ enter by differences alone, which is *2*.
# ```

# %% [markdown]
# ## The same symbols in code
#
# `gate` says how many gates there are, `relative` which kind of offsets, `span` how many. First the gated layer of {eq}`eq-gated`, written out and compared with the package's.

# %%
import torch

from attnid import Attention, count, exact_nullity, figures, forward
from attnid import independent_directions, measure
from attnid.claims import check
from attnid.layer.attention import attend, offsets, project, scores
from attnid.tensors import normal, rank, relative_change

E, H = 8, 2
gated = Attention(E, H, gate="channel")
theta, x = gated.random_parameters(seed=0), normal(5, E, seed=1)
z = attend(gated, theta, *project(gated, theta, x))  # (H, L, C), weighted values
gate = torch.sigmoid(torch.einsum("le,hce->hlc", x, theta["W_G"]))
y = torch.einsum("hlc,hec->le", gate * z, theta["W_O"])
assert relative_change(y, forward(gated, theta, x)) < 1e-12
{name: tuple(tensor.shape) for name, tensor in theta.items()}


# %% [markdown]
# The channels of a head may be scaled. They may not be mixed, which one gate for the whole head allows:


# %%
def moved(p, S):  # (S W_V, W_O S^{-1}) in every head
    return p | {"W_V": S @ p["W_V"], "W_O": p["W_O"] @ torch.linalg.inv(S)}


one_gate = Attention(E, H, gate="head")
p = one_gate.random_parameters(seed=0)
scale, mix = torch.diag(normal(4, seed=2).exp()), normal(4, 4, seed=3)
for S, mixes in ((scale, False), (mix, True)):
    changes = [
        relative_change(forward(a, moved(w, S), x), forward(a, w, x))
        for a, w in ((one_gate, p), (gated, theta))
    ]
    assert changes[0] < 1e-12 and (changes[1] > 1e-2 if mixes else changes[1] < 1e-12)

# %% [markdown]
# Then the scores of {eq}`eq-content`, entry by entry. The package divides by $\sqrt{D}$, which T5 does not: a factor that weights can absorb moves no count.

# %%
content = Attention(E, H, relative="content", span=3)
w = content.random_parameters(seed=4)
q, k, _ = project(content, w, x)
s = q @ k.mT
at = offsets(content, 5)  # which offset stands at (query, key)
for l in range(5):
    for m in range(l + 1):
        s[:, l, m] += (q[:, l] * w["R_K"][:, at[l, m]]).sum(-1)
        s[:, l, m] += (k[:, m] * w["R_Q"][:, at[l, m]]).sum(-1)
seen = torch.ones(5, 5, dtype=torch.bool).tril()
ours = scores(content, w, q, k)[:, seen]
assert relative_change(s[:, seen] / content.D**0.5, ours) < 1e-12
at

# %% [markdown]
# ## The check
#
# **Gates.** Two heads on $E = 8$, three and four channels wide: without gates, with one gate a head, with one gate a channel. By the proposition the last has $H(D^2 + D)$.

# %%
gates, widths = (None, "head", "channel"), (3, 4)
layers = [Attention(E, H, head_dim=D, gate=gate) for gate in gates for D in widths]
found = [measure(a) for a in layers]
check(
    "gates",
    proposition=[H * (D**2 + D) for D in widths],
    formula=[count(a).unidentified for a in layers],
    measured=[m.nullity for m in found],
    generators=[independent_directions(a) for a in layers],
    exact=[exact_nullity(a) for a in layers],
)
print("least gap above 1e9:", min(m.gap for m in found) > 1e9)

# %% [markdown]
# **Values that are shared and have a bias.** Four heads read two groups, with value and output biases. Without gates the value bias is idle beside the output bias; the first gate ends that.

# %%
shared = [Attention(E, 4, kv_heads=2, bias="vo", gate=gate) for gate in gates]
check(
    "gates",
    shared_formula=[count(a).unidentified for a in shared],
    shared_measured=[measure(a).nullity for a in shared],
    shared_generators=[independent_directions(a) for a in shared],
    shared_exact=[exact_nullity(a) for a in shared],
)
for a in shared:
    print(a.gate or "no gate", count(a).terms)

# %% mystnb={"image": {"alt": "Unidentified numbers of one head's values and outputs against the value width from 1 to 8 at embedding width 6. Without gates and with one gate a head the curve grows like the square up to width 6 and by 12 for each further channel after it, to 60. With one gate a channel it is a straight line from 1 to 8. Measured points lie on both."}, "figure": {"caption": "Unidentified numbers among the values and outputs of one head, $E = 6$, against the value width $C$. Lines: {prf:ref}`prop-count-r` and {prf:ref}`prop-gate`; marks: measured, query-key circuit ($D^2 = 1$) taken off.", "name": "fig-gates"}}
channels = range(1, 9)
lines = {
    "mixed": [C**2 if C <= 6 else 2 * C * 6 - 36 for C in channels],
    "gated one by one": list(channels),
}
one_head = lambda C, gate: Attention(6, 1, head_dim=1, value_dim=C, gate=gate)
marks = {
    gate: [measure(one_head(C, gate)).nullity - 1 for C in channels] for gate in gates
}
check("gates", widths_measured=marks["channel"], mixed_measured=marks["head"])
assert marks[None] == marks["head"] == lines["mixed"]
figures.gates(channels, lines, marks)

# %% [markdown]
# The advantage of mixing grows with $C$ ({numref}`fig-gates`). So does what a gate a channel takes from it.
#
# **A bias for each offset** adds $H$, here 2, to each of these: one offset, five of them, no mask, a key bias, a sink, a soft-cap, planes that turn, shared keys.

# %%
fields = (
    dict(span=1),
    dict(span=5),
    dict(span=5, causal=False),
    dict(span=3, bias="qk"),
    dict(span=3, score="sink"),
    dict(span=3, score="softcap", bias="k"),
    dict(span=3, rotary=(1.0,)),
    dict(span=3, kv_heads=1),
)
biased = [Attention(6, H, relative="bias", **f) for f in fields]
without = [count(Attention(6, H, **f | {"span": None})).unidentified for f in fields]
methods = {
    "formula": lambda a: count(a).unidentified,
    "measured": lambda a: measure(a).nullity,
    "generators": independent_directions,
    "exact": exact_nullity,
}
added = {
    name: [method(a) - n for a, n in zip(biased, without)]
    for name, method in methods.items()
}
check("relative-bias", **added)

# %% [markdown]
# **A key and a query for each offset.** Three offsets; no bias, a query bias, a key bias, both; heads wider than half of $E$. By the proposition:


# %%
def proposition(E, H, D, n, bias=""):
    biases = len(set("qk") & set(bias))  # of D numbers a head each
    own = max(0, 2 * D - E)
    free = max(0, biases * D - (n - 1))
    assert not (own and biases)
    return H * (D**2 + D**2 + D + own + free)  # values and outputs first


cases = [dict(bias=b) for b in ("", "q", "k", "qk")] + [dict(head_dim=5)]
at_offsets = [Attention(E, H, relative="content", span=3, **c) for c in cases]
check(
    "relative-content",
    proposition=[proposition(E, H, a.D, 3, a.bias) for a in at_offsets],
    **{name: [method(a) for a in at_offsets] for name, method in methods.items()},
)
for a in at_offsets:
    offsets_alone = {n: d for n, d in count(a).terms.items() if n.startswith("offset")}
    print(f"D = {a.D}, biases {a.bias or 'none':4}: {offsets_alone}")

# %% [markdown]
# `count` goes on where the proposition stops: shared keys, sinks and caps, own offsets beside biases, heads wider than $E$ without biases. Those wider ones it refuses beside query or key biases. That it agrees with the rank, and with the exact rank, is tested on random layers of all kinds.
#
# ## Break it
#
# **Gates alike.** {prf:ref}`prop-gate` asks that no two gates are the same. Give all channels of a head one row of $W_G$: channels can be mixed again, and all $H C^2 = 32$ are back.

# %%
tied = theta | {"W_G": theta["W_G"][:, :1].expand(-1, 4, -1).clone()}
check("gates", tied=measure(gated, parameters=tied).nullity)

# %% [markdown]
# **A gate without its sigmoid.** Multiply by $W_G x$ itself. Its scale now goes against that of $W_O$, and one more number for each gate is idle.


# %%
def linear_gate(a, p, x):
    v = attend(a, p, *project(a, p, x))
    W_G = p["W_G"].reshape(a.H, -1, a.E)  # (H, 1 or C, E)
    g = torch.einsum("...le,hce->...hlc", x, W_G)
    return torch.einsum("...hlc,hec->...le", g * v, p["W_O"])


def idle(a, p, function, sequences):
    parts = torch.func.jacrev(lambda p: function(a, p, sequences))(p)
    J = torch.cat([parts[n].flatten(3).flatten(0, 2) for n in a.shapes], 1)
    return a.parameters - rank(J)


sequences = normal(24, 6, E, seed=5)
pairs = ((one_gate, p), (gated, theta))
more = [idle(a, w, linear_gate, sequences) - count(a).unidentified for a, w in pairs]
check("gates", without_sigmoid=more)
assert [idle(a, w, forward, sequences) for a, w in pairs] == [64, 40]

# %% [markdown]
# **A sink or a soft-cap.** Both see a shift of all scores. Offsets' keys moved alike are then no longer idle; offsets' biases moved alike are, as the sink can follow, and as these are added after the cap.

# %%
kinds, found_at = ("softmax", "sink", "softcap"), {}
for relative in ("bias", "content"):
    some = [Attention(E, H, relative=relative, span=3, score=s) for s in kinds]
    nullities = [measure(a).nullity for a in some]
    assert nullities == [count(a).unidentified for a in some]
    found_at[relative] = nullities
check("relative-bias", scores=found_at["bias"])
check("relative-content", scores=found_at["content"])

# %% [markdown]
# **Lift the mask.** With two offsets and a mask, a token has the first to itself. Without one, and the offsets $-1$ and $0$, it shares the second with all keys before it, and nothing special is left: at $D = E = 4$ the $2D - E = 4$ of part *3* are gone.

# %%
masks = [Attention(4, 1, relative="content", span=2, causal=c) for c in (True, False)]
check("relative-content", masks=[measure(a).nullity for a in masks])

# %% [markdown]
# **Look at short texts only.** Clipping is harmless because long texts reach the last offset. Texts of three tokens never meet offsets 3 and 4 of five, and what stands there is idle: two numbers more for each of the two heads.

# %%
short = Attention(E, H, relative="bias", span=5)
unseen = idle(short, short.random_parameters(seed=6), forward, normal(60, 3, E, seed=7))
check("relative-bias", short=unseen - count(short).unidentified)

# %% [markdown]
# ## What it means
#
# {cite:t}`qiu2025` put gates at several places of large models and find this one, a sigmoid after the weighted values, the best; one of the two reasons that they give is a nonlinearity between $W_V$ and $W_O$, which are one low-rank map without it. That is what the count says in other words. A gate a channel breaks nearly
# all of the group that acts there, and $C$ becomes a basis with a meaning: its channels can be named, compared and pruned one by one, up to a scale. A gate a head leaves the group as it was. Of a full-attention layer of Qwen3.5 27B's sizes (gates by channel, grouped values, normalised keys, a quarter of the planes turning):

# %%
turning = [1e7 ** (-i / 32) for i in range(32)]
sizes = dict(kv_heads=4, head_dim=256, rotary=turning, qk_norm="head_gain")
for gate in gates:
    terms = count(Attention(5120, 24, gate=gate, **sizes)).terms
    values = {n: d for n, d in terms.items() if n.startswith(("value", "channel"))}
    print(f"gate {gate or 'none':7} {values}, in all {sum(terms.values()):,}")

# %% [markdown]
# T5 has its biases in the first layer of a stack, shared by all others; a shift is idle for the whole stack then, one a head. It sorts far offsets into wider and wider buckets. That changes which offsets share a number, not the proof.
#
# DeBERTa makes its tables from one table of position vectors $u_\delta$: $r_\delta = W_{k,r} u_\delta$ and $p_\delta = W_{q,r} u_\delta$, the latter read backwards. With at most $E$ offsets and independent $u_\delta$ every table can be had, so the functions are those counted here, and $D(E - n)$ numbers of each of the two maps are idle besides. For its sizes, with tables as parameters:

# %%
t5 = Attention(768, 12, relative="bias", span=32, causal=False)
deberta = Attention(768, 12, bias="qv", relative="content", span=512, causal=False)
for name, layer in (("T5", t5), ("DeBERTa", deberta)):
    print(f"{name}: {count(layer).terms}")

# %% [markdown]
# ## Exercises
#
# **1.** With which nonlinearity in the place of $\sigma$ does a gate a channel leave nothing at all idle between values and outputs?
#
# ```{admonition} Answer
# :class: dropdown
#
# With none. The scale of a channel passes from $W_V$ to $W_O$ on either side of the gate, whatever that is. A nonlinearity *between* values and gate would do it, or a norm of the weighted values.
# ```

# %% tags=["hide-cell"]
scaled = moved(theta, scale)
by = lambda p, g: torch.einsum(
    "hlc,hec->le", g * attend(gated, p, *project(gated, p, x)), p["W_O"]
)
for shape in (torch.sigmoid, torch.relu, torch.tanh):
    g = shape(torch.einsum("le,hce->hlc", x, theta["W_G"]))
    assert relative_change(by(scaled, g), by(theta, g)) < 1e-12

# %% [markdown]
# **2.** A head has offsets' biases $B_\delta$ and planes that turn. Both depend on $\delta$ alone. Can query and key biases, whose product is a function of $\delta$ too, take the place of the $B_\delta$?
#
# ```{admonition} Answer
# :class: dropdown
#
# The constant part of a score is $b_K^\top R_\delta b_Q + B_\delta$. But $B_\delta$ is constant from $\delta = t$ on, and the first part is a sum of waves, which no constant equals for ever. Long texts tell them apart, and the count adds $H$ as before.
# ```

# %% tags=["hide-cell"]
turned = dict(head_dim=4, bias="qk", rotary=(1.0, 1.0))
plain, both = (
    Attention(2, 1, **turned),
    Attention(2, 1, relative="bias", span=3, **turned),
)
print(measure(plain).nullity, measure(both).nullity)
assert measure(both).nullity == measure(plain).nullity + 1 == count(both).unidentified

# %% [markdown]
# **3.** Fold a query bias into DeBERTa's $p_\delta$: set $b_Q = 0$ and $p_\delta + b_Q$ in the place of $p_\delta$. Which outputs change, and what does that say of {prf:ref}`prop-relative-content`, part *4*?
#
# ```{admonition} Answer
# :class: dropdown
#
# The constants $b_Q^\top r_\delta$ are lost, so all outputs change that see more than one offset, unless $b_Q$ is orthogonal to all differences $r_\delta - r_t$. Only that part of it folds: $D - (n - 1)$ numbers where there are fewer than $D$ differences, and none in DeBERTa itself.
# ```

# %% tags=["hide-cell"]
folding = Attention(E, H, bias="q", relative="content", span=3)
w = folding.random_parameters(seed=8)
differences = w["R_K"][:, :2] - w["R_K"][:, 2:]
within = torch.linalg.pinv(differences) @ differences  # (H, D, D), projections
part = w["b_Q"] - torch.einsum("hde,he->hd", within, w["b_Q"])
for folds, bias in ((True, part), (False, w["b_Q"])):
    folded = w | {"b_Q": w["b_Q"] - bias, "R_Q": w["R_Q"] + bias[:, None]}
    change = relative_change(forward(folding, folded, x), forward(folding, w, x))
    print("the part orthogonal to all differences:" if folds else "all of it:", end=" ")
    print("no output changes" if change < 1e-12 else "outputs change")
    assert (change < 1e-12) == folds

# %% [markdown]
# *Next:* {doc}`20_differences_mixtures_routers` subtracts two attention maps, mixes layers that turn with layers that do not, and counts a router.
