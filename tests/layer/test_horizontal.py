"""The horizontal part of a change: orthogonal to the orbit, and the product moves as before."""

import pytest
import torch

from attnid.layer.horizontal import generator, horizontal
from attnid.layer.metrics import head_metrics
from attnid.tensors import normal


@pytest.mark.parametrize("a, b", [(7, 7), (8, 5), (3, 4), (3, 3)])
def test_it_is_what_least_squares_leaves(a, b):
    d = 3
    A, B, dA, dB = (normal(d, n, seed=i) for i, n in enumerate((a, b, a, b)))
    units = torch.eye(d * d).double().view(-1, d, d)
    basis = torch.cat(((units @ A).flatten(1), (-units.mT @ B).flatten(1)), 1).T  # (n, d^2)
    change = torch.cat((dA.flatten(), dB.flatten()))
    left = change - basis @ torch.linalg.lstsq(basis, change).solution
    found = torch.cat([part.flatten() for part in horizontal(A, B, dA, dB)])
    torch.testing.assert_close(found, left, rtol=0, atol=1e-12)
    assert 0.1 < left.norm() / change.norm() < 0.99  # something is lost, and something left


def test_the_product_moves_as_before_and_rho_is_zero():
    A, B, dA, dB = (normal(2, 3, 8, seed=i) for i in range(4))
    kept_A, kept_B = horizontal(A, B, dA, dB)
    torch.testing.assert_close(kept_A.mT @ B + A.mT @ kept_B, dA.mT @ B + A.mT @ dB)
    assert head_metrics(A, B, A + dA, B + dB)["rho"].min() > 0.05
    assert head_metrics(A, B, A + kept_A, B + kept_B)["rho"].max() < 1e-24


def test_of_several_solutions_the_least_is_taken():
    A, B = normal(3, 8), normal(3, 8, seed=1)
    A[2], B[2] = 0, 0  # what S does within the last coordinate moves neither
    S = generator(A @ A.mT, B @ B.mT, A @ A.mT + B @ B.mT)
    assert S.isfinite().all() and S[2, 2].abs() < 1e-12
    torch.testing.assert_close(S @ A, A)
