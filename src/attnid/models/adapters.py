"""A LoRA rewritten for other weights of the function that it was made for."""

import math
import os
import shutil
from pathlib import Path

import torch
from einops import rearrange

from ..checks import is_finite, require, require_finite
from ..files import draft_of, read_json
from .accidents import products
from .blocks import read_block
from .comparison import check_alike
from .folders import open_model
from .identified import nearest_order
from .layouts import read_layer
from .reduction import TOLERANCES, output_change

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
DOWN, UP = ".lora_A.weight", ".lora_B.weight"
PLAIN = {"bias": "none", "use_dora": False, "modules_to_save": None, "layer_replication": None}


def rewrite_adapter(adapter, old, new, out, *, tolerance=None):
    """Write the LoRA in the folder `adapter`, made for the checkpoint at `old`, to `out` so that it
    does to the checkpoint at `new` what it did to that one. Returns a report as plain data.

    old and new are one function in two gauges, as `reduce_checkpoint` and `align` make the one of
    the other. Where new has S W_Q for the W_Q of the old one, the adapter's B A becomes S B A, and
    likewise for keys, values and outputs; S is found from the two checkpoints, head by head, heads
    in another order included. An adapter of another map stays, if that map is the same in both. The
    format is peft's. Of each layer the outputs with the adapter, in float64 at random normal
    tokens, are compared before anything is written.

    ValueError for an adapter of another kind than LoRA, or with biases, magnitudes (DoRA) or whole
    modules; for a tensor that is damaged, not finite, or of no map that is the same in both; and
    where outputs differ by more than `tolerance` (as for `reduce_checkpoint`) relative to the
    largest, as they do where an output map is adapted and its value biases were folded away, which
    that adapter would have seen. Otherwise errors as for `compare`, and for `out`.
    """
    positive = tolerance is None or is_finite(tolerance) and tolerance > 0
    require(positive, "tolerance", tolerance, "must be a positive number")
    free = not os.path.lexists(out)
    require(free, "out", os.fspath(out), "is there already, and nothing is overwritten")
    scale, tensors = _read(Path(adapter))
    one, other = open_model(old), open_model(new)
    check_alike(one, other)
    _require_same_elsewhere(one, other, tensors)
    rows = []
    for number in range(len(one.architecture.layers)):
        names = {short: full for full in tensors if (short := _within(one, number, full))}
        lora = {short: tensors[full] for short, full in names.items()}
        try:
            found, change = _rewrite_layer(one, other, number, lora, scale, tolerance)
        except ValueError as error:
            raise ValueError(f"layer {number}: {error}") from None
        tensors |= {names[short]: tensor for short, tensor in found.items()}
        rows.append({"layer": number, "rewritten": sorted(names.values()), "change": change})
    _write(Path(adapter), Path(out), tensors)
    names = [model.architecture.name for model in (one, other)]
    return {"names": names, "largest_change": max(r["change"] for r in rows), "layers": rows}


def _read(adapter):
    """What B A is multiplied by, and the tensors by their names in the file."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    config = read_json(adapter / CONFIG)
    require(config.get("peft_type") == "LORA", "peft_type", config.get("peft_type"), "is not LORA")
    for field, plain in PLAIN.items():
        value = config.get(field) or plain
        require(value == plain, field, value, "is more than products B A, and is not rewritten")
    for field in ("r", "lora_alpha"):
        number = is_finite(config.get(field)) and config[field] > 0
        require(number, field, config.get(field), "must be a positive number")
    for field in ("rank_pattern", "alpha_pattern"):
        require(not config.get(field), field, config.get(field), "must be the same for all maps")
    path = adapter / WEIGHTS
    require(path.is_file(), "path", str(path), "is not there")
    try:
        tensors = load_file(path)
    except SafetensorError as error:
        why = f"is damaged, or no safetensors file ({error})"
        raise ValueError(f"path={str(path)!r}: {why}") from None
    for name, tensor in tensors.items():
        require(name.endswith((DOWN, UP)), "tensors", name, "is no part of a LoRA")
        require_finite(name, tensor)
    r = config["r"]
    return config["lora_alpha"] / (math.sqrt(r) if config.get("use_rslora") else r), tensors


def _within(model, number, name):
    """What follows the layer's name in that of a tensor of its attention maps; "" for others."""
    before, stem, short = f".{name}".partition(f".{model.layout.layer.format(number)}.")
    maps = (*model.layout.maps, model.layout.output)
    return short if short.removesuffix(DOWN).removesuffix(UP) in maps else ""


