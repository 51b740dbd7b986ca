"""The hidden units of an MLP in the order, and with a gate the scale, nearest to another's."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ..checks import require
from .blocks import BLOCKS, stored_maps, unit_maps
from .nearest import nearest_gauge
from .units import match_units


@dataclass
class Aligned:
    """What came of it. change: of the outputs, relative to the largest. before, after: squared
    distances of the maps. moved: how many units stand in other places.
    """

    change: float = 0.0
    before: float = 0.0
    after: float = 0.0
    moved: int = 0


def align_units(model, number, ours, theirs):
    """The tensors of the MLP of layer `number` of a model, by their full names, with its units as
    near to ours as may be; and an Aligned. ours, theirs: a Layer each, theirs the model's.
    """
    if theirs.mlp is None:
        return {}, Aligned()
    block, transposed = BLOCKS[model.architecture.model_type], model.layout.transposed
    shapes = [tuple(layer.mlp.down.shape) for layer in (ours, theirs)]
    require(shapes[0] == shapes[1], "mlp", shapes[1], f"the first has shape {shapes[0]}")
    found = match_units(ours.mlp, theirs.mlp, 0.0)
    target, old = (unit_maps(block, layer.beside, transposed) for layer in (ours, theirs))
    new = {kind: W[found.order] for kind, W in old.items()}
    if "gate" in new:
        scale = unit_scales(*(side for maps in (target, new) for side in _pair(maps)))
        factors = {"up": scale, "up.bias": scale, "down": 1 / scale}
        for kind in factors.keys() & new.keys():
            by = factors[kind].view(-1, *[1] * (new[kind].dim() - 1))
            new[kind] = (new[kind].double() * by).to(old[kind].dtype)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, ours.attention.E, generator=generator, dtype=torch.float64)
    before, after = (_outputs(maps, x) for maps in (old, new))
    change = ((after - before).abs().max() / before.abs().max()).item()
    away = lambda maps: sum(
        (W.double() - maps[kind].double()).square().sum().item()
        for kind, W in target.items()
        if kind in maps
    )
    tensors = stored_maps(block, new, transposed)
    full = {model.block(number) + name: W for name, W in tensors.items()}
    return full, Aligned(change, away(old), away(new), found.moved)


def unit_scales(
    up: Float[Tensor, "F m"],
    down: Float[Tensor, "F n"],
    their_up: Float[Tensor, "F m"],
    their_down: Float[Tensor, "F n"],
) -> Float[Tensor, "F"]:
    """The factor of each unit's `up`, and inverse on its `down`, that brings theirs nearest to
    ours.
    """
    pairs = [W[:, None] for W in (up, down, their_up, their_down)]
    return nearest_gauge(*pairs)[0].flatten()


def _pair(maps):
    up, b = maps["up"].double(), maps.get("up.bias")
    return up if b is None else torch.cat((up, b.double()[:, None]), 1), maps["down"].double()


def _outputs(maps, x):
    # with some activation: whether units were only moved shows with any
    none = torch.zeros(1)
    made = {
        kind: x @ maps[kind].double().T + maps.get(f"{kind}.bias", none).double()
        for kind in ("gate", "up")
        if kind in maps
    }
    hidden = torch.nn.functional.gelu(made.get("gate", made["up"]))
    return (hidden * made["up"] if "gate" in made else hidden) @ maps["down"].double()
