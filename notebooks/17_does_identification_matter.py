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
# On Colab this fetches the book and installs its package; elsewhere it does nothing.
import os, subprocess, sys
if "google.colab" in sys.modules:
    fetch = "test -d ~/attnid || git clone -q --depth 1 https://github.com/identified-attention/identified-attention ~/attnid"
    subprocess.run(f"{fetch} && {sys.executable} -m pip install -q ~/attnid", shell=True, check=True)
    os.chdir(os.path.expanduser("~/attnid/notebooks"))

# %% [markdown]
# # Does identification matter?
#
# *Assumed: the count $1 - 1/(2H)$ of {doc}`05_many_heads`, the canonical form of {doc}`16_real_checkpoints`, and how {doc}`13_nanogpt` compares runs: in pairs, by seed.*
#
# *In the ledger:* {ref}`the hypothesis <ledger-hypothesis>`, {ref}`what idle parameters can do <ledger-idle-steering>`.
#
# ## The question
#
# The paper's introduction says what all its counting is for: *presuming* that more identified parameters mean more predictive capability at the same size, multi-head attention, rotary positions and grouped queries may owe some of their success to identification alone. It does not test the presumption. Can it be tested, and what comes out?
#
# A comparison of one head with eight cannot do it, as the paper itself says: these are different families of functions. What is needed is attention that computes *the same functions* with more idle parameters, or with none. We have both.

# %% [markdown]
# ## The claim
#
# Take a head's scores through $M = W_K^\top W_Q$ (tokens as columns), and write $K = W_K$, $Q = W_Q$. We compare three sets of parameters for the same $M$:
#
# | | Parameters | Numbers of a head | Of these idle |
# |---|---|---|---|
# | *plain* | $K$, $Q$ | $2DE$ | $D^2$ |
# | *canonical* | $K$ with the columns $S$ held at a multiple of $I$, and $Q$ | $2DE - D^2$ | $0$ |
# | *factored* | $(I + A) K$ and $(I + B) Q$ with trained $D \times D$ matrices $A$, $B$ | $2DE + 2D^2$ | $3D^2$ |
#
# All three have $2DE - D^2$ identified parameters. What, then, can idle ones do?
#
# ```{prf:proposition} Idle parameters steer, and do no more
# :label: prop-idle-steering
#
# Let $L$ be a differentiable function of $M$ alone, and $G = \partial L / \partial M$.
#
# 1. The infimum of $L$ is the same over plain, canonical and factored parameters.
# 2. Under gradient flow, where plain and canonical $K$, $Q$ agree, and the factored ones at $A = B = 0$ too, $M$ moves by
#
# $$
# \dot M = - \begin{cases}
# K^\top K\, G + G\, Q^\top Q & \text{plain,} \\
# K^\top K\, G + \Pi\, G\, Q^\top Q & \text{canonical,} \\
# K^\top K\, G\, (I + Q^\top Q) + (I + K^\top K)\, G\, Q^\top Q & \text{factored,}
# \end{cases}
# $$ (eq-steering)
#
# where $\Pi$ sets the rows $S$ to zero. All three lower $L$ unless they stand still.
# ```
#
# So the number of idle parameters has no say in what a model can be. It has a say in how it gets there, as a preconditioner has: the same gradient, sent through another linear map. If more identification makes better models of the same family, it must be by better learning, and that is a matter for experiments.
#
# ```{prf:conjecture} More identified parameters make better models (paper: sections 1, 6)
# :label: conj-hypothesis
#
# Let a GPT be trained by a fixed recipe, and its validation loss be read at the end.
#
# 1. *The same functions:* the loss is lower without idle parameters (canonical), and higher with more of them (factored).
# 2. *The same size:* the loss is lower if the numbers that the canonical form saves are spent on a wider MLP.
# 3. *More heads:* at the same size the loss falls with the identified share $1 - 1/(2H)$.
# ```
#
# The third is where the paper starts from. It is the weakest test, since functions change as well; but a presumption that explains why many heads are better than few should at least point the right way.

