"""Figures of Part II, Training."""

import numpy as np
from matplotlib.lines import Line2D

from .style import COLOURS, GREY, LINES, new_figure


def four_cases(runs, share):
    """Chapter 13, the paper's Figure 2. runs: title -> {seed: Record}; share: 1/(2H). Every head of
    every seed is a thin line in its layer's colour, the median over heads and seeds of a layer a
    thick one; in the first column every seed's loss is a line.
    """
    names = {"rho": r"$\rho$", "beta": r"$\beta$", "tau": r"$\tau$", "mu": r"$\mu$"}
    figure, axes = new_figure(
        5, len(runs), figsize=(12.5, 2.1 * len(runs)), dpi=80, sharex=True, squeeze=False
    )  # thousands of lines: a light picture
    for row, (title, seeds) in zip(axes, runs.items()):
        for record in seeds.values():
            row[0].plot(record.step, record.loss[record.step], color="0.45", lw=0.5, alpha=0.6)
        row[0].set_ylabel(f"{title}, n = {len(seeds)}", fontsize=8.5)
        for ax, name in zip(row[1:], names):
            _heads_by_layer(ax, [record.heads[name] for record in seeds.values()], record.step)
        row[1].axhline(share, color="black", lw=0.9, ls="--")
        row[1].set(yscale="log", ylim=(1e-9, 1))
    for column, name in enumerate(names, 1):
        _share_limits(axes[:, column] if name != "rho" else [])
        axes[0, column].set_title(names[name])
    axes[0, 0].set_title("loss of a batch")
    for ax in axes[-1]:
        ax.set_xlabel("step")
    _layer_legend(figure, record.heads["rho"].shape[1])
    return figure


def _heads_by_layer(ax, runs, step):
    # runs: one array (measured steps, layers, H) per seed
    for layer in range(runs[0].shape[1]):
        lines = [run[:, layer] for run in runs]  # each (measured steps, H)
        for line in lines:
            ax.plot(step, line, color=COLOURS[layer], lw=0.3, alpha=0.25, rasterized=True)
        middle = np.median(np.concatenate(lines, 1), 1)
        ax.plot(step, middle, color=COLOURS[layer], linestyle=LINES[layer], lw=1.6)


def _share_limits(axes):
    low, high = (
        min((ax.get_ylim()[0] for ax in axes), default=0),
        max((ax.get_ylim()[1] for ax in axes), default=1),
    )
    for ax in axes:
        ax.set_ylim(low, high)


def _layer_legend(figure, layers):
    handles = [
        Line2D([], [], color=COLOURS[i], linestyle=LINES[i], lw=1.6, label=f"layer {i + 1}")
        for i in range(layers)
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=layers, frameon=False)


def bias_gradients_in_training(runs):
    """Chapter 13, the paper's Figure 3. runs: title -> {seed: Record}. Gradient norms of the query
    and the key biases over all heads, the span from least to largest shaded for every seed, the
    medians as lines; and those of the key weights, for scale.
    """
    figure, axes = new_figure(len(runs), figsize=(3.1 * len(runs), 3.4), dpi=90, sharey=True)
    shown = (("gradient_W_K", "$W_K$"), ("gradient_b_Q", "$b_Q$"), ("gradient_b_K", "$b_K$"))
    for ax, (title, seeds) in zip(axes, runs.items()):
        for (name, label), colour, line in zip(shown, (COLOURS[2], COLOURS[0], COLOURS[1]), LINES):
            for seed, record in seeds.items():
                heads = record.heads[name].reshape(len(record.step), -1)
                ax.fill_between(
                    record.step, heads.min(1), heads.max(1), color=colour, alpha=0.05, lw=0
                )
                ax.plot(
                    record.step,
                    np.median(heads, 1),
                    color=colour,
                    linestyle=line,
                    lw=0.7,
                    label=label if seed == min(seeds) else None,
                )
        ax.set(yscale="log", xlabel="step", title=f"{title}, n = {len(seeds)}")
    axes[0].set_ylabel("gradient norm of a head")
    axes[0].legend(frameon=False, loc="center right", bbox_to_anchor=(1, 0.45))
    return figure


