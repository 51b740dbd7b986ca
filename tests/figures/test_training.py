"""The figures of training: more than colour tells series apart."""

from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import beta
from series import SERIES, ramp, told_by_colour_alone

from attnid import figures

PATH = np.linspace(0, 1, 10).reshape(5, 2)


def record(steps=4, layers=2, heads=2):
    names = (
        "rho",
        "beta",
        "tau",
        "mu",
        "joint_rho",
        "joint_drift",
        "gradient_W_K",
        "gradient_b_Q",
        "gradient_b_K",
    )
    return SimpleNamespace(
        step=np.arange(steps),
        loss=np.ones(steps),
        heads={name: np.ones((steps, layers, heads)) for name in names},
    )


DRAWN = {
    "imbalance_paths": lambda: figures.imbalance_paths(
        {name: PATH for name in ("flow", *SERIES)},
        {name: {1: 1.0, 2: 0.5} for name in SERIES},
        {"a": 1.0, "b": 2.0},
    ),
    "rho_and_biases": lambda: figures.rho_and_biases(
        ramp(9) / 9, beta(2, 3), 0.4, {"a": 0.1}, ramp(3), {name: ramp(3) for name in SERIES}
    ),
    "rebalancing_orbit": lambda: figures.rebalancing_orbit(
        [0, 1], {name: [[1, 2], [2, 3]] for name in "ab"}
    ),
    "sawtooth": lambda: figures.sawtooth(
        np.arange(0, 9), {name: ramp(9, 2) for name in (*SERIES, "d")}, ramp(9, 2), 3
    ),
    "bias_gradients_in_training": lambda: figures.bias_gradients_in_training(
        {"a": {0: record()}, "b": {0: record()}}
    ),
    "rate_sweep": lambda: figures.rate_sweep({rate: {0: record()} for rate in (4, 3, 2, 1)}, 0.1),
    "twins": lambda: figures.twins(record(), record()),
}


@pytest.mark.parametrize("name", DRAWN)
def test_series_differ_in_more_than_colour(name):
    figure = DRAWN[name]()
    assert any(axes.get_legend_handles_labels()[0] for axes in figure.axes)
    assert told_by_colour_alone(figure) == []