# %% [markdown]
# ## Proof
#
# ```{prf:proof}
# (of {prf:ref}`prop-idle-steering`) *1.* Every canonical $M$ is a plain one, and every factored $M$ is plain with the factors multiplied out; a plain $M$ is factored with $A = B = 0$. Conversely, plain weights whose $K[:, S]$ is invertible can be made canonical with the same $M$ ({prf:ref}`prop-canonical-layer`), and such weights are dense in
# all plain ones; $L$ is continuous, so its infimum over them is that over all.
#
# *2.* From $dM = dK^\top Q + K^\top dQ$, the gradients are $\partial L/\partial Q = K G$ and $\partial L / \partial K = Q\, G^\top$. Plain: $\dot M = \dot K^\top Q + K^\top \dot Q = -(G Q^\top Q + K^\top K G)$. Canonical: $K$ moves in the columns outside $S$ only, so $\dot K = - Q\, G^\top \Pi$. Factored, with
# $K' = (I + A) K$: at $A = 0$ the gradient in $A$ is $Q\, G^\top K^\top$, so $\dot K' = \dot A K + \dot K = - Q\, G^\top (K^\top K + I)$, and likewise $\dot Q' = - K G\, (Q^\top Q + I)$; insert these. Along the flow $\dot L = \langle G, \dot M \rangle$ is minus the squared norm of the gradient in the parameters.
# ```

# %% [markdown]
# ## The same symbols in code
#
# `canonical_gpt` and `factored_gpt` make the two other models from a GPT's own random weights, as the same function; only what is trained differs. Formula {eq}`eq-steering` against automatic differentiation, at a loss that is none in particular:

# %%
from pathlib import Path

import numpy as np
import torch

from attnid import Attention, count, figures, rebalance
from attnid.training.experiments import PRESETS
from attnid.network.gpt import GPT, GPTConfig
from attnid.training.parametrisations import canonical_gpt, factored_gpt
from attnid.training.records import read_records
from attnid.training.statistics import equivalence, paired, sign_flip_p, t_interval

# %%
E, D = 8, 3
generator = torch.Generator().manual_seed(0)
draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)
C, Q, free = draw(E, E), draw(D, E), draw(D, E - D)
K = torch.cat((torch.eye(D, dtype=torch.float64), free), 1)          # S are the first D columns
loss = lambda M: (C * M).sin().sum() + M.square().sum() / 7


def velocity(product, *parameters):
    """dM/dt under gradient flow of loss(product(parameters)), by forward differentiation along minus the gradient."""
    gradient = torch.func.grad(lambda p: loss(product(*p)))(parameters)
    return torch.func.jvp(lambda *p: product(*p), parameters, tuple(-g for g in gradient))[1]

# %% tags=["claim-idle-steering"]
G = torch.func.grad(loss)(K.mT @ Q)
P, R, I = K.mT @ K, Q.mT @ Q, torch.eye(E, dtype=torch.float64)
outside = torch.diag((torch.arange(E) >= D).double())
zero = torch.zeros(D, D, dtype=torch.float64)
pairs = {
    "plain": (-(P @ G + G @ R), velocity(lambda K, Q: K.mT @ Q, K, Q)),
    "canonical": (-(P @ G + outside @ G @ R), velocity(lambda X, Q: torch.cat((K[:, :D], X), 1).mT @ Q, free, Q)),
    "factored": (-(P @ G @ (I + R) + (I + P) @ G @ R), velocity(lambda A, B, K, Q: (K + A @ K).mT @ (Q + B @ Q), zero, zero, K, Q)),
}
for name, (formula, found) in pairs.items():
    assert (formula - found).abs().max() < 1e-12 * found.abs().max() and (G * found).sum() < 0
directions = [found / found.norm() for _, found in pairs.values()]
print("cosines between the three velocities:", " ".join(f"{(a * b).sum():.2f}" for a, b in zip(directions, directions[1:] + directions[:1])))
assert max((a * b).sum() for a, b in zip(directions, directions[1:] + directions[:1])) < 0.99

# %% [markdown]
# The same gradient, three directions. Now the models. All start as one function:

# %%
laptop = PRESETS["comparison"].model
config = GPTConfig(65, **laptop, bias=True)
tokens = torch.randint(65, (2, 64), generator=torch.Generator().manual_seed(1))
models = {"plain": GPT(config, 0), "canonical": canonical_gpt(config, 0), "factored": factored_gpt(config, 0)}
with torch.no_grad():
    outputs = {name: model(tokens)[0] for name, model in models.items()}