def _require_same_elsewhere(one, other, tensors):
    """ValueError naming a tensor of the adapter whose map the two checkpoints do not share."""
    layers = range(len(one.architecture.layers))
    for name in tensors:
        if any(_within(one, number, name) for number in layers):
            continue
        short = name.removesuffix(DOWN).removesuffix(UP).split("base_model.model.")[-1]
        maps = [
            next((n for n in model.names if f".{n}".endswith(f".{short}.weight")), None)
            for model in (one, other)
        ]
        require(None not in maps, "tensors", name, "belongs to no map of the model")
        a, b = (m.read(n) for m, n in zip((one, other), maps))
        require(torch.equal(a, b), "tensors", name, "belongs to a map that is not the same in both")


def _rewrite_layer(one, other, number, lora, scale, tolerance):
    """The adapter of one layer, short name -> tensor, for the other weights; and how far outputs
    with it are from those before.
    """
    if not lora:
        return {}, 0.0
    a, layout = one.architecture.layers[number][1], one.layout
    old, new = ({n: t.double() for n, t in m.layer(number).items()} for m in (one, other))
    order = _order(read_block(other, number), read_block(one, number))
    groups = order[:: a.H // a.G] // (a.H // a.G)
    before, after = (_rows(layout, a, _weights(layout, side)) for side in (old, new))
    moved = {name: tensor.double().clone() for name, tensor in lora.items()}
    for name, rows in _rows(layout, a, _factors(layout, moved)).items():
        heads = order if name in ("W_Q", "W_O") else groups
        by_head = lambda x: x.reshape(len(heads), -1, x.shape[-1])
        W, W_new, B = map(by_head, (before[name], after[name], rows))
        rows.copy_((W_new @ torch.linalg.pinv(W[heads]) @ B[heads]).view_as(rows))
    sides = _adapted(layout, a, old, lora, scale), _adapted(layout, a, new, moved, scale)
    change = output_change(a, *sides)
    bound = tolerance or max(TOLERANCES[tensor.dtype] for tensor in lora.values())
    why = f"adapted outputs would differ by {change:.2g} of the largest; nothing is written"
    require(change <= bound, "tolerance", bound, why)
    return {name: moved[name].to(lora[name].dtype).contiguous() for name in lora}, change


def _order(ours, theirs):
    # the heads of theirs as those of ours stand
    attention, *sides = products(ours, theirs)
    small = {product.circuit: torch.zeros(len(product.reading)).double() for product in sides[0]}
    return nearest_order(attention, *sides, small)[0]


def _rows(layout, a, maps):
    """Views by head of what a gauge acts on, name -> (heads, d, n), from map -> (rows, n)."""
    read, found = [maps.get(name) for name in layout.maps], {}
    if any(rows is not None for rows in read):
        found = dict(zip(("W_Q", "W_K", "W_V"), layout.arrange(a, *read)))
    if layout.output in maps:
        found["W_O"] = rearrange(maps[layout.output], "(h c) n -> h c n", h=a.H)
    return {name: rows for name, rows in found.items() if rows is not None}


def _weights(layout, tensors):
    # map -> its rows; of the output map its columns
    names = (*layout.maps, layout.output)
    turned = {name: layout.transposed != (name == layout.output) for name in names}
    return {n: tensors[f"{n}.weight"].T if turned[n] else tensors[f"{n}.weight"] for n in names}


def _factors(layout, lora):
    # map -> the rows of B; of the output map the columns of A
    found = {n: lora[n + UP] for n in layout.maps if n + UP in lora}
    output = layout.output + DOWN
    return found | ({layout.output: lora[output].T} if output in lora else {})


def _adapted(layout, a, tensors, lora, scale):
    """The layer's parameters with the adapter added to its maps."""
    tensors = dict(tensors)
    for name in (*layout.maps, layout.output):
        if name + UP in lora and name + DOWN in lora:
            change = scale * lora[name + UP].double() @ lora[name + DOWN].double()
            change = change.T if layout.transposed else change
            tensors[f"{name}.weight"] = tensors[f"{name}.weight"] + change
    gains = {n: torch.ones(shape) for n, shape in a.shapes.items() if n.startswith("gain")}
    return read_layer(layout, a, tensors) | gains


def _write(adapter, out, tensors):
    from safetensors.torch import save_file

    with draft_of(out) as draft:
        shutil.copytree(adapter, draft, ignore=shutil.ignore_patterns(WEIGHTS))
        save_file(tensors, draft / WEIGHTS, metadata={"format": "pt"})


def adapter_table(report):
    """The report as text."""
    rewritten = sum(len(row["rewritten"]) for row in report["layers"])
    old, new = report["names"]
    return (
        f"a LoRA of {old} rewritten for {new}: {rewritten} tensors\n"
        f"largest change of adapted outputs: {report['largest_change']:.1e} of the largest"
    )
