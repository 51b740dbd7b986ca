import pytest
from nulls import assert_term

from attnid import Attention
from attnid.layer.flat import unflatten
from attnid.layer.offset_directions import (
    maps_at_offsets,
    offset_bias_shift,
    offset_exchange,
    offset_key_shift,
)


def content(**fields):
    return Attention(6, 2, relative="content", span=3, **fields)


@pytest.mark.parametrize("score", ["softmax", "sink"])
def test_biases_of_a_head_move_alike(score):
    layer = Attention(6, 2, relative="bias", span=3, score=score)
    assert_term(layer, "offset bias shift", offset_bias_shift)


@pytest.mark.parametrize("kv_heads", [1, 2])
def test_keys_of_a_group_move_alike(kv_heads):
    assert_term(content(kv_heads=kv_heads), "offset key shift", offset_key_shift)


@pytest.mark.parametrize("fields", [{"bias": "q"}, {"bias": "qk"}, {"bias": "qk", "score": "sink"}])
def test_exchanges(fields):
    assert_term(content(**fields), "offset exchange", offset_exchange)


@pytest.mark.parametrize("bias", ["", "qk"])
def test_maps_of_a_group_are_its_own(bias):
    layer = content(kv_heads=1, bias=bias)
    assert_term(layer, "query-key maps", lambda a, p: maps_at_offsets(a, p, 0))
    layer = content(bias=bias)
    found = unflatten(layer, maps_at_offsets(layer, layer.random_parameters(1), 1))
    assert found["W_K"][:, 0].abs().max() == 0 < found["W_K"][:, 1].abs().max()
