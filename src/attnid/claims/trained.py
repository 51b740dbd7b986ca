"""What the records of training runs say, for the ledger: each check returns the sentences that the records contradict, by their names.

The records of the presets `laptop` and `comparison` lie in a checkout's notebooks/results. Chapters 13 and 17 show the numbers and their
intervals.
"""

from functools import lru_cache
from pathlib import Path

import numpy as np

from ..training.experiments import PAPER_CASES, RATES
from ..training.records import read_records
from ..training.run import TrainingConfig, learning_rate_at
from ..training.statistics import equivalence, paired, power_law, t_interval

LAPTOP = Path(__file__).resolve().parents[3] / "notebooks" / "results" / "laptop"
COMPARISON = LAPTOP.with_name("comparison")
MARGIN = 0.02  # nats per character: a smaller difference of the final loss is none


@lru_cache
def laptop():
    """The records of the preset `laptop`, {run: {seed: Record}}."""
    return read_records(LAPTOP)


def contradicted(sentences):
    """Method -> the names of the sentences that do not hold: what a row of the ledger compares with nothing."""
    return {"records": [name for name, holds in sentences.items() if not holds]}


def per_seed(case, name, reduce):
    """{seed: reduce(values (measured steps after warm-up, layers, H))} of one metric of a case."""
    late = lambda record: record.heads[name][record.step >= record.settings["training"]["warmup"]]
    return {seed: float(reduce(late(record))) for seed, record in laptop()[case].items()}


def mean_of(case, name, reduce):
    """The t interval over seeds of what per_seed gives."""
    return t_interval(list(per_seed(case, name, reduce).values()))


def relative_change(heads):
    """How far a metric of the heads ends from where it began, relative to that, in the mean over heads."""
    return np.abs(heads[-1] / heads[0] - 1).mean()


def difference_to_adamw(case):
    """Final validation loss against plain AdamW, paired by seed, as an equivalence test within MARGIN."""
    final = lambda name: {seed: record.final_loss for seed, record in laptop()[name].items()}
    return equivalence(paired(final(case), final("adamw")), MARGIN)


def four_cases():
    """Section 5.2.1: ten seeds of each case, from the same data; AdamW makes the most progress."""
    final = lambda case: {seed: record.final_loss for seed, record in laptop()[case].items()}
    return contradicted(
        {
            "ten seeds each": all(len(laptop()[case]) >= 10 for case in PAPER_CASES),
            "one corpus": len(
                {r.provenance["data_sha256"] for seeds in laptop().values() for r in seeds.values()}
            )
            == 1,
            "adamw trains best": all(
                t_interval(paired(final("adamw"), final(case))).high < 0
                for case in ("sgd", "sgd-decay")
            ),
        }
    )


def figure_2():
    """Section 5.3 on Figure 2, for H = 4: what holds of it, with the biases counted in."""
    share, teeth = 1 / 8, np.arange(200, 2000, 200)
    rebalanced = laptop()["rebalanced"].values()
    return contradicted(
        {
            "sgd is off the null space": max(per_seed("sgd", "joint_rho", np.max).values())
            < 1e-6 * share,
            "sgd keeps beta": mean_of("sgd", "joint_beta", relative_change).high < 0.05,
            "adamw does not": mean_of("adamw", "joint_beta", relative_change).low > 1,
            "adamw is closest to the share": mean_of("adamw", "rho", np.mean).low
            > 10 * mean_of("sgd-decay", "rho", np.mean).high,
            "and below it": mean_of("adamw", "rho", np.mean).high < share,
            "decay shrinks beta as predicted": abs(shrinking().estimate - predicted_factor())
            < 0.01,
            "mu stays above 0": all(
                min(per_seed(case, "mu", np.min).values()) > 0.005 for case in PAPER_CASES
            ),
            "a sawtooth": all(
                r.heads["beta"][np.isin(r.step, teeth)].max()
                < 1e-6
                < 1e-3
                < r.heads["beta"][np.isin(r.step, teeth - 10)].mean()
                for r in rebalanced
            ),
            "rebalancing leaves the loss": difference_to_adamw("rebalanced").p < 0.01,
        }
    )


def predicted_factor():
    """What decoupled decay makes of the conserved matrix by the last measured step: the product of (1 - eta lambda)^2."""
    record = laptop()["sgd-decay"][0]
    settings = TrainingConfig(**record.settings["training"])
    return float(
        np.prod(
            [
                (1 - learning_rate_at(step, settings) * settings.weight_decay) ** 2
                for step in range(record.step[-1])
            ]
        )
    )


def shrinking():
    """The measured factor: beta's change under SGD with decay over that without, the median over heads, paired by seed."""
    ratio = lambda record: np.median(record.heads["beta"][-1] / record.heads["beta"][0])
    runs = laptop()
    return t_interval(
        [ratio(runs["sgd-decay"][seed]) / ratio(runs["sgd"][seed]) for seed in runs["sgd"]]
    )


def figure_3():
    """Key-bias gradients are zero to rounding, single or double; query-bias gradients are not."""
    largest = lambda run, over: max(
        float((r.heads["gradient_b_K"] / r.heads[over]).max()) for r in laptop()[run].values()
    )
    query = min(
        float(np.median(r.heads["gradient_b_Q"] / r.heads["gradient_W_Q"]))
        for case in PAPER_CASES
        for r in laptop()[case].values()
    )
    return contradicted(
        {
            "key biases, float32": all(
                largest(case, "gradient_W_K") < 1e-5 for case in PAPER_CASES
            ),
            "key biases, float64": largest("sgd-float64", "gradient_W_K") < 1e-13,
            "query biases": query > 1e-3,
        }
    )


