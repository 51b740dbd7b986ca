"""The figures of what can be identified: more than colour tells series apart."""

import numpy as np
import pytest
import torch
from series import SERIES, ramp, told_by_colour_alone

from attnid import figures

DRAWN = {
    "hyperbolas_and_counts": lambda: figures.hyperbolas_and_counts(
        np.linspace(-3, 3, 13),
        np.random.default_rng(0).random((13, 13)),
        1.0,
        {E: ([1, 2, 3, 4], [1, 2, 3, 4]) for E in (1, 2, 4)},
    ),
    "cliff": lambda: figures.cliff(1 / ramp(6), 4),
    "damage_by_condition": lambda: figures.damage_by_condition(
        ramp(3), {name: ramp(3, 2) for name in SERIES}, dict.fromkeys(SERIES, 1e-3)
    ),
    "coordinates_that_fail": lambda: figures.coordinates_that_fail(ramp(3), ramp(3), ramp(3)),
    "straight_and_curved": lambda: figures.straight_and_curved(
        ramp(3), {name: ramp(3, 2) for name in (*SERIES, "d")}
    ),
    "rotary_idle_directions": lambda: figures.rotary_idle_directions(
        ramp(4, 4).add(torch.eye(4)),
        5,
        [1, 2, 4],
        {name: [9, 8, 7] for name in (*SERIES, "d")},
        (8, 64),
    ),
    "grouped_and_rotary": lambda: figures.grouped_and_rotary(
        {"x": (3, 4), "y": (5, 6)},
        [1, 2],
        {name: [0.1, 0.2] for name in "ab"},
        {name: ([1, 2], [0.1, 0.2]) for name in "ab"},
    ),
    "bias_gradients": lambda: figures.bias_gradients(
        {"x": dict.fromkeys(("b_Q", "b_K", "b_V", "b_O"), 1.0)}
    ),
    "share_and_error": lambda: figures.share_and_error(
        {1: 0.5, 2: 0.75}, [1, 2], {name: [0.1, 0.2] for name in SERIES}
    ),
    "wider_heads": lambda: figures.wider_heads(
        2, 1, [1, 2, 3], [0.7, 0.6, 0.5], [1, 2, 3], {2: 0.9}
    ),
    "no_single_head": lambda: figures.no_single_head(
        lambda x: min(x, 1), {kind: {1: 2} for kind in ("with", "without")}, {2: 3}
    ),
}


@pytest.mark.parametrize("name", DRAWN)
def test_series_differ_in_more_than_colour(name):
    figure = DRAWN[name]()
    assert any(axes.get_legend_handles_labels()[0] for axes in figure.axes)
    assert told_by_colour_alone(figure) == []
