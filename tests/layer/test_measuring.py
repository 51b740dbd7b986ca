import math

import pytest
import torch

from attnid import Attention, NoGapError, count, forward, generators, measure
from attnid.layer.attention import random_inputs
from attnid.layer.flat import flatten
from attnid.layer.measuring import OUTPUT, cut, jacobian_blocks
from attnid.layer.scaling import units

LAYERS = {
    "plain": Attention(8, 2),
    "biases": Attention(8, 2, bias="qkvo"),
    "rotary": Attention(8, 2, bias="qkvo", rotary=(1.0, 0.37)),
    "centred": Attention(8, 2, inputs="centred"),
    "norm": Attention(8, 2, qk_norm="head"),
    "sink": Attention(8, 2, score="sink", bias="qkvo"),
    "softcap": Attention(8, 2, score="softcap", bias="qk"),
    "alibi": Attention(8, 2, score="alibi"),
    "gains": Attention(8, 2, qk_norm="layer_gain"),
}


@pytest.mark.parametrize("attention", LAYERS.values(), ids=LAYERS)
def test_blocks_are_the_jacobian_of_the_outputs(attention):
    p, x = attention.random_parameters(1), random_inputs(attention, 2, 4)
    blocks, unit = torch.func.jacrev(lambda p: forward(attention, p, x))(p), units(attention, p)
    expected = {
        name: block.flatten(3).flatten(0, 1) * unit[name].expand_as(p[name]).flatten()
        for name, block in blocks.items()
    }
    Z, B = jacobian_blocks(attention, p, x, unit)
    assert torch.allclose(
        B, torch.cat([expected[n] for n in p if n not in OUTPUT], -1), rtol=0, atol=1e-12
    )
    direct = torch.einsum(
        "tc,ef->tefc", Z[:, : attention.H * attention.C], torch.eye(attention.E, dtype=Z.dtype)
    )
    stored = expected["W_O"].unflatten(-1, attention.shapes["W_O"]).transpose(-3, -2).flatten(-2)
    assert torch.allclose(direct, stored, rtol=0, atol=1e-12)


@pytest.mark.parametrize("attention", LAYERS.values(), ids=LAYERS)
def test_rank_agrees_with_the_plain_way(attention):
    m = measure(attention)
    p, x = attention.random_parameters(0), random_inputs(attention, m.sequences, m.tokens, 1)
    blocks = torch.func.jacrev(lambda p: forward(attention, p, x))(p)
    J = torch.cat([blocks[name].flatten(3).flatten(0, 2) for name in attention.shapes], 1)
    assert int(torch.linalg.matrix_rank(J, rtol=1e-12)) == m.rank
    null = flatten(attention, m.null_space)
    assert (J @ null.T).norm(dim=0).div(null.norm(dim=1)).max() < 1e-8 * torch.linalg.matrix_norm(
        J, 2
    )


def test_a_measurement_is_whole():
    attention = Attention(8, 2)
    m = measure(attention, seed=5)
    assert m.parameters == m.rank + m.nullity == len(m.spectrum) == 256
    assert torch.equal(m.spectrum, m.spectrum.sort(descending=True).values)
    assert m.gap > 1e6 and m.residual < 1e-10
    assert {name: tuple(d.shape[1:]) for name, d in m.null_space.items()} == attention.shapes
    assert m.rank == measure(attention, seed=6).rank


@pytest.mark.parametrize("attention", LAYERS.values(), ids=LAYERS)
@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_badly_scaled_weights_are_counted_or_refused(attention, scale):
    try:
        measured = measure(attention, parameters=attention.random_parameters(0, scale=scale))
    except NoGapError as refusal:
        assert any(word in str(refusal) for word in ("saturate", "gap", "rounding hides"))
    else:
        assert measured.nullity == count(attention).unidentified


@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_a_plain_layer_is_counted_at_any_scale(scale):
    assert (
        measure(
            Attention(8, 2), parameters=Attention(8, 2).random_parameters(0, scale=scale)
        ).nullity
        == 64
    )


@pytest.mark.parametrize("attention", LAYERS.values(), ids=LAYERS)
@pytest.mark.parametrize("name", ["W_Q", "W_K"])
def test_an_ill_conditioned_head_is_counted_or_refused(attention, name):
    p = ill_conditioned(attention.random_parameters(0), name)
    try:
        assert measure(attention, parameters=p).nullity == count(attention).unidentified
    except NoGapError:
        assert (
            attention.score == "sink" or attention.qk_norm
        )  # a sink or a gain can all but absorb the weak direction


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_numbers_that_are_none_are_named(value):
    p = Attention(4, 2).random_parameters(0)
    p["W_K"][0, 1, 2] = value
    with pytest.raises(ValueError, match="W_K"):
        measure(Attention(4, 2), parameters=p)


def test_weights_that_are_not_generic_show_a_larger_null_space():
    p = Attention(8, 2).random_parameters(0)
    p["W_Q"][0, 0] = 0.0  # one query coordinate less: its key row no longer matters
    assert measure(Attention(8, 2), parameters=p).nullity > count(Attention(8, 2)).unidentified


def ill_conditioned(parameters, *names):
    """The first head of these weights with singular values from 1 to 1e-5."""
    for name in names:
        U, s, Vh = torch.linalg.svd(parameters[name][0], full_matrices=False)
        parameters[name][0] = (
            U @ torch.diag(torch.logspace(0, -5, len(s), dtype=torch.float64)) @ Vh
        )
    return parameters


