"""Checks of what callers hand in: what passes, and errors that name field and value."""

import math
import re

import numpy as np
import pytest
import torch

from attnid.checks import is_finite, require, require_finite, require_size


def test_a_condition_that_fails_names_field_value_and_why():
    require(True, "heads", 3, "is never said")
    with pytest.raises(ValueError, match=r"^score='relu': must be known$"):
        require(False, "score", "relu", "must be known")


@pytest.mark.parametrize("value", [1, 2**63 - 1, np.int8(3), np.uint64(7)])
def test_whole_numbers_of_python_and_numpy_are_sizes(value):
    require_size("heads", value)


@pytest.mark.parametrize(
    "value", [0, -1, 2**63, 1.0, True, None, "1", np.float64(2), np.bool_(True)]
)
def test_what_is_no_size_is_named(value):
    why = re.escape(f"heads={value!r}: must be an integer of at least 1")
    with pytest.raises(ValueError, match=f"^{why}$"):
        require_size("heads", value)


def test_the_least_size_is_the_callers():
    require_size("seed", 0, 0)
    with pytest.raises(ValueError, match="^rank=1: must be an integer of at least 2$"):
        require_size("rank", 1, 2)


@pytest.mark.parametrize(
    "value, finite",
    [
        (1, True),
        (-0.5, True),
        (np.float32(2), True),
        (math.nan, False),
        (-math.inf, False),
        (10**400, False),
        (True, False),
        ("1", False),
        (1j, False),
        (None, False),
    ],
)
def test_finite_real_numbers(value, finite):
    assert is_finite(value) is finite


def test_the_first_number_that_is_not_finite_is_named():
    require_finite("W_Q", torch.zeros(0, 3))
    tensor = torch.ones(2, 3)
    require_finite("W_Q", tensor)
    tensor[0, 2], tensor[1, 0] = -math.inf, math.nan
    with pytest.raises(ValueError, match="^W_Q=-inf: every number must be finite$"):
        require_finite("W_Q", tensor)
