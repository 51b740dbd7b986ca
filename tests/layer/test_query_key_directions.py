import pytest
from nulls import assert_term

from attnid import Attention
from attnid.layer.query_key_directions import (
    key_bias,
    query_key_maps,
    rotations,
    sink_against_constant,
)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"rotary": (1.0,)},
        {"rotary": (1.0, 1.0)},
        {"kv_heads": 1, "bias": "qk"},
        {"head_dim": 9},
        {"relative": "content", "span": 3},
    ],
    ids=str,
)
def test_maps(fields):
    assert_term(Attention(8, 2, **fields), "query-key maps", query_key_maps)


@pytest.mark.parametrize("fields", [{}, {"rotary": (1.0,)}, {"kv_heads": 1}], ids=str)
def test_key_bias(fields):
    assert_term(Attention(8, 2, bias="qk", **fields), "key bias", key_bias)


def test_a_sink_follows_a_constant():
    layer = Attention(4, 2, head_dim=5, bias="qk", score="sink")
    assert_term(layer, "sink against constant scores", sink_against_constant)


@pytest.mark.parametrize("rotary", [(), (1.0,), (1.0, 1.0)])
def test_rotations_of_normalised_heads(rotary):
    assert_term(Attention(8, 2, qk_norm="head", rotary=rotary), "rotations", rotations)
