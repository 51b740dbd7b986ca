"""The figures, as people see them: contrast, colour-vision deficiencies, and more than colour to tell series apart."""

from itertools import combinations

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from series import told_by_colour_alone

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


def test_series_that_differ_in_colour_alone_are_found():
    figure, axes = figures.new_figure()
    axes.plot([0, 1], color=COLOURS[0], label="one")
    axes.plot([1, 0], color=COLOURS[1], label="other")
    assert told_by_colour_alone(figure) == [0]
