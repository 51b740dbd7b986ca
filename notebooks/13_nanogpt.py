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
# # nanoGPT
#
# *Assumed: a GPT in nanoGPT's shape, learned positions, biases on; {doc}`chapter 11 <11_gradient_flow_conserves>` for what is measured and
# {doc}`chapter 12 <12_rebalancing>` for {term}`rebalancing`.*
#
# *In the ledger:* {ref}`the four cases <ledger-four-cases>`, {ref}`Figure 2 <ledger-fig-2>`, {ref}`Figure 3 <ledger-fig-3>`,
# {ref}`Figure 4 <ledger-fig-4>`, {ref}`the control <ledger-control>`, {ref}`single runs <ledger-single-runs>`.
#
# ## The question
#
# {term}`Gradient flow <gradient flow>` conserves $W_Q W_Q^\top - W_K W_K^\top$. Training is not gradient flow: its steps are finite, its
# batches are random, its weights decay and are rounded, and AdamW does not even follow the gradient. How much of the law is left in a real
# run? The paper answers with one run each of four cases, and reads the answer off the figures. We run the same cases ten times each, from
# ten seeds, and turn each sentence into a statement that the seeds can contradict.

# %% [markdown]
# ## The claim
#
# All runs of one seed start from the same weights and see the same batches, so that cases are compared in pairs. The text and the windows that a
# loss is evaluated on are the same for all: an interval here speaks of other seeds, not of other texts.
#
# | Case | Optimizer | Rate | Decay | Every 200 steps |
# |---|---|---|---|---|
# | `sgd` | SGD, no momentum | 0.25 | none | |
# | `sgd-decay` | SGD, no momentum | 0.25 | 4e-4 | |
# | `adamw` | AdamW | 1e-3 | 0.1 | |
# | `rebalanced` | AdamW | 1e-3 | 0.1 | weights and biases rebalanced, moments cleared |
# | `cleared` | AdamW | 1e-3 | 0.1 | moments cleared, weights left |
# | `moved` | AdamW | 1e-3 | 0.1 | weights and biases rebalanced, moments kept |
#
# The first four are the paper's; the fifth is a control that it mentions, the sixth completes the square.
#
# With $P_Q = W_Q W_Q^\top$ and $P_K = W_K W_K^\top$ of a head, {term}`rho`, $\rho$, is the share of a step that lies in the null space; {term}`beta` is
# $\beta = \lVert P_Q - P_K \rVert_F$, {term}`tau` is $\tau = \operatorname{tr}(P_Q - P_K)$, and {term}`mu`, $\mu$, is the sum of their least eigenvalues. A *joint* metric is that of the weights with their
# biases as one more column. All are taken for every head at every tenth step, the 100 steps of warm-up left out unless we say otherwise.
#
# The paper's sentences, in our words:
#
# ```{prf:conjecture} What training does to the unidentified directions (paper: section 5.3)
# :label: conj-training
#
# 1. SGD keeps $\beta$, and its $\rho$ stays far below $1/(2H)$.
# 2. Decay shrinks $\beta$ slowly.
# 3. AdamW does not keep $\beta$; its $\rho$ comes closest to $1/(2H)$, and goes above it for some heads.
# 4. Under AdamW $\tau$ spreads to both signs, most in the first layer.
# 5. $\mu$ never reaches 0.
# 6. Rebalancing makes $\beta$ a sawtooth, keeps $\tau$ near 0 and leaves the loss as it was; clearing the moments alone does neither.
# 7. The gradient of the key biases is zero to rounding, that of the query biases is not.
# 8. The {term}`drift` of SGD falls with the square of the rate, and spikes of $\rho$ at small steps are an artefact of rounding.
# ```
#
# These are sentences about experiments: no proof is to be had, only tests. Where a proof says what must happen, in 1, 2, 7 and 8, it is in
# {prf:ref}`lem-conserved`, {prf:ref}`lem-decay`, {prf:ref}`lem-key-bias` and {prf:ref}`lem-one-step`, and the runs test whether its hypotheses are met.
#
# ## The same symbols in code
#
# A run is a preset (how large), a case (what is done) and a seed. The preset `laptop` is what two cores can repeat many times: 4 layers, 4 heads,
# $E = 128$ and so $D = 32$, contexts of 64 characters of Shakespeare, 12 to a batch, 2,000 steps. There is no dropout, where the paper has 0.2. Its
# records lie beside this notebook.

# %%
import tempfile
from pathlib import Path

