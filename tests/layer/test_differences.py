"""Differential attention: its count is what is measured, its output what its formula says, and impossible layers are named."""

import math

import numpy as np
import pytest
import torch
from draws import random

from attnid import Attention, DifferentialAttention, count, forward, independent_directions, measure
from attnid.layer.differences import forward_difference, share_of_second

LAYERS = [
    DifferentialAttention(8, 1, head_dim=2, norm="head"),
    DifferentialAttention(8, 2),
    DifferentialAttention(6, 2, 1, 2, 3, rotary=(0.7,), norm="head"),
    DifferentialAttention(5, 2, 1, 3, 4, norm=None, mixing="number"),
    DifferentialAttention(4, 1, 1, 6, 3, rotary=(0.7, 0.7)),
    DifferentialAttention(3, 1, 1, 2, 5, norm=None),
    DifferentialAttention(2, 2, 1, 2, 2, norm="head_gain", mixing="number"),
    DifferentialAttention(1, 2, 2, 2, 1, norm=None),
]


@pytest.mark.parametrize("layer", LAYERS)
def test_formula_generators_and_rank_agree(layer):
    measured = measure(layer, seed=1)
    assert count(layer).parameters == measured.parameters == layer.parameters
    assert count(layer).unidentified == measured.nullity == independent_directions(layer, seed=2)
    assert measured.gap > 1e6 and sum(count(layer).terms.values()) == measured.nullity


def test_the_layer_once_measured_by_hand():
    layer = DifferentialAttention(8, 1, head_dim=2, norm="head")
    assert (layer.parameters, count(layer).unidentified) == (136, 22)


def test_two_plain_layers_subtracted():
    """Without a norm it is the difference of two plain layers with the same values."""
    layer = DifferentialAttention(6, 2, 1, 2, 3, rotary=(0.7,), norm=None)
    p, x = layer.random_parameters(3), random(2, 7, 6, seed=4)
    side = Attention(6, 2, 1, 2, 3, rotary=(0.7,))
    first, second = (
        forward(side, {n: p[n][:, i] if n in ("W_Q", "W_K") else p[n] for n in side.shapes}, x)
        for i in (0, 1)
    )
    found = forward_difference(layer, p, x)
    assert torch.allclose(found, first - share_of_second(layer, p["mixing"]) * second, atol=1e-12)


def test_the_share_of_the_second_map():
    layer = DifferentialAttention(4, 1, start=0.2)
    a, b, c, d = vectors = random(4, 2, seed=5)
    expected = math.exp(a @ b) - math.exp(c @ d) + 0.2
    assert abs(share_of_second(layer, vectors.view(2, 2, 2)) - expected) < 1e-12


def test_a_normed_head_does_not_feel_the_size_of_its_value():
    layer = DifferentialAttention(6, 3, norm="head")
    p, x = layer.random_parameters(6), random(2, 5, 6, seed=7)
    scaled = p | {"W_V": p["W_V"] * torch.tensor([2.0, 3.0, 0.5]).view(3, 1, 1)}
    before, after = (forward_difference(layer, q, x) for q in (p, scaled))
    assert torch.allclose(before, after, atol=1e-12)
    unnormed = DifferentialAttention(6, 3, norm=None)
    before, after = (forward_difference(unnormed, q, x) for q in (p, scaled))
    assert not torch.allclose(before, after, atol=1e-2)


def test_sizes_of_numpy_and_defaults():
    layer = DifferentialAttention(np.int64(16), np.int32(2), rotary=[1.0])
    assert (layer.kv_heads, layer.head_dim, layer.value_dim) == (2, 4, 8)
    assert layer.rotary == (1.0,) and type(layer.embed_dim) is int
    assert layer.maps == Attention(16, 4, 4, 4, 8, rotary=(1.0,))


@pytest.mark.parametrize(
    "fields, named",
    [
        (dict(embed_dim=6, heads=2), "embed_dim=6: is not divisible by 2 heads=4"),
        (dict(embed_dim=8, heads=0), "heads=0"),
        (dict(embed_dim=8, heads=2, kv_heads=3), "kv_heads=3"),
        (dict(embed_dim=8, heads=1, norm="layer"), "norm='layer'"),
        (dict(embed_dim=8, heads=1, norm=["head"]), "norm=\\['head'\\]"),
        (dict(embed_dim=8, heads=1, mixing="matrix"), "mixing='matrix'"),
        (dict(embed_dim=8, heads=1, start=math.nan), "start=nan"),
        (dict(embed_dim=8, heads=1, head_dim=2, rotary=(1.0, 2.0)), "rotary"),
        (dict(embed_dim=8, heads=1, value_dim=9), "value_dim=9"),
        (dict(embed_dim=8, heads=1, value_dim=1), "value_dim=1"),
        (dict(embed_dim=1, heads=1, head_dim=2), "embed_dim=1"),
    ],
)
def test_impossible_layers_are_named(fields, named):
    with pytest.raises(ValueError, match=named):
        DifferentialAttention(**fields)


def test_what_is_too_large_or_misshapen_is_named():
    with pytest.raises(ValueError, match="too many to measure"):
        measure(DifferentialAttention(512, 8))
    layer = LAYERS[0]
    with pytest.raises(ValueError, match="W_K"):
        measure(layer, parameters=layer.random_parameters() | {"W_K": None})
