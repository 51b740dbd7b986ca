"""Figures of Part I, Identification."""

from .style import COLOURS, GREY, HATCHES, LINES, new_figure


def hyperbolas_and_counts(w, errors, omega, counts):
    """Chapter 1. Left: the error (n, n) of a head with E = D = 1 over its numbers w (rows: w_K,
    columns: w_Q), its best level set w_K w_Q = omega, and null directions on three. Right: the
    unidentified query-key parameters for D = 1, 2, ..., as E -> (closed form, measured), and D^2.
    """
    figure, (left, right) = new_figure(2, figsize=(8.4, 3.9))
    left.contourf(w, w, errors, levels=12, cmap="Blues", alpha=0.6)
    left.contour(
        w,
        w,
        w[:, None] * w,
        levels=[-4, -1.5, -0.4, 0.2, 3],
        colors="white",
        linewidths=0.8,
        linestyles="-",
    )
    for sign in (1, -1):
        branch = w[(w > 0.3) & (w < 3)]
        left.plot(sign * branch, sign * omega / branch, color=COLOURS[1], lw=2.5)
    for level, at in (
        (omega, (0.5, 1.0, 2.0, -0.5, -1.0, -2.0)),
        (-1.5, (0.7, 1.2247, 2.1, -0.7, -1.2247, -2.1)),
        (3.0, (1.7321, -1.7321)),
    ):
        for q in at:
            length = (q * q + (level / q) ** 2) ** 0.5
            left.quiver(
                q,
                level / q,
                q / length,
                -level / q / length,
                angles="xy",
                pivot="mid",
                scale=9,
                width=0.009,
                zorder=3,
            )
    left.set(
        xlim=(w[0], w[-1]),
        ylim=(w[0], w[-1]),
        xlabel="$W_Q$",
        ylabel="$W_K$",
        title="error of a head with $E = D = 1$",
        aspect="equal",
    )
    left.grid(False)
    most = max(max(formula) for formula, _ in counts.values())
    for (E, (formula, measured)), colour, line in zip(counts.items(), COLOURS, LINES):
        D = range(1, len(formula) + 1)
        right.plot(D, formula, color=colour, linestyle=line, label=f"E = {E}")
        right.plot(D, measured, "o", color=colour, ms=5)
        right.plot(E, formula[E - 1], "o", ms=11, mfc="none", mec="black")
    squares = [d / 10 for d in range(10, 10 * len(formula)) if d * d <= 110 * most]
    right.plot(
        squares,
        [d * d for d in squares],
        color="black",
        linestyle=LINES[3],
        lw=1.2,
        zorder=0,
        label="$D^2$",
    )
    right.set(xlabel="head width $D$", title="unidentified numbers in $W_Q$ and $W_K$")
    right.legend(frameon=False)
    return figure


def cliff(spectrum, rank):
    """Chapter 1. The singular values of a Jacobian, largest first, and the gap they are cut at."""
    figure, axes = new_figure(figsize=(7.0, 3.0))
    values = (spectrum / spectrum[0]).clamp_min(1e-19)
    axes.semilogy(
        range(1, rank + 1), values[:rank], "o", color=COLOURS[0], ms=3.5, label=f"kept: {rank}"
    )
    axes.semilogy(
        range(rank + 1, len(values) + 1),
        values[rank:],
        "s",
        color=COLOURS[1],
        ms=3.5,
        label=f"dropped: {len(values) - rank}",
    )
    axes.axhspan(values[rank], values[rank - 1], color="black", alpha=0.06, lw=0)
    axes.annotate(
        "the gap", (rank / 2, (values[rank] * values[rank - 1]).sqrt()), ha="center", va="center"
    )
    axes.set(
        xlabel="singular value, largest first", ylabel="relative to the largest", ylim=(1e-20, 10)
    )
    axes.legend(frameon=False, loc="lower left")
    return figure