import numpy as np
import torch

from attnid import figures
from attnid.claims import check
from attnid.training.experiments import PAPER_CASES, PRESETS, RATES, Job, run
from attnid.training.records import read_records, stack_seeds
from attnid.training.trainer import TrainingConfig, learning_rate_at
from attnid.training.statistics import equivalence, power_law, sign_flip_p, t_interval

records = read_records(Path("results") / "laptop")  # {run: {seed: Record}}
laptop, H = PRESETS["laptop"], PRESETS["laptop"].model["n_head"]
SHARE = 1 / (2 * H)

# %%
everything = [record for seeds in records.values() for record in seeds.values()]
for key in ("data", "data_sha256", "torch", "device"):
    print(f"{key}: {', '.join(sorted({r.provenance[key] for r in everything}))}")
dropouts = {record.settings["model"]["dropout"] for record in everything}
assert dropouts == {0.0} and PRESETS["paper"].model["dropout"] == 0.2
(WARMUP,) = {record.settings["training"]["warmup"] for record in everything}

# %% [markdown]
# The seeds of a run make one table with named axes: seed, step, layer and head for each metric. A metric of a run is then
# `runs["sgd"].beta`, its mean over heads `runs["sgd"].beta.mean("head")`, and a difference of two runs pairs them by seed.

# %%
runs = {name: stack_seeds(seeds) for name, seeds in records.items()}
last = lambda metrics: metrics.validation_loss.isel(validation_step=-1)
final = {name: last(metrics) for name, metrics in runs.items()}  # each (seed,)
six_cases = [runs[name] for name in PAPER_CASES]
EACH = ("step", "layer", "head")
late = lambda metric: metric.sel(step=slice(WARMUP, None))  # after the warm-up

# %%
interval = lambda values, level=0.95: t_interval(values, level)  # values (seed,)
ends = lambda values, level=0.95: interval(values, level)[1:3]
for name, metrics in runs.items():
    print(f"{name:24}{metrics.seed.size:3} seeds")
FOUR = ("sgd", "sgd-decay", "adamw", "rebalanced")
paper_cases = {PAPER_CASES[case].title: records[case] for case in FOUR}
check(
    "four-cases",
    seeds=[runs[case].seed.size for case in FOUR],
    texts=len({record.provenance["data_sha256"] for record in everything}),
)
for case in ("sgd", "sgd-decay"):
    print(f"final loss, adamw - {case}: {interval(final['adamw'] - final[case])}")
check(
    "four-cases",
    adamw_minus_sgd=ends(final["adamw"] - final["sgd"]),
    adamw_minus_decay=ends(final["adamw"] - final["sgd-decay"]),
)

# %% [markdown]
# Can the numbers be had again? The AdamW run of seed 0, repeated on another machine, gave every validation loss to the last digit kept; of
# its 2,000 training losses 41 were off by one in the last. What is nothing but rounding, the gradient of the key biases, came out otherwise altogether.
#
# The first four of the six cases in one picture, {numref}`fig-four-cases`, as the paper draws them.

# %% mystnb={"image": {"alt": "A grid of small plots, a row for each of four cases. SGD keeps beta and tau near where they start and rho near 1e-5; AdamW lets beta and tau of every layer wander, rho near 0.03; rebalancing makes beta fall to zero every 200 steps and keeps tau near zero. The losses of AdamW with and without rebalancing look alike."}, "figure": {"caption": "The paper's Figure 2 from our records: every head of every seed (thin), and the median of each layer (thick). Dashed: $1/(2H)$. Only the first four of the six cases are shown.", "name": "fig-four-cases"}}
figures.four_cases(paper_cases, SHARE)

# %% [markdown]
# ## The check
#
# The unit is the seed: what a run says is first boiled down to one number, then the numbers of the seeds are compared. An interval is Student's
# at 95 %, a comparison is paired by seed, and a $p$ is that of all sign flips of the differences.
#
# ### 1. SGD keeps what the biases let it keep
#
# The law of a head *with biases* is about $[W \; b]$, and the paper measures $W$ alone ({prf:ref}`prop-conserved-bias`). So we measure both.

# %%
for name in ("rho", "joint_rho"):
    metric = late(runs["sgd"][name])
    print(f"{name:9}: mean {interval(metric.mean(EACH))}; largest {metric.max():.1e}")
largest = late(runs["sgd"].joint_rho).max().item()
check("fig-2", sgd_joint_rho_over_share=largest / SHARE)
assert late(runs["sgd"].rho).max() < 0.02 * SHARE

