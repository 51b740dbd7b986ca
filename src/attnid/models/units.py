"""The hidden units of an MLP, which may stand in any order: matched, and compared."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from scipy.optimize import linear_sum_assignment
from torch import Tensor

PART = 2**20  # numbers that are float64 at a time, of a tensor such as an embedding


@dataclass
class Matched:
    """Which of their units plays the part of each of ours, the sign that it takes (all 1 without a
    gate), and the largest distance of a unit from its own.
    """

    order: Int[Tensor, "F"]
    signs: Float[Tensor, "F"]
    distance: float

    @property
    def moved(self):
        """How many units are in other places."""
        return int((self.order != torch.arange(len(self.order))).sum())


def match_units(ours, theirs, small):
    """Their units matched with ours, two Mlp's of as many units, as a Matched: as they are where
    all are within `small`, else so that the squares of the distances add up to the least.
    """
    a, b = (_features(mlp) for mlp in _alike(ours, theirs))
    gated = ours.gate is not None
    order = torch.arange(len(ours.up))
    plain = _matched(a, b, order, gated)
    if plain.distance <= small:
        return plain
    found = _matched(a, b, _assignment(_gains(a, b, gated)), gated)
    return found if found.distance < plain.distance else plain


def row_distance(a, b):
    """The largest distance of a row of two tensors of one shape, relative to the row or to the root
    mean square of all rows, whichever is larger. A vector is one row.
    """
    a, b = (t.reshape(len(t) if t.dim() > 1 else 1, -1) for t in (a, b))
    many = max(1, PART // a.shape[1])
    parts = []
    for x, y in zip(a.split(many), b.split(many)):
        x, y = x.double(), y.double()
        parts.append(torch.stack([t.norm(dim=1) for t in (x - y, x, y)]))
    apart, *sizes = torch.cat(parts, 1)
    size = torch.maximum(*sizes)
    size = torch.maximum(size, size.square().mean().sqrt())
    return (apart / size).nan_to_num(0).amax().item()


def _alike(*mlps):
    # a bias that one of the two lacks is 0
    widest = [
        max(len(part[0]) for part in parts if part is not None)
        for parts in zip(*((m.gate, m.up) for m in mlps))
        if parts[0] is not None
    ]
    width = max(widest)
    pad = lambda W: W if W is None else torch.nn.functional.pad(W, (0, width - W.shape[1]))
    return [type(m)(pad(m.gate), pad(m.up), m.down) for m in mlps]


def _features(mlp):
    # (what has no sign of its own, what has one): with a gate, up and down may trade a factor, so
    # they are taken equally long
    if mlp.gate is None:
        return torch.cat((mlp.up, mlp.down), 1), mlp.up[:, :0]
    up, down = (W.norm(dim=1, keepdim=True) for W in (mlp.up, mlp.down))
    ratio = (down / up).sqrt()
    ratio = ratio.where(ratio.isfinite() & (ratio > 0), 1.0)
    return mlp.gate, torch.cat((mlp.up * ratio, mlp.down / ratio), 1)


def _gains(a, b, gated):
    # what is taken off the distances by putting their unit j in place of our i: half the squares;
    # in float32, which is enough to tell units apart
    a, b = ([part.float() for part in parts] for parts in (a, b))
    return a[0] @ b[0].T + ((a[1] @ b[1].T).abs() if gated else 0)


def _assignment(gains):
    best = gains.argmax(1)
    if len(best.unique()) == len(best):  # each its own favourite: no assignment is better
        return best
    return torch.from_numpy(linear_sum_assignment(gains.numpy(), maximize=True)[1])


def _matched(a, b, order, gated):
    signs = (a[1] * b[1][order]).sum(1).sign() if gated else torch.ones(len(order)).double()
    signs = signs.where(signs != 0, 1.0)
    ours, theirs = torch.cat(a, 1), torch.cat((b[0][order], signs[:, None] * b[1][order]), 1)
    return Matched(order, signs, row_distance(ours, theirs))
