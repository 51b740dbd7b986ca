import json
import math
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from descriptions import descriptions
from hypothesis import example, given, settings

from attnid import Attention, GPTConfig, LatentAttention, count, measure

CASES = json.loads((Path(__file__).parents[1] / "cases" / "counts.json").read_text())


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_cases(case):
    attention = Attention(**case["attention"])
    counted, measured = count(attention), measure(attention)
    assert (counted.parameters, counted.unidentified) == (case["parameters"], case["unidentified"])
    assert (measured.parameters, measured.nullity) == (case["parameters"], case["unidentified"])
    assert measured.gap > 1e6


@given(descriptions())
@example(Attention(1, 1, head_dim=5, value_dim=3, bias="qkvo", rotary=(0.0, 1.0)))
@example(Attention(3, 4, head_dim=6, bias="qk", score="sink", rotary=(math.pi,)))
@example(Attention(2, 2, head_dim=3, bias="v", inputs="centred"))
@settings(max_examples=150, deadline=None)
def test_the_formula_is_what_is_measured(attention):
    measured = measure(attention)
    assert count(attention).unidentified == measured.nullity
    assert measured.gap > 1e6


@pytest.mark.parametrize("d, plain, channel", [(3, 36, 24), (4, 64, 40)])
def test_a_gate_per_head_changes_no_count_and_one_per_channel_leaves_scales(d, plain, channel):
    expected = {None: plain, "head": plain, "channel": channel}
    for gate, unidentified in expected.items():
        layer = Attention(8, 2, head_dim=d, gate=gate)
        assert count(layer).unidentified == measure(layer).nullity == unidentified


def test_a_gate_tells_the_value_bias_apart():
    plain, gated = (Attention(8, 2, bias="vo", gate=gate) for gate in (None, "head"))
    assert count(plain).terms["value bias"] == 8 and "value bias" not in count(gated).terms
    assert measure(gated).nullity == count(gated).unidentified == 64


@pytest.mark.parametrize(
    "fields, terms",
    [
        (dict(relative="bias"), {"offset bias shift": 2}),
        (dict(relative="bias", score="sink"), {"offset bias shift": 2}),
        (dict(relative="bias", score="softcap"), {"offset bias shift": 2}),
        (dict(relative="content"), {"offset key shift": 8}),
        (dict(relative="content", score="sink"), {}),
        (dict(relative="content", bias="q"), {"offset key shift": 8, "offset exchange": 4}),
        (dict(relative="content", bias="k"), {"offset key shift": 8, "offset exchange": 4}),
        (dict(relative="content", bias="qk"), {"offset key shift": 8, "offset exchange": 12}),
        (dict(relative="content", head_dim=5), {"offset key shift": 10, "offset exchange": 4}),
    ],
    ids=str,
)
def test_learned_offsets_by_term(fields, terms):
    layer = Attention(8, 2, span=3, **fields)
    found = dict(count(layer).terms)
    assert found.pop("query-key maps") == found.pop("value-output maps") == 2 * layer.D**2
    assert found == terms and measure(layer).nullity == count(layer).unidentified


def test_own_offset_makes_the_difference_that_a_mask_makes():
    """Two offsets: a token's own and all others, or, without a mask, its own with all before it."""
    layers = [
        Attention(4, 1, relative="content", span=2, causal=causal) for causal in (True, False)
    ]
    counted = [count(layer).unidentified for layer in layers]
    assert counted == [measure(layer).nullity for layer in layers] == [40, 36]


@pytest.mark.parametrize("heads", [1, 2, 3, 4, 6, 12])
def test_the_share_of_a_plain_layer(heads):
    assert count(Attention(12, heads)).share == pytest.approx(1 - 1 / (2 * heads), abs=1e-15)


def test_terms_name_each_symmetry_and_sum_to_the_count():
    counted = count(Attention(8, 2, bias="qkvo", inputs="centred"))
    assert counted.terms == {
        "value-output maps": 32,
        "value bias": 8,
        "query-key maps": 32,
        "key bias": 8,
        "centred inputs": 24,
    }
    assert counted.unidentified == 104 and counted.identified == counted.parameters - 104


