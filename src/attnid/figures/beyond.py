"""Figures of Part III, Beyond the paper."""

from .style import COLOURS, GREY, HATCHES, LINES, new_figure


def atlas(rows):
    """Chapter 15: unidentified attention parameters of models, oldest first. Rows are (name,
    released, parameters, circuit -> idle).

    Left: the share of all attention parameters, stacked by circuit. Right: their number, one mark
    for each circuit.
    """
    figure, (left, right) = new_figure(
        2, figsize=(9.2, 10.4), sharey=True, gridspec_kw={"width_ratios": (1, 1)}
    )
    at, start = range(len(rows)), [0.0] * len(rows)
    for circuit, colour, hatch, marker in zip(
        ("query-key", "value-output", "latents"), COLOURS, HATCHES, "osD"
    ):
        widths = [100 * idle.get(circuit, 0) / parameters for _, _, parameters, idle in rows]
        left.barh(
            at,
            widths,
            left=start,
            color=colour,
            hatch=hatch,
            edgecolor="white",
            lw=0.3,
            height=0.74,
            label=circuit,
        )
        start = [a + b for a, b in zip(start, widths)]
        some = [i for i in at if rows[i][3].get(circuit)]
        right.plot(
            [rows[i][3][circuit] / 1e6 for i in some],
            some,
            marker,
            color=colour,
            ms=5,
            mfc="white",
            mew=1.6,
        )
    for i, total in enumerate(start):
        left.text(total + 0.05, i, f"{total:.2f}", va="center", fontsize=7)
    left.set_yticks(at, [f"{name}  {released}" for name, released, _, _ in rows], fontsize=8)
    left.set(
        xlabel="unidentified, percent of the attention parameters",
        ylim=(len(rows) - 0.4, -0.6),
        xlim=(0, 5.4),
    )
    right.set(xscale="log", xlabel="unidentified, millions")
    left.set_axisbelow(True)
    left.legend(loc="lower right", frameon=False)
    return figure


def changes(layers):
    """Chapter 15: unidentified numbers of one layer as its make changes, name -> {circuit ->
    number}; a log scale.
    """
    figure, ax = new_figure(figsize=(9.2, 4.0))
    for i, (circuit, colour, hatch) in enumerate(
        zip(("query-key", "value-output", "latents"), COLOURS, HATCHES)
    ):
        some = [n for n, idle in enumerate(layers.values()) if circuit in idle]
        heights = [list(layers.values())[n][circuit] for n in some]
        sizes = [
            len(list(layers.values())[n]) for n in some
        ]  # bars of one layer stand around its name
        bars = ax.bar(
            [n + 0.28 * (i - (size - 1) / 2) for n, size in zip(some, sizes)],
            heights,
            0.27,
            color=colour,
            hatch=hatch,
            edgecolor="white",
            label=circuit,
        )
        ax.bar_label(bars, [f"{h:,}" for h in heights], fontsize=7, padding=3, rotation=90)
    ax.set_axisbelow(True)
    ax.set(yscale="log", ylim=(50, 4e8), ylabel="unidentified numbers in one layer")
    ax.set_xticks(range(len(layers)), layers)
    ax.grid(False, axis="x")
    ax.legend(ncols=3, loc="upper right", frameon=False)
    return figure


def nearly_idle(epsilons, values, idle):
    """Chapter 15: singular values, epsilon -> descending (n,), of which the last `idle` are idle
    without an epsilon.
    """
    figure, ax = new_figure(figsize=(7.4, 3.9))
    columns = list(zip(*values))
    for column in columns[:-idle]:
        ax.loglog(epsilons, column, color=GREY, lw=0.8)
    for n, column in enumerate(columns[-idle:]):
        ax.loglog(
            epsilons,
            column,
            color=COLOURS[1],
            linestyle=LINES[1],
            marker="o",
            ms=3,
            label="scales of queries and keys" if n == 0 else None,
        )
    ax.plot([], [], color=GREY, label="all else that the outputs see")
    ax.set(xlabel="epsilon of the norm", ylabel="singular value, over the largest")
    ax.legend(loc="lower right", frameon=False)
    return figure


def idle_by_cause(variants):
    """Chapters 14 and 20: unidentified parameters of networks or layers, name -> {cause ->
    number}, as bars stacked by cause.
    """
    figure, ax = new_figure(figsize=(8.8, 3.9))
    names, start = list(variants), [0.0] * len(variants)
    for i, cause in enumerate(next(iter(variants.values()))):
        widths = [parts[cause] / 1000 for parts in variants.values()]
        ax.barh(
            names,
            widths,
            left=start,
            color=COLOURS[i],
            hatch=HATCHES[i],
            edgecolor="white",
            lw=0.4,
            label=cause,
        )
        start = [a + b for a, b in zip(start, widths)]
    for i, total in enumerate(start):
        ax.text(total + 4, i, f"{total:.0f}", va="center", fontsize=9)
    ax.invert_yaxis()
    ax.grid(False, axis="y")
    ax.set(xlabel="unidentified parameters, thousands", xlim=(0, 1.1 * max(start)))
    ax.legend(frameon=False, ncols=3, loc="lower left", bbox_to_anchor=(-0.12, 1.0), fontsize=9)
    return figure


