import numpy as np
import pytest
import torch
from descriptions import descriptions
from hypothesis import example, given, settings
from nulls import relative_changes

from attnid import Attention, GPTConfig, count, generators, independent_directions, measure
from attnid.layer.attention import random_inputs
from attnid.layer.flat import flatten, unflatten
from attnid.layer.measuring import input_scale


@given(descriptions(most_parameters=300))
@example(Attention(2, 4, 1, head_dim=1, qk_norm="layer_gain"))
@example(Attention(2, 1, head_dim=8, rotary=(1.0, 1.0, -1.0), bias="qk"))
@settings(max_examples=120, deadline=None)
def test_generators_are_null_independent_and_as_many_as_counted(attention):
    parameters, total = attention.random_parameters(2), []
    x = random_inputs(attention, 3, 7, 5, scale=input_scale(attention, parameters))
    for term, directions in generators(attention, parameters).items():
        assert relative_changes(attention, parameters, directions, x).max() < 1e-10, term
        rows = flatten(attention, directions)
        assert len(rows) == count(attention).terms[term], term
        total.append(rows / rows.norm(dim=1, keepdim=True))
    values = torch.linalg.svdvals(torch.cat(total))
    assert len(values) == count(attention).unidentified and values[-1] > 1e-7 * values[0]


@pytest.mark.parametrize(
    "fields",
    [
        dict(bias="qkvo", rotary=(1.0,)),
        dict(qk_norm="head_gain"),
        dict(score="sink", bias="qkv"),
        dict(head_dim=9),
        dict(gate="channel", bias="v"),
        dict(relative="content", span=3, bias="qk"),
        dict(relative="bias", span=3, score="sink"),
    ],
)
def test_generators_span_what_is_measured_to_be_null(fields):
    attention = Attention(**dict(embed_dim=6, heads=2) | fields)
    parameters = attention.random_parameters(0)
    ours = torch.cat([flatten(attention, d) for d in generators(attention, parameters).values()])
    measured = flatten(attention, measure(attention, parameters=parameters).null_space)
    angles = torch.linalg.svdvals(torch.linalg.qr(ours.T).Q.T @ torch.linalg.qr(measured.T).Q)
    assert len(ours) == len(measured) and angles.min() > 1 - 1e-9


def test_a_direction_that_is_not_null_is_seen():
    attention = Attention(6, 2)
    parameters, x = attention.random_parameters(0), random_inputs(Attention(6, 2), 3, 5)
    wrong = {
        "W_Q": parameters["W_Q"][None],
        "W_K": parameters["W_K"][None],
    }  # the sign of the second is missing
    full = unflatten(attention, flatten(attention, wrong))
    assert relative_changes(attention, parameters, full, x).max() > 1e-2


@pytest.mark.parametrize(
    "description",
    [
        Attention(8, 2, bias="qkvo", rotary=(1.0,)),
        Attention(6, 2, qk_norm="head_gain", score="sink"),
        GPTConfig(7, 5, 1, 2, 4, mlp_width=4, bias=True),
    ],
    ids=str,
)
def test_independent_directions_are_as_many_as_the_formula_says(description):
    assert independent_directions(description, seed=np.int64(3)) == count(description).unidentified
    with pytest.raises(ValueError, match="attention=None"):
        independent_directions(None)
