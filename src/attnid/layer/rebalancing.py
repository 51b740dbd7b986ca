"""Rebalancing: the same score product from factors whose Gram matrices are equal, as near the old
ones as can be.
"""

import torch
from jaxtyping import Float, Inexact
from torch import Tensor

from ..checks import require, require_finite
from .description import Attention
from .parameters import check_heads, require_real
from .rotation import isotypes
from .scaling import exponent

# relative to the largest singular value of a product: below it is rounding, and taken as zero
SINGULAR = 1e-13


class Balanced(tuple):
    """The balanced tensors, in the order given. `condition` (...), float64, is the condition number
    of each head's S, where W_Q became S W_Q and W_K became S^{-T} W_K; infinite where the product
    has rank below D, which leaves S open or without inverse.
    """

    condition: torch.Tensor


def rebalance(
    W_Q: Float[Tensor, "*heads D E"],
    W_K: Float[Tensor, "*heads D E"],
    b_Q: Float[Tensor, "*heads D"] | None = None,
    b_K: Float[Tensor, "*heads D"] | None = None,
    *,
    rotary=(),
) -> Balanced:
    """Factors of the same product W_K^T W_Q with W_Q W_Q^T = W_K W_K^T, nearest to the old ones.
    Returns a Balanced.

    W_Q, W_K are one head's weights, (D, E), or those of many heads, stacked: (..., D, E); b_Q, b_K
    (..., D). A whole weight of nn.Linear has all heads' rows in one matrix and is none of these:
    W.view(heads, D, E) is. Nor do weights tell how they are used: those of a rotary model need
    `rotary`, or their outputs change. Biases move by the same S, so that scores with biases stay.
    `rotary` lists the angle per position of each rotated plane, as in Attention: then S must
    commute with the rotations, and what is balanced is each block that turns alike. The arithmetic
    is float64, the result has the dtype of what came in. Rebalancing again moves nothing.

    Raises ValueError naming the argument: another shape, a lone square matrix, no tensor of real
    numbers, not finite, one bias without the other, or biases with a product of rank below D, where
    there is no one nonsingular S for them to follow. Source: section 5.2.2 of the paper, which
    leaves the biases and rotary positions out.

    >>> from attnid.tensors import normal
    >>> W_Q, W_K = normal(2, 8), normal(2, 8, seed=1)
    >>> Q, K = rebalance(W_Q, W_K)
    >>> torch.allclose(K.mT @ Q, W_K.mT @ W_Q), torch.allclose(Q @ Q.mT, K @ K.mT)
    (True, True)
    """
    _check(W_Q, W_K, b_Q, b_K)
    blocks = isotypes(Attention(W_Q.shape[-1], 1, head_dim=W_Q.shape[-2], rotary=rotary))
    given = [W_Q, W_K] if b_Q is None or b_K is None else [W_Q, W_K, b_Q, b_K]
    moved = [
        t.detach().to("cpu" if t.device.type == "mps" else t.device, torch.float64, copy=True)
        for t in (t if t.dim() == W_Q.dim() else t.unsqueeze(-1) for t in given)
    ]
    scales = torch.cat(
        [_balance_block(block, moved) for block in blocks], -1
    )  # (..., n), the singular values of S
    condition = (scales.amax(-1) / scales.amin(-1)).masked_fill(scales.amin(-1) == 0, torch.inf)
    require(
        b_Q is None or bool(torch.isfinite(condition).all()),
        "W_K^T W_Q",
        "rank below D",
        "biases cannot be carried along",
    )
    result = Balanced(new.view(old.shape).to(old) for new, old in zip(moved, given))
    result.condition = condition
    return result


def _balance_block(block, tensors):
    # in place, the rows of one isotype in W_Q, W_K and maybe b_Q, b_K; returns the singular values
    # of its S
    Q, K, *b = (rows_of(block, t) for t in tensors)
    new_Q, new_K, S, dual, scales = balance(Q, K)
    for whole, part in zip(tensors, (new_Q, new_K, *(m @ t for m, t in zip((S, dual), b)))):
        put_rows(block, whole, part)
    return scales


