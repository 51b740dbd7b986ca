"""The figures, as people see them: contrast, colour-vision deficiencies, and more than colour to tell series apart."""

from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from matplotlib.collections import Collection
from matplotlib.colors import to_rgb
from matplotlib.container import BarContainer
from matplotlib.lines import Line2D
from scipy.stats import beta

from attnid import figures
from attnid.figures.style import COLOURS, GREY, HATCHES, LINES, STYLE

CONTRAST = 3  # WCAG 2.1, success criterion 1.4.11, for graphics
APART = 20  # CIELAB; 2 to 3 is the least that is seen side by side

SEEN_AS = {  # Machado, Oliveira and Fernandes 2009, severity 1, in linear RGB
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
    "full colour vision": np.eye(3),
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def linear(colour):
    rgb = np.array(to_rgb(colour))
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    """CIELAB of linear RGB."""
    f = np.cbrt(TO_XYZ @ np.clip(rgb, 0, 1) / TO_XYZ.sum(1))
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def contrast(one, other):
    low, high = sorted(TO_XYZ[1] @ linear(colour) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


def least_distance(colours, vision):
    seen = [lab(np.array(SEEN_AS[vision]) @ linear(colour)) for colour in colours]
    return min(np.linalg.norm(a - b) for a, b in combinations(seen, 2))


@pytest.mark.parametrize("colour", (*COLOURS, GREY))
def test_colours_stand_out_from_the_ground(colour):
    assert contrast(colour, STYLE["figure.facecolor"]) >= CONTRAST


@pytest.mark.parametrize("vision", SEEN_AS)
def test_colours_are_told_apart(vision):
    assert least_distance((*COLOURS, "black"), vision) > APART


def test_what_the_measures_reject():
    assert (
        contrast("black", "white") == pytest.approx(21) and contrast("#E69F00", "white") < CONTRAST
    )
    assert (
        least_distance(("#D55E00", "#009E73"), "full colour vision")
        > APART
        > least_distance(("#996600", "#D55E00"), "protanopia")
    )


def test_every_colour_has_a_line_style_and_a_hatch_of_its_own():
    for styles in (LINES, HATCHES):
        assert len(set(map(str, styles))) == len(styles) >= len(COLOURS) == len(set(COLOURS))


def without_colour(handle):
    """How a series of a legend looks to somebody who sees no colours."""
    if isinstance(handle, BarContainer):
        return handle.patches[0].get_hatch()
    if isinstance(handle, Line2D):
        return handle.get_linestyle(), handle.get_marker(), handle.get_markerfacecolor() == "white"
    assert isinstance(handle, Collection)
    return handle.get_hatch()


def told_by_colour_alone(figure):
    """The panels of a figure, by number, in which two series of a legend differ in nothing but colour."""
    looks = [
        [without_colour(handle) for handle in axes.get_legend_handles_labels()[0]]
        for axes in figure.axes
    ]
    return [n for n, panel in enumerate(looks) if len(set(panel)) < len(panel)]


def ramp(*shape):
    return torch.arange(1.0, 1 + np.prod(shape), dtype=torch.float64).view(shape)


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


SERIES = ("a", "b", "c")
PATH = np.linspace(0, 1, 10).reshape(5, 2)
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
    "atlas": lambda: figures.atlas(
        [("x", "2020-01", 100, {"query-key": 1, "value-output": 2, "latents": 3})] * 2
    ),
    "changes": lambda: figures.changes(
        {"x": {"query-key": 100, "value-output": 200, "latents": 300}}
    ),
    "nearly_idle": lambda: figures.nearly_idle([1, 2], [[3, 2, 1], [3, 2, 1]], 1),
    "idle_by_cause": lambda: figures.idle_by_cause({"x": {cause: 1.0 for cause in "abcdef"}}),
    "freed_rotations": lambda: figures.freed_rotations(
        [1, 2], {n: [1, 2] for n in "ab"}, {n: {1: 1, 2: 2} for n in "ab"}, {"a": 3, "b": 4}
    ),
}


@pytest.mark.parametrize("name", DRAWN)
def test_series_differ_in_more_than_colour(name):
    figure = DRAWN[name]()
    assert any(axes.get_legend_handles_labels()[0] for axes in figure.axes)
    assert told_by_colour_alone(figure) == []


def test_series_that_differ_in_colour_alone_are_found():
    figure, axes = figures.new_figure()
    axes.plot([0, 1], color=COLOURS[0], label="one")
    axes.plot([1, 0], color=COLOURS[1], label="other")
    assert told_by_colour_alone(figure) == [0]
