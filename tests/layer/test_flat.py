import torch
from draws import random

from attnid import Attention
from attnid.layer.flat import flatten, rows_times, unflatten, unit

LAYER = Attention(4, 2, bias="qo")


def test_flatten_and_unflatten_are_inverse():
    rows = random(3, LAYER.parameters)
    assert torch.equal(flatten(LAYER, unflatten(LAYER, rows)), rows)


def test_names_left_out_are_zero():
    rows = flatten(LAYER, unit(LAYER, "b_Q"))
    assert rows.shape == (4, LAYER.parameters) and rows.sum() == 4
    assert torch.equal(unflatten(LAYER, rows)["b_Q"].flatten(1), torch.eye(4).double())


def test_a_mask_keeps_entries():
    keep = torch.tensor([[True, False], [False, True]])
    assert unit(LAYER, "b_Q", keep)["b_Q"].sum(0).tolist() == [[1, 0], [0, 1]]


def test_rows_are_moved_one_at_a_time():
    vector = random(1, 4)
    (moved,) = rows_times(LAYER, "W_Q", vector).values()
    assert moved.shape == (4, 2, 2, 4)
    for direction, (head, row) in zip(moved, [(0, 0), (0, 1), (1, 0), (1, 1)]):
        assert torch.equal(direction[head, row], vector[0])
        assert direction.count_nonzero() == vector.count_nonzero()