@pytest.mark.parametrize(
    "attention", [LAYERS[n] for n in ("plain", "biases", "rotary", "softcap", "gains")]
)
def test_ill_conditioned_values_are_counted(attention):
    p = ill_conditioned(attention.random_parameters(0), "W_V")
    assert measure(attention, parameters=p).nullity == count(attention).unidentified


@pytest.mark.parametrize("seed", [0, 12])
def test_single_numbers_without_a_mask_need_more_sequences(seed):
    attention = Attention(
        2,
        5,
        1,
        head_dim=1,
        value_dim=1,
        bias="qvo",
        score="softcap",
        inputs="centred",
        causal=False,
    )
    found = measure(attention, seed=seed)
    assert found.nullity == count(attention).unidentified == 10 and found.sequences > 10


@pytest.mark.parametrize("seed", [-1, 1.5, None])
def test_a_seed_that_is_none_is_named(seed):
    with pytest.raises(ValueError, match="seed="):
        measure(Attention(4, 2), seed=seed)


def test_no_gap_is_refused():
    with pytest.raises(NoGapError, match="gap="):
        cut(torch.logspace(0, -16, 60, dtype=torch.float64))


def test_a_full_spectrum_is_all_kept():
    assert cut(torch.linspace(2, 1, 5, dtype=torch.float64))[0] == 5


LAYERS = (
    Attention(8, 2),
    Attention(8, 4, 2),
    Attention(8, 2, bias="qkvo"),
    Attention(8, 2, rotary=(1.0, 0.37)),
)
POWERS = torch.Generator().manual_seed(5)


def powers(count):
    """Random factors from 1e-14 to 1e14, most of them 1."""
    exponents = 28 * torch.rand(count, generator=POWERS, dtype=torch.float64) - 14
    return 10 ** (exponents * (torch.rand(count, generator=POWERS) < 0.5))


def scaled(tensor, factors):
    return tensor * factors.view(-1, *[1] * (tensor.dim() - 1))


@pytest.mark.slow
@pytest.mark.parametrize("attention", LAYERS, ids=str)
def test_a_rescaling_that_keeps_the_function_keeps_the_count(attention):
    sharing, expected = attention.H // attention.G, count(attention).unidentified
    for seed in range(13):
        p, keys, values = (
            attention.random_parameters(seed),
            powers(attention.G),
            powers(attention.G),
        )
        for name in [n for n in ("W_K", "b_K") if n in p]:
            p[name] = scaled(p[name], keys)
        for name in [n for n in ("W_Q", "b_Q") if n in p]:
            p[name] = scaled(p[name], 1 / keys.repeat_interleave(sharing))
        for name in [n for n in ("W_V", "b_V") if n in p]:
            p[name] = scaled(p[name], values)
        p["W_O"] = scaled(p["W_O"], 1 / values.repeat_interleave(sharing))
        assert measure(attention, parameters=p).nullity == expected


@pytest.mark.slow
@pytest.mark.parametrize("attention", LAYERS, ids=str)
def test_any_rescaling_of_heads_is_measured_right_or_refused(attention):
    expected, answered = count(attention).unidentified, 0
    for seed in range(13):
        p = attention.random_parameters(seed)
        for name in ("W_Q", "W_K", "W_V", "W_O"):
            p[name] = scaled(p[name], powers(len(p[name])))
        try:
            assert measure(attention, parameters=p).nullity == expected
            answered += 1
        except NoGapError:
            pass
    assert attention.bias or answered >= 1


@pytest.mark.parametrize(
    "bias, name, factor", [("", "W_V", 1e-14), ("qkvo", "W_V", 1e-12), ("qkvo", "b_V", 1e16)]
)
def test_a_badly_scaled_point_is_never_answered_wrongly(bias, name, factor):
    attention = Attention(8, 2, bias=bias)
    p = attention.random_parameters(0)
    p[name][0 if not bias else slice(None)] *= factor
    try:
        assert measure(attention, parameters=p).nullity == count(attention).unidentified
    except NoGapError as error:
        assert bias and "b_V" in str(error)


def test_the_null_space_of_a_rescaled_layer_is_in_its_own_coordinates():
    attention = Attention(8, 2)
    p = attention.random_parameters(0)
    p["W_V"][0] *= 1e-9
    x = random_inputs(attention, 3, 7, 9)
    for direction in range(0, 64, 16):
        null = {n: d[direction] for n, d in measure(attention, parameters=p).null_space.items()}
        length = sum((null[n] / p[n].abs().amax((1, 2), keepdim=True)).norm() for n in null)
        change = torch.func.jvp(lambda q: forward(attention, q, x), (p,), (null,))[1]
        assert change.norm() < 1e-10 * length


@pytest.mark.parametrize("sizes", [(256, 4), (10**9, 1), (10**6, 10**3), (10**12, 1)])
def test_a_layer_too_large_is_refused_before_memory_is_asked_for(sizes):
    with pytest.raises(ValueError, match=r"GiB or more"):
        measure(Attention(*sizes))


@pytest.mark.parametrize("what", [None, torch.nn.Linear(2, 2), "Attention"])
def test_what_is_no_layer_is_named(what):
    for ask in (measure, count, lambda a: generators(a, {})):
        with pytest.raises(ValueError, match="attention=|inputs=None"):
            ask(what)


def test_a_seed_of_numpy_is_a_seed():
    import numpy as np

    assert measure(Attention(4, 1), seed=np.int64(3)).nullity == 32
