"""The residual stream's symmetries, and the linear algebra that they need."""

import torch

from attnid.network.stream import solved, symmetric, symmetric_outer


def test_solved_and_symmetric():
    generator = torch.Generator().manual_seed(0)
    normal = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)
    conditions, x, y, a = normal(3, 10), normal(5, 4), normal(5, 4), normal(1, 10)
    free, fill = solved(conditions)
    full = fill(torch.eye(free, dtype=torch.float64))
    assert (
        free == 7
        and (full @ conditions.T).abs().max() < 1e-12
        and torch.linalg.matrix_rank(full) == 7
    )
    assert torch.allclose(
        symmetric_outer(x, y) @ a[0], torch.einsum("mi,ij,mj->m", x, symmetric(a, 4)[0], y)
    )