assert all((logits - outputs["plain"]).abs().max() < 1e-5 for logits in outputs.values())

H, L = laptop["n_head"], laptop["n_layer"]
layer = Attention(laptop["n_embd"], H, bias="qkvo")
held = count(layer).unidentified
extra = 2 * H * layer.D ** 2
print(f"an attention layer: {layer.parameters:,} parameters, of which idle {held:,}")
for name, size, idle in (("canonical", layer.parameters - held, 0), ("plain", layer.parameters, held), ("factored", layer.parameters + extra, held + extra)):
    print(f"{name:10} {size:7,} trained, share identified {1 - idle / size:.3f}")
assert sum(p.numel() for p in models["factored"].parameters()) == sum(p.numel() for p in models["plain"].parameters()) + L * extra

# %% [markdown]
# In the canonical model values and their output maps are in canonical form as well, and idle biases are held at zero, so that *none* of a layer's numbers is idle. In the factored one only queries and keys have more of them.
#
# ## The check
#
# The recipe is AdamW's of {doc}`13_nanogpt` at the size of a laptop: 4 layers, $E = 128$, 2,000 steps of 12 texts of 64 characters. The unit is the seed. Runs of one seed see the same batches, and those of 1 and 2 start from the same function, the wider MLP's apart, whose random weights are drawn in another order. The
# margin below which we call a difference of the final loss none is that of chapter 13, 0.02 nats, chosen before.

# %% tags=["claim-hypothesis"]
runs = read_records(Path("results") / "comparison")
origins = [record.provenance for seeds in runs.values() for record in seeds.values()]
for key in ("data", "data_sha256", "torch", "device"):
    print(f"{key}: {', '.join(sorted({origin[key] for origin in origins}))}")
final = {name: {seed: record.final_loss for seed, record in seeds.items()} for name, seeds in runs.items()}
assert all(len(final[case]) == 10 for case in ("adamw", "canonical", "spent", "factored"))
print(f"plain AdamW, H = 4: validation loss {t_interval(list(final['adamw'].values()))}")

# %% [markdown]
# ### 1 and 2. The same functions, the same size

# %% tags=["claim-hypothesis"]
rows, differs = {}, {}
for case in ("canonical", "factored", "spent"):
    difference = paired(final[case], final["adamw"])
    interval, test = t_interval(difference), equivalence(difference, 0.02)
    rows[case], differs[case] = (difference, interval), interval
    print(f"{case:10} - plain: {interval}; equivalent within 0.02: p = {test.p:.0e}; different: p = {sign_flip_p(difference):.3f}")
    assert test.p < 0.01
assert round(differs["factored"].estimate, 3) == -0.008 and 3 * sign_flip_p(rows["factored"][0]) < 0.05
assert differs["factored"].high < 0 and differs["canonical"].low < 0 < differs["canonical"].high and differs["spent"].low < 0 < differs["spent"].high

# %% mystnb={"image": {"alt": "Three rows of ten dots, each with an interval, in a shaded band of plus or minus 0.02 nats. Canonical and spent lie around zero, factored lies below zero."}, "figure": {"caption": "Final validation loss against plain AdamW, paired by seed: dots are seeds, bars 95 % intervals, the band the margin. Less is better.", "name": "fig-hypothesis"}}
figures.intervals(rows, 0.02, "difference of the validation loss, nats per character")

# %% [markdown]
# None of the three moves the loss by the margin ({numref}`fig-hypothesis`). Without idle parameters, an eighth of its attention's numbers, the model is as good as with them, to that margin. The same numbers, spent on a wider MLP, buy nothing that ten seeds can show. And the model with the *most* idle parameters is better than the plain one,
# by 0.008 nats: little, but clear of zero (also as one of three comparisons), and not what the hypothesis says.
#
# ### 3. More heads

# %% tags=["claim-hypothesis"]
by_heads = {1: final["heads-1"], 2: final["heads-2"], 4: {seed: final["adamw"][seed] for seed in final["heads-1"]}} | {H: final[f"heads-{H}"] for H in (8, 16, 32)}
for H, losses in by_heads.items():
    difference = "" if H == 4 else f"; against H = 4: {t_interval(paired(losses, by_heads[4]))}"
    print(f"H = {H:2}, share {1 - 1 / (2 * H):.3f}: loss {t_interval(list(losses.values()))}{difference}")


