import json
from pathlib import Path

import numpy as np
import pytest
from descriptions import descriptions
from hypothesis import given, settings

from attnid import Attention, count, measure
from attnid.layer.exact import PRIME, _matmul, exact_nullity, rank_mod_prime

CASES = json.loads((Path(__file__).parents[1] / "cases" / "counts.json").read_text())


@pytest.mark.parametrize(
    "case", [c for c in CASES if "qk_norm" not in c["attention"]], ids=lambda case: case["name"]
)
def test_cases(case):
    assert exact_nullity(Attention(**case["attention"])) == case["unidentified"]


@given(descriptions(least_inputs=2, most_parameters=250, qk_norm=None))
@settings(max_examples=80, deadline=None)
def test_exact_formula_and_measured_count_agree(attention):
    assert exact_nullity(attention) == count(attention).unidentified == measure(attention).nullity


@pytest.mark.parametrize("gate", ["head", "channel"])
def test_gates_of_two_points_are_refused(gate):
    with pytest.raises(ValueError, match="embed_dim=2: .* gate"):
        exact_nullity(Attention(2, 1, inputs="centred", gate=gate))


def test_products_are_those_of_python_integers():
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, PRIME, (3, 40)), rng.integers(0, PRIME, (40, 2))
    expected = [
        [sum(int(x) * int(y) for x, y in zip(row, column)) % PRIME for column in b.T] for row in a
    ]
    assert _matmul(a, b).tolist() == expected


def test_rank_over_the_field():
    rng = np.random.default_rng(1)
    a, b = rng.integers(0, PRIME, (9, 4)), rng.integers(0, PRIME, (4, 7))
    assert rank_mod_prime(_matmul(a, b)) == 4
    assert rank_mod_prime(np.zeros((3, 5), dtype=np.int64)) == 0
    assert rank_mod_prime([[PRIME, 0], [0, 1]]) == 1


def test_what_is_not_polynomial_is_refused():
    with pytest.raises(ValueError, match="qk_norm='head'"):
        exact_nullity(Attention(8, 2, qk_norm="head"))
