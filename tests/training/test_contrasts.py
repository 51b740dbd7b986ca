"""Each test of a study has its size, and each interval covers, by simulation."""

import numpy as np
import pytest
from scipy import stats

from attnid.training.contrasts import (
    contrast,
    crossed_bootstrap,
    crossed_interval,
    holm,
    interaction_p,
    least_detectable,
)
from attnid.training.statistics import equivalence

DRAWS = 1000


def crossed(rng, seeds=20, windows=60, by_seed=1.0, by_window=1.0, rest=1.0):
    """A table with a part of each seed, of each window and of both, mean 0."""
    rows, columns = rng.standard_normal((seeds, 1)), rng.standard_normal(windows)
    return by_seed * rows + by_window * columns + rest * rng.standard_normal((seeds, windows))


def covered(interval, draws=DRAWS, **parts):
    rng = np.random.default_rng(0)
    found = (interval(crossed(rng, **parts)) for _ in range(draws))
    return np.mean([low <= 0 <= high for _, low, high, _ in found])


@pytest.mark.parametrize(
    "parts",
    [{}, {"by_window": 0.0}, {"by_seed": 0.1, "by_window": 2.0}, {"by_seed": 0.0, "rest": 3.0}],
)
def test_crossed_interval_covers(parts):
    assert 0.93 <= covered(crossed_interval, **parts) <= 0.985


def test_seeds_alone_do_not_cover_where_windows_vary():
    seeds_alone = lambda d: stats.ttest_1samp(d.mean(1), 0).confidence_interval()
    inside = lambda d: (0, *seeds_alone(d), 0)
    assert covered(inside, by_seed=0.1, by_window=2.0) < 0.6


def test_bootstrap_covers_a_little_less():
    found = covered(lambda d: crossed_bootstrap(d, resamples=499), 400)
    assert 0.90 <= found <= 0.97


def test_crossed_interval_is_the_seeds_t_where_windows_do_not_vary():
    rng = np.random.default_rng(1)
    rows = rng.standard_normal(8)
    table = np.repeat(rows[:, None], 5, 1)
    ends = stats.ttest_1samp(rows, 0).confidence_interval(0.95)
    assert crossed_interval(table)[1:3] == pytest.approx(ends)
    assert crossed_interval(np.ones((3, 4))) == (1.0, 1.0, 1.0, 3)


def test_bootstrap_has_its_own_generator():
    table = crossed(np.random.default_rng(2))
    assert crossed_bootstrap(table) == crossed_bootstrap(table) != crossed_bootstrap(table, seed=1)


def test_holm_is_never_wrong_too_often(monkeypatch):
    """Six contrasts of arms that share a reference, none different: one is called so at most at
    the level, which single tests exceed."""
    monkeypatch.setattr("gc.collect", lambda: 0)  # statsmodels calls it each time
    rng = np.random.default_rng(3)
    wrong = np.zeros(2)
    for _ in range(DRAWS):
        d = rng.standard_normal((6, 20)) - rng.standard_normal(20)
        p = stats.ttest_1samp(d, 0, axis=1).pvalue
        wrong += [holm(p).min() < 0.05, p.min() < 0.05]
    assert wrong[0] / DRAWS < 0.065 < 0.12 < wrong[1] / DRAWS


def test_holm_finds_what_is_there():
    assert holm([0.001, 0.2, 0.02]) == pytest.approx([0.003, 0.2, 0.04])


@pytest.mark.parametrize("mean", [-0.02, 0.02])
def test_none_is_not_had_at_the_margin(mean):
    samples = np.random.default_rng(4).normal(mean, 0.02, (DRAWS, 20))
    assert np.mean([equivalence(s, 0.02).p < 0.05 for s in samples]) < 0.07


def test_interaction_has_its_size_and_is_no_main_effect():
    """Arms that differ alike at every rate do not interact, however rates of one seed hang
    together."""
    rng = np.random.default_rng(5)
    mixed = np.array([[1.0, 0.9, 0.2], [0.0, 0.5, 0.3], [0.0, 0.0, 2.0]])
    p = [interaction_p(3.0 + rng.standard_normal((20, 3)) @ mixed) for _ in range(DRAWS)]
    assert 0.03 < np.mean(np.array(p) < 0.05) < 0.07


def test_one_significant_beside_one_not_is_no_interaction():
    rng = np.random.default_rng(6)
    d = rng.standard_normal((20, 2)) * 0.02 + [0.012, 0.004]
    one, other = stats.ttest_1samp(d, 0).pvalue
    assert one < 0.05 < other and interaction_p(d) > 0.05


def test_least_detectable_is_detected_at_its_power():
    least = least_detectable(1.0, 20, tests=6)
    samples = np.random.default_rng(7).normal(least, 1.0, (DRAWS, 20))
    found = np.mean(stats.ttest_1samp(samples, 0, axis=1).pvalue < 0.05 / 6)
    assert 0.76 < found < 0.86


class Run:
    def __init__(self, windows):
        self.windows = np.array(windows)


def arms(shift, seeds=12):
    rng = np.random.default_rng(8)
    base = 2 + rng.standard_normal((seeds, 40)) * 0.3
    other = base + shift + rng.standard_normal((seeds, 1)) * 0.01
    runs = lambda table: {seed: Run(row) for seed, row in enumerate(table)}
    return runs(other), runs(base)


def test_contrast_tells_of_one_less_the_other():
    found = contrast(*arms(0.05), margin=0.02)
    assert found.n == 12 and found.estimate.low < 0.05 < found.estimate.high
    assert found.p < 0.001 and found.flipped < 0.001 and found.none.p > 0.5
    assert 0.005 < found.spread < 0.02
    none = contrast(*arms(0.0), margin=0.02)
    assert none.none.p < 0.001 and none.p > 0.01 and contrast(*arms(0.0)).none is None


@pytest.mark.parametrize(
    "call, field",
    [
        (lambda: crossed_interval([[1.0, 2.0]]), "differences"),
        (lambda: crossed_interval([[1.0, np.nan], [1.0, 2.0]]), "differences"),
        (lambda: crossed_bootstrap([1.0, 2.0]), "differences"),
        (lambda: holm([]), "p"),
        (lambda: holm([0.1, 1.2]), "p"),
        (lambda: interaction_p(np.ones((3, 3))), "differences"),
        (lambda: contrast({0: Run([1.0])}, {0: Run([1.0])}), "windows of seed 0"),
        (lambda: contrast({0: Run([1.0, 2.0])}, {1: Run([1.0, 2.0])}), "seed"),
    ],
)
def test_what_is_wrong_is_named(call, field):
    with pytest.raises(ValueError, match=f"^{field}="):
        call()