# %%
start = lambda metric: metric.isel(step=0)
end = lambda metric: metric.isel(step=-1)
change = lambda metric: abs(end(metric) / start(metric) - 1)  # (seed, layer, head)
mean_change = lambda metric: change(metric).mean(("layer", "head"))  # (seed,)
for case in ("sgd", "sgd-decay", "adamw"):
    for name in ("beta", "joint_beta"):
        changed = interval(mean_change(runs[case][name]))
        print(f"{case:9} {name:10} changes by {changed}")
check(
    "fig-2",
    sgd_joint_beta=ends(mean_change(runs["sgd"].joint_beta)),
    adamw_joint_beta=ends(mean_change(runs["adamw"].joint_beta)),
)

# %% [markdown]
# SGD's steps lie off the null space to rounding once the biases are counted in, and in the mean to two parts in a hundred thousand when they are not. Changes are relative, from the first step to the last. A mean
# over all heads hides where $\beta$ moves, so here it is layer by layer:

# %%
first_layer = lambda metric: metric.isel(layer=0)
other_layers = lambda metric: metric.isel(layer=slice(1, None))
for name, first, worst in (("beta", 0.084, 0.42), ("joint_beta", 0.048, 0.24)):
    changes = change(runs["sgd"][name])
    print(f"sgd {name}, the head that changes most: {changes.max():.2f}")
    by_layer = changes.mean("head")  # (seed, layer)
    for number, values in enumerate(by_layer.T, 1):
        print(f"  layer {number}: {interval(values)}")
    assert abs(changes.max() - worst) < 0.005
    assert abs(first_layer(by_layer).mean() - first) < 1e-3
    assert other_layers(by_layer).mean("seed").max() < 0.002

# %% [markdown]
# Beyond the first layer SGD keeps both within 0.2 % in the mean of each layer. In the first, the joint $\beta$ changes by 4.8 %, since
# finite steps drift, and $\beta$ by 8.4 %, since biases count as well; the head that changes most, one of that layer, changes its $\beta$ by 0.42 of what it was and its joint $\beta$ by 0.24. AdamW multiplies both.
#
# ### 2. Decay shrinks it by a factor known beforehand
#
# By {prf:ref}`lem-decay` the conserved matrix contracts by $\prod_t (1 - \eta_t \lambda)^2$. Biases do not decay, so the prediction is for what the weights carry.

# %%
settings = TrainingConfig(**laptop.training | PAPER_CASES["sgd-decay"].training)
steps = range(int(runs["sgd-decay"].step[-1]))
rates = np.array([learning_rate_at(step, settings) for step in steps])
factor = ((1 - rates * settings.weight_decay) ** 2).prod()
grown = lambda run: end(runs[run].beta) / start(runs[run].beta)
factors = grown("sgd-decay") / grown("sgd")  # (seed, layer, head), of one start
median = factors.median(("layer", "head"))
print(f"predicted factor {factor:.4f}; the median head's: {interval(median)}")
check("fig-2", decay_off_prediction=ends(median / factor - 1))
for number, values in enumerate(factors.transpose("layer", ...), 1):
    print(f"layer {number}: the heads' from {values.min():.4f} to {values.max():.4f}")
assert abs(other_layers(factors) - factor).max() < 0.002
assert abs(factors.min() - 0.802) < 1e-3 and abs(factors.max() - 0.873) < 1e-3
assert factors.max() == first_layer(factors).max()

# %% [markdown]
# The median head does what the schedule says, and so does every head beyond the first layer, to 0.002. Single heads of the first layer, where finite steps
# drift most and otherwise with decay than without, end as high as 0.873.

# %% [markdown]
# ### 3. AdamW and $1/(2H)$
#
# $1/(2H)$ is what an isotropic step would have on average ({prf:ref}`prop-rho`): the paper draws it as a boundary. After the warm-up AdamW comes to a quarter of it, and
# stays *below* it in the mean: its steps avoid the null space more than a random direction would.

# %%
mean_rho = {case: late(runs[case].rho).mean(EACH) for case in PAPER_CASES}  # (seed,)
for case, mean in mean_rho.items():
    largest = late(runs[case].rho).max()
    print(f"{case:10} mean rho {interval(mean)}; largest {largest:.3f}")
