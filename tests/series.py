"""Whether the series of a figure's legend are told apart without colours, and data to draw."""

import numpy as np
import torch
from matplotlib.collections import Collection
from matplotlib.container import BarContainer
from matplotlib.lines import Line2D


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


SERIES = ("a", "b", "c")
