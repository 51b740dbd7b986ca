"""Figures of Part III, Beyond the paper."""

from .style import COLOURS, LINES, new_figure


def atlas(rows):
    """Chapter 15: unidentified attention parameters of models, oldest first. Rows are (name, released, parameters, circuit -> idle).

    Left: the share of all attention parameters, stacked by circuit. Right: their number, one mark for each circuit.
    """
    figure, (left, right) = new_figure(2, figsize=(9.2, 10.4), sharey=True, gridspec_kw={"width_ratios": (1, 1)})
    at, start = range(len(rows)), [0.0] * len(rows)
    for circuit, colour, hatch, marker in zip(("query-key", "value-output", "latents"), COLOURS, ("", "//", ".."), "osD"):
        widths = [100 * idle.get(circuit, 0) / parameters for _, _, parameters, idle in rows]
        left.barh(at, widths, left=start, color=colour, hatch=hatch, edgecolor="white", lw=0.3, height=0.74, label=circuit)
        start = [a + b for a, b in zip(start, widths)]
        some = [i for i in at if rows[i][3].get(circuit)]
        right.plot([rows[i][3][circuit] / 1e6 for i in some], some, marker, color=colour, ms=5, mfc="white", mew=1.6)
    for i, total in enumerate(start):
        left.text(total + 0.05, i, f"{total:.2f}", va="center", fontsize=7)
    left.set_yticks(at, [f"{name}  {released}" for name, released, _, _ in rows], fontsize=8)
    left.set(xlabel="unidentified, percent of the attention parameters", ylim=(len(rows) - 0.4, -0.6), xlim=(0, 5.4))
    right.set(xscale="log", xlabel="unidentified, millions")
    left.set_axisbelow(True)
    left.legend(loc="lower right", frameon=False)
    return figure


def changes(layers):
    """Chapter 15: unidentified numbers of one layer as its make changes, name -> {circuit -> number}; a log scale."""
    figure, ax = new_figure(figsize=(9.2, 4.0))
    for i, (circuit, colour, hatch) in enumerate(zip(("query-key", "value-output", "latents"), COLOURS, ("", "//", ".."))):
        some = [n for n, idle in enumerate(layers.values()) if circuit in idle]
        heights = [list(layers.values())[n][circuit] for n in some]
        sizes = [len(list(layers.values())[n]) for n in some]  # bars of one layer stand around its name
        bars = ax.bar([n + 0.28 * (i - (size - 1) / 2) for n, size in zip(some, sizes)], heights, 0.27, color=colour, hatch=hatch, edgecolor="white", label=circuit)
        ax.bar_label(bars, [f"{h:,}" for h in heights], fontsize=7, padding=3, rotation=90)
    ax.set_axisbelow(True)
    ax.set(yscale="log", ylim=(50, 4e8), ylabel="unidentified numbers in one layer")
    ax.set_xticks(range(len(layers)), layers)
    ax.grid(False, axis="x")
    ax.legend(ncols=3, loc="upper right", frameon=False)
    return figure


def nearly_idle(epsilons, values, idle):
    """Chapter 15: singular values, epsilon -> descending (n,), of which the last `idle` are idle without an epsilon."""
    figure, ax = new_figure(figsize=(7.4, 3.9))
    columns = list(zip(*values))
    for column in columns[:-idle]:
        ax.loglog(epsilons, column, color="0.75", lw=0.8)
    for n, column in enumerate(columns[-idle:]):
        ax.loglog(epsilons, column, color=COLOURS[1], linestyle=LINES[1], marker="o", ms=3, label="scales of queries and keys" if n == 0 else None)
    ax.plot([], [], color="0.75", label="all else that the outputs see")
    ax.set(xlabel="epsilon of the norm", ylabel="singular value, over the largest")
    ax.legend(loc="lower right", frameon=False)
    return figure
