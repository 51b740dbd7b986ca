"""Contrasts of two arms of a study: paired by seed, judged on the same windows, corrected for how
many are asked.
"""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.multivariate import test_mvmean as hotelling

from ..checks import require
from .statistics import Equivalence, Interval, equivalence, paired, sign_flip_p


def crossed_interval(differences, level=0.95):
    """Student's t interval for the mean of differences (seeds, windows), where both are samples:
    what varies with the seed, with the window and with neither has a part of its own in the error.

    With mean squares of a two-way layout, the mean's variance is
    (MS_seeds + MS_windows - MS_rest) / (seeds windows), its degrees of freedom Satterthwaite's.
    Returns an Interval whose n counts seeds. ValueError for less than two seeds or windows, or what
    is not finite. Source: Satterthwaite (1946).

    >>> rng = np.random.default_rng(0)
    >>> found = crossed_interval(0.1 + 0.02 * rng.standard_normal((20, 50)))
    >>> found.low < 0.1 < found.high, found.n
    (True, 20)
    """
    d = _table("differences", differences)
    S, W = d.shape
    mean, by_seed, by_window = d.mean(), d.mean(1), d.mean(0)
    rest = d - by_seed[:, None] - by_window + mean
    squares = np.array([W * by_seed.var(ddof=1), S * by_window.var(ddof=1), 0.0])
    squares[2] = (rest**2).sum() / ((S - 1) * (W - 1))
    freedom = np.array([S - 1, W - 1, (S - 1) * (W - 1)])
    # never below what the seeds alone leave, where windows seem to vary less than by chance
    signed = squares * (1, 1, -1) if squares[1] > squares[2] else squares * (1, 0, 0)
    variance = signed.sum()
    if variance == 0:
        return Interval(float(mean), float(mean), float(mean), S)
    t = stats.t.ppf((1 + level) / 2, variance**2 / (signed**2 / freedom).sum())
    half = float(t * math.sqrt(variance / (S * W)))
    return Interval(float(mean), float(mean) - half, float(mean) + half, S)


def crossed_bootstrap(differences, level=0.95, *, resamples=4999, seed=0):
    """The same interval from resampling rows and columns of differences (seeds, windows), each on
    its own, with replacement: a percentile interval, a little narrow for few seeds.

    ValueError as for crossed_interval. Source: Owen (2007), the pigeonhole bootstrap.

    >>> rng = np.random.default_rng(0)
    >>> found = crossed_bootstrap(0.1 + 0.02 * rng.standard_normal((20, 50)))
    >>> found.low < 0.1 < found.high
    True
    """
    d, rng = _table("differences", differences), np.random.default_rng(seed)
    S, W = d.shape
    drawn = lambda n: rng.multinomial(n, [1 / n] * n, size=resamples) / n  # how often each is drawn
    means = ((drawn(S) @ d) * drawn(W)).sum(1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(d.mean()), float(low), float(high), S)


def holm(p):
    """Holm's p of several tests (n,): as small as each may be called where none of them may be
    wrong. Source: Holm (1979), as in statsmodels.

    >>> holm([0.01, 0.04, 0.03]).round(2).tolist()
    [0.03, 0.06, 0.06]
    """
    p = np.asarray(p, dtype=float)
    good = p.ndim == 1 and len(p) > 0 and bool(((p >= 0) & (p <= 1)).all())
    require(good, "p", p.tolist(), "must be probabilities, one for each test")
    return multipletests(p, method="holm")[1]


def interaction_p(differences):
    """p of differences (seeds, rates) of two arms being the same at every rate, whatever they are:
    Hotelling's T^2 of their steps from rate to rate. Seeds are independent, rates of one need not
    be.

    ValueError unless there are more seeds than rates, and two rates. Source: Hotelling (1931), as
    in statsmodels.

    >>> rng = np.random.default_rng(0)
    >>> apart = rng.standard_normal((20, 3)) + [0.0, 0.0, 5.0]
    >>> interaction_p(apart) < 0.001
    True
    """
    d = _table("differences", differences)
    S, rates = d.shape
    require(S > rates, "differences", d.shape, "must have more seeds than rates")
    steps = np.diff(d, axis=1)
    if rates == 2:  # T^2 is the square of Student's t
        return float(stats.ttest_1samp(steps[:, 0], 0.0).pvalue)
    return float(hotelling(steps, np.zeros(rates - 1)).pvalue)


def least_detectable(spread, n, tests=1, alpha=0.05, power=0.8):
    """The least mean difference that n pairs whose differences vary by `spread` show with that
    power, at the level of the strictest of so many tests (Holm's first).

    >>> round(least_detectable(0.02, 20), 4)
    0.0132
    """
    t = stats.t(n - 1)
    return float((t.ppf(1 - alpha / tests / 2) + t.ppf(power)) * spread / math.sqrt(n))


class Contrast(NamedTuple):
    """One arm less another, in nats per token.

    estimate: its crossed interval. resampled: the same by bootstrap. p: of no difference, by the
    seeds' t. flipped: the same from flipping signs. none: the test that it lies within the margin,
    None without one. spread: of the differences over seeds, their standard deviation. n: seeds.
    """

    estimate: Interval
    resampled: Interval
    p: float
    flipped: float
    none: Equivalence | None
    spread: float
    n: int


def contrast(one, other, margin=None):
    """The Contrast of two arms, each {seed: Record} of the same seeds, judged on the same windows.

    margin: what is called none, in nats per token. ValueError where seeds differ, there are less
    than two, or a record has no losses of windows.
    """
    d = paired(_losses(one), _losses(other))
    by_seed = d.mean(1)
    return Contrast(
        crossed_interval(d),
        crossed_bootstrap(d),
        float(stats.ttest_1samp(by_seed, 0.0).pvalue),
        sign_flip_p(by_seed),
        None if margin is None else equivalence(by_seed, margin),
        float(by_seed.std(ddof=1)),
        len(d),
    )


def _losses(runs):
    for seed, record in runs.items():
        require(len(record.windows) > 1, f"windows of seed {seed}", len(record.windows), "too few")
    return {seed: record.windows for seed, record in runs.items()}


def _table(field, values) -> Float[np.ndarray, "rows columns"]:
    values = np.asarray(values, dtype=float)
    good = values.ndim == 2 and min(values.shape) >= 2
    require(good, field, values.shape, "must be a table of at least two rows and two columns")
    require(bool(np.isfinite(values).all()), field, values.tolist(), "every number must be finite")
    return values