def balance(
    Q: Inexact[Tensor, "*heads d a"], K: Inexact[Tensor, "*heads d b"]
) -> tuple[
    Inexact[Tensor, "*heads d a"],
    Inexact[Tensor, "*heads d b"],
    Inexact[Tensor, "*heads d d"],
    Inexact[Tensor, "*heads d d"],
    Float[Tensor, "*heads d"],
]:
    """S Q, S^{-H} K, S, S^{-H} and the singular values of S, zeros where none is determined. Q
    (..., d, a), K (..., d, b), real or complex.
    """
    a, b = exponent(Q), exponent(K)  # no number is squared that is not near one
    b = b + (a - b) % 2
    Q, K, top, ratio = Q * 2.0**-a, K * 2.0**-b, torch.maximum(a, b), 2.0 ** ((b - a) / 2)
    (O_Q, R_Q), (O_K, R_K) = torch.linalg.qr(Q.mH), torch.linalg.qr(K.mH)  # Q = R_Q^H O_Q^H
    U, s, Vh = torch.linalg.svd(R_K @ R_Q.mH)  # K^H Q = O_K U diag(s) Vh O_Q^H
    s = s.masked_fill(s <= SINGULAR * s[..., :1], 0).unsqueeze(-1)
    root, inverse = s.sqrt(), s.rsqrt().masked_fill(s == 0, 0)
    new_Q, new_K = root * (Vh @ O_Q.mH), root * (U.mH @ O_K.mH)
    Z = _nearest_isometry(2.0 ** (a - top) * Q @ new_Q.mH + 2.0 ** (b - top) * K @ new_K.mH)
    S = ratio * Z @ (inverse * (U.mH @ R_K))  # R_Q^{-H} = V diag(1 / s) U^H R_K
    dual = 1 / ratio * Z @ (inverse * (Vh @ R_Q))
    size = 2.0 ** ((a + b) / 2)
    determined = (s[..., -1:, :] > 0) & (s.shape[-2] == Q.shape[-2])
    return (
        size * (Z @ new_Q),
        size * (Z @ new_K),
        S,
        dual,
        torch.linalg.svdvals(S) * determined.squeeze(-1),
    )


def _nearest_isometry(A):
    U, _, Vh = torch.linalg.svd(A, full_matrices=False)
    return U @ Vh


def rows_of(isotype, W: Float[Tensor, "*heads D n"]) -> Inexact[Tensor, "*heads d n"]:
    """The rows of an isotype, of W (..., D, n); planes that turn become complex rows, mirrored ones
    conjugated.
    """
    rows = W[..., list(isotype.coordinates), :]
    if not isotype.complex:
        return rows
    return torch.complex(rows[..., ::2, :], _signs(isotype, W) * rows[..., 1::2, :])


def put_rows(isotype, W: Float[Tensor, "*heads D n"], part: Inexact[Tensor, "*heads d n"]):
    """The inverse of rows_of, in place."""
    if isotype.complex:
        part = torch.stack((part.real, _signs(isotype, W) * part.imag), -2).flatten(-3, -2)
    W[..., list(isotype.coordinates), :] = part


def _signs(isotype, W):
    return torch.tensor(isotype.signs, dtype=W.dtype, device=W.device)[:, None]


def _check(W_Q, W_K, b_Q, b_K):
    check_heads(W_Q=W_Q, W_K=W_K)
    require(
        W_Q.dim() > 2 or W_Q.shape[0] != W_Q.shape[1] or len(W_Q) == 1,
        "W_Q",
        tuple(W_Q.shape),
        "is the shape of a whole nn.Linear weight: give W.view(heads, D, E), or W[None] if it "
        "is one head's",
    )
    alone = "b_Q" if b_Q is None else "b_K"
    require((b_Q is None) == (b_K is None), alone, None, "give both biases or neither")
    for name, b in (("b_Q", b_Q), ("b_K", b_K)):
        if b is not None:
            require_real(name, b)
            shape = tuple(W_Q.shape[:-1])
            require(tuple(b.shape) == shape, name, tuple(b.shape), f"shape must be {shape}")
            require_finite(name, b)
