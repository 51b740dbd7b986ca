"""One checkpoint rewritten into the gauge of another: the same function, its weights as near the
other's as may be.
"""

import math

import torch

from ..checks import is_finite, require
from .accidents import products
from .blocks import read_block
from .companions import ALIGNED_FILE
from .comparison import check_alike
from .folders import open_model
from .identified import nearest_order
from .layouts import read_layer, write_layer
from .nearest import nearest_parameters
from .reduction import TOLERANCES, output_change
from .unit_gauge import align_units

REMARK = """\
The weights here are those of {b}, in the gauge of {a}, as `python -m attnid align` makes them.
Outputs are those of {b}. The weights are not, so what was made for them does not fit these, though
it may load without a word: adapters (LoRA and its like), differences and averages of models, states
of optimizers."""


ADAPTER = "{name}: adapters made for the old weights do not fit the new ones; it is not copied"


def align(a, b, out, *, tolerance=None):
    """Write the checkpoint b to `out` in the gauge of the checkpoint a, its function unchanged.
    Returns a report as plain data.

    Of each layer the heads, within their groups, and the groups are matched with those of a, as
    `compare` matches them; each circuit takes the gauge that its positions allow in which the sum
    of squared differences is least (`nearest.nearest_gauge` says how), idle key biases become those
    of a, and value biases and output bias share their sum so as to lie nearest. Hidden units of an
    MLP are matched, and those of a gated one scaled, signs too. Norms, embeddings, experts and the
    scales of normalised queries and keys stay. In the report "before" and "after" are the norms of
    the difference to a, of attention and MLPs.

    The arithmetic is float64, what is written has the dtypes of b. Each layer's outputs and those
    of each MLP, in float64 at random normal tokens, are compared before anything is written:
    ValueError where one moves by more than `tolerance` (as for `reduce_checkpoint`) relative to the
    largest. Errors as for `compare`, and for `out` as for `reduce_checkpoint`.

    >>> import tempfile
    >>> from attnid.models.examples import save_gpt
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     one, moved = save_gpt(folder, "one.pt"), save_gpt(folder, "moved.pt", gauge=True)
    ...     report = align(one, moved, one.with_name("aligned.pt"))
    >>> report["before"] > 0.1, report["after"] < 1e-9, report["largest_change"] < 1e-9
    (True, True, True)
    """
    require(
        tolerance is None or is_finite(tolerance) and tolerance > 0,
        "tolerance",
        tolerance,
        "must be a positive number",
    )
    one, other = (open_model(path) for path in (a, b))
    check_alike(one, other)
    other.check_free(out)
    changed, rows = {}, []
    for number in range(len(one.architecture.layers)):
        try:
            tensors, row = _align_layer(one, other, number, tolerance)
        except ValueError as error:
            raise ValueError(f"layer {number}: {error}") from None
        changed |= tensors
        rows.append({"layer": number} | row)
    names = [model.architecture.name for model in (one, other)]
    notes = other.write(
        out, changed, REMARK.format(a=names[0], b=names[1]), remark_file=ALIGNED_FILE
    )
    total = lambda key: math.sqrt(sum(row[key] ** 2 for row in rows))
    return {
        "names": names,
        "before": total("before"),
        "after": total("after"),
        "largest_change": max(row["change"] for row in rows),
        "layers": rows,
        "notes": notes,
        "warnings": [ADAPTER.format(name=name) for name in other.adapters],
    }


def _align_layer(one, other, number, tolerance):
    a, b = (read_block(model, number) for model in (one, other))
    require(
        a.attention.bias == b.attention.bias,
        "bias",
        b.attention.bias,
        f"the first has {a.attention.bias!r}: the two have no gauge in common",
    )
    stored = other.layer(number)
    attention, ours, theirs = products(a, b)
    order, _ = nearest_order(attention, ours, theirs, _nothing(ours))
    p, old = ({n: t.double() for n, t in layer.raw.items()} for layer in (a, b))
    taken = _taken(b.attention, old, order)
    new = nearest_parameters(b.attention, p, taken)
    write_layer(other.layout, b.attention, stored, new)
    _write_gains(b.attention, stored, order)
    written = _written(other.layout, b.attention, stored, new)
    change = output_change(b.attention, old, written)
    bound = tolerance or max(TOLERANCES[dtype] for dtype in b.dtypes)
    tensors, mlp = align_units(other, number, a, b)
    for name, moved in (("attention", change), ("mlp", mlp.change)):
        require(
            moved <= bound,
            "tolerance",
            bound,
            f"the outputs of the {name} would change by {moved:.2g} of the largest; nothing is "
            "written",
        )
    away = lambda q: sum((p[n] - q[n].double()).square().sum().item() for n in p)
    row = {
        "change": max(change, mlp.change),
        "before": math.sqrt(away(old) + mlp.before),
        "after": math.sqrt(away(written) + mlp.after),
        "heads_reordered": int((order != torch.arange(len(order))).sum()),
        "units_reordered": mlp.moved,
    }
    return other.full_names(number, stored) | tensors, row


def _nothing(products):
    return {p.circuit: torch.zeros(len(p.reading)).double() for p in products}


def _taken(a, p, order):
    # the parameters with their heads in this order
    groups = order[:: a.H // a.G] // (a.H // a.G)
    by_head = {a.H: order, a.G: groups}
    taken = dict(p)
    for name in ("W_Q", "b_Q", "W_O", "sink"):
        if name in p:
            taken[name] = p[name][order]
    for name in ("W_K", "W_V", "b_K", "b_V"):
        if name in p:
            taken[name] = p[name][groups]
    if a.qk_norm == "layer_gain":
        taken |= {n: p[n][by_head[len(p[n])]] for n in ("gain_Q", "gain_K")}
    return taken


def _write_gains(a, stored, order):
    if a.qk_norm == "layer_gain":
        for letter, heads in (("q", order), ("k", order[:: a.H // a.G] // (a.H // a.G))):
            gain = stored[f"{letter}_norm.weight"]
            gain.copy_(gain.view(-1, a.D)[heads].flatten())


def _written(layout, attention, stored, new):
    # the parameters as the file's own numbers hold them
    gains = {name: tensor for name, tensor in new.items() if name.startswith("gain")}
    written = read_layer(layout, attention, stored) | gains
    for name, tensor in written.items():
        require(
            bool(torch.isfinite(tensor).all()),
            name,
            tensor.dtype,
            "cannot hold the new weights, which are too large for it",
        )
    return {name: tensor.double() for name, tensor in written.items()}


def alignment_table(report):
    """The report as a table of text."""
    lines = [
        f"{report['names'][1]} in the gauge of {report['names'][0]}, "
        f"{len(report['layers'])} layers",
        "",
        f"{'layer':>5}{'before':>12}{'after':>12}{'change of outputs':>20}{'heads':>7}{'units':>7}",
    ]
    lines += [
        f"{row['layer']:5}{row['before']:12.4g}{row['after']:12.4g}{row['change']:20.1e}"
        f"{row['heads_reordered']:7}{row['units_reordered']:7}"
        for row in report["layers"]
    ]
    lines += [
        "",
        f"distance of the weights: {report['before']:.4g} before, {report['after']:.4g} after",
        f"largest change of outputs: {report['largest_change']:.1e} of the largest",
    ]
    return "\n".join(lines + [f"note: {note}" for note in report["notes"]])