print(f"1/(2H) = {SHARE:.3f}")
check(
    "fig-2",
    adamw_rho_over_share=ends(mean_rho["adamw"] / SHARE),
    adamw_rho_over_decay=ends(mean_rho["adamw"] / mean_rho["sgd-decay"]),
)
assert ends(mean_rho["sgd-decay"])[0] > 10 * ends(mean_rho["sgd"])[1]

# %%
of_adamw = late(runs["adamw"].rho)
of_decay = runs["sgd-decay"].rho.sel(step=slice(0, WARMUP - 1))
above = [int((rho > SHARE).sum()) for rho in (of_adamw, of_decay)]
print(f"above 1/(2H): {above[0]} of {of_adamw.size:,} values under AdamW,")
print(f"{above[1]} of {of_decay.size:,} under SGD with decay, during its warm-up")
assert above == [3, 14] and of_adamw.max() < 1.5 * SHARE

# %% [markdown]
# Of 30,400 values under AdamW three lie above. In the first steps of the warm-up SGD with decay comes as high: its gradients are then so small that a step is
# mostly decay.
#
# ### 4 and 5. $\tau$ by layer, and $\mu$

# %%
spread = lambda tau: tau.max("head") - tau.min("head")
tau = end(runs["adamw"].tau)  # (seed, layer, head)
of_layer = spread(tau)  # (seed, layer)
for number, values in enumerate(of_layer.T, 1):
    print(f"layer {number}: spread of tau {interval(values)}")
first = first_layer(of_layer) - other_layers(of_layer).max("layer")
wider = (of_layer - spread(end(runs["sgd"].tau))).mean("layer")
for what, values in (("first layer - largest other", first), ("AdamW - SGD", wider)):
    print(f"{what}: {interval(values)}, p = {sign_flip_p(values):.3f}")
assert ends(first)[0] > 0 and ends(wider)[0] > 0.5

# %%
bound = abs(start(runs["adamw"].tau)).max()
beyond = lambda least: (tau > least).any("head") & (tau < -least).any("head")
for what, least in (("of both signs", 0), ("beyond the start's largest |tau|", bound)):
    print(f"seeds with heads {what}, by layer: {beyond(least).sum('seed').values}")
print(f"the start's largest |tau|: {bound:.2f}")
print(f"heads of positive tau at the end: {(tau > 0).sum().item()} of {tau.size}")
assert beyond(0).sum("seed").values.tolist() == [10, 10, 7, 10]
assert first_layer(beyond(bound)).all()

# %%
least = min(metrics.mu.min().item() for metrics in six_cases)
print(f"least mu of all heads, steps, seeds and cases: {least:.3f}")
check("fig-2", least_mu=least)
raised = end(runs["rebalanced"].mu - runs["adamw"].mu).mean(("layer", "head"))
print(f"mean mu at the end, rebalanced - AdamW: {interval(raised)}")
assert ends(raised)[0] > 0

# %% [markdown]
# ### 6. Rebalancing, and its controls
#
# "The loss is the same" can not be shown by a difference that is not significant: with one seed nothing is. It takes a margin that one would not mind, and an
# interval that lies within it, at a level that lets all three hold at once with 95 %. We take 0.02 nats per character, about one per cent of the loss; the margin was fixed when one seed had been seen.

# %%
ALL_THREE = 1 - 0.05 / 3
MOVES = ("rebalanced", "cleared", "moved")
cost = {case: final[case] - final["adamw"] for case in MOVES}
for case in MOVES:
    p = sign_flip_p(cost[case])
    print(f"{case:10} - adamw: {interval(cost[case])}; different: p = {p:.2f}")
check("fig-2", rebalanced_loss=ends(cost["rebalanced"], ALL_THREE))
shown = lambda difference: (difference.values, interval(difference, 0.9))
rows = {f"{case} - adamw": shown(cost[case]) for case in MOVES}
check(
    "control",
    cleared_loss=ends(cost["cleared"], ALL_THREE),
    moved_loss=ends(cost["moved"], ALL_THREE),
)
grown_beta = ends(mean_change(runs["cleared"].joint_beta))
check("control", cleared_joint_beta=grown_beta)

# %% mystnb={"image": {"alt": "Three rows of ten dots with an interval each, all well within a shaded band of plus or minus 0.02 nats around zero."}, "figure": {"caption": "Final validation loss against plain AdamW, paired by seed: dots are seeds, bars 90 % intervals, as a test of equivalence at 5 % uses them, the band the margin.", "name": "fig-equivalence"}}
figures.intervals(rows, 0.02, "difference of the validation loss, nats per character")

