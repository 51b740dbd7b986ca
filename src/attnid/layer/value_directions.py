"""Null directions of values and outputs: what their products and the pooled bias do not show.

Each function returns rows (dimension, P) over all parameters, as `flat.flatten` has them.
"""

import torch

from .attention import input_basis
from .description import value_bias_is_pooled
from .flat import flatten
from .gauge import product_kernel


def _readers(a, p):
    """Sum over the heads of a group of W_O: what a group's constant value adds to the output, (E,
    GC).
    """
    return p["W_O"].view(a.G, -1, a.E, a.C).sum(1).transpose(0, 1).flatten(1)


def value_output_maps(a, p):
    basis, sharing, rows = input_basis(a), a.H // a.G, []
    in_product = "v" in a.bias and not value_bias_is_pooled(a)
    for g in range(a.G):
        heads = slice(g * sharing, (g + 1) * sharing)
        V = p["W_V"][g] @ basis
        V = torch.cat((V, p["b_V"][g][:, None]), 1) if in_product else V
        dO, dV = product_kernel(p["W_O"][heads].flatten(0, 1).T, V)
        zeros = lambda name: torch.zeros(len(dV), *a.shapes[name], dtype=torch.float64)
        direction = {"W_O": zeros("W_O"), "W_V": zeros("W_V")}
        direction["W_O"][:, heads] = dO.transpose(1, 2).unflatten(1, (sharing, a.E))
        direction["W_V"][:, g] = (dV[..., :-1] if in_product else dV) @ basis.T
        if in_product:
            direction["b_V"] = zeros("b_V")
            direction["b_V"][:, g] = dV[..., -1]
        elif "v" in a.bias:
            pooled = (
                direction["W_O"][:, heads].sum(1) @ p["b_V"][g]
            )  # change of the pooled bias, to be taken back
            if "o" in a.bias:
                direction["b_O"] = -pooled
            else:
                direction["b_V"] = -(pooled @ torch.linalg.pinv(_readers(a, p)).T).unflatten(
                    1, (a.G, a.C)
                )
        rows.append(flatten(a, direction))
    return torch.cat(rows)


def channel_scales(a, p):
    """A channel of a gated head, up in its values as it goes down in the outputs that read it."""
    pick = torch.eye(a.G * a.C, dtype=torch.float64).unflatten(1, (a.G, a.C))  # (GC, G, C)
    read = pick.repeat_interleave(a.H // a.G, 1)[:, :, None]
    scaled = {"W_V": pick[..., None] * p["W_V"], "W_O": -read * p["W_O"]}
    return flatten(a, scaled | ({"b_V": pick * p["b_V"]} if "v" in a.bias else {}))


def value_bias(a, p):
    readers = _readers(a, p)
    if "o" in a.bias:
        units = torch.eye(a.G * a.C, dtype=torch.float64)
        return flatten(a, {"b_V": units.unflatten(1, (a.G, a.C)), "b_O": -units @ readers.T})
    idle = torch.linalg.svd(readers).Vh[min(readers.shape) :]
    return flatten(a, {"b_V": idle.unflatten(1, (a.G, a.C))})
