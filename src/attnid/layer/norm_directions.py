"""Null directions that norms make: of the inputs, and of normalised queries and keys.

Each function returns rows (dimension, P) over all parameters, as `flat.flatten` has them.
"""

import math

import torch

from .attention import input_basis
from .counting import count
from .flat import flatten, rows_times, unit
from .normalised import QUERY_KEY, seen_kernel
from .rotation import isotypes


def centred_inputs(a, p):
    ones = torch.ones(1, a.E, dtype=torch.float64)
    names = ("W_Q", "W_K", "W_V") + (("W_G",) if a.gate else ())
    return torch.cat([flatten(a, rows_times(a, name, ones)) for name in names])


def scales(a, p, letter):
    """A normalised query or key does not feel its own scale: one per head, or one for the layer."""
    heads = {"Q": a.H, "K": a.G}[letter]
    if a.qk_norm == "layer_gain":
        return flatten(a, {n: p[n][None] for n in ("W_" + letter, "b_" + letter) if n in p})
    pick = torch.eye(heads, dtype=torch.float64)
    return flatten(
        a,
        {
            n: torch.einsum("kh,h...->kh...", pick, p[n])
            for n in ("W_" + letter, "b_" + letter)
            if n in p
        },
    )


def gain_exchange(a, p):
    """Gains of queries up, of keys down, by what commutes with the rotations: one factor a plane,
    or a still coordinate.
    """
    masks = []
    for isotype in isotypes(a):
        step = 2 if isotype.complex else 1
        for start in range(0, len(isotype.coordinates), step):
            mask = torch.zeros(a.D, dtype=torch.float64)
            mask[list(isotype.coordinates[start : start + step])] = 1
            masks.append(mask)
    masks = torch.stack(masks)
    if a.qk_norm == "head_gain":
        return flatten(a, {"gain_Q": masks * p["gain_Q"], "gain_K": -masks * p["gain_K"]})
    group = torch.eye(a.G, dtype=torch.float64)
    spread = lambda sharing: torch.einsum(
        "gj,md->gmjd", group.repeat_interleave(sharing, 1), masks
    ).flatten(0, 1)
    return flatten(
        a, {"gain_Q": spread(a.H // a.G) * p["gain_Q"], "gain_K": -spread(1) * p["gain_K"]}
    )


def signs_only(a, p):
    letters = "KQ" if a.qk_norm != "layer_gain" or a.H == 1 else "K"
    weights = [flatten(a, rows_times(a, "W_" + letter, input_basis(a).T)) for letter in letters]
    return torch.cat(
        weights + [flatten(a, unit(a, "b_" + letter)) for letter in letters if "b_" + letter in p]
    )


# those that have a closed form, beside which wide heads have more
NAMED = {
    "query scales": lambda a, p: scales(a, p, "Q"),
    "key scales": lambda a, p: scales(a, p, "K"),
    "gain exchange": gain_exchange,
    "signs only": signs_only,
    "centred inputs": centred_inputs,
}


def wide_heads(a, p):
    """What else keeps the products and the lengths: the kernel of their derivative, beside the
    directions named already.
    """
    kernel = seen_kernel(a, p)
    names = [n for n in a.shapes if n in QUERY_KEY]
    sizes = [math.prod(a.shapes[n]) for n in names]
    kernel = flatten(
        a, {n: part.unflatten(-1, a.shapes[n]) for n, part in zip(names, kernel.split(sizes, -1))}
    )
    known = [NAMED[term](a, p) for term in NAMED if term in count(a).terms]
    known = torch.cat(known) @ kernel.T  # within the kernel's coordinates, where W_V has none
    known = known[known.norm(dim=1) > 1e-9]
    return torch.linalg.svd(known).Vh[len(known) :] @ kernel
