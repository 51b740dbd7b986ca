"""A change of two factors without what moves neither product: its part across the orbits.

The null space of a product A^T B of factors (..., d, a) and (..., d, b) is {(S A, -S^T B)}, S (...,
d, d): the tangents of its orbit. The rest, orthogonal to it, is called horizontal.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from .metrics import IDLE


def horizontal(
    A: Float[Tensor, "*heads d a"],
    B: Float[Tensor, "*heads d b"],
    dA: Float[Tensor, "*heads d a"],
    dB: Float[Tensor, "*heads d b"],
) -> tuple[Float[Tensor, "*heads d a"], Float[Tensor, "*heads d b"]]:
    """The horizontal part of a change (dA, dB) of factors A (..., d, a) and B (..., d, b): the
    product moves as before, to first order, and nothing moves along the orbit.

    For queries and keys A is W_Q, with b_Q as one more column, and B is W_K; for values A is W_V
    and B is W_O^T. S solves the Sylvester equation S A A^T + B B^T S = dA A^T - B dB^T, as in
    `head_metrics`; where it has several solutions, that of least norm is taken.

    >>> from attnid.tensors import normal
    >>> A, B, S = normal(2, 8), normal(2, 8, seed=1), normal(2, 2, seed=2)
    >>> still = horizontal(A, B, S @ A, -S.mT @ B)  # a null direction
    >>> max(part.abs().max().item() for part in still) < 1e-12
    True
    """
    return subtract(generator(A @ A.mT, B @ B.mT, dA @ A.mT - B @ dB.mT), A, B, dA, dB)


def subtract(S: Float[Tensor, "*heads d d"], A, B, dA, dB):
    """The change (dA, dB) without the null direction (S A, -S^T B)."""
    return dA - S @ A, dB + S.mT @ B


def generator(
    P: Float[Tensor, "*heads d d"], K: Float[Tensor, "*heads d d"], R: Float[Tensor, "*heads d d"]
) -> Float[Tensor, "*heads d d"]:
    """The S of least norm with S P + K S = R, for P and K symmetric, positive semidefinite."""
    (p, k), (U_P, U_K) = torch.linalg.eigh(torch.stack((P, K)))
    sums = k[..., :, None] + p[..., None, :]
    idle = sums <= IDLE * sums.amax((-2, -1), keepdim=True)
    return U_K @ (U_K.mT @ R @ U_P / sums).masked_fill(idle, 0) @ U_P.mT