def rate_sweep(runs, share):
    """Chapter 13, the paper's Figure 4. runs: learning rate -> {seed: Record}, of SGD. Loss, rho of
    the weights alone and with their biases, and the drift of one step with biases; every seed's
    median over its heads is a line.
    """
    figure, axes = new_figure(4, figsize=(12.5, 3.3), dpi=90)
    columns = (
        ("rho", r"$\rho$, weights alone"),
        ("joint_rho", r"$\rho$, weights with biases"),
        ("joint_drift", "drift of a step, with biases"),
    )
    for (rate, seeds), colour, line in zip(runs.items(), COLOURS, LINES):
        for record in seeds.values():
            axes[0].plot(
                record.step, smooth(record.loss)[record.step], color=colour, linestyle=line, lw=0.7
            )
            for ax, (name, _) in zip(axes[1:], columns):
                ax.plot(
                    record.step,
                    np.median(record.heads[name].reshape(len(record.step), -1), 1),
                    color=colour,
                    linestyle=line,
                    lw=0.7,
                )
        axes[0].plot([], [], color=colour, linestyle=line, label=f"rate {rate:g}, n = {len(seeds)}")
    axes[0].set(title="loss, mean of 50 batches")
    axes[0].legend(frameon=False)
    for ax, (name, title) in zip(axes[1:], columns):
        ax.set(yscale="log", title=title)
    for ax in axes[1:3]:
        ax.axhline(share, color="black", lw=0.9, ls="--")
    for ax in axes:
        ax.set_xlabel("step")
    return figure


def smooth(values, width=50):
    """The mean of the last `width` values at each place, of fewer at the start."""
    total = np.cumsum(np.concatenate(([0.0], values)))
    end = np.arange(1, len(values) + 1)
    start = np.maximum(end - width, 0)
    return (total[end] - total[start]) / (end - start)


def intervals(rows, margin=None, label="difference"):
    """Chapter 13. Differences by seed as dots and their intervals as bars: name -> (differences,
    Interval); the margin of equivalence shaded.
    """
    figure, ax = new_figure(figsize=(7.4, 0.6 + 0.55 * len(rows)))
    for place, (name, (differences, interval)) in enumerate(rows.items()):
        ax.plot(differences, [place - 0.18] * len(differences), "o", ms=3, color=GREY)
        ax.plot(
            [interval.low, interval.high],
            [place] * 2,
            color=COLOURS[0],
            lw=2.4,
            solid_capstyle="butt",
        )
        ax.plot(interval.estimate, place, "o", color=COLOURS[0], ms=6)
    if margin:
        ax.axvspan(-margin, margin, color=COLOURS[2], alpha=0.15, lw=0)
    ax.axvline(0, color="black", lw=0.8)
    ax.set_yticks(
        range(len(rows)), [f"{name}\nn = {interval.n}" for name, (_, interval) in rows.items()]
    )
    ax.set(ylim=(len(rows) - 0.5, -0.6), xlabel=label)
    ax.grid(False, axis="y")
    return figure


