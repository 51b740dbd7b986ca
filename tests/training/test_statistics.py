"""Intervals that cover, tests that have their size, and comparisons that stay paired."""

import itertools

import numpy as np
import pytest
from scipy import stats

from attnid.training.statistics import (
    bca_interval,
    equivalence,
    paired,
    power_law,
    sign_flip_p,
    t_interval,
)

SAMPLE = np.array([0.31, -0.12, 0.44, 0.27, 0.05, 0.61, 0.18, 0.02])


def samples(count, n, seed=0, mean=0.0):
    return np.random.default_rng(seed).normal(mean, 1.0, (count, n))


def test_t_interval_is_the_textbooks():
    found = t_interval(SAMPLE)
    half = (
        2.3646242515927844 * SAMPLE.std(ddof=1) / 8**0.5
    )  # the 0.975 quantile at 7 degrees of freedom
    assert found == pytest.approx((SAMPLE.mean(), SAMPLE.mean() - half, SAMPLE.mean() + half, 8))
    assert str(found) == "0.22 [0.02085, 0.4191], n = 8"


def test_t_interval_covers_at_its_level():
    for level in (0.8, 0.95):
        inside = np.mean(
            [
                low <= 3 <= high
                for _, low, high, _ in (t_interval(s, level) for s in samples(1000, 6, mean=3.0))
            ]
        )
        assert abs(inside - level) < 4 * (level * (1 - level) / 1000) ** 0.5


def test_bca_is_near_t_for_a_mean_and_handles_other_statistics():
    values = samples(1, 30)[0]
    t, b = t_interval(values), bca_interval(values)
    assert (
        b.estimate == pytest.approx(t.estimate)
        and b.low == pytest.approx(t.low, abs=0.06)
        and b.high == pytest.approx(t.high, abs=0.06)
    )
    assert bca_interval(values) == b and bca_interval(values, seed=1) != b
    median = bca_interval(values, np.median)
    assert median.estimate == np.median(values) and median.low < median.estimate < median.high


def test_bca_is_skewed_where_the_sample_is():
    values = np.exp(samples(1, 20, seed=3)[0])
    b = bca_interval(values)
    assert b.high - b.estimate > 1.2 * (b.estimate - b.low)


def test_equal_values():
    assert t_interval([2.0] * 4) == bca_interval([2.0] * 4) == (2.0, 2.0, 2.0, 4)


def test_pairs_are_by_seed_and_whole():
    assert paired({1: 5.0, 0: 2.0}, {0: 0.5, 1: 1.0}).tolist() == [1.5, 4.0]
    with pytest.raises(ValueError, match="^seed=1: is in one sample only"):
        paired({0: 1.0, 1: 1.0}, {0: 1.0, 2: 1.0})


def test_sign_flips_are_enumerated():
    flips = [np.mean(SAMPLE * signs) for signs in itertools.product((1, -1), repeat=8)]
    assert sign_flip_p(SAMPLE) == pytest.approx(
        np.mean([abs(f) >= SAMPLE.mean() - 1e-15 for f in flips])
    )
    assert sign_flip_p(np.arange(1.0, 11.0)) == pytest.approx(2 / 2**10)
    assert sign_flip_p(-SAMPLE) == pytest.approx(sign_flip_p(SAMPLE))


def test_sign_flips_have_their_size():
    p = np.array([sign_flip_p(s) for s in samples(200, 7)])
    assert (p <= 0.05).mean() < 0.11 and (p <= 0.5).mean() > 0.38


def test_equivalence_is_two_one_sided_tests():
    found = equivalence(SAMPLE, 0.5)
    error = SAMPLE.std(ddof=1) / 8**0.5
    assert found.p == pytest.approx(
        stats.t.sf((0.5 - SAMPLE.mean()) / error, 7)
    )  # the nearer end decides
    assert (found.estimate, found.low, found.high, found.n) == pytest.approx(
        t_interval(SAMPLE, 0.9)
    )


@pytest.mark.parametrize("margin", [0.1, 0.2, 0.3, 0.38, 0.4, 0.6])
def test_equivalence_agrees_with_its_interval(margin):
    found = equivalence(SAMPLE, margin)
    assert (found.p < 0.05) == (-margin < found.low and found.high < margin)


def test_equivalence_is_not_had_at_the_margin():
    assert np.mean([equivalence(s, 1.0).p < 0.05 for s in samples(1000, 8, mean=1.0)]) < 0.08
    assert equivalence([0.1] * 3, 0.2).p == 0 and equivalence([0.3] * 3, 0.2).p == 1


def test_power_law_finds_the_exponent():
    x = np.array([0.5, 0.25, 0.125, 0.0625])
    assert power_law(x, 3 * x**2) == pytest.approx(2)
    with pytest.raises(ValueError, match="^y=0.0: must be above 0"):
        power_law(x, [1, 1, 0, 1])


@pytest.mark.parametrize(
    "call, field",
    [
        (lambda: t_interval([1.0]), "values"),
        (lambda: t_interval([1.0, np.nan]), "values"),
        (lambda: t_interval([[1.0, 2.0]]), "values"),
        (lambda: t_interval(SAMPLE, 1.0), "level"),
        (lambda: bca_interval([1.0]), "values"),
        (lambda: sign_flip_p([np.inf, 1]), "differences"),
        (lambda: equivalence(SAMPLE, 0.0), "margin"),
        (lambda: equivalence([1.0], 1.0), "differences"),
        (lambda: power_law([1, 1], [1, 2]), "x"),
        (lambda: power_law([1, 2], [1, 2, 3]), "y"),
    ],
)
def test_what_is_wrong_is_named(call, field):
    with pytest.raises(ValueError, match=f"^{field}="):
        call()
