"""The gauge of one layer's parameters in which they lie nearest to another's."""

import torch
from jaxtyping import Inexact
from torch import Tensor

from ..layer.canonical import (
    factor,
    idle_key_coordinates,
    put_factor,
    value_bias_folds,
    value_blocks,
)
from ..layer.rebalancing import balance, put_rows, rows_of
from ..layer.rotation import isotypes

STEPS, SETTLED = 200, 1e-15  # of the minimisation: how many, and at which relative gain it ends


def nearest_gauge(
    A: Inexact[Tensor, "G d m"],
    B: Inexact[Tensor, "G d n"],
    X: Inexact[Tensor, "G d m"],
    Y: Inexact[Tensor, "G d n"],
    steps=STEPS,
) -> tuple[Inexact[Tensor, "G d d"], Inexact[Tensor, "G d d"]]:
    """S and S^{-H}, (G, d, d) each, such that (S X, S^{-H} Y) is near (A, B): a minimum over all
    invertible S of ||A - S X||^2 + ||B - S^{-H} Y||^2.

    There is one where X and Y have rank d, as the sum grows without bound where S or its inverse
    does. It is looked for from the better of two starts, the identity and the S of balanced factors
    turned onto each other (orthogonal Procrustes, in closed form), which is the minimum itself, 0,
    where the products are equal. From there by Gauss-Newton steps S -> (1 + T) S with halving; each
    T solves T XX^H + YY^H T = (A - X) X^H - Y (B - Y)^H by two eigendecompositions. The sum never
    rises, so the result is no farther than the pair itself; a minimum nearby, not shown to be the
    least of all.
    """
    one = torch.eye(X.shape[1], dtype=X.dtype).expand(len(X), -1, -1)
    starts = [(one, one), *_turned(A, B, X, Y)]
    sums = torch.stack([_distance(A, B, S @ X, dual @ Y) for S, dual in starts])
    best = sums.nan_to_num(torch.inf).argmin(0)[:, None, None]
    S, dual = (torch.where(best == 1, starts[-1][i], one) for i in (0, 1))
    least = sums.nan_to_num(torch.inf).amin(0)
    for _ in range(steps):
        new_S, new_dual, new = _step(A, B, X, Y, S, dual, least)
        gained = new < least
        S, dual = (
            torch.where(gained[:, None, None], a, b) for a, b in ((new_S, S), (new_dual, dual))
        )
        settled = least - torch.minimum(new, least) <= SETTLED * least
        least = torch.minimum(new, least)
        if settled.all():
            break
    return S, dual


def _turned(A, B, X, Y):
    if A.shape[1] > min(A.shape[2], B.shape[2]):
        return []
    A1, B1, S1, dual1, scales1 = balance(A, B)
    X1, Y1, S2, dual2, scales2 = balance(X, Y)
    U, _, Vh = torch.linalg.svd(A1 @ X1.mH + B1 @ Y1.mH)
    S, dual = dual1.mH @ U @ Vh @ S2, S1.mH @ U @ Vh @ dual2
    known = ((scales1.amin(-1) > 0) & (scales2.amin(-1) > 0))[:, None, None]
    return [tuple(torch.where(known, M, torch.nan) for M in (S, dual))]


def _distance(A, B, X, Y):
    square = lambda M: torch.linalg.matrix_norm(M).square()
    return square(A - X) + square(B - Y)


def _step(A, B, X, Y, S, dual, least):
    # one Gauss-Newton step, halved for each head until the sum falls
    X, Y = S @ X, dual @ Y
    (a, U), (b, V) = torch.linalg.eigh(X @ X.mH), torch.linalg.eigh(Y @ Y.mH)
    right = (A - X) @ X.mH - Y @ (B - Y).mH
    over = b[:, :, None] + a[:, None, :]
    floor = torch.finfo(over.dtype).eps * over.amax((1, 2), keepdim=True)
    T = V @ ((V.mH @ right @ U) / (over + floor)) @ U.mH
    one, t = torch.eye(X.shape[1], dtype=X.dtype), torch.ones_like(least)
    for _ in range(30):
        M = one + t[:, None, None] * T
        back = torch.linalg.inv_ex(M)[0].mH
        new = _distance(A, B, M @ X, back @ Y).nan_to_num(torch.inf)
        if (new <= least).all():
            break
        t = torch.where(new <= least, t, t / 2)
    return M @ S, back @ dual, new


def nearest_parameters(attention, ours, theirs, steps=STEPS):
    """Float64 parameters of the function of `theirs`, in the gauge in which they are nearest to
    ours; heads stay where they are, and queries and keys that are normalised as they are. `steps`:
    how many of the minimisation at most.
    """
    a, p = attention, {name: t.clone() for name, t in theirs.items()}
    if a.qk_norm is None:
        _move(a, ours, p, isotypes(a), ("W_K", "b_K"), ("W_Q", "b_Q"), steps)
        idle = idle_key_coordinates(a)
        if idle:
            p["b_K"][:, idle] = ours["b_K"][:, idle]
    _move(a, ours, p, value_blocks(a), ("W_V", "b_V"), ("W_O",), steps)
    if value_bias_folds(a):
        _share_value_bias(a, ours, p)
    return p


def _move(a, ours, p, blocks, shared, reading, steps):
    # in place; a bias that is free afterwards is moved along, and does not count
    one, other = (
        [factor(x, [n for n in names if n in x], a.G) for names in (shared, reading)]
        for x in (ours, p)
    )
    idle = idle_key_coordinates(a) if "b_K" in shared else []
    for block in blocks:
        free = set(block.coordinates) <= set(idle) or ("b_V" in shared and value_bias_folds(a))
        seen = slice(0, a.E if free else None)
        A, X = (rows_of(block, x[0])[..., seen] for x in (one, other))
        B, Y = (rows_of(block, x[1]) for x in (one, other))
        S, dual = nearest_gauge(A, B, X, Y, steps)
        for whole, M in zip(other, (S, dual)):
            put_rows(block, whole, M @ rows_of(block, whole))
    for names, whole in ((shared, other[0]), (reading, other[1])):
        put_factor(p, names, whole)


def _share_value_bias(a, ours, p):
    # what the value biases give up the output bias takes: the split with the least sum of squares
    O = p["W_O"].unflatten(0, (a.G, a.H // a.G)).sum(1)  # (G, E, C)
    O = O.transpose(0, 1).flatten(1)  # (E, G C)
    r_V, r_O = (ours["b_V"] - p["b_V"]).flatten(), ours["b_O"] - p["b_O"]
    one = torch.eye(len(r_V), dtype=O.dtype)
    given = torch.linalg.solve(one + O.T @ O, r_V - O.T @ r_O)
    p["b_V"] += given.view(a.G, a.C)
    p["b_O"] -= O @ given