def test_llama_2_70b():
    layer = Attention(8192, 64, 8, rotary=tuple(10000.0 ** (-2 * i / 128) for i in range(64)))
    assert count(layer).terms == {"query-key maps": 8 * 128, "value-output maps": 8 * 128**2}
    assert count(Attention(8192, 64)).terms == {"query-key maps": 2**20, "value-output maps": 2**20}


@pytest.mark.parametrize(
    "rotary, group",
    [
        ((1.0, 0.3), 4),
        ((1.0, 1.0), 8),
        ((1.0, -1.0), 8),
        ((0.0, 1.0), 6),
        ((math.pi, 1.0), 6),
        ((math.pi, 0.0), 8),
        ((0.0, 2 * math.pi), 16),
        ((1.0,), 6),
    ],
)
def test_what_commutes_with_the_rotations(rotary, group):
    assert (
        count(Attention(8, 1, head_dim=4, value_dim=1, rotary=rotary)).terms["query-key maps"]
        == group
    )


@pytest.mark.parametrize(
    "fields, named",
    [
        (dict(embed_dim=2, heads=1, inputs="centred", qk_norm="head", bias="k"), "embed_dim=2"),
        (dict(embed_dim=2, heads=1, inputs="centred", score="softcap", bias="k"), "embed_dim=2"),
        (dict(embed_dim=2, heads=1, inputs="centred", gate="head"), "embed_dim=2"),
        (
            dict(embed_dim=4, heads=1, head_dim=5, relative="content", span=2, bias="k"),
            "head_dim=5",
        ),
        (dict(embed_dim=1, heads=2, head_dim=1, qk_norm="head"), "head_dim=1"),
        (dict(embed_dim=64, heads=16, head_dim=32, qk_norm="layer_gain"), "qk_norm='layer_gain'"),
        (
            dict(embed_dim=4, heads=2, head_dim=1, qk_norm="head", bias="q", inputs="centred"),
            "head_dim=1",
        ),
    ],
)
def test_what_has_no_generic_count_is_refused_by_name(fields, named):
    with pytest.raises(ValueError, match=named):
        count(Attention(**fields))


SLOW = 1e13  # a base of rotary angles at which the slowest plane turns by 1e-10 a position


@pytest.mark.parametrize(
    "attention, unidentified",
    [
        (Attention(256, 2, rotary=[1e9 ** (-i / 64) for i in range(64)]), 33024),
        (Attention(10, 2, 1, head_dim=8, rotary=[SLOW ** (-i / 4) for i in range(4)]), 72),
    ],
)
def test_slow_planes_are_planes(attention, unidentified):
    assert count(attention).unidentified == unidentified


LARGE = 10**12
RNG = np.random.default_rng(0)
EVERY_SIZE = [
    lambda: Attention(LARGE, 1),
    lambda: Attention(LARGE, 10**6, head_dim=LARGE, bias="qkvo", score="sink", inputs="centred"),
    lambda: Attention(LARGE, LARGE, 1, head_dim=1, qk_norm="layer_gain"),
    lambda: Attention(8, 2, head_dim=10**8, rotary=(1.0, 0.5), bias="k"),
    lambda: LatentAttention(LARGE, 128, 512, LARGE, query_rank=1536, rotary=(1.0,)),
    lambda: GPTConfig(50257, 16384, 12, 12, 768),
    lambda: GPTConfig(50257, 16384, 12, 12, 768, positions="none"),
    lambda: GPTConfig(LARGE, LARGE, LARGE, 12, 12 * 10**9, positions="rotary", tied=False),
    lambda: GPTConfig(LARGE, LARGE, LARGE, 12, 12 * 10**9, positions="none", bias=True),
]


@pytest.mark.parametrize("describe", EVERY_SIZE)
def test_a_count_is_instant_at_every_size(describe, monkeypatch):
    description = describe()
    for factory in ("randn", "rand", "zeros", "ones", "eye", "empty", "arange", "tensor"):
        monkeypatch.setattr(torch, factory, None)
    start = time.process_time()
    assert 0 < count(description).unidentified < description.parameters
    assert time.process_time() - start < 0.01


def test_many_planes_are_counted_in_time():
    attention = Attention(8, 1, head_dim=200_000, rotary=RNG.uniform(0.1, 3, 100_000).tolist())
    start = time.process_time()
    assert count(attention).terms["query-key maps"] > 0
    assert time.process_time() - start < 2