def weights_and_pattern(before, after, text):
    """Chapter 2: a head's W_Q, W_K (D, E) and its attention on a text (L, L), in two rows: before
    and after.
    """
    figure, axes = new_figure(3, 2, figsize=(8.4, 5.6), gridspec_kw={"width_ratios": (1, 1, 1.35)})
    for row, (state, when) in zip(axes, ((before, "before"), (after, "after"))):
        for ax, weight, name in zip(row, state[:2], ("$W_Q$", "$W_K$")):
            bound = float(weight.abs().max())
            ax.imshow(
                weight,
                cmap="RdBu_r",
                vmin=-bound,
                vmax=bound,
                aspect="auto",
                interpolation="nearest",
            )
            ax.set(
                title=f"{name} {when}",
                xlabel="embedding coordinate",
                ylabel="head coordinate",
                yticks=range(0, len(weight), 5),
            )
        row[2].imshow(state[2].sqrt(), cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
        row[2].set(title=f"attention {when}", xlabel="key", ylabel="query")
        row[2].set_xticks(range(len(text)), text, fontsize=6, family="monospace")
        row[2].set_yticks(range(len(text)), text, fontsize=6, family="monospace")
        for ax in row:
            ax.grid(False)
            ax.tick_params(length=0)
    return figure


def damage_by_condition(conditions, damage, units):
    """Chapter 2: worst change of the logits (conditions, draws) by number format, and the unit of
    rounding times the condition.
    """
    figure, ax = new_figure(figsize=(7.0, 4.2))
    for (name, values), colour, line, marker in zip(damage.items(), COLOURS, LINES, "osD"):
        ax.loglog(conditions, units[name] * conditions, color=GREY, linewidth=1, zorder=1)
        ax.loglog(
            conditions, values.median(1).values, color=colour, linestyle=line, label=name, zorder=2
        )
        ax.loglog(conditions, values, marker, color=colour, markersize=3, zorder=3)
    ax.axhline(1, color="0.4", linewidth=0.8)
    ax.set(
        xlabel=r"condition number $\kappa(S)$",
        ylabel="worst relative change of the logits",
        ylim=(1e-16, 10),
    )
    ax.legend(loc="center right", bbox_to_anchor=(1.0, 0.55), frameon=False)
    return figure


def canonical_form(before, after):
    """Chapter 3. The Gram matrices and the product of a head, (P_Q, P_K, M) each, as given and in
    canonical form.
    """
    figure, axes = new_figure(3, 2, figsize=(7.6, 5.0))
    names = ("$P_Q = W_Q W_Q^T$", "$P_K = W_K W_K^T$", "$M = W_K^T W_Q$")
    for row, matrices, word in zip(axes, (before, after), ("as given", "canonical")):
        grams = max(float(matrix.abs().max()) for matrix in (*before[:2], *after[:2]))
        for axis, matrix, bound, name in zip(
            row, matrices, (grams, grams, float(before[2].abs().max())), names
        ):
            axis.imshow(matrix, cmap="RdBu_r", vmin=-bound, vmax=bound)
            axis.set(xticks=[], yticks=[], title=name if matrices is before else "")
            axis.grid(False)
            axis.spines[["top", "right"]].set_visible(True)
        row[0].set_ylabel(word)
    return figure


def coordinates_that_fail(gaps, canonical, direct):
    """Chapter 3. The smallest nonzero singular value of two coordinate systems of the product, as
    two of its singular values meet.
    """
    figure, axes = new_figure(figsize=(7.0, 3.4))
    axes.loglog(
        gaps,
        direct,
        "s",
        color=COLOURS[1],
        linestyle=LINES[1],
        ms=4,
        label="$(W_Q, W_K)$, across the null space",
    )
    axes.loglog(
        gaps,
        canonical,
        "o",
        color=COLOURS[0],
        linestyle=LINES[0],
        ms=4,
        label="canonical $(\\sigma, U_Q, U_K)$",
    )
    axes.set(
        xlabel="distance of the two meeting singular values of $M$",
        ylabel="least sensitivity of $M$",
    )
    axes.legend(frameon=False, loc="lower right")
    return figure


def straight_and_curved(steps, change):
    """Chapter 4: relative change of scores and outputs, path -> (steps, 2), against the step."""
    figure, axes = new_figure(2, figsize=(8.4, 3.9), sharey=True)
    for i, (ax, what) in enumerate(zip(axes, ("scores", "outputs of the layer"))):
        for (name, values), colour, line, marker in zip(change.items(), COLOURS, LINES, "osD^"):
            ax.loglog(
                steps,
                values[:, i].clamp_min(1e-17),
                color=colour,
                linestyle=line,
                marker=marker,
                markersize=3.5,
                label=name,
            )
        ax.set(title=what, xlabel="step $t$", ylim=(1e-17, 10))
    axes[0].set_ylabel("relative change")
    axes[0].legend(loc="upper left", frameon=False)
    return figure


def rotary_idle_directions(sensitivity, tolerance, lengths, curves, limits):
    """Chapter 8. Left: how much mixing plane i into plane j moves the scores (planes, planes), and
    where that is below a tolerance. Right: practically idle directions against sequence length,
    name -> counts, between the limits (low, high).
    """
    figure, (left, right) = new_figure(
        2, figsize=(8.8, 4.0), gridspec_kw={"width_ratios": (1, 1.15)}
    )
    image = left.imshow(
        sensitivity.clamp_min(1e-7).log10(),
        cmap="viridis",
        vmin=-5,
        vmax=0,
        interpolation="nearest",
    )
    beside = sensitivity.clone()
    beside.diagonal()[1:] = sensitivity.diagonal(1)  # the outline is that of unequal planes
    left.contour(
        beside[1:, 1:],
        levels=[tolerance],
        colors="white",
        linewidths=1.4,
        extent=(1, len(beside) - 1) * 2,
    )
    left.set(
        xlabel="plane $j$ (fast to slow)",
        ylabel="plane $i$",
        title="change of $R_\\delta$, $i$ mixed with $j$",
    )
    left.grid(False)
    figure.colorbar(image, ax=left, label="$\\log_{10}$ of the r.m.s.", shrink=0.8)
    for (name, counts), colour, line, marker in zip(
        curves.items(),
        (COLOURS[0], COLOURS[0], COLOURS[1], COLOURS[1]),
        ("-", ":", "-", ":"),
        "o^sD",
    ):
        right.loglog(
            lengths, counts, color=colour, linestyle=line, marker=marker, ms=3.5, label=name
        )
    for value, text, above in zip(
        limits, ("$D$: exact, any two neighbouring offsets", "$D^2$: no rotation"), (False, True)
    ):
        right.axhline(value, color="0.3", lw=0.9, zorder=0)
        right.annotate(
            text,
            (lengths[-1], value * (1.12 if above else 0.88)),
            ha="right",
            va="bottom" if above else "top",
            fontsize=9,
        )
    right.set(
        xlabel="sequence length $L$",
        title=f"practically idle directions, $D = {limits[0]}$",
        ylim=(limits[0] / 2, 2.4 * limits[1]),
    )
    right.set_xscale("log", base=2)
    right.legend(frameon=False, fontsize=9, loc="upper right", bbox_to_anchor=(1.03, 0.83))
    return figure


def grouped_and_rotary(layers, groups, shares, dots):
    """Chapter 9. Left: unidentified numbers of one layer by circuit, name -> (query-key,
    value-output). Right: the unidentified share of the query-key weights against the number of
    groups, name -> values, and measured points, name -> (groups, shares).
    """
    figure, (left, right) = new_figure(
        2, figsize=(9.2, 3.9), gridspec_kw={"width_ratios": (1.6, 1)}
    )
    for i, (circuit, colour) in enumerate(
        (("query-key", COLOURS[0]), ("value-output", COLOURS[1]))
    ):
        at = [n + 0.44 * i - 0.22 for n in range(len(layers))]
        bars = left.bar(
            at,
            [pair[i] for pair in layers.values()],
            width=0.42,
            color=colour,
            hatch=HATCHES[i],
            edgecolor="white",
            label=circuit,
        )
        left.bar_label(bars, [f"{pair[i]:,}" for pair in layers.values()], fontsize=6.4, padding=2)
    left.set_yscale("log")
    left.set(ylim=(300, 2e7), title="unidentified numbers of one layer")
    left.set_xticks(range(len(layers)), layers)
    left.grid(axis="x", visible=False)
    left.legend(frameon=False, loc="upper right")
    for (name, values), colour, line, marker in zip(shares.items(), COLOURS[2:], LINES, "os"):
        right.semilogx(
            groups, [100 * v for v in values], color=colour, linestyle=line, label=name, base=2
        )
        right.semilogx(
            dots[name][0],
            [100 * v for v in dots[name][1]],
            marker,
            color=colour,
            ms=6,
            mfc="white",
            mew=1.6,
            base=2,
        )
    right.set_xticks(dots[name][0], dots[name][0])
    right.set(
        xlabel="key/value groups $G$",
        ylabel="percent",
        ylim=(0, None),
        title="unidentified share of $W_Q$ and $W_K$",
    )
    right.legend(frameon=False)
    return figure


def bias_gradients(norms):
    """Chapter 6: gradient norms of the biases, layer -> {bias -> norm}, over that of the output
    bias; rounding level shaded.
    """
    figure, ax = new_figure(figsize=(7.4, 3.8))
    names = ("b_Q", "b_K", "b_V", "b_O")
    for i, (name, colour, hatch) in enumerate(zip(names, COLOURS, HATCHES)):
        heights = [max(norm[name] / norm["b_O"], 1e-18) for norm in norms.values()]
        at = [group + 0.2 * (i - 1.5) for group in range(len(norms))]
        ax.bar(
            at,
            heights,
            0.18,
            color=colour,
            hatch=hatch,
            edgecolor="white",
            label=f"${name}$",
            zorder=2,
        )
    ax.axhspan(1e-19, 1e-14, color="black", alpha=0.08, lw=0)
    ax.text(-0.5, 3e-17, "rounding", ha="right", va="center")
    ax.set(
        yscale="log",
        xlim=(-1, len(norms) - 0.5),
        ylim=(1e-19, 30),
        ylabel="gradient norm, over that of $b_O$",
    )
    ax.set_xticks(range(len(norms)), norms)
    ax.grid(False, axis="x")
    ax.legend(frameon=False, ncols=4, loc="lower right", bbox_to_anchor=(1, 1))
    return figure


def share_and_error(measured, heads, errors):
    """Chapter 5. Left: identified share by number of heads, formula and measured (H -> share).
    Right: relative error of the best score product of rank E/H, target -> (heads,).
    """
    figure, (left, right) = new_figure(2, figsize=(8.4, 3.8), sharex=True)
    line = [2 ** (i / 20) for i in range(121)]
    left.plot(line, [1 - 1 / (2 * H) for H in line], color=COLOURS[0], label="$1 - 1/(2H)$")
    left.plot(
        list(measured),
        list(measured.values()),
        "o",
        color=COLOURS[1],
        ms=5,
        label="measured, $E = 12$",
    )
    for H, text, at in ((6, "11/12", (-20, 9)), (8, "15/16", (6, -16))):
        left.plot(H, 1 - 1 / (2 * H), "o", ms=11, mfc="none", mec="black")
        left.annotate(text, (H, 1 - 1 / (2 * H)), xytext=at, textcoords="offset points")
    left.set(ylim=(0, 1.03), xlabel="heads $H$", title="identified share")
    left.legend(loc="lower right", frameon=False)
    for (name, values), colour, style, marker in zip(errors.items(), COLOURS, LINES, "osD"):
        right.plot(heads, values, color=colour, linestyle=style, marker=marker, ms=4, label=name)
    right.set(
        ylim=(-0.02, 1.03),
        xlabel="heads $H$",
        title="error of the best score product of rank $E/H$",
    )
    right.legend(loc="lower right", frameon=False)
    right.set_xscale("log", base=2)
    right.set_xticks(heads, [str(H) for H in heads])
    return figure


def stripes(views):
    """Chapter 5. The best score products (E, E) that heads of width E/H can form: H -> matrix."""
    figure, axes = new_figure(len(views), figsize=(8.4, 2.5))
    for axis, (H, view) in zip(axes, views.items()):
        axis.imshow(view, cmap="RdBu_r", vmin=-1, vmax=1, interpolation="nearest")
        axis.set(
            title=f"$H = {H}$, rank {len(view) // H}", xticks=[], yticks=[], xlabel="query token"
        )
        axis.spines[["top", "right"]].set_visible(True)
        axis.grid(False)
    axes[0].set_ylabel("key token")
    return figure


def wider_heads(E, H, widths, share, number, rotary_share):
    """Chapter 7. Over the head width: the measured identified share and number of plain layers on
    their formulas, and the query-key share of rotary layers, width -> share.
    """
    figure, (left, right) = new_figure(2, figsize=(8.4, 3.7))
    fine = [1 + i / 20 for i in range(20 * (len(widths) - 1) + 1)]
    ranks = [min(D, E) for D in fine]
    left.plot(
        fine,
        [r * (2 * E - r) / (2 * D * E) for D, r in zip(fine, ranks)],
        color=COLOURS[0],
        linestyle=LINES[0],
        label="plain",
    )
    left.plot(widths, share, "o", color=COLOURS[0], ms=5)
    left.plot(
        rotary_share.keys(),
        rotary_share.values(),
        "s",
        color=COLOURS[1],
        linestyle=LINES[1],
        ms=5,
        label="rotary, queries and keys",
    )
    left.set(xlabel="head width $D$", title="identified share", ylim=(0, 1.05))
    right.plot(
        fine,
        [4 * H * D * E for D in fine],
        color=COLOURS[2],
        linestyle=LINES[1],
        label="all weights, $4HDE$",
    )
    right.plot(
        fine,
        [2 * H * r * (2 * E - r) for r in ranks],
        color=COLOURS[0],
        linestyle=LINES[0],
        label="identified",
    )
    right.plot(widths, number, "o", color=COLOURS[0], ms=5)
    right.set(xlabel="head width $D$", title="number of weights", ylim=(0, None))
    for ax, corner in ((left, "lower left"), (right, "upper left")):
        ax.axvline(E, color="0.4", linestyle=":", lw=1.2)
        ax.legend(frameon=False, loc=corner)
    return figure


def no_single_head(g, measured, heads):
    """Chapter 10: identified numbers over E^2 of a single head against its width over E, measured
    as kind -> (width -> number), and of multi-head layers, H -> number; g is the part of one
    product.
    """
    figure, axes = new_figure(figsize=(7.4, 4.2))
    ratios = [i / 100 for i in range(0, 201)]
    lines = {"without": [1 + g(x) for x in ratios], "with": [2 * g(x) for x in ratios]}
    labels = {"without": "one head, no output matrix", "with": "one head, output matrix, $C' = D'$"}
    for (kind, line), colour, style, marker in zip(lines.items(), COLOURS, LINES, "os"):
        axes.plot(ratios, line, color=colour, linestyle=style, label=labels[kind])
        axes.plot(
            list(measured[kind]),
            list(measured[kind].values()),
            marker,
            color=colour,
            ms=6,
            mfc="white",
        )
    axes.plot(ratios[100:], [1 + 2 * x - x * x for x in ratios[100:]], color=GREY, lw=0.8)
    axes.axhspan(2, 3, color="black", alpha=0.06, lw=0)
    for H, number in heads.items():
        axes.axhline(number, color=COLOURS[2], lw=1.2)
        axes.annotate(
            f"{H} heads",
            (2.02, number),
            va="bottom" if H == 16 else "center",
            color=COLOURS[2],
            annotation_clip=False,
        )
    axes.set(
        xlim=(0, 2),
        ylim=(0, 4.1),
        xlabel="head width over embedding width, $D'/E$",
        title="identified numbers over $E^2$",
    )
    axes.legend(loc="lower right", frameon=False)
    return figure


def segments(drawn):
    """Chapter 10: outputs in the plane, name -> list of (at y alone, in the pair, at x alone), with
    the foot on the segment.
    """
    figure, axes = new_figure(len(drawn), figsize=(8.4, 4.2))
    for axis, (name, triples), colour in zip(axes, drawn.items(), COLOURS):
        for start, pair, end in triples:
            along = end - start
            foot = start + ((pair - start) @ along / along.square().sum()).clamp(0, 1) * along
            axis.plot(*zip(start, end), color=GREY, lw=0.7, zorder=1)
            axis.plot(*end, "o", color=GREY, mfc="white", ms=4, zorder=2)
            axis.plot(*zip(foot, pair), color=colour, lw=1.2, zorder=3)
            axis.plot(*pair, "o", color=colour, ms=4.5, zorder=4)
        axis.plot(*triples[0][0], "s", color="black", ms=6, zorder=5)
        axis.set(title=name, aspect="equal", xticks=range(-2, 3), yticks=range(-2, 3))
    return figure