def rebalancing_orbit(times, curves):
    """Chapter 12. Left: orbits, paths of gradient flow and rebalancing of a head with E = D = 1.
    Right: squared norm over its least value along curves of the orbit, kind -> list of (times,).
    """
    figure, (left, right) = new_figure(2, figsize=(8.6, 4.0))
    w, turn = np.linspace(-3, 3, 301), np.linspace(0, 2 * np.pi, 121)
    q, k = np.meshgrid(w, w)
    left.contour(
        w,
        w,
        q * q - k * k,
        levels=(-6, -3, -1, 1, 3, 6),
        colors=GREY,
        linewidths=0.8,
        linestyles="-",
    )
    left.contour(
        w, w, q * k, levels=(-3, -1, 1, 3), colors=COLOURS[1], linewidths=1.6, linestyles="-"
    )
    for sign in (1, -1):
        left.plot(w, sign * w, color="0.3", lw=0.8, linestyle=LINES[1])
    left.plot(
        2**0.5 * np.cos(turn), 2**0.5 * np.sin(turn), color=COLOURS[0], lw=1.4, linestyle=LINES[5]
    )
    for product, start in ((1, 2.6), (3, 1.1), (1, -0.4), (-1, 2.4), (-3, -1.1)):
        path = start * (abs(product) ** 0.5 / abs(start)) ** np.linspace(0, 1, 31)
        left.plot(path, product / path, color="black", lw=1.8)
        left.annotate(
            "",
            (path[-1], product / path[-1]),
            (path[-5], product / path[-5]),
            arrowprops=dict(arrowstyle="-|>", color="black"),
        )
        left.plot(start, product / start, "o", color="black", ms=5, mfc="white", zorder=4)
    left.set(
        xlim=(-3, 3),
        ylim=(-3, 3),
        aspect="equal",
        xlabel="$W_Q$",
        ylabel="$W_K$",
        title="a head with $E = D = 1$",
    )
    left.grid(False)
    for (name, values), colour, line in zip(curves.items(), COLOURS, LINES):
        for i, curve in enumerate(values):
            right.plot(times, curve, color=colour, linestyle=line, label=name if i == 0 else None)
    right.set(xlabel="$t$", title="squared norm of $(e^{tT} A,\\ e^{-tT^\\top} B)$, relative")
    right.legend(frameon=False, loc="upper center")
    return figure


def sawtooth(steps, betas, joint, every):
    """Chapter 12. Left: beta of each head and its mean, run -> (measured, heads), moved every so
    many steps. Right: the second run again from its first move on, and its joint beta (measured,
    heads).
    """
    figure, (left, right) = new_figure(2, figsize=(8.8, 4.0))
    styles = list(zip(COLOURS, (LINES[1], LINES[0], LINES[2], LINES[3])))
    second, top = list(betas)[1], max(float(values.max()) for values in betas.values())
    teeth = 1.3 * float(joint[steps >= every].max())
    panels = (
        (
            left,
            {name: (values, style) for (name, values), style in zip(betas.items(), styles)},
            1.55 * top,
        ),
        (
            right,
            {
                "weights with biases": (joint, (COLOURS[4], LINES[1])),
                "weights": (betas[second], styles[1]),
            },
            teeth,
        ),
    )
    for ax, runs, limit in panels:
        for name, (values, (colour, line)) in runs.items():
            ax.plot(steps, values, color=colour, lw=0.6, alpha=0.45)
            ax.plot(steps, values.mean(1), color=colour, linestyle=line, lw=2, label=name)
        for step in range(every, int(steps[-1]), every):
            ax.axvline(step, color="0.5", lw=0.8, linestyle=":", zorder=0)
        ax.grid(axis="x", visible=False)
        ax.set(xlabel="step", xlim=(0 if ax is left else every - 3, steps[-1]), ylim=(0, limit))
        ax.legend(frameon=False, fontsize=8.5, loc="upper left")
    left.set_title("$\\beta$ in four runs")
    right.set_title(f"{second}: $\\beta$ without and with biases")
    return figure


def imbalance_paths(paths, drifts, predicted):
    """Chapter 11. Left: paths name -> (n, 2) of (w_Q, w_K) over the loss (w_K w_Q - 1)^2 / 2 and
    the lines of equal imbalance. Right: drifts name -> {steps: relative drift}, and predicted name
    -> c, for the line c / steps.
    """
    figure, (left, right) = new_figure(2, figsize=(8.4, 4.1))
    _crossing_hyperbolas(left)
    for (name, path), colour, marker in zip(
        paths.items(), ("black", COLOURS[0], *COLOURS[2::2]), ("", ".", "x", "+")
    ):
        lw, zorder = (2.2, 4) if name == "flow" else (0.9, 3)
        left.plot(*path.T, color=colour, marker=marker, ms=5, lw=lw, label=name, zorder=zorder)
        left.plot(*path[-1], "o", color=colour, mec="white", ms=7, zorder=5)
    left.legend(loc="lower left", fontsize=8, frameon=True, framealpha=0.9)
    for (name, by_steps), colour, marker in zip(
        drifts.items(), (COLOURS[0], *COLOURS[2::2]), "ox+"
    ):
        steps = np.array(list(by_steps))
        right.loglog(
            steps,
            list(by_steps.values()),
            marker,
            color=colour,
            ms=6,
            label=name,
            linestyle="" if name in predicted else ":",
        )
        if name in predicted:
            right.loglog(steps, predicted[name] / steps, color=colour, lw=1)
    right.set(xlabel="steps taken in the same time", ylabel="drift of the imbalance, relative")
    right.set_xticks(steps, [str(n) for n in steps], minor=False)
    right.minorticks_off()
    right.legend(loc="center left", bbox_to_anchor=(0.0, 0.72), fontsize=8)
    return figure


