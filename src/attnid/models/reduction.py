"""A checkpoint in canonical form: the same model, with all that its attention outputs cannot tell
set by rule.
"""

from dataclasses import replace

import torch

from ..checks import is_finite, require
from ..layer.attention import forward, random_inputs
from ..layer.canonical import FORMS, reduce_layer
from .folders import open_model
from .layouts import read_layer, write_layer

# how far outputs may move, relative to the largest of them: what rounding to the file's own numbers
# costs, with room
TOLERANCES = {torch.float64: 1e-11, torch.float32: 1e-5, torch.float16: 0.02, torch.bfloat16: 0.1}

# what stays with the new weights, for whoever meets them later
REMARK = """\
The attention weights here are those of {name} in {form} form, as `python -m attnid reduce` makes
them.
Outputs are those of the original. The weights are not, so what was made for the original's does not
fit these, though it may load without a word: adapters (LoRA and its like), differences and averages
of models, states of optimizers."""
ADAPTER = (
    "{name}: adapters made for the original weights do not fit the reduced ones; it is not copied"
)


def reduce_checkpoint(path, out, *, form="balanced", tolerance=None):
    """Write the model at `path` to `out` in canonical form, each attention layer as `reduce_layer`
    has it. Returns a report.

    The arithmetic is float64, what is written has the dtypes of the file. Each layer's outputs, in
    float64 at random normal tokens, are compared before anything is written: ValueError where one
    moves by more than `tolerance` (by default that of TOLERANCES for the coarsest dtype of the
    layer) relative to the layer's largest. Errors as for `open_model` and its `write`, and
    ValueError for another form, a tolerance that is not positive, or weights that the dtype cannot
    hold. The input stays as it is.

    What was made for the old weights, above all adapters, does not fit the new ones: `warnings` of
    the report names such files beside the model, which are not copied, and a remark stays with what
    is written.
    """
    require(form in FORMS, "form", form, f"must be one of {FORMS}")
    require(
        tolerance is None or is_finite(tolerance) and tolerance > 0,
        "tolerance",
        tolerance,
        "must be a positive number",
    )
    model = open_model(path)
    model.check_free(out)
    changed, layers = {}, []
    for number, (kind, attention) in enumerate(model.architecture.layers):
        tensors, row = _reduce_layer(model, number, attention, form, tolerance)
        changed |= tensors
        layers.append({"layer": number, "kind": kind} | row)
    total = model.architecture.total
    remark = REMARK.format(name=model.architecture.name, form=form)
    notes = [*model.architecture.notes, *model.write(out, changed, remark)]
    return {
        "name": model.architecture.name,
        "model_type": model.architecture.model_type,
        "form": form,
        "parameters": total.parameters,
        "unidentified": total.unidentified,
        "fixed": sum(row["fixed"] for row in layers),
        "largest_change": max(row["change"] for row in layers),
        "layers": layers,
        "notes": notes,
        "warnings": [ADAPTER.format(name=name) for name in model.adapters],
    }


def _reduce_layer(model, number, attention, form, tolerance):
    tensors = model.layer(number)
    gains = {
        name: torch.ones(shape)
        for name, shape in attention.shapes.items()
        if name.startswith("gain")
    }  # they stay, and so do their maps
    old = read_layer(model.layout, attention, tensors) | gains
    try:
        reduction = reduce_layer(attention, old, form)
        write_layer(model.layout, attention, tensors, reduction.parameters)
        new = read_layer(model.layout, attention, tensors) | gains
        for name, tensor in new.items():
            require(
                bool(torch.isfinite(tensor).all()),
                name,
                tensor.dtype,
                "cannot hold the new weights, which are too large for it",
            )
        change = output_change(attention, old, new)
        bound = tolerance or max(
            TOLERANCES[tensor.dtype] for name, tensor in new.items() if name not in gains
        )
        require(
            change <= bound,
            "tolerance",
            bound,
            f"the outputs would change by {change:.2g} of the largest; nothing is written",
        )
    except ValueError as error:
        raise ValueError(f"layer {number}: {error}") from None
    return model.full_names(number, tensors), {
        "change": change,
        "fixed": reduction.fixed,
        "condition": {
            circuit: condition.tolist() for circuit, condition in reduction.condition.items()
        },
        "left": {
            circuit: left.nonzero().flatten().tolist() for circuit, left in reduction.left.items()
        },
    }


def output_change(attention, old, new, *, tokens=64, seed=0):
    """The largest change of a layer's outputs from old to new parameters, relative to the largest
    output, at random normal tokens; 0 where all outputs are.

    Caps on the scores are left off, which would hide changes.
    """
    attention = replace(attention, score="softmax") if attention.score == "softcap" else attention
    x = random_inputs(attention, 1, tokens, seed)
    before, after = (
        forward(attention, {name: tensor.double() for name, tensor in p.items()}, x)
        for p in (old, new)
    )
    largest = before.abs().max().clamp_min(torch.finfo(before.dtype).tiny)
    return ((after - before).abs().max() / largest).item()


def reduction_table(report):
    """The report as a table of text."""
    lines = [
        f"{report['name']} ({report['model_type']}), {len(report['layers'])} attention layers, "
        f"{report['form']} form",
        "",
        f"{'layer':>5}{'change of outputs':>20}{'cond S of QK':>14}{'cond S of VO':>14}",
    ]
    for layer in report["layers"]:
        worst = (
            max(layer["condition"][circuit]) if circuit in layer["condition"] else None
            for circuit in ("query-key", "value-output")
        )
        lines += [
            f"{layer['layer']:5}{layer['change']:20.1e}"
            + "".join(f"{'-' if w is None else f'{w:.4g}':>14}" for w in worst)
        ]
    lines += [
        "",
        f"{report['fixed']:,} numbers taken away, of {report['unidentified']:,} unidentified "
        f"ones and {report['parameters']:,} in all",
        f"largest change of a layer's outputs: {report['largest_change']:.1e} of the largest",
    ]
    left = [
        (layer["layer"], circuit, heads)
        for layer in report["layers"]
        for circuit, heads in layer["left"].items()
        if heads
    ]
    lines += [
        f"layer {layer}: {circuit} of heads {heads} left as it was: its product has rank below "
        f"the width"
        for layer, circuit, heads in left
    ]
    return "\n".join(lines + [f"note: {note}" for note in report["notes"]])
