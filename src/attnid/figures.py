"""Every plotting function of the book, in one style. Each takes data, draws, and returns the figure."""

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
    return figure, axes


def hyperbolas_and_counts(w, errors, omega, counts):
    """Chapter 1. Left: the error (n, n) of a head with E = D = 1 over its numbers w (rows: w_K, columns: w_Q), its best level set
    w_K w_Q = omega, and null directions on three. Right: the unidentified query-key parameters for D = 1, 2, ..., as
    E -> (closed form, measured), and D^2."""
    figure, (left, right) = new_figure(2, figsize=(8.4, 3.9))
    left.contourf(w, w, errors, levels=12, cmap="Blues_r", alpha=0.6)
    left.contour(w, w, w[:, None] * w, levels=[-4, -1.5, -0.4, 0.2, 3], colors="white", linewidths=0.8, linestyles="-")
    for sign in (1, -1):
        branch = w[(w > 0.3) & (w < 3)]
        left.plot(sign * branch, sign * omega / branch, color=COLOURS[1], lw=2.5)
    for level, at in ((omega, (0.5, 1.0, 2.0, -0.5, -1.0, -2.0)), (-1.5, (0.7, 1.2247, 2.1, -0.7, -1.2247, -2.1)), (3.0, (1.7321, -1.7321))):
        for q in at:
            length = (q * q + (level / q) ** 2) ** 0.5
            left.quiver(q, level / q, q / length, -level / q / length, angles="xy", pivot="mid", scale=9, width=0.009, zorder=3)
    left.set(xlim=(w[0], w[-1]), ylim=(w[0], w[-1]), xlabel="$W_Q$", ylabel="$W_K$", title="error of a head with $E = D = 1$", aspect="equal")
    left.grid(False)
    most = max(max(formula) for formula, _ in counts.values())
    for (E, (formula, measured)), colour, line in zip(counts.items(), COLOURS, LINES):
        D = range(1, len(formula) + 1)
        right.plot(D, formula, color=colour, linestyle=line, label=f"E = {E}")
        right.plot(D, measured, "o", color=colour, ms=5)
        right.plot(E, formula[E - 1], "o", ms=11, mfc="none", mec="black")
    squares = [d / 10 for d in range(10, 10 * len(formula)) if d * d <= 110 * most]
    right.plot(squares, [d * d for d in squares], color="black", lw=0.9, zorder=0, label="$D^2$")
    right.set(xlabel="head width $D$", title="unidentified numbers in $W_Q$ and $W_K$")
    right.legend(frameon=False)
    plt.close(figure)
    return figure


def cliff(spectrum, rank):
    """Chapter 1. The singular values of a Jacobian, largest first, and the gap they are cut at."""
    figure, axes = new_figure(figsize=(7.0, 3.0))
    values = (spectrum / spectrum[0]).clamp_min(1e-19)
    axes.semilogy(range(1, rank + 1), values[:rank], "o", color=COLOURS[0], ms=3.5, label=f"kept: {rank}")
    axes.semilogy(range(rank + 1, len(values) + 1), values[rank:], "s", color=COLOURS[1], ms=3.5, label=f"dropped: {len(values) - rank}")
    axes.axhspan(values[rank], values[rank - 1], color="black", alpha=0.06, lw=0)
    axes.annotate("the gap", (rank / 2, (values[rank] * values[rank - 1]).sqrt()), ha="center", va="center")
    axes.set(xlabel="singular value, largest first", ylabel="relative to the largest", ylim=(1e-20, 10))
    axes.legend(frameon=False, loc="lower left")
    plt.close(figure)
    return figure


