"""Three small things that chapters and claims need all the time: random numbers, a rank, a relative
change.
"""

import torch
from torch import Tensor


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Standard normal float64 numbers, from a generator of their own.

    >>> normal(2, 3, seed=1).shape
    torch.Size([2, 3])
    """
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rank(matrix: Tensor, rtol: float = 1e-10) -> int:
    """How many singular values of a float64 matrix (m, n) are above `rtol` times the largest.

    >>> rank(torch.ones(3, 4).double())
    1
    """
    return int(torch.linalg.matrix_rank(matrix, rtol=rtol))


def relative_change(new: Tensor, old: Tensor) -> float:
    """The norm of the difference of two tensors of one shape, over the norm of the old one.

    >>> relative_change(torch.tensor([0.0, 2.0]), torch.tensor([0.0, 1.0]))
    1.0
    """
    return float((new - old).norm() / old.norm())
