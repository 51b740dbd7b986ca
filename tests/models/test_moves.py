"""How many coordinates of the gauge one layer was moved along."""

import gauges
import pytest
import torch

from attnid import Attention, count
from attnid.layer.gauge import act_query_key, act_value_output
from attnid.models.moves import count_moves

LAYERS = [
    Attention(12, 3, bias="qkvo"),
    Attention(12, 4, 2, 4, rotary=(1.0,), bias="qkvo"),
    Attention(16, 4, 2, bias="qkv", rotary=(1.0, 0.3)),
    Attention(12, 3, bias="qkvo", score="sink"),
    Attention(12, 3, bias="qkvo", score="softcap"),
]
NONE = frozenset()


@pytest.mark.parametrize("a", LAYERS)
def test_a_random_gauge_moves_along_all_that_is_unidentified(a):
    p, order = a.random_parameters(0), torch.arange(a.H)
    q = gauges.moved(a, p, torch.Generator().manual_seed(0))
    assert count_moves(a, p, p, order, 1e-16, NONE).directions == 0
    assert count_moves(a, p, q, order, 1e-16, NONE).directions == count(a).unidentified


def test_what_did_not_move_does_not_count():
    a = Attention(12, 3, bias="qkvo")
    p, order = a.random_parameters(0), torch.arange(3)
    S = torch.eye(4).double().repeat(3, 1, 1)
    S[1, 0, 2] = 0.5  # one entry, of one head
    S[2, 3, 3] = 2.0  # a diagonal one
    q = dict(p)
    q["W_V"], q["W_O"] = act_value_output(torch.linalg.inv(S), p["W_V"], p["W_O"])
    q["b_V"] = torch.linalg.solve(S, p["b_V"][..., None])[..., 0]
    assert count_moves(a, p, q, order, 1e-16, NONE).directions == 2
    assert count_moves(a, p, q, order, 1e-16, {1}).directions == 1
    assert count_moves(a, p, q, order, 1e-16, {0, 1, 2}).directions == 0


def test_idle_biases_count_one_by_one():
    a = Attention(12, 3, bias="qkvo")
    p, order = a.random_parameters(0), torch.arange(3)
    q = p | {"b_K": p["b_K"].clone(), "b_V": p["b_V"].clone()}
    q["b_K"][0, :3] += 1.0
    q["b_V"][2, 1] += 1.0
    moves = count_moves(a, p, q, order, 1e-16, NONE)
    assert (moves.directions, moves.key_bias) == (4, 3)
    assert count_moves(a, p, q, order, 1e-16, NONE, biased="V").directions == 1


def test_a_bias_that_moves_along_is_not_one_that_moves():
    a = Attention(12, 3, bias="qkvo")
    p = a.random_parameters(0)
    S = torch.diag(torch.tensor([2.0, 1, 1, 1])).double().repeat(3, 1, 1)
    W_K, W_Q, b_K, b_Q = act_query_key(S, p["W_K"], p["W_Q"], p["b_K"], p["b_Q"])
    moves = count_moves(
        a, p, p | dict(W_K=W_K, W_Q=W_Q, b_K=b_K, b_Q=b_Q), torch.arange(3), 1e-16, NONE
    )
    assert (moves.directions, moves.key_bias) == (3, 0)


def test_rounding_is_no_move():
    a = Attention(64, 4)
    p = a.random_parameters(0)
    q = {n: t.float().double() for n, t in p.items()}
    assert count_moves(a, p, q, torch.arange(4), 1.2e-7, NONE).directions == 0
    assert count_moves(a, p, q, torch.arange(4), 1e-16, NONE).directions > 100
