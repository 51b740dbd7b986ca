"""Rebalancing: the same score product from factors whose Gram matrices are equal, as near the old ones as can be."""

import torch

from .attention import Attention
from .checks import require, require_finite
from .isotypes import isotypes

SINGULAR = 1e-12  # relative to the largest singular value of the product


class Balanced(tuple):
    """The balanced tensors, in the order given. `condition` (...) is the largest condition number of a head's S, where
    W_Q became S W_Q and W_K became S^{-T} W_K; infinite where the product is rank deficient and no such S exists."""

    condition: torch.Tensor


def rebalance(W_Q, W_K, b_Q=None, b_K=None, *, rotary=()):
    """Factors of the same product W_K^T W_Q with W_Q W_Q^T = W_K W_K^T, nearest to the old ones. Returns a Balanced.

    W_Q, W_K have shape (..., D, E), b_Q, b_K (..., D); any leading shape is a batch of heads. Biases move by the same S, so
    that scores with biases stay. `rotary` lists the angle per position of each rotated plane, as in Attention: then S must
    commute with the rotations, and what is balanced is each block that turns alike. The arithmetic is float64, the result
    has the dtype of what came in. Rebalancing again moves nothing.

    Raises ValueError naming the argument: another shape, no real tensor, not finite, one bias without the other, or
    biases with a product of rank below D, where no nonsingular S balances the factors.
    Source: section 5.2.2 of the paper, which leaves the biases and rotary positions out.
    """
    _check(W_Q, W_K, b_Q, b_K)
    D, E = W_Q.shape[-2:]
    given = [t for t in (W_Q, W_K, b_Q, b_K) if t is not None]
    Q, K = (t.detach().to("cpu" if t.device.type == "mps" else t.device).double() for t in (W_Q, W_K))
    b = [t.detach().to(Q.device).double().unsqueeze(-1) for t in given[2:]]
    moved = [torch.empty_like(t) for t in (Q, K, *b)]
    conditions = []
    for isotype in isotypes(Attention(E, 1, head_dim=D, rotary=tuple(rotary))):
        parts = _balance(*(_rows(isotype, t) for t in (Q, K, *b)))
        for whole, part in zip(moved, parts):
            _put(isotype, whole, part)
        conditions.append(parts.condition)
    worst = torch.stack(conditions).amax(0)
    require(not b or bool(torch.isfinite(worst).all()), "W_K^T W_Q", "rank below D", "biases cannot be carried along")
    shaped = (t.squeeze(-1) if i > 1 else t for i, t in enumerate(moved))
    result = Balanced(new.to(old.device, old.dtype) for new, old in zip(shaped, given))
    result.condition = worst
    return result


def _balance(Q, K, *b):
    # Q, K (..., d, E), real or complex: thin QR of both, SVD of what is between, then the nearest of all balanced factors
    d = Q.shape[-2]
    (O_Q, R_Q), (O_K, R_K) = torch.linalg.qr(Q.mH), torch.linalg.qr(K.mH)  # Q = R_Q^H O_Q^H
    U, s, Vh = torch.linalg.svd(R_K @ R_Q.mH)  # K^H Q = O_K U diag(s) Vh O_Q^H
    root = s.sqrt().unsqueeze(-1)
    pad = Q.new_zeros(*Q.shape[:-2], d - s.shape[-1], Q.shape[-1])  # rows of zeros where d > E
    new_Q, new_K = torch.cat((root * (Vh @ O_Q.mH), pad), -2), torch.cat((root * (U.mH @ O_K.mH), pad), -2)
    Z = _nearest_rotation(Q @ new_Q.mH + K @ new_K.mH)
    new_Q, new_K = Z @ new_Q, Z @ new_K
    full = (pad.shape[-2] == 0) & (s[..., -1] > SINGULAR * s[..., 0])
    if not b and not full.any():
        return _balanced((new_Q, new_K), full.new_full(full.shape, torch.inf, dtype=torch.float64))
    if not full.all():  # a bias of these heads cannot follow; the caller says so
        return _balanced((new_Q, new_K, *b), torch.where(full, 1.0, torch.inf).double())
    S = Z @ (root * torch.linalg.solve_triangular(R_Q.mH, Vh, upper=False, left=False))
    dual = Z @ (root * torch.linalg.solve_triangular(R_K.mH, U.mH, upper=False, left=False))  # S^{-H}
    return _balanced((new_Q, new_K, *(m @ t for m, t in zip((S, dual), b))), torch.linalg.cond(S))


def _balanced(parts, condition):
    result = Balanced(parts)
    result.condition = condition
    return result


def _nearest_rotation(A):
    U, _, Vh = torch.linalg.svd(A)
    return U @ Vh


def _rows(isotype, W):
    # the rows of an isotype; planes that turn become complex rows, mirrored ones conjugated
    rows = W[..., list(isotype.coordinates), :]
    if not isotype.complex:
        return rows
    return torch.complex(rows[..., ::2, :], _signs(isotype, W) * rows[..., 1::2, :])


def _put(isotype, W, part):
    if isotype.complex:
        part = torch.stack((part.real, _signs(isotype, W) * part.imag), -2).flatten(-3, -2)
    W[..., list(isotype.coordinates), :] = part


def _signs(isotype, W):
    return torch.tensor(isotype.signs, dtype=W.dtype, device=W.device)[:, None]


def _check(W_Q, W_K, b_Q, b_K):
    for name, t in (("W_Q", W_Q), ("W_K", W_K), ("b_Q", b_Q), ("b_K", b_K)):
        if t is None:
            continue
        require(isinstance(t, torch.Tensor) and t.is_floating_point(), name, t, "must be a real tensor")
        if name == "W_Q":
            require(t.dim() >= 2 and min(t.shape[-2:]) >= 1, name, tuple(t.shape), "shape must be (..., D, E)")
        shape = tuple(W_Q.shape) if name[0] == "W" else tuple(W_Q.shape[:-1])
        require(tuple(t.shape) == shape, name, tuple(t.shape), f"shape must be {shape}")
        require_finite(name, t)
    require((b_Q is None) == (b_K is None), "b_K", b_K, "give both biases or neither")