# %% [markdown]
# All three lie within the margin. Rebalancing may cost some thousandths of a nat. A single run can not say so: eight of the seeds find that
# rebalancing costs, and two that it gains. And a comparison in pairs is worth something: with the seeds of AdamW shifted by one, so that no run meets its
# own, the differences spread more than twice as far.

# %%
seeds = cost["rebalanced"].values
strangers = final["adamw"].roll(seed=1)  # each seed's loss at its neighbour's place
of_pairs = [cost[case].values.std(ddof=1) for case in MOVES]
of_strangers = [(final[case] - strangers).values.std(ddof=1) for case in MOVES]
check(
    "single-runs",
    spread_of_pairs=max(np.divide(of_pairs, of_strangers)),
    rebalancing_costs_or_gains=[(seeds > 0).sum(), (seeds < 0).sum()],
)

# %% [markdown]
# The four runs of a seed are a square, with or without clearing, with or without
# moving, so each half can be asked for its share:

# %%
half = lambda a, b, c, d: (final[a] - final[b] + final[c] - final[d]) / 2
clearing = half("rebalanced", "moved", "cleared", "adamw")
moving = half("rebalanced", "cleared", "moved", "adamw")
for what, values in (
    ("clearing", clearing),
    ("moving", moving),
    ("clearing - moving", clearing - moving),
):
    print(f"{what:17}: {interval(values)}, p = {sign_flip_p(values):.2f}")

# %% [markdown]
# Whether clearing or moving does it, ten seeds do not tell.
#
# And the sawtooth: after each rebalancing $\beta$ is zero to the rounding of the weights, before the next it has grown; clearing the moments alone does
# nothing of the kind. (The joint $\beta$, of weights with biases, is not made zero: chapter 12.)

# %%
teeth = np.arange(200, 2000, 200)
after = lambda metric: metric.sel(step=teeth)
before = lambda metric: metric.sel(step=teeth - 10)
toothed = [runs["rebalanced"].beta, runs["moved"].beta]
check(
    "fig-2",
    beta_after=max(after(beta).max().item() for beta in toothed),
    beta_before=min(before(beta).median(EACH).min().item() for beta in toothed),
)
cleared = runs["cleared"].beta
assert (cleared / cleared.shift(step=1)).min() > 0.5  # no teeth
for case in ("sgd", "adamw", "cleared", "rebalanced", "moved"):
    size = abs(before(runs[case].tau)).mean(EACH)
    print(f"{case:10} mean |tau| before the moves {interval(size)}")
smaller = abs(before(runs["adamw"].tau)) - abs(before(runs["rebalanced"].tau))
assert ends(smaller.mean(EACH))[0] > 0
same = end(cleared - runs["adamw"].beta).mean(("layer", "head"))
print(f"beta at the end, cleared - adamw: {interval(same)}")

# %% [markdown]
# ### 7. Bias gradients

# %% mystnb={"image": {"alt": "Four panels with three bands each over training: gradient norms of key weights near 1e-2, of query biases near 1e-3, of key biases near 1e-10 for SGD and 1e-9 for AdamW."}, "figure": {"caption": "The paper's Figure 3 from our records: gradient norms of a head's query and key biases, and of its key weights for scale. Lines are the medians of each seed, bands go from the least to the largest head.", "name": "fig-bias-gradients-in-training"}}
figures.bias_gradients_in_training(paper_cases)

# %%
key = lambda metrics: (metrics.gradient_b_K / metrics.gradient_W_K).max().item()
of_query = lambda metrics: (metrics.gradient_b_Q / metrics.gradient_W_Q).median(EACH)
query = lambda metrics: of_query(metrics).min().item()  # the least of the seeds'
check(
    "fig-3",
    key_float32=max(map(key, six_cases)),
    key_float64=key(runs["sgd-float64"]),
    query=min(map(query, six_cases)),
)

# %% [markdown]
# The key biases' gradients are about a millionth of those of the weights beside them at most, and in the median far less: what single precision leaves of a zero. In double
# precision less is left. (All norms are those of the clipped gradient, which the step follows.)
#
# ### 8. Drift and the rate
#
# {prf:ref}`lem-one-step` says what one step of plain SGD adds to the conserved matrix of $[W \; b]$, from the gradients alone:
# $\eta^2 \lVert g_Q g_Q^\top - g_K g_K^\top \rVert_F$. The recorder writes both sides down. Their agreement needs exact arithmetic, so we look at twins in double precision:
# two seeds of the same runs, from the same weights and batches.