def figure_4():
    """In float64 each step's drift is what the gradients predict, at all rates; at rate 0.25 late rho of the weights alone is there as well, and that of
    weights with biases is not. Between runs, at the same steps after warm-up, no one power of the rate gives the drift."""
    name = lambda rate: "sgd" + ("" if rate == 0.25 else f"-rate-{rate:g}")
    twin = lambda rate: laptop()[f"{name(rate)}-float64"].values()
    drift = lambda rate, seed: laptop()[name(rate)][seed].heads["joint_drift"][10:].mean()
    power = lambda *pair: t_interval(
        [power_law(pair, [drift(rate, seed) for rate in pair]) for seed in range(6)]
    )
    excess = lambda rate: np.median(
        [
            np.median(laptop()[name(rate)][seed].heads["rho"][-30:])
            / np.median(r.heads["rho"][-30:])
            for seed, r in laptop()[f"{name(rate)}-float64"].items()
        ]
    )
    agree = lambda r: (
        np.abs(r.heads["joint_drift"] / r.heads["drift_predicted"] - 1).max() < 1.1e-3
    )  # four digits are kept
    rise = lambda name: max(float(np.median(r.heads[name][-50:])) for r in twin(0.25))
    return contradicted(
        {
            "six seeds of each rate": all(len(laptop()[name(rate)]) >= 6 for rate in RATES),
            "no one power between runs": power(*RATES[2:]).low > power(*RATES[:2]).high + 1,
            "drift is the identity's": all(agree(r) for rate in RATES for r in twin(rate)),
            "rho of the weights is real": rise("rho") > 1e-6,
            "with biases it is rounding": rise("joint_rho") < 1e-20,
            "rounding shows at the lowest rate alone": excess(0.0625) > 2 > excess(0.25),
        }
    )


def control():
    """Clearing the moments alone is plain AdamW in its loss, and conserves nothing; moving the weights alone does what rebalancing does."""
    return contradicted(
        {
            "loss, cleared": difference_to_adamw("cleared").p < 0.01,
            "loss, moved": difference_to_adamw("moved").p < 0.01,
            "beta grows, cleared": mean_of("cleared", "joint_beta", relative_change).low > 1,
        }
    )


@lru_cache
def compared():
    """Final losses of the preset `comparison`, {run: {seed: loss}}."""
    return {
        run: {seed: record.final_loss for seed, record in seeds.items()}
        for run, seeds in read_records(COMPARISON).items()
    }


def loss_per_doubling():
    """The slope of the final loss in log2 H, by least squares over 1 to 32 heads, one for each seed."""
    heads = {1: "heads-1", 2: "heads-2", 4: "adamw", 8: "heads-8", 16: "heads-16", 32: "heads-32"}
    return [
        np.polyfit(np.log2(list(heads)), [compared()[run][seed] for run in heads.values()], 1)[0]
        for seed in compared()["heads-1"]
    ]


def against_plain(run, rate=""):
    """Final loss of a run minus that of plain AdamW, both at the recipe's rate or at `rate` ("-rate-0.002"), (seeds,)."""
    losses, plain = compared()[run + rate], compared()["adamw" + rate]
    return paired(losses, {seed: plain[seed] for seed in losses})


def interaction(run, rate="-rate-0.002"):
    """How a run's difference to plain AdamW changes from the recipe's rate to another, (seeds of the other rate,)."""
    seeds = compared()[run + rate]
    at = lambda name: {seed: compared()[name][seed] for seed in seeds}
    return against_plain(run, rate) - paired(at(run), at("adamw"))


def gain(run, rate="-rate-0.002"):
    """Final loss of a run at another rate minus that at the recipe's, (seeds of the other rate,)."""
    losses = compared()[run + rate]
    return paired(losses, {seed: compared()[run][seed] for seed in losses})


def hypothesis():
    """Sections 1 and 6: what a pilot at one size and by one recipe says of idle numbers and the final loss, paired by seed.

    Only tests that need precise data: a difference is said to be there by an interval clear of 0, to be none by equivalence.
    """
    same = lambda differences: equivalence(differences, MARGIN).p < 0.01
    arms = ("adamw", "canonical", "spent", "factored")
    identified_added = paired(compared()["spent"], compared()["canonical"])
    return contradicted(
        {
            "ten seeds each": all(len(compared()[run]) >= 10 for run in arms),
            "idle numbers held: within the margin": same(against_plain("canonical")),
            "as many spent elsewhere: within the margin": same(against_plain("spent")),
            "more idle numbers: lower": t_interval(against_plain("factored")).high < 0,
            "and within the margin": same(against_plain("factored")),
            "identified numbers added: within the margin": same(identified_added),
            "more heads: higher by this recipe": t_interval(loss_per_doubling()).low > 0,
            "the rate is not tuned": t_interval(gain("adamw")).high < -MARGIN,
            "what the rate changes of it is below 0.05": equivalence(
                interaction("factored"), 0.05
            ).p
            < 0.05,
            "16 heads against 4 at twice the rate: higher": t_interval(
                against_plain("heads-16", "-rate-0.002")
            ).low
            > 0,
        }
    )
