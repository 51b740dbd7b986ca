"""Figures of Part II, Training."""

from .style import COLOURS, LINES, new_figure