# %%
SIX = range(6)  # seeds, at each rate
swept = {rate: "sgd" if rate == 0.25 else f"sgd-rate-{rate:g}" for rate in RATES}
sweep = {rate: {seed: records[swept[rate]][seed] for seed in SIX} for rate in RATES}

# %% mystnb={"image": {"alt": "Four panels with the four learning rates as colours: the loss falls more slowly at lower rates; rho of the weights alone lies between 1e-5 and 1e-7, higher for higher rates, rho with biases falls to between 1e-8 and 1e-11 and rises again as the rate decays; the drift is lower for lower rates."}, "figure": {"caption": "The paper's Figure 4 from our records: SGD at four rates, single precision, the median over heads for every seed. Dashed: $1/(2H)$. The floor of the drift at 8e-9 is rounding.", "name": "fig-rates"}}
figures.rate_sweep(sweep, SHARE)

# %%
single = {rate: runs[swept[rate]].sel(seed=SIX) for rate in RATES}
double = {rate: runs[f"{swept[rate]}-float64"] for rate in RATES}
off = lambda metrics: abs(metrics.joint_drift / metrics.drift_predicted - 1).max()
check("fig-4", drift_off_prediction=max(off(double[rate]).item() for rate in RATES))

# %% [markdown]
# The records keep four digits, and to these each step obeys the law: from given weights, the drift is exactly quadratic in the rate. Does the drift of a *run* "fall as the square"? A run at
# another rate visits other weights, whose gradients are others. Gradient flow, clipped as these gradients are, would be at one point at one time $t = \sum \eta$,
# whatever the rate. So we compare neighbouring rates at the same steps and at the same times.


# %%
def clock(rate):
    """The rate at each measured step, and the time before it, the sum of eta."""
    settings = TrainingConfig(**sweep[rate][0].settings["training"])
    eta = np.array([learning_rate_at(step, settings) for step in range(settings.steps)])
    time = np.concatenate(([0.0], np.cumsum(eta)))
    measured = single[rate].step.values
    return eta[measured], time[measured]


def power(pair, begin, stop):
    """The power of the rate in the mean drift between two times, by seed."""
    drift, size = [], []
    for rate in pair:
        eta, time = clock(rate)
        within = (single[rate].step.values >= WARMUP) & (time >= begin) & (time < stop)
        drift.append(single[rate].joint_drift.isel(step=within).mean(EACH))
        size.append((eta[within] ** 2).mean() ** 0.5)
    return np.log(drift[0] / drift[1]) / np.log(size[0] / size[1])


# %%
windows = {
    "same steps": (0, np.inf),
    "times 30 to 55": (30, 55),
    "times 40 to 68": (40, 68),
}
pairs, grows = list(zip(RATES, RATES[1:])), []
for label, window in windows.items():
    powers = [power(pair, *window) for pair in pairs]
    for (high, low), values in zip(pairs, powers):
        print(f"{label}, rates {high:<5} to {low:<6}: power {interval(values)}")
    grows.append(ends(powers[-1] - powers[0]))
check("fig-4", seeds=[single[rate].seed.size for rate in RATES], power_grows=grows)

# %% [markdown]
# No single power describes four rates. At the same steps the slope between neighbours grows from 2 to nearly 4 towards lower rates. At the same
# times it is below 1 between the higher rates and near 2 between the two lowest, and depends on the window: at most there do the runs begin to follow
# one flow. The square belongs to a step; to a run only where the rate is small enough.

# %% [markdown]
# ### Rounding, or something real?
#
# The paper puts the rise of $\rho$ at small steps down to ill-posedness. The twins tell. In float64 $\rho$ of the weights *with* their biases is zero to
# rounding throughout, so its rise late in a float32 run is rounding. $\rho$ of the weights *alone*, which is what the paper shows, is the same in both
# precisions late in the run at the rate of the cases: there it is real, and it is the biases. In the first steps of the warm-up, and at the lowest rate of
# {numref}`fig-rates`, steps are so short that rounding shows in it, as the paper says.

# %% mystnb={"image": {"alt": "Rho over training on a logarithmic axis. With weights alone the float32 and the float64 run lie on one another near 1e-5. With biases the float32 run rises to 1e-9 while the float64 run stays near 1e-28."}, "figure": {"caption": "Seed 0 of SGD at rate 0.25 in single and in double precision: $\\rho$ from the weights alone and from the weights with their biases, medians over heads.", "name": "fig-twins"}}
figures.twins(records["sgd"][0], records["sgd-float64"][0])

