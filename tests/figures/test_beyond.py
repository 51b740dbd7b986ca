"""The figures of what lies beyond one head: more than colour tells series apart."""

import pytest
from series import told_by_colour_alone

from attnid import figures

DRAWN = {
    "atlas": lambda: figures.atlas(
        [("x", "2020-01", 100, {"query-key": 1, "value-output": 2, "latents": 3})] * 2
    ),
    "changes": lambda: figures.changes(
        {"x": {"query-key": 100, "value-output": 200, "latents": 300}}
    ),
    "nearly_idle": lambda: figures.nearly_idle([1, 2], [[3, 2, 1], [3, 2, 1]], 1),
    "idle_by_cause": lambda: figures.idle_by_cause({"x": {cause: 1.0 for cause in "abcdef"}}),
    "lines_between": lambda: figures.lines_between(
        {kind: {v: [[0, 1, 0], [0, 2, 0]] for v in "abcde"} for kind in "xy"}, (0, 0.5, 1)
    ),
    "freed_rotations": lambda: figures.freed_rotations(
        [1, 2], {n: [1, 2] for n in "ab"}, {n: {1: 1, 2: 2} for n in "ab"}, {"a": 3, "b": 4}
    ),
}


@pytest.mark.parametrize("name", DRAWN)
def test_series_differ_in_more_than_colour(name):
    figure = DRAWN[name]()
    assert any(axes.get_legend_handles_labels()[0] for axes in figure.axes)
    assert told_by_colour_alone(figure) == []
