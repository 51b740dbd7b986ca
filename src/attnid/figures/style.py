"""The style of every figure: colours, line styles, and a figure to draw on."""

import matplotlib.pyplot as plt

# told apart with colour-vision deficiencies, also from black, and at a contrast of 3 with the
# ground; line styles, hatches and marks differ as well
COLOURS = (
    "#0077BB",
    "#D55E00",
    "#004D26",
    "#BF7C92",
    "#9440FF",
    "#5E1A4A",
)  # blue, vermilion, dark green, rose, violet, plum
GREY = "#8C8C8C"  # for what stands behind, at the same contrast
HATCHES = ("", "//", "..", "xx", "++", "\\\\")
LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (3, 3)))

STYLE = {
    "figure.figsize": (7.0, 3.6),
    "figure.dpi": 120,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "font.size": 10,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
}


def new_figure(columns=1, rows=1, **options):
    """A figure and its axes in the book's style, on an opaque background that reads in light and
    dark pages.
    """
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(rows, columns, **options)
    plt.close(figure)  # a notebook shows the figure that a cell returns, once
    return figure, axes