slopes = [np.polyfit(np.log2(list(by_heads)), [losses[seed] for losses in by_heads.values()], 1)[0] for seed in by_heads[1]]
print(f"change of the loss when H doubles: {t_interval(slopes)}")
assert t_interval(slopes).low > 0 and round(t_interval(slopes).estimate, 3) == 0.006

# %% mystnb={"image": {"alt": "Losses of five seeds for 1, 2, 4, 8, 16 and 32 heads, with their means joined by a line that rises from 1.88 to 1.91; the upper axis gives the identified share, from 0.5 to 0.98."}, "figure": {"caption": "The final validation loss rises with the number of heads, while the identified share, above, rises too. Dots are seeds, diamonds their means.", "name": "fig-heads-loss"}}
figures.heads_and_loss({H: list(losses.values()) for H, losses in by_heads.items()})

# %% [markdown]
# At this size the loss *rises* with the share ({numref}`fig-heads-loss`). What a head's width gives up in rank ({doc}`05_many_heads` has the trade) costs more here than what its number gains. This does not show that identification hurts; it shows that a correlation over $H$ can have either sign, since what changes most is the family of functions.
#
# ## Break it
#
# **The recipe.** By {eq}`eq-steering` the factored model moves $M$ further for the same gradient, as a larger rate does. And the recipe's rate was the paper's, for a larger model and longer training. Take the models at twice the rate, three seeds each.

# %% tags=["claim-hypothesis"]
doubled = {name.removesuffix("-rate-0.002"): losses for name, losses in final.items() if name.endswith("-rate-0.002")}
gain = {case: paired(losses, {seed: final[case][seed] for seed in losses}) for case, losses in doubled.items()}
print(f"plain, at twice the rate - at the recipe's: {t_interval(gain['adamw'])}")
against = {case: t_interval(paired(losses, doubled["adamw"])) for case, losses in doubled.items() if case != "adamw"}
for case, interval in against.items():
    print(f"{case:10} - plain, both at twice the rate: {interval}")
assert all(-0.11 < change.min() and change.max() < -0.04 for change in gain.values())
assert all(against[case].low < 0 < against[case].high for case in ("canonical", "factored"))
assert against["heads-1"].low > 0 and against["heads-16"].low > 0

# %% [markdown]
# Each model is better by some 0.04 to 0.1 nats, several times what the parametrisations did: the recipe's rate is far from the best at this size. The factored model's advantage is gone, as it would be if it had only taken larger steps; canonical and plain are as close as before. And the heads change their order: four are now better than one, and better than sixteen. So what part 3 measures is as much the recipe
# as the model, and no monotone relation with the share $1 - 1/(2H)$ stands behind it. Three seeds tell no more than that.
#
# **The proposition.** It needs a loss of $M$ alone. Let weights decay, as AdamW's do, and the loss is one of $K$ and $Q$: its infimum over a fibre is reached at balanced weights ({prf:ref}`prop-least-norm`), which canonical ones are not. Then idle parameters do change what is best.

# %%
K, Q = draw(D, E), draw(D, E)
held_K = torch.linalg.solve(K[:, :D], K)                          # the canonical pair of the same M, at the scale that makes both norms equal
held_Q = K[:, :D].mT @ Q
scale = (held_Q.norm() / held_K.norm()).sqrt()
decay = lambda K, Q: (K.square().sum() + Q.square().sum()).item()
nuclear = torch.linalg.svdvals(K.mT @ Q).sum().item()
canonical_decay = decay(scale * held_K, held_Q / scale)
assert torch.allclose(held_K.mT @ held_Q, K.mT @ Q) and abs(decay(*rebalance(Q, K)) - 2 * nuclear) < 1e-10 * nuclear
print(f"squared norms over their least for one M: plain {decay(K, Q) / (2 * nuclear):.2f}, balanced 1, canonical {canonical_decay / (2 * nuclear):.2f}")
assert canonical_decay > decay(K, Q) > 2 * nuclear