def weights_and_pattern(before, after, text):
    """Chapter 2: a head's W_Q, W_K (D, E) and its attention on a text (L, L), in two rows: before and after."""
    figure, axes = new_figure(3, 2, figsize=(8.4, 5.6), gridspec_kw={"width_ratios": (1, 1, 1.35)})
    for row, (state, when) in zip(axes, ((before, "before"), (after, "after"))):
        for ax, weight, name in zip(row, state[:2], ("$W_Q$", "$W_K$")):
            bound = float(weight.abs().max())
            ax.imshow(weight, cmap="RdBu_r", vmin=-bound, vmax=bound, aspect="auto", interpolation="nearest")
            ax.set(title=f"{name} {when}", xlabel="embedding coordinate", ylabel="head coordinate", yticks=range(0, len(weight), 5))
        row[2].imshow(state[2].sqrt(), cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
        row[2].set(title=f"attention {when}", xlabel="key", ylabel="query")
        row[2].set_xticks(range(len(text)), text, fontsize=6, family="monospace")
        row[2].set_yticks(range(len(text)), text, fontsize=6, family="monospace")
        for ax in row:
            ax.grid(False)
            ax.tick_params(length=0)
    plt.close(figure)
    return figure


def damage_by_condition(conditions, damage, units):
    """Chapter 2: worst change of the logits (conditions, draws) by number format, and the unit of rounding times the condition."""
    figure, ax = new_figure(figsize=(7.0, 4.2))
    for (name, values), colour, line, marker in zip(damage.items(), COLOURS, LINES, "osD"):
        ax.loglog(conditions, units[name] * conditions, color="0.75", linewidth=1, zorder=1)
        ax.loglog(conditions, values.median(1).values, color=colour, linestyle=line, label=name, zorder=2)
        ax.loglog(conditions, values, marker, color=colour, markersize=3, alpha=0.6, zorder=3)
    ax.axhline(1, color="0.4", linewidth=0.8)
    ax.set(xlabel=r"condition number $\kappa(S)$", ylabel="worst relative change of the logits", ylim=(1e-16, 10))
    ax.legend(loc="center right", bbox_to_anchor=(1.0, 0.55), frameon=False)
    plt.close(figure)
    return figure


def canonical_form(before, after):
    """Chapter 3. The Gram matrices and the product of a head, (P, K, M) each, as given and in canonical form."""
    figure, axes = new_figure(3, 2, figsize=(7.6, 5.0))
    names = ("$P = W_Q W_Q^T$", "$K = W_K W_K^T$", "$M = W_K^T W_Q$")
    for row, matrices, word in zip(axes, (before, after), ("as given", "canonical")):
        grams = max(float(matrix.abs().max()) for matrix in (*before[:2], *after[:2]))
        for axis, matrix, bound, name in zip(row, matrices, (grams, grams, float(before[2].abs().max())), names):
            axis.imshow(matrix, cmap="RdBu_r", vmin=-bound, vmax=bound)
            axis.set(xticks=[], yticks=[], title=name if matrices is before else "")
            axis.grid(False)
            axis.spines[["top", "right"]].set_visible(True)
        row[0].set_ylabel(word)
    plt.close(figure)
    return figure


def coordinates_that_fail(gaps, canonical, direct):
    """Chapter 3. The smallest nonzero singular value of two coordinate systems of the product, as two of its singular values meet."""
    figure, axes = new_figure(figsize=(7.0, 3.4))
    axes.loglog(gaps, direct, "s", color=COLOURS[1], linestyle=LINES[1], ms=4, label="$(W_Q, W_K)$, across the null space")
    axes.loglog(gaps, canonical, "o", color=COLOURS[0], linestyle=LINES[0], ms=4, label="canonical $(\\sigma, U_Q, U_K)$")
    axes.set(xlabel="distance of the two meeting singular values of $M$", ylabel="least sensitivity of $M$")
    axes.legend(frameon=False, loc="lower right")
    plt.close(figure)
    return figure


def straight_and_curved(steps, change):
    """Chapter 4: relative change of scores and outputs, path -> (steps, 2), against the step."""
    figure, axes = new_figure(2, figsize=(8.4, 3.9), sharey=True)
    for i, (ax, what) in enumerate(zip(axes, ("scores", "outputs of the layer"))):
        for (name, values), colour, line, marker in zip(change.items(), COLOURS, LINES, "osD^"):
            ax.loglog(steps, values[:, i].clamp_min(1e-17), color=colour, linestyle=line, marker=marker, markersize=3.5, label=name)
        ax.set(title=what, xlabel="step $t$", ylim=(1e-17, 10))
    axes[0].set_ylabel("relative change")
    axes[0].legend(loc="upper left", frameon=False)
    plt.close(figure)
    return figure