# %%
tail = lambda metric, n: metric.isel(step=slice(-n, None)).median(EACH)  # (seed,)
twins = {"float32": single[0.25].sel(seed=double[0.25].seed), "float64": double[0.25]}
ending = lambda name: {kind: tail(twins[kind][name], 50) for kind in twins}
rho, joint_rho = ending("rho"), ending("joint_rho")
for name, values in (("rho", rho), ("joint_rho", joint_rho)):
    means = ", ".join(f"{kind} {seeds.mean():.0e}" for kind, seeds in values.items())
    print(f"late {name}: {means}")
check("fig-4", rho_float64=rho["float64"].values)
check("fig-4", joint_rho_float64=joint_rho["float64"].values)

# %%
late_rho = lambda rates: {rate: tail(rates[rate].rho, 30) for rate in RATES}
of_single, of_double = late_rho(single), late_rho(double)
excess = {rate: of_single[rate] / of_double[rate] for rate in RATES}
for rate, ratios in excess.items():
    shown = ", ".join(f"{ratio:.1f}" for ratio in ratios.values)
    print(f"rate {rate:<6}: late rho of the weights, float32 over float64: {shown}")
check(
    "fig-4",
    excess_at_a_quarter=excess[0.25].values,
    excess_at_a_sixteenth=excess[0.0625].values,
)

# %% [markdown]
# ## Break it
#
# SGD conserves because its step is the gradient. Give it *momentum* in the shape of AdamW's memory and elementwise scale, and the law goes
# (chapter 11). Here we break the experiment instead of the law: the preset `smoke` is a run of a few seconds, from a text that the package carries in itself,
# so that it works anywhere. It is far too short to train, and yet SGD and AdamW are told apart.

# %%
with tempfile.TemporaryDirectory() as folder:
    train = lambda case: run(Job("smoke", case), folder).dataset()
    live = {case: train(case) for case in ("sgd", "adamw", "rebalanced")}
largest = {
    case: change(metrics.joint_beta).max().item() for case, metrics in live.items()
}
for case, value in largest.items():
    print(f"{case:10} joint beta of a head changes by more than 1 %: {value > 0.01}")
assert [value > 0.01 for value in largest.values()] == [False, True, True]

# %% [markdown]
# ## On a GPU: the paper's own size
#
# The preset `paper` is the paper's: 6 layers, 6 heads, $E = 384$, contexts of 256, 64 to a batch, dropout 0.2, 5,000 steps. *Our records at this size are
# still to come*: they need a GPU, and no number stands in their place. The cell below trains the four cases on a GPU where there is one, and says so where there is none. A T4 on
# Colab has no bfloat16 of its own, so it runs in float16 with a scaled loss. By arithmetic a step takes about $1.2 \cdot 10^{12}$ operations; at a quarter of
# what a T4 can do in float16 that is some 80 ms, or seven minutes a case, and the memory about 4 GB. These are estimates, not measurements. A run that is
# cut off goes on from its last checkpoint, at most 200 steps back, when the cell is run again; on Colab let `folder` be on a mounted drive, so that a
# disconnect does not lose it.

# %%
folder = Path("results")
if torch.cuda.is_available():
    train = lambda case: {0: run(Job("paper", case), folder, device="cuda")}
    own = {PAPER_CASES[case].title: train(case) for case in FOUR}
else:
    print("no GPU here: nothing is trained")

# %% [markdown]
# The same figures from the reader's own run, once the cell above has finished:

# %%
if torch.cuda.is_available():
    display(figures.four_cases(own, 1 / 12), figures.bias_gradients_in_training(own))

# %% [markdown]
# On the command line the same is `python -m attnid train --preset paper --case adamw --device cuda`, and the whole plan, most important first,
# `python -m attnid sweep --preset paper --cases sgd sgd-decay adamw rebalanced cleared moved --seeds 5 --workers 3 --device cuda`.

