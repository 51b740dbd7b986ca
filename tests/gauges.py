"""Tiny checkpoints moved along what changes no output, and spoilt in ways that do."""

import torch

from attnid.layer.canonical import idle_key_coordinates, value_bias_folds
from attnid.layer.rebalancing import put_rows, rows_of
from attnid.layer.rotation import isotypes
from attnid.models.blocks import BLOCKS
from attnid.models.folders import open_model
from attnid.models.layouts import read_layer, write_layer


def draw(generator, *shape):
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def invertible(generator, groups, size, complex_):
    """Matrices that are well conditioned and far from the identity."""
    numbers = draw(generator, groups, size, size)
    if complex_:
        numbers = torch.complex(numbers, draw(generator, groups, size, size))
    U, _, Vh = torch.linalg.svd(numbers)
    return U @ ((1 + draw(generator, groups, size, 1).abs()).to(U.dtype) * Vh)


def moved(a, p, generator, *, shift=True):
    """Parameters of the same layer after a random gauge, in float64; queries and keys that are normalised change their scale alone; `shift`: value biases move against those of the outputs."""
    p = {name: t.double().clone() for name, t in p.items()}
    s = a.H // a.G
    if a.qk_norm is None:
        for name in {"b_K", "b_Q"} & p.keys():
            p[name] = p[name][..., None]
        if "b_K" in p:
            idle = idle_key_coordinates(a)
            p["b_K"][:, idle] += draw(generator, a.G, len(idle), 1)
        for block in isotypes(a):
            S = invertible(generator, a.G, block.size, block.complex)
            dual = torch.linalg.inv(S).mH.repeat_interleave(s, 0)
            for names, move in ((("W_K", "b_K"), S), (("W_Q", "b_Q"), dual)):
                for name in names:
                    if name in p:
                        put_rows(block, p[name], move @ rows_of(block, p[name]))
        for name in {"b_K", "b_Q"} & p.keys():
            p[name] = p[name][..., 0]
    elif not set("qk") & set(a.bias):
        over = 1 if a.qk_norm == "layer_gain" else a.G
        p["W_K"] *= 1 + draw(generator, over, 1, 1).abs()
    T = invertible(generator, a.G, a.C, False)
    p["W_V"] = T @ p["W_V"]
    p["W_O"] = p["W_O"] @ torch.linalg.inv(T).repeat_interleave(s, 0)
    if "b_V" in p:
        p["b_V"] = torch.einsum("gij,gj->gi", T, p["b_V"])
        if shift and value_bias_folds(a):
            shift = draw(generator, a.G, a.C)
            p["b_V"] += shift
            p["b_O"] -= torch.einsum("hec,hc->e", p["W_O"], shift.repeat_interleave(s, 0))
    return p


def reordered(a, p, tensors, generator):
    """The same layer with its groups, and the heads in them, in another order; gains by head go along, in the tensors."""
    s = a.H // a.G
    groups = torch.randperm(a.G, generator=generator)
    heads = torch.cat([g * s + torch.randperm(s, generator=generator) for g in groups])
    for name in ("W_K", "W_V", "b_K", "b_V"):
        if name in p:
            p[name] = p[name][groups]
    for name in ("W_Q", "b_Q", "W_O", "sink"):
        if name in p:
            p[name] = p[name][heads]
    if a.qk_norm == "layer_gain":
        for letter, order in (("q", heads), ("k", groups)):
            gain = tensors[f"{letter}_norm.weight"]
            gain.copy_(gain.view(-1, a.D)[order].flatten())
    return p


def shuffled(model, number, generator):
    """The MLP of a layer with its units in another order, and those of a gated one scaled, signs too."""
    block, beside = BLOCKS[model.architecture.model_type], model.beside(number)
    if not block.up:
        return {}
    turn = lambda W: W.T if model.layout.transposed and W.dim() == 2 else W
    down = turn(beside[f"{block.down}.weight"])
    order = torch.randperm(down.shape[1], generator=generator)
    scale = draw(generator, len(order)) + 2
    scale *= torch.where(draw(generator, len(order)) > 0, 1.0, -1.0)
    gated = block.fused or len(block.up) == 2
    scale = (scale if gated else torch.ones_like(scale)).to(down.dtype)
    changed = {f"{block.down}.weight": turn(down[:, order] / scale).contiguous()}
    for name in block.up:
        for part in ("weight", "bias"):
            if f"{name}.{part}" in beside:
                W = turn(beside[f"{name}.{part}"])
                rows = list(W.chunk(2)) if block.fused else [W]
                rows = [row[order] for row in rows]
                if gated and name == block.up[-1]:
                    rows[-1] = rows[-1] * scale.view(-1, *[1] * (W.dim() - 1))
                changed[f"{name}.{part}"] = turn(torch.cat(rows)).contiguous()
    return {model.block(number) + name: t for name, t in changed.items()}


def in_another_gauge(path, out, seed, *, order=True, shift=True):
    """Write the model at a path to `out` in a random gauge, its heads and units in another order too. `shift`: as for moved."""
    generator = torch.Generator().manual_seed(seed)
    model, changed = open_model(path), {}
    for number, (_, a) in enumerate(model.architecture.layers):
        tensors = model.layer(number)
        p = moved(a, read_layer(model.layout, a, tensors), generator, shift=shift)
        if order and a.score != "alibi":  # whose heads differ in their slopes
            p = reordered(a, p, tensors, generator)
        write_layer(model.layout, a, tensors, p)
        changed |= model.full_names(number, tensors)
        changed |= shuffled(model, number, generator) if order else {}
    model.write(out, changed, "moved")
    return out


def changed_layer(path, out, change, number=1):
    """Write the model at a path to `out` with the parameters of one layer changed: change(description, parameters) gives some of them anew."""
    model = open_model(path)
    a, tensors = model.architecture.layers[number][1], model.layer(number)
    p = read_layer(model.layout, a, tensors)
    write_layer(model.layout, a, tensors, p | change(a, p))
    model.write(out, model.full_names(number, tensors), "changed")
    return out


def changed_tensors(path, out, change):
    """Write the model at a path to `out` with some tensors changed: change(name, tensor) gives each anew, or None."""
    model = open_model(path)
    new = {name: change(name, model.read(name)) for name in model.names}
    model.write(out, {name: t for name, t in new.items() if t is not None}, "changed")
    return out