# %% [markdown]
# ## What it means
#
# | | The hypothesis says | The seeds say |
# |---|---|---|
# | 1 | no idle parameters: better | the same within 0.02 nats |
# | 1 | more idle parameters: worse | better by 0.008 nats; no difference seen at twice the rate |
# | 2 | idle ones turned into a wider MLP: better | the same within 0.02 nats |
# | 3 | more heads, so a larger share: better | worse, by 0.006 nats for each doubling; at twice the rate 4 heads are better than 1 and than 16 |
#
# So these runs show no sign that identification improves a model; where they show a difference it has the other sign, or goes with the recipe. That is less of a surprise after {prf:ref}`prop-idle-steering`: idle parameters change how training moves, as a preconditioner or a step size does, and the effect of a step size is many times larger here. What taking them out does save is an eighth of the attention's parameters, at a loss that is the same within the margin.
#
# What these runs cannot say: they are of one size, one text and one recipe; 2,000 steps are short, and the rate is not the best for any of the models that were tried at another. Idle numbers are also treated unlike others in small ways: the factors' own numbers decay towards the identity, and held numbers do not decay at all. And at the size of today's models ({doc}`15_an_atlas`) the share in question is a few percent or less, so that any effect of it would be small.
# Of large models the hypothesis is neither shown nor refuted here.
#
# ```{prf:remark} Departure from the paper
# :label: rem-17-hypothesis
#
# The paper presumes the hypothesis, says so, and offers identification as a possible confound of other explanations. Our test separates the two where it can be done exactly: in 1 the functions are the same, and only the identification differs.
# ```
#
# ## Exercises
#
# **1.** Two plain pairs with the same $M$ see the same gradient $G$. When does gradient flow move $M$ alike from both?
#
# ```{admonition} Answer
# :class: dropdown
#
# When $K^\top K$ and $Q^\top Q$ agree, by {eq}`eq-steering`: for pairs of full rank, exactly if they differ by a rotation $S$. So the idle directions that a rotation makes have no effect even on training by gradient flow; those that stretch do. AdamW, which works entry by entry, tells rotations apart as well.
# ```

# %% tags=["hide-cell"]
S = draw(D, D)
rotation = torch.linalg.qr(S).Q
plain = lambda K, Q: velocity(lambda K, Q: K.mT @ Q, K, Q)
change = {name: ((plain(torch.linalg.inv(T).mT @ K, T @ Q) - plain(K, Q)).norm() / plain(K, Q).norm()).item() for name, T in (("rotated", rotation), ("stretched", S))}
print(f"rotated: the same velocity within 1e-12: {change['rotated'] < 1e-12}; stretched: {change['stretched'] < 1e-12}")
assert change["rotated"] < 1e-12 and change["stretched"] > 0.1

# %% [markdown]
# **2.** How small can the identified share of a head's query and key parameters be made, at the same functions?
#
# ```{admonition} Answer
# :class: dropdown
#
# As small as one likes: put $n$ trained $D \times D$ matrices before each map. The head has $2DE + 2nD^2$ numbers, of which $2DE - D^2$ are identified as before. A share, then, is a property of how functions are written down.
# ```

# %% tags=["hide-cell"]
share = lambda n, D=32, E=128: (2 * D * E - D ** 2) / (2 * D * E + 2 * n * D ** 2)
print("share with 0, 1, 2, 10, 100 factors:", " ".join(f"{share(n):.3f}" for n in (0, 1, 2, 10, 100)))
assert share(1) < share(0) == 1 - 1 / 8 and share(10_000) < 1e-3

# %% [markdown]
# **3.** The canonical model's loss differs from the plain one's by less than its interval is wide. How many seeds would it take to see that difference, if it is real, with an interval of half its width?
#
# ```{admonition} Answer
# :class: dropdown
#
# An interval is as wide as $2 t s / \sqrt{n}$, with $s$ the standard deviation of a difference between seeds. Solve $t s / \sqrt{n} = |d| / 2$ for $n$: with the numbers found, more than ten times as many.
# ```

# %% tags=["hide-cell"]
difference = paired(final["canonical"], final["adamw"])
needed = (2 * 1.96 * difference.std(ddof=1) / difference.mean()) ** 2
print(f"more than a hundred seeds: {needed > 100}")
assert needed > 100

# %% [markdown]
# *Next:* this is the last chapter. The {doc}`ledger <../book/ledger>` gathers what became of every statement, the {doc}`errata <../book/errata>` what has to be corrected in the paper.