# %% [markdown]
# ## What it means
#
# | | The paper's sentence | What the seeds say |
# |---|---|---|
# | 1 | SGD keeps $\beta$, $\rho$ far below $1/(2H)$ | $\rho$: yes; $\beta$: within 0.2 % beyond the first layer, there 4.8 % for $[W \; b]$ and 8.4 % for $W$ |
# | 2 | decay shrinks $\beta$ slowly | Yes; the median head by the factor that the schedule predicts, single heads of the first layer by less |
# | 3 | AdamW's $\rho$ comes closest to $1/(2H)$, sometimes far above | Closest after the warm-up, at a quarter of it; above it three times in 30,400 |
# | 4 | $\tau$ spreads to both signs, most in the first layer | In the first layer of every seed, beyond what it was at the start; both signs in 37 of 40 layers; the first layer's spread is the largest |
# | 5 | $\mu$ never reaches 0 | Yes; rebalancing even raises it |
# | 6 | rebalancing makes $\beta$ a sawtooth and leaves the loss; the control is like AdamW | Yes, the loss within 0.02 nats; $\tau$ comes much nearer to SGD's |
# | 7 | key-bias gradients are zero to rounding | Yes, and in float64 to its own rounding |
# | 8 | drift falls as the rate squared; spikes of $\rho$ are an artefact | A step's drift does, a run's by no one power; $\rho$: at rate 0.25 biases, at 0.0625 mostly rounding |
#
# ```{prf:remark} Departure from the paper
# :label: rem-13-biases
#
# The paper reads late spikes of $\rho$ as a computational artefact of small steps. In our runs two effects are mixed there. At the lowest rate most of it
# is rounding, as the paper says. At the rate of the cases rounding stands at $10^{-9}$; what one sees above it in $\rho$ of the weights alone is the gradient of
# the query biases, which the law includes and the metric leaves out. Measuring $[W \; b]$ separates the two.
# ```
#
# What these runs do *not* say is whether any of this matters for the quality of a model: rebalancing leaves the loss within 0.02 nats at this size and
# rate, and it changes no function. The paper's motivating idea, that more identified parameters make better models, needs another experiment.
#
# ## Exercises
#
# **1.** The envelope of the sawtooth decays along with the learning rate. Is the growth of $\beta$ between two rebalancings proportional to the rate?
#
# ```{admonition} Answer
# :class: dropdown
#
# Nearly. The growth goes as the mean rate of the interval to a power just above one: about 1.06, and the interval over ten seeds lies between 1 and 1.1.
# ```

# %% tags=["hide-cell"]
settings = TrainingConfig(**laptop.training | PAPER_CASES["rebalanced"].training)
peaks = teeth[1:] - 10  # just before each rebalancing, the first interval left out
mean_rate = lambda at: np.mean(
    [learning_rate_at(step, settings) for step in range(at - 190, at)]
)
rate = [mean_rate(at) for at in peaks]
growth = runs["rebalanced"].beta.sel(step=peaks).mean(("layer", "head"))  # (seed, step)
power_of_rate = t_interval([power_law(rate, values) for values in growth.values])
print(f"growth of beta goes as the mean rate to the power {power_of_rate}")
assert 1 < power_of_rate.low and power_of_rate.high < 1.1  # nearly: slightly steeper

# %% [markdown]
# **2.** With $n$ seeds the smallest $p$ of a sign-flip test is $2/2^n$. How many seeds does a claim at $p < 0.01$ need, if all differences have one sign?
#
# ```{admonition} Answer
# :class: dropdown
#
# Eight: $2/2^8 = 0.0078$ is the first that is below 0.01, and $2/2^7 = 0.0156$ is not.
# ```

# %% tags=["hide-cell"]
least = next(n for n in range(2, 20) if 2 / 2**n < 0.01)
enough, few = (sign_flip_p(np.arange(1.0, n + 1)) for n in (least, least - 1))
assert enough == 2 / 2**least < 0.01 < few
print(f"{least} seeds")

# %% [markdown]
# **3.** A margin of equivalence is a choice. What is the smallest one that the ten seeds of `rebalanced` would have supported at 5 %?
#
# ```{admonition} Answer
# :class: dropdown
#
# The further end of the interval of the mean difference, 0.0052 nats per character: a quarter of the margin of 0.02, which was fixed when one seed had been seen.
# ```

# %% tags=["hide-cell"]
within = ends(cost["rebalanced"], 0.9)
smallest = max(abs(within[0]), abs(within[1]))
p = lambda margin: equivalence(cost["rebalanced"], margin).p
assert p(1.001 * smallest) < 0.05 < p(0.999 * smallest)
print(f"{smallest:.4f} nats per character")

# %% [markdown]
# *Next:* Part III leaves the single layer and the paper: a whole network, real architectures, real checkpoints.
