"""Statistics over seeds: the unit is the seed, comparisons are paired by seed, and n is part of
every answer.
"""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import stats

from ..checks import is_finite, require


class Interval(NamedTuple):
    """An estimate, the ends of its interval, and the number of seeds behind it."""

    estimate: float
    low: float
    high: float
    n: int

    def __str__(self):
        return f"{self.estimate:.4g} [{self.low:.4g}, {self.high:.4g}], n = {self.n}"


class Equivalence(NamedTuple):
    """Two one-sided tests: the mean difference, the larger of the two p, the interval that must lie
    within the margin, and n.
    """

    estimate: float
    p: float
    low: float
    high: float
    n: int


def t_interval(values, level=0.95):
    """Student's t interval for the mean of values (n,), one per seed. Returns an Interval.

    ValueError for fewer than two values, one that is not finite, or a level outside (0, 1). Normal
    errors are assumed; equal values give an interval of no width.

    >>> print(t_interval([1.0, 2.0, 3.0, 4.0]))
    2.5 [0.4457, 4.554], n = 4
    """
    values = _sample("values", values)
    _check_level(level)
    n, mean = len(values), float(values.mean())
    half = float(stats.t.ppf((1 + level) / 2, n - 1) * values.std(ddof=1) / math.sqrt(n))
    return Interval(mean, mean - half, mean + half, n)


def bca_interval(values, statistic=np.mean, level=0.95, *, resamples=9999, seed=0):
    """Efron's bias-corrected and accelerated bootstrap interval for statistic(values), values (n,).
    Returns an Interval.

    The resamples come from a generator of their own, seeded with `seed`. ValueError as for
    t_interval. Source: Efron (1987), as in scipy.stats.bootstrap.

    >>> found = bca_interval([1.0, 2.0, 3.0, 4.0, 9.0])
    >>> found.low < found.estimate < found.high
    True
    """
    values = _sample("values", values)
    _check_level(level)
    estimate = float(statistic(values))
    if np.ptp(values) == 0:
        return Interval(estimate, estimate, estimate, len(values))
    ends = stats.bootstrap(
        (values,),
        statistic,
        confidence_level=level,
        n_resamples=resamples,
        method="BCa",
        vectorized=False,
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return Interval(estimate, float(ends.low), float(ends.high), len(values))


def paired(one, other) -> Float[np.ndarray, "n *rest"]:
    """Differences one - other of two maps seed -> value (a number or an array), in the order of the
    seeds. ValueError where the seeds differ.

    >>> paired({0: 1.0, 1: 2.0}, {0: 0.5, 1: 2.5}).tolist()
    [0.5, -0.5]
    """
    for seed in sorted(set(one) ^ set(other)):
        why = "is in one sample only: a comparison is paired by seed"
        raise ValueError(f"seed={seed!r}: {why}")
    return np.array([one[seed] - other[seed] for seed in sorted(one)])


def sign_flip_p(differences, *, resamples=2**16, seed=0):
    """Two-sided p of differences (n,) that are as likely either way round, from flipping their
    signs; exact up to n = 16.

    No smaller p than 2 / 2^n is to be had. ValueError as for t_interval.

    >>> sign_flip_p([1.0, 2.0, 3.0])  # the smallest that three seeds can give
    0.25
    """
    differences = _sample("differences", differences)
    test = stats.permutation_test(
        (differences,),
        np.mean,
        permutation_type="samples",
        n_resamples=resamples,
        vectorized=True,
        rng=np.random.default_rng(seed),
    )
    return float(test.pvalue)


def equivalence(differences, margin, alpha=0.05):
    """Whether the mean of differences (n,) lies within +-margin: two one-sided t tests. Returns an
    Equivalence.

    Its p is below alpha exactly where the interval at level 1 - 2 alpha lies within the margin. A
    difference that is merely not significant would show nothing. ValueError as for t_interval, or
    for a margin that is not above 0. Source: Schuirmann (1987).

    >>> equivalence([0.001, -0.002, 0.003, 0.001], 0.02).p < 0.001
    True
    """
    differences = _sample("differences", differences)
    require(is_finite(margin) and margin > 0, "margin", margin, "must be above 0")
    interval = t_interval(differences, 1 - 2 * alpha)
    if np.ptp(differences) == 0:
        p = float(abs(interval.estimate) >= margin)
    else:
        p = max(
            stats.ttest_1samp(differences, -margin, alternative="greater").pvalue,
            stats.ttest_1samp(differences, margin, alternative="less").pvalue,
        )
    return Equivalence(interval.estimate, float(p), interval.low, interval.high, interval.n)


def power_law(x, y):
    """The exponent a of y = c x^a by least squares in logarithms; x, y (n,), above 0. ValueError
    otherwise.

    >>> round(power_law([1.0, 2.0, 4.0], [3.0, 12.0, 48.0]), 6)
    2.0
    """
    x, y = _sample("x", x), _sample("y", y)
    require(len(x) == len(y), "y", len(y), f"must have as many values as x, {len(x)}")
    for name, values in (("x", x), ("y", y)):
        require(bool((values > 0).all()), name, float(values.min()), "must be above 0")
    require(np.ptp(x) > 0, "x", float(x[0]), "must have two different values")
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def _sample(field, values) -> Float[np.ndarray, "n"]:
    values = np.asarray(values, dtype=float)
    why = "must be at least two numbers, one per seed"
    require(values.ndim == 1 and len(values) >= 2, field, values.tolist(), why)
    require(bool(np.isfinite(values).all()), field, values.tolist(), "every number must be finite")
    return values


def _check_level(level):
    require(is_finite(level) and 0 < level < 1, "level", level, "must be between 0 and 1")