def freed_rotations(sizes, formula, measured, full):
    """Chapter 14: free rotations of the residual stream against the number of tokens, norm ->
    values; formula (line) and measured (marks), and norm -> how many there are without tying.
    """
    figure, ax = new_figure(figsize=(7.0, 3.6))
    for norm, colour, line, marker in zip(formula, COLOURS, LINES, "os"):
        ax.plot(sizes, formula[norm], color=colour, linestyle=line, label=f"{norm}, tied")
        ax.plot(
            list(measured[norm]),
            list(measured[norm].values()),
            marker,
            color=colour,
            ms=7,
            mfc="white",
            mew=1.7,
        )
        ax.axhline(full[norm], color=colour, linestyle=line, lw=0.8)
        ax.annotate(
            f"{norm}, not tied", (sizes[-1], full[norm]), ha="right", va="bottom", fontsize=9
        )
    ax.set(xlabel="tokens $v$", ylabel="free rotations of the stream", xticks=sizes)
    ax.legend(frameon=False, loc="center right")
    return figure


def trained_heads(imbalance, biases):
    """Chapter 16: imbalance of each head, one list for each layer; and root mean squares of biases,
    name -> one for each layer.
    """
    figure, (left, right) = new_figure(2, figsize=(9.2, 3.4))
    for layer, values in enumerate(imbalance):
        left.plot(
            [layer + 0.035 * (head - (len(values) - 1) / 2) for head in range(len(values))],
            values,
            "o",
            color=COLOURS[0],
            ms=4,
            mfc="white",
            mew=1.4,
        )
    left.set(xlabel="layer", ylabel="imbalance of a head", ylim=(0, None))
    for name, colour, line, marker in zip(biases, COLOURS, LINES, "osD^"):
        right.semilogy(
            biases[name], color=colour, linestyle=line, marker=marker, ms=5, label=f"${name}$"
        )
    right.set(xlabel="layer", ylabel="root mean square of the biases")
    right.legend(ncols=2)
    return figure


def gauges(rows):
    """Chapter 16: how far embeddings move in bfloat16, name -> (mean, most), on a log scale."""
    figure, ax = new_figure(figsize=(7.4, 2.9))
    at = range(len(rows))
    mean, most = zip(*rows.values())
    ax.plot(mean, at, "o", color=COLOURS[0], ms=8, label="mean over sentences")
    ax.plot(
        most, at, "D", color=COLOURS[1], ms=6, mfc="white", mew=1.6, label="most of any sentence"
    )
    for i, value in enumerate(mean):
        ax.text(value / 1.12, i, f"{value:.4f}", ha="right", va="center", fontsize=9)
    ax.set(
        xscale="log",
        xlim=(1e-3, 0.4),
        xlabel="distance of the embedding from that in float32",
        ylim=(len(rows) - 0.5, -0.5),
    )
    ax.set_yticks(at, rows)
    ax.legend(loc="upper right")
    return figure


def heads_and_loss(losses):
    """Chapter 17: final losses by number of heads, H -> (n,), one dot for each seed, and the mean
    of each; the identified share stands above.
    """
    figure, ax = new_figure(figsize=(7.0, 3.6))
    for heads, values in losses.items():
        ax.plot([heads] * len(values), values, "o", ms=3.5, color=GREY)
    ax.plot(
        list(losses),
        [sum(values) / len(values) for values in losses.values()],
        "D",
        color=COLOURS[0],
        linestyle=LINES[0],
        ms=6,
    )
    ax.set_xscale("log", base=2)
    ax.set_xticks(list(losses), list(losses))
    ax.set(xlabel="heads, $H$", ylabel="validation loss, nats per character")
    above = ax.secondary_xaxis("top")
    above.set_xticks(list(losses), [f"{1 - 1 / (2 * heads):.3g}" for heads in losses])
    above.set_xlabel("identified share, $1 - 1/(2H)$")
    return figure


def gates(channels, lines, marks):
    """Chapter 19: unidentified numbers of values and outputs against the value width. Lines are
    name -> numbers, marks (measured) gate -> numbers.
    """
    figure, axes = new_figure()
    for (name, numbers), colour, style in zip(lines.items(), COLOURS, LINES):
        axes.plot(channels, numbers, style, color=colour, lw=1.6, label=name)
    shown = {None: ("no gate", "s", 9), "head": ("a gate a head", "o", 5)}
    shown["channel"] = ("a gate a channel", "D", 6)
    for (gate, numbers), colour in zip(marks.items(), (GREY, *COLOURS)):
        name, marker, size = shown[gate]
        axes.plot(channels, numbers, marker, color=colour, ms=size, mfc="none", mew=1.5, label=name)
    axes.set(xlabel="value width $C$", ylabel="unidentified numbers", ylim=(0, None))
    axes.legend()
    return figure


def lines_between(kinds, points):
    """Chapter 18: the loss above the chord on the lines between models, one panel for each kind ->
    {version -> (pairs, points)}; every pair is a thin line, their mean a thick one.
    """
    figure, axes = new_figure(len(kinds), figsize=(8.8, 3.9))
    for ax, (kind, versions) in zip(axes, kinds.items()):
        for version, colour, line, mark in zip(versions, COLOURS, LINES, "osD^v"):
            excess = versions[version]
            for pair in excess:
                ax.plot(points, pair, color=colour, lw=0.4, alpha=0.5)
            mean = [sum(column) / len(column) for column in zip(*excess)]
            look = dict(color=colour, linestyle=line, lw=1.8, marker=mark, ms=5, mfc="white")
            ax.plot(points, mean, **look, label=version)
        ax.axhline(0, color=GREY, lw=0.8, zorder=0)
        ax.set(title=f"{kind}, n = {len(excess)}", xlabel="share of the second model, $t$")
    axes[0].set_ylabel("loss above the chord, nats per character")
    handles, labels = ax.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    return figure
