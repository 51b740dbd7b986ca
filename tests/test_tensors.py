"""Random numbers of their own generator, ranks, and relative changes."""

import pytest
import torch

from attnid.tensors import normal, rank, relative_change


def test_random_numbers_are_reproducible_and_of_a_generator_of_their_own():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    one = normal(2, 3, seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(4)
    assert one.shape == (2, 3) and one.dtype == torch.float64
    assert torch.equal(normal(2, 3, seed=1), one) and not torch.equal(normal(2, 3), one)


def test_random_numbers_are_standard_normal():
    drawn = normal(20_000, seed=2)
    assert abs(drawn.mean()) < 0.03 and abs(drawn.std() - 1) < 0.02
    assert abs(drawn.pow(4).mean() - 3) < 0.2


@pytest.mark.parametrize("shape", [(5, 7), (7, 5)])
def test_rank_is_cut_at_the_gap(shape):
    U, V = (torch.linalg.qr(normal(n, 5, seed=n)).Q for n in shape)
    values = torch.tensor([1e6, 1.0, 1e-3, 1e-5, 0.0], dtype=torch.float64)
    assert rank(U @ torch.diag(values) @ V.T) == 3
    assert rank(U @ torch.diag(values) @ V.T, rtol=1e-12) == 4
    assert rank(U @ torch.diag(values) @ V.T, rtol=1e-4) == 1
    assert rank(torch.zeros(shape, dtype=torch.float64)) == 0


def test_a_relative_change_is_over_the_old_one():
    old = torch.tensor([[3.0, 0.0], [0.0, 4.0]])
    assert relative_change(old, old) == 0.0
    assert relative_change(3 * old, old) == pytest.approx(2.0)
    assert relative_change(old, 2 * old) == pytest.approx(0.5)
