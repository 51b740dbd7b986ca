"""The style of every figure: colours, line styles, and a figure to draw on."""

import matplotlib.pyplot as plt

# Okabe and Ito's colours, told apart with colour-vision deficiencies; line styles differ as well
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (3, 3)))

STYLE = {
    "figure.figsize": (7.0, 3.6), "figure.dpi": 120, "figure.facecolor": "white", "savefig.facecolor": "white",
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.3,
    "font.size": 10, "legend.frameon": False, "figure.constrained_layout.use": True,
}


def new_figure(columns=1, rows=1, **options):
    """A figure and its axes in the book's style, on an opaque background that reads in light and dark pages."""
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(rows, columns, **options)
    plt.close(figure)  # a notebook shows the figure that a cell returns, once
    return figure, axes