def _crossing_hyperbolas(ax):
    q, k = np.meshgrid(np.linspace(-1.4, 2.6, 201), np.linspace(-0.6, 2.6, 161))
    ax.contourf(q, k, np.sqrt((q * k - 1) ** 2), levels=12, cmap="Blues", alpha=0.55)
    ax.contour(
        q, k, q * k, levels=[-3, -2, -1, 0.3, 2, 3], colors="white", linewidths=0.8, linestyles="-"
    )
    ax.contour(q, k, q * k, levels=[1], colors=COLOURS[1], linewidths=2.5)
    ax.contour(
        q,
        k,
        q**2 - k**2,
        levels=np.arange(-6, 4) + 0.2,
        colors="0.45",
        linewidths=0.7,
        linestyles="-",
    )
    ax.set(xlabel="$W_Q$", ylabel="$W_K$", aspect="equal", xlim=(-1.4, 2.6), ylim=(-0.6, 2.6))
    ax.grid(False)


def rho_and_biases(sample, law, mean, marks, times, curves):
    """Chapter 11. Left: rho of isotropic steps (n,), the distribution they follow, their mean, and
    marks name -> rho. Right: curves name -> (t,), relative changes along a gradient flow at the
    given times.
    """
    figure, (left, right) = new_figure(2, figsize=(8.4, 3.6))
    grid = np.linspace(0, 1, 401)
    left.hist(sample, bins=np.linspace(0, 1, 51), density=True, color=COLOURS[0], alpha=0.35)
    left.plot(grid, law.pdf(grid), color=COLOURS[0])
    left.axvline(mean, color="black", ls="--", lw=1)
    top = law.pdf(grid).max()
    for (name, rho), colour, height in zip(marks.items(), COLOURS[1:], (1.3, 1.12, 0.55)):
        left.plot([rho, rho], [0, height * top], color=colour, lw=2)
        left.annotate(
            f" {name}",
            (rho, height * top),
            ha="left" if rho < 0.5 else "right",
            va="bottom",
            fontsize=9,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
        )
    left.set(xlabel=r"$\rho$", ylabel="density", xlim=(-0.03, 1.03), ylim=(0, 1.5 * top))
    for (name, values), colour, line in zip(curves.items(), COLOURS[1:], LINES):
        right.semilogy(
            times[1:], values[1:].clamp_min(1e-17), color=colour, linestyle=line, label=name
        )
    right.set(xlabel="time along the flow", ylabel="relative change", ylim=(1e-16, 10))
    right.legend(loc="center right", fontsize=9)
    return figure


def twins(single, double):
    """Chapter 13. rho of one run in float32 and in float64, of the weights alone and with their
    biases, medians over heads.
    """
    figure, ax = new_figure(figsize=(7.2, 3.6))
    middle = lambda record, name: np.median(record.heads[name].reshape(len(record.step), -1), 1)
    for i, (name, label) in enumerate((("rho", "weights alone"), ("joint_rho", "with biases"))):
        ax.plot(
            single.step,
            middle(single, name),
            color=COLOURS[i],
            linestyle=LINES[2 * i],
            lw=2.2,
            label=f"{label}, float32",
        )
        ax.plot(
            double.step,
            middle(double, name).clip(1e-34),
            color=COLOURS[i + 2],
            linestyle=LINES[2 * i + 1],
            lw=1.2,
            label=f"{label}, float64",
        )
    ax.set(yscale="log", xlabel="step", ylabel=r"$\rho$")
    ax.legend(frameon=False, loc="center right", bbox_to_anchor=(1, 0.42))
    return figure
