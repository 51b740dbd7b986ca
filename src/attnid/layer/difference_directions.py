"""Generators for differential attention: for each term of its count as many null directions.

Each function returns the parts of the directions that are not zero, name -> (dimension, *shape).
"""

import torch

from .differences import as_maps
from .gauge import product_kernel, skew_hermitian


def _picked(pick, part):
    """The directions (heads, k, ...) of each head as directions (heads k, heads, ...) of all."""
    return torch.einsum("gj,gk...->gkj...", pick, part).flatten(0, 1)


def query_key_maps(a, p):
    """Those of the plain layer whose heads are the 2H maps."""
    from .directions import generators

    maps = a.maps
    plain = maps.random_parameters(0) | {n: as_maps(a, p[n]) for n in ("W_Q", "W_K")}
    found = generators(maps, plain)["query-key maps"]
    sides = lambda W: W.unflatten(1, (a.kv_heads, 2, -1)).transpose(2, 3).flatten(1, 2)
    return {name: sides(found[name]) for name in ("W_Q", "W_K")}


def value_output_maps(a, p):
    """A change of basis of each value that both maps share, taken back by all that read it."""
    sharing = a.heads // a.kv_heads
    readers = p["W_O"].unflatten(0, (a.kv_heads, sharing)).flatten(1, 2)  # (G, sharing E, C)
    pairs = [product_kernel(O.mT, V) for O, V in zip(readers, p["W_V"])]
    dO, dV = (torch.stack(parts) for parts in zip(*pairs))  # (G, k, C, ...)
    pick = torch.eye(a.kv_heads, dtype=torch.float64)
    dO = _picked(pick, dO).mT.unflatten(2, (sharing, -1)).flatten(1, 2)
    return {"W_V": _picked(pick, dV), "W_O": dO}


def value_scales(a, p):
    """A factor on each value, which the norm takes out again."""
    return {"W_V": _picked(torch.eye(a.kv_heads, dtype=torch.float64), p["W_V"][:, None])}


def value_rotations(a, p):
    """A rotation of each value, which passes through the norm, taken back by all that read it."""
    sharing, A = a.heads // a.kv_heads, skew_hermitian(a.value_dim, torch.float64)
    gain = p.get("gain", torch.ones(a.value_dim, dtype=torch.float64))
    pick = torch.eye(a.kv_heads, dtype=torch.float64)
    dV = A @ p["W_V"][:, None]  # (G, k, C, E)
    dO = -(p["W_O"] * gain)[:, None] @ A / gain  # (H, k, E, C)
    dO = dO.unflatten(0, (a.kv_heads, sharing)).transpose(1, 2)  # (G, k, sharing, E, C)
    return {"W_V": _picked(pick, dV), "W_O": _picked(pick, dO).flatten(1, 2)}


def gain_exchange(a, p):
    """A gain up, the columns that read it down, in every head."""
    unit = torch.eye(a.value_dim, dtype=torch.float64)
    return {"gain": unit * p["gain"], "W_O": -p["W_O"] * unit[:, None, None]}


def mixing(a, p):
    """What of the four vectors lambda does not change with."""
    (a1, b1), (a2, b2) = p["mixing"]
    plus, minus = (a1 @ b1).exp(), (a2 @ b2).exp()
    gradient = torch.cat((plus * b1, plus * a1, -minus * b2, -minus * a2))
    still = torch.linalg.svd(gradient[None]).Vh[1:]
    return {"mixing": still.unflatten(1, p["mixing"].shape)}


TERMS = {
    "query-key maps": query_key_maps,
    "value-output maps": value_output_maps,
    "value scales": value_scales,
    "value rotations": value_rotations,
    "gain exchange": gain_exchange,
    "mixing": mixing,
}
