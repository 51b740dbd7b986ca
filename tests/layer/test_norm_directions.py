import pytest
from nulls import assert_term

from attnid import Attention
from attnid.layer.norm_directions import NAMED, wide_heads

NORMS = ["head_gain", "layer_gain"]


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("term", ["query scales", "key scales", "gain exchange"])
@pytest.mark.parametrize("fields", [{}, {"kv_heads": 1, "bias": "qk"}, {"rotary": (1.0,)}], ids=str)
def test_normalised_queries_and_keys(norm, term, fields):
    assert_term(Attention(8, 2, qk_norm=norm, **fields), term, NAMED[term])


def test_heads_of_one_number_keep_a_sign():
    assert_term(Attention(4, 2, head_dim=1, qk_norm="head"), "signs only", NAMED["signs only"])


@pytest.mark.parametrize("gate", [None, "channel"])
def test_inputs_that_are_centred(gate):
    layer = Attention(6, 2, inputs="centred", gate=gate)
    assert_term(layer, "centred inputs", NAMED["centred inputs"])


def test_wide_heads_have_more():
    assert_term(Attention(2, 1, head_dim=6, qk_norm="head"), "wide heads", wide_heads)
