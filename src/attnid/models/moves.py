"""Along how many directions one layer was moved into another of the same function."""

from dataclasses import dataclass

import torch

from ..layer.canonical import factor, idle_key_coordinates, value_bias_folds, value_blocks
from ..layer.rebalancing import rows_of
from ..layer.rotation import isotypes

NOISE = 1e-13  # of float64 arithmetic, relative to a condition number


@dataclass
class Moves:
    """directions: how many coordinates of the gauge differ. key_bias: how many of these are idle
    key biases.
    """

    directions: int
    key_bias: int


def count_moves(attention, p, q, order, eps, broken, biased="KV"):
    """The Moves that take float64 parameters q, their heads in this order, to parameters p of the
    same function, whose numbers are right to eps; groups of heads in `broken` are left out, and
    biases of maps that are not `biased`, which are a norm's.

    Each circuit of a group was moved by one S for each set of coordinates that turn alike: what
    takes the one factor to the other in least squares. A coordinate of the gauge is an entry of S
    minus the identity, of which a complex one has two parts, or an idle bias.
    """
    a, s = attention, attention.H // attention.G
    groups = order[::s] // s
    kept = [g for g in range(a.G) if not broken & set(range(g * s, (g + 1) * s))]
    if not kept:
        return Moves(0, 0)
    taken = {name: q[name][groups] for name in ("W_K", "W_V", "b_K", "b_V") if name in q}
    directions, key_bias, small = 0, 0, {}
    circuits = {"V": value_blocks(a)} | ({"K": isotypes(a)} if a.qk_norm is None else {})
    for letter, block in ((letter, b) for letter, blocks in circuits.items() for b in blocks):
        ours, theirs = (rows_of(block, factor(x, (f"W_{letter}",), a.G)) for x in (p, taken))
        S, rounding = _between(ours, theirs, eps)
        off = S - torch.eye(block.size, dtype=S.dtype)
        parts = torch.view_as_real(off).flatten(2) if off.is_complex() else off
        directions += int((parts.abs() > rounding)[kept].sum())
        name, rows = f"b_{letter}", list(block.coordinates)
        if block.angle == 0 and name in taken:  # a bias moves along
            taken[name][:, rows] = torch.einsum("gij,gj->gi", S, taken[name][:, rows])
            small[name] = rounding[kept, 0]
    apart = lambda name, rows: _apart(*(x[name][kept][:, rows] for x in (p, taken)), small[name])
    idle = idle_key_coordinates(a)
    if idle and "K" in biased:
        key_bias = apart("b_K", idle)
    if value_bias_folds(a) and "V" in biased:
        directions += apart("b_V", slice(None))
    return Moves(directions + key_bias, key_bias)


def _between(ours, theirs, eps):
    # S with ours = S theirs, and how large its entries are that are rounding (G, 1, 1)
    values = torch.linalg.svdvals(theirs)
    condition = values[:, 0] / values[:, -1].clamp_min(torch.finfo(torch.float64).tiny)
    S = ours @ torch.linalg.pinv(theirs)
    size = torch.linalg.matrix_norm(S)
    return S, ((8 * eps + NOISE) * condition * size)[:, None, None]


def _apart(x, y, rounding):
    # how many numbers differ by more than rounding, relative to the largest of all
    size = torch.maximum(x.abs().max(), y.abs().max())
    return int(((x - y).abs() > rounding * size).sum())
