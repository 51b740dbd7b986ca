import pytest
from nulls import assert_term

from attnid import Attention
from attnid.layer.value_directions import channel_scales, value_bias, value_output_maps


@pytest.mark.parametrize("bias", ["", "v", "vo"])
@pytest.mark.parametrize(
    "fields", [{}, {"kv_heads": 1}, {"value_dim": 9}, {"score": "sink"}], ids=str
)
def test_maps(bias, fields):
    assert_term(Attention(8, 2, bias=bias, **fields), "value-output maps", value_output_maps)


@pytest.mark.parametrize("bias", ["", "v"])
def test_channel_scales(bias):
    assert_term(Attention(8, 2, bias=bias, gate="channel"), "channel scales", channel_scales)


@pytest.mark.parametrize("fields", [{"bias": "vo"}, {"bias": "v", "value_dim": 9}], ids=str)
def test_value_bias(fields):
    assert_term(Attention(8, 2, **fields), "value bias", value_bias)
