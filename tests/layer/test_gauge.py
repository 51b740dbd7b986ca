"""The group actions, and the directions that keep a product."""

import pytest
import torch
from draws import random

from attnid import Attention, act_query_key, act_value_output, forward
from attnid.layer.attention import random_inputs
from attnid.layer.gauge import product_kernel, skew_hermitian


@pytest.mark.parametrize(
    "d, a, b, dimension",
    [(2, 5, 4, 4), (5, 3, 4, 5 * 7 - 3 * 4), (4, 3, 6, 36 - 18), (3, 3, 3, 9), (5, 1, 1, 9)],
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_product_kernel(d, a, b, dimension, dtype):
    K, Q = random(d, a, dtype=dtype), random(d, b, seed=1, dtype=dtype)
    dK, dQ = product_kernel(K, Q)
    assert len(dK) == dimension * (2 if dtype.is_complex else 1)
    assert (K.mH @ dQ + dK.mH @ Q).abs().max() < 1e-12
    rows = torch.cat((dK.flatten(1), dQ.flatten(1)), 1)
    rows = torch.view_as_real(rows).flatten(1) if dtype.is_complex else rows
    assert torch.linalg.matrix_rank(rows) == len(rows)


@pytest.mark.parametrize("dtype, dimension", [(torch.float64, 6), (torch.complex128, 16)])
def test_skew_hermitian(dtype, dimension):
    S = skew_hermitian(4, dtype)
    assert len(S) == dimension and torch.equal(S.mH, -S)


def test_the_actions_leave_the_function_where_it_is():
    attention = Attention(8, 2, bias="qkv")
    p, x = attention.random_parameters(0), random_inputs(Attention(8, 2), 2, 6)
    S, T = random(2, 4, 4, seed=3), random(2, 4, 4, seed=4)
    moved = dict(
        zip(("W_Q", "W_K", "b_Q", "b_K"), act_query_key(S, p["W_Q"], p["W_K"], p["b_Q"], p["b_K"]))
    )
    moved["W_V"], moved["W_O"] = act_value_output(T, p["W_V"], p["W_O"])
    moved["b_V"] = torch.einsum("hij,hj->hi", T, p["b_V"])
    assert torch.allclose(
        forward(attention, moved, x), forward(attention, p, x), rtol=0, atol=1e-11
    )
    assert all((moved[name] - p[name]).norm() > 0.1 * p[name].norm() for name in moved)
