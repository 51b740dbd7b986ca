"""One size for heads and inputs, and what rounding hides named."""

import math

import pytest
import torch

from attnid import Attention, NoGapError, count, forward, measure
from attnid.layer.attention import project, random_inputs, scores
from attnid.layer.scaling import (
    even_heads,
    exponent,
    input_scale,
    refuse_what_rounding_hides,
    rms,
    units,
)


@pytest.mark.parametrize(
    "change, named",
    [
        (lambda p: p["W_Q"].zero_(), "W_Q: all entries are zero"),
        (lambda p: p["W_K"].mul_(1e-8), "scores vanish"),
        (lambda p: p["W_K"].mul_(1e8), "scores saturate"),
        (lambda p: p["W_G"].mul_(1e3), "W_G: the gates saturate"),
        (lambda p: p["W_G"].mul_(1e-6), "W_G: the gates keep still"),
    ],
)
def test_what_rounding_hides_is_named(change, named):
    attention = Attention(8, 2, inputs="centred", gate="channel")
    p = attention.random_parameters(0)
    change(p)
    with pytest.raises(NoGapError, match=named):
        measure(attention, parameters=p)


def test_rotations_too_close_to_measure_are_named():
    with pytest.raises(NoGapError, match="rotary: angles 0.0 and 1e-08"):
        measure(Attention(4, 1, rotary=(1e-8,)))
    with pytest.raises(NoGapError, match="rotary"):
        measure(Attention(4, 1, rotary=(0.3, -0.3 - 1e-7)))
    assert (
        measure(Attention(4, 1, rotary=(0.3, -0.3))).nullity
        == count(Attention(4, 1, rotary=(0.3, -0.3))).unidentified
    )


def test_the_exponent_is_that_of_the_largest_entry_of_all():
    one = torch.tensor([[[3.0, 0.0]], [[0.0, 0.0]], [[1e-300, 0.0]]], dtype=torch.float64)
    other = torch.tensor([[[-9.0]], [[0.0]], [[0.0]]], dtype=torch.float64)
    assert exponent(one).flatten().tolist() == [2.0, 0.0, -996.0]
    assert exponent(one, other).flatten().tolist() == [4.0, 0.0, -996.0]
    assert exponent(torch.full((1, 1), 5e-324, dtype=torch.float64)).item() == -1000.0


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_inputs_are_scaled_so_that_scores_spread_by_about_one(scale):
    attention = Attention(8, 2, bias="qk")
    p = attention.random_parameters(0)
    p["W_Q"], p["W_K"] = scale * p["W_Q"], scale * p["W_K"]
    t = input_scale(attention, p)
    x = random_inputs(attention, 64, 4, 1, scale=t)
    spread = scores(attention, p, *project(attention, p, x)[:2])
    spread = spread[spread.isfinite().all(-1)].std()
    assert math.log2(t).is_integer() and 0.2 < spread < 5


EVENED = [
    Attention(8, 4, 2, bias="qkvo"),
    Attention(8, 2, bias="qkv", rotary=(1.0,)),
    Attention(8, 2, qk_norm="head"),
    Attention(8, 4, 2, bias="qk", relative="content", span=3),
]


@pytest.mark.parametrize("attention", EVENED, ids=str)
def test_even_heads_have_factors_of_one_size_and_the_same_outputs(attention):
    p, x = attention.random_parameters(0), random_inputs(attention, 2, 5)
    p["W_V"][0], p["W_O"][-1] = 1e-6 * p["W_V"][0], 1e4 * p["W_O"][-1]
    if attention.qk_norm is None:
        p["W_K"][1] = 1e5 * p["W_K"][1]
    factors = even_heads(attention, p)
    even = {name: p[name] * factors[name] if name in factors else p[name] for name in p}
    torch.testing.assert_close(
        forward(attention, even, x), forward(attention, p, x), rtol=1e-12, atol=0
    )
    assert all(torch.equal(f.log2(), f.log2().round()) for f in factors.values())
    pairs = [("W_V", "W_O")] + [("W_K", "W_Q")] * (attention.qk_norm is None)
    assert factors.keys() >= {name for pair in pairs for name in pair}
    assert attention.qk_norm is None or not factors.keys() & {"W_Q", "W_K"}
    for shared, reading in pairs:
        together = even[reading].unflatten(0, (attention.G, -1)).flatten(1).square().mean(1).sqrt()
        ratio = together * (attention.H // attention.G) ** 0.5 / rms(even[shared]).flatten()
        assert 0.3 < ratio.min() and ratio.max() < 3.5


def test_units_move_outputs_alike_whatever_a_head_is_measured_in():
    attention = Attention(8, 2, bias="qkvo")
    p = attention.random_parameters(0)
    x = random_inputs(attention, 8, 5)
    p["W_V"][0], p["b_V"][0] = 1e-5 * p["W_V"][0], 1e-5 * p["b_V"][0]
    p["W_Q"][1], p["W_K"][1] = 1e-3 * p["W_Q"][1], 1e3 * p["W_K"][1]
    p["b_Q"][1], p["b_K"][1] = 1e-3 * p["b_Q"][1], 1e3 * p["b_K"][1]
    unit, uneven = units(attention, p), set()
    blocks = torch.func.jacrev(lambda q: forward(attention, q, x))(p)
    for name in ("W_Q", "W_K", "W_V", "W_O"):
        by_head = lambda J: J.square().mean((0, 1, 2, 4, 5)).sqrt()
        moved, plain = by_head(blocks[name] * unit[name]), by_head(blocks[name])
        assert moved.max() < 10 * moved.min(), name
        uneven |= {name} if plain.max() > 50 * plain.min() else set()
    assert uneven == {"W_Q", "W_K", "W_O"}  # values move with W_O, which is as it was


@pytest.mark.parametrize("name, W", [("b_Q", "W_Q"), ("b_V", "W_V")])
def test_a_bias_of_another_size_is_named_with_its_head(name, W):
    attention = Attention(8, 2, bias="qv")
    p, x = attention.random_parameters(0), random_inputs(attention, 4, 5)
    refuse_what_rounding_hides(attention, p, x)
    p[name][1] *= 1e7
    with pytest.raises(
        NoGapError, match=f"^{name}: of head 1 it is .* and {W} x .* hides the smaller"
    ):
        refuse_what_rounding_hides(attention, p, x)
    p[name][1] = 0.0  # no bias at all hides nothing
    refuse_what_rounding_hides(attention, p, x)
