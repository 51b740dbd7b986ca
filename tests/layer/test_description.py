"""The description of a layer: what it holds, and what is impossible named."""

import dataclasses

import numpy as np
import pytest

from attnid import Attention
from attnid.layer.description import own_offset


def test_defaults_follow_the_usual_choice():
    a = Attention(12, 3)
    assert (a.E, a.H, a.G, a.D, a.C) == (12, 3, 3, 4, 4)
    assert a.parameters == 4 * 12**2


@pytest.mark.parametrize(
    "field, value",
    [
        ("embed_dim", 0),
        ("embed_dim", 2.0),
        ("embed_dim", True),
        ("embed_dim", 7),
        ("heads", -1),
        ("kv_heads", 3),
        ("kv_heads", 0),
        ("head_dim", 0),
        ("value_dim", "4"),
        ("bias", "x"),
        ("bias", "qq"),
        ("bias", None),
        ("rotary", (1.0, 2.0, 3.0)),
        ("rotary", (float("nan"),)),
        ("rotary", 1.0),
        ("rotary", ("a",)),
        ("qk_norm", "rms"),
        ("qk_norm", ["head"]),
        ("score", "relu"),
        ("gate", "sigmoid"),
        ("gate", True),
        ("relative", "t5"),
        ("span", 4),
        ("inputs", None),
        ("causal", "yes"),
    ],
)
def test_an_impossible_description_names_field_and_value(field, value):
    with pytest.raises(ValueError) as error:
        Attention(**dict(embed_dim=8, heads=2) | {field: value})
    assert f"{field}={value!r}" in str(error.value)


@pytest.mark.parametrize(
    "fields, named",
    [
        (dict(relative="bias"), "span=None"),
        (dict(relative="bias", span=0), "span=0"),
        (dict(relative="content", span=2, rotary=(1.0,)), "relative='content'"),
        (dict(relative="content", span=2, qk_norm="head"), "relative='content'"),
    ],
)
def test_learned_offsets_need_a_span_and_stand_alone(fields, named):
    with pytest.raises(ValueError, match=named):
        Attention(8, 2, **fields)


@pytest.mark.parametrize(
    "causal, owns", [(True, [None, 0, 0, 0]), (False, [None, None, 1, 2])], ids=str
)
def test_a_token_has_an_offset_to_itself_where_the_next_ones_have_others(causal, owns):
    found = [
        own_offset(Attention(8, 2, relative="bias", span=n, causal=causal)) for n in (1, 2, 3, 4)
    ]
    assert found == owns and own_offset(Attention(8, 2)) is None


def test_numpy_numbers_are_numbers():
    a = Attention(np.int64(8), 2, rotary=[np.float64(0.5), np.float32(1.0)])
    assert (
        a == Attention(8, 2, rotary=(0.5, 1.0))
        and type(a.embed_dim) is int
        and type(a.rotary[1]) is float
    )


def test_a_single_centred_number_is_refused():
    with pytest.raises(ValueError, match="embed_dim=1"):
        Attention(1, 1, inputs="centred")


def test_descriptions_are_frozen_hashable_and_replaceable():
    a = Attention(8, 2, bias="oq")
    assert a == Attention(8, 2, bias="qo") and hash(a) == hash(Attention(8, 2, bias="qo"))
    assert dataclasses.replace(a, score="sink").score == "sink"
    with pytest.raises(dataclasses.FrozenInstanceError):
        a.heads = 4
