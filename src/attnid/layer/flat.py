"""Directions in the space of all parameters: as rows of numbers, and by the names of parameters."""

import math

import torch
from jaxtyping import Shaped
from torch import Tensor


def flatten(attention, direction) -> Shaped[Tensor, "k P"]:
    """Directions, name -> (k, *shape), as rows (k, P) in the description's order; names left out
    are zero.
    """
    k, dtype = next((len(d), d.dtype) for d in direction.values())
    return torch.cat(
        [
            direction[name].reshape(k, math.prod(shape))
            if name in direction
            else torch.zeros(k, math.prod(shape), dtype=dtype)
            for name, shape in attention.shapes.items()
        ],
        1,
    )


def unflatten(attention, rows: Shaped[Tensor, "k P"]) -> dict:
    """The inverse of `flatten`."""
    parts = rows.split([math.prod(shape) for shape in attention.shapes.values()], -1)
    return {
        name: part.reshape(-1, *shape)
        for (name, shape), part in zip(attention.shapes.items(), parts)
    }


def unit(attention, name, keep=None):
    """Unit directions of one parameter, those entries only that the mask `keep` marks."""
    shape = attention.shapes[name]
    units = torch.eye(math.prod(shape), dtype=torch.float64).view(-1, *shape)
    return {name: units if keep is None else units[keep.flatten()]}


def rows_times(a, name, vectors):
    """Directions of a weight: each of its rows moved along each of the vectors (k, E)."""
    rows = torch.eye(math.prod(a.shapes[name][:-1]), dtype=torch.float64)
    return {name: torch.einsum("rs,ke->rkse", rows, vectors).reshape(-1, *a.shapes[name])}
