"""Canonical forms: the same outputs, the numbers that the rule promises, and nothing more to move."""

import pytest
import torch
from descriptions import descriptions
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from attnid import Attention, count, rebalance
from attnid.layer.attention import forward, random_inputs
from attnid.layer.canonical import (
    FORMS,
    factor,
    idle_key_coordinates,
    reduce_layer,
    value_bias_folds,
    value_blocks,
)
from attnid.layer.gauge import act_query_key, act_value_output
from attnid.layer.rebalancing import rows_of
from attnid.layer.rotation import isotypes

ROTARY = (1.0, -1.0, 0.37)  # two planes that turn alike, mirrored, and one of its own


def change(attention, old, new, seed=0):
    """Largest change of the outputs, relative to the largest output."""
    x = random_inputs(attention, 2, 7, seed)
    before, after = forward(attention, old, x), forward(attention, new, x)
    return float((after - before).abs().max() / before.abs().max())


def worst(reduction):
    return max(float(condition.max()) for condition in reduction.condition.values())


def circuits(attention):
    return {
        "query-key": (isotypes(attention), ("W_K",), ("W_Q",)),
        "value-output": (value_blocks(attention), ("W_V",), ("W_O",)),
    }


def fits(attention):
    """Whether every block of coordinates that one S mixes is at most as wide as the embedding."""
    return (
        max(block.size for block in [*isotypes(attention), *value_blocks(attention)]) <= attention.E
    )


def spanned(names, new):
    return sum(int(((new[name] == 0) | (new[name] == 1)).sum()) for name in names if name in new)


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=50)
@given(attention=descriptions(), seed=st.integers(0, 99))
def test_outputs_stay(form, attention, seed):
    p = attention.random_parameters(seed)
    given_ = {name: tensor.clone() for name, tensor in p.items()}
    reduction = reduce_layer(attention, p, form)
    assert change(attention, p, reduction.parameters) < 1e-13 * max(1e3, worst(reduction) ** 2)
    assert all(torch.equal(p[name], given_[name]) for name in p)
    assert list(reduction.parameters) == list(attention.shapes)


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=50)
@given(attention=descriptions(qk_norm=None, inputs="free"))
def test_as_many_numbers_are_fixed_as_the_count_has_unidentified(form, attention):
    assume(fits(attention))
    counted = count(attention)
    unmoved = 0 if value_bias_folds(attention) else counted.terms.get("value bias", 0)
    left = unmoved + counted.terms.get("offset exchange", 0)
    reduction = reduce_layer(attention, attention.random_parameters(), form)
    assert not any(left.any() for left in reduction.left.values())
    assert reduction.fixed == counted.unidentified - left
    assert unmoved == 0 or "o" not in attention.bias and attention.G * attention.C > attention.E


def test_channels_that_have_gates_are_scaled_and_not_mixed():
    attention = Attention(6, 2, kv_heads=1, bias="v", gate="channel")
    reduced = reduce_layer(attention, attention.random_parameters(), "identity")
    assert reduced.fixed == count(attention).unidentified == 9 + 3
    assert ((reduced.parameters["W_V"] == 1).sum(-1) == 1).all()


@given(attention=descriptions(qk_norm=None))
def test_where_a_block_is_wider_than_the_embedding_the_head_is_left(attention):
    assume(not fits(attention))
    p = attention.random_parameters()
    for form in FORMS:
        reduction = reduce_layer(attention, p, form)
        for circuit, (blocks, shared, reading) in circuits(attention).items():
            wide = max(block.size for block in blocks) > attention.E
            assert reduction.left[circuit].tolist() == [wide] * attention.G
            if wide:
                assert all(
                    torch.equal(reduction.parameters[name], p[name]) for name in (*shared, *reading)
                )


@settings(max_examples=50)
@given(attention=descriptions(qk_norm=None), form=st.sampled_from(FORMS[1:]))
def test_identity_form_has_zeros_and_ones_for_all_that_it_fixes(attention, form):
    assume(fits(attention))
    reduction = reduce_layer(attention, attention.random_parameters(), form)
    names = ("W_K", "W_V", "b_K", "b_V", "R_B", "R_K")
    assert spanned(names, reduction.parameters) == reduction.fixed
    for blocks, shared, _ in circuits(attention).values():
        for block in blocks:
            A = rows_of(block, factor(reduction.parameters, shared, attention.G))
            for head in A:
                one = torch.eye(block.size, dtype=A.dtype)
                assert all((head == column[:, None]).all(0).any() for column in one)
                assert form == "identity" or torch.equal(head[:, : block.size], one)


@settings(max_examples=60)
@given(attention=descriptions(qk_norm=None))
def test_balanced_form_has_equal_gram_matrices(attention):
    reduction = reduce_layer(attention, attention.random_parameters(), "balanced")
    for circuit, (blocks, shared, reading) in circuits(attention).items():
        for block in blocks:
            A, B = (
                rows_of(block, factor(reduction.parameters, names, attention.G))
                for names in (shared, reading)
            )
            away = torch.linalg.matrix_norm(A @ A.mH - B @ B.mH) / torch.linalg.matrix_norm(
                A @ A.mH
            )
            assert (
                away[~reduction.left[circuit]].numel() == 0
                or away[~reduction.left[circuit]].max() < 1e-9
            )


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=40)
@given(attention=descriptions(), seed=st.integers(0, 99))
def test_a_canonical_layer_is_its_own(form, attention, seed):
    once = reduce_layer(attention, attention.random_parameters(seed), form)
    assume(worst(once) < 1e3)
    again = reduce_layer(attention, once.parameters, form).parameters
    assert (
        max(
            (again[name] - new).abs().max() / new.abs().max().clamp_min(1e-300)
            for name, new in once.parameters.items()
        )
        < 1e-9
    )


@pytest.mark.parametrize("rotary", [(), (1.0, 0.37), ROTARY])
def test_balanced_form_is_rebalance_head_by_head(rotary):
    attention = Attention(
        9, 3, head_dim=7, bias="qk", rotary=rotary, score="softcap"
    )  # key biases are seen
    p = attention.random_parameters()
    names = ("W_Q", "W_K", "b_Q", "b_K")
    expected = rebalance(*(p[name] for name in names), rotary=rotary)
    reduction = reduce_layer(attention, p)
    for name, tensor in zip(names, expected):
        torch.testing.assert_close(reduction.parameters[name], tensor, rtol=0, atol=1e-11)
    torch.testing.assert_close(reduction.condition["query-key"], expected.condition)


def moved(attention, p, seed):
    """Other weights of the same outputs, and a head-wise S that commutes with the rotations."""
    generator, new = torch.Generator().manual_seed(seed), dict(p)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)
    S = torch.zeros(attention.H, attention.D, attention.D, dtype=torch.float64)
    for block in isotypes(attention):
        part = draw(attention.H, block.size, block.size)
        part = (
            torch.complex(part, draw(attention.H, block.size, block.size))
            if block.complex
            else part
        )
        columns = torch.zeros_like(S)
        for c in block.coordinates:  # S e_c, column by column
            unit = torch.zeros(attention.H, attention.D, 1, dtype=torch.float64)
            unit[:, c] = 1
            image = torch.zeros_like(unit)
            from attnid.layer.rebalancing import put_rows

            put_rows(block, image, part @ rows_of(block, unit).to(part.dtype))
            columns[:, :, c] = image[..., 0]
        S += columns
    new["W_Q"], new["W_K"], new["b_Q"], new["b_K"] = act_query_key(
        S, *(p[name] for name in ("W_Q", "W_K", "b_Q", "b_K"))
    )
    new["W_V"], new["W_O"] = act_value_output(
        draw(attention.H, attention.C, attention.C), p["W_V"], p["W_O"]
    )
    pooled = lambda w: torch.einsum("hec,hc->e", w["W_O"], w["b_V"])
    new["b_V"] = draw(attention.H, attention.C)
    new["b_O"] = p["b_O"] + pooled(p) - pooled(new)
    idle = idle_key_coordinates(attention)
    new["b_K"][:, idle] = draw(attention.H, len(idle))
    return new


@pytest.mark.parametrize("form", FORMS[1:])
@pytest.mark.parametrize("rotary", [(), ROTARY])
def test_equal_functions_get_equal_identity_forms(form, rotary):
    attention = Attention(9, 2, head_dim=7, bias="qkvo", rotary=rotary)
    p = attention.random_parameters()
    expected = reduce_layer(attention, p, form).parameters
    for seed in range(5):
        other = moved(attention, p, seed)
        assert change(attention, p, other) < 1e-9 and (other["W_K"] - p["W_K"]).abs().max() > 0.1
        new = reduce_layer(attention, other, form).parameters
        assert (
            max(
                (new[name] - expected[name]).abs().max()
                / expected[name].abs().max().clamp_min(1e-9)
                for name in p
            )
            < 1e-7
        )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_heads_without_rank_are_left_and_said(form, kv_heads):
    attention = Attention(8, 4, kv_heads, head_dim=3, bias="qkvo", score="softcap")
    p = attention.random_parameters()
    p["W_K"][0, 2] = p["W_K"][0, 0] + p["W_K"][0, 1]
    p["W_V"][-1] = 0  # a pruned head
    reduction = reduce_layer(attention, p, form)
    first, last = ([g == at for g in range(kv_heads)] for at in (0, kv_heads - 1))
    assert (
        reduction.left["query-key"].tolist() == first
        and reduction.left["value-output"].tolist() == last
    )
    assert all(
        (reduction.condition[circuit][left] == 1).all() for circuit, left in reduction.left.items()
    )
    assert torch.equal(reduction.parameters["W_K"][0], p["W_K"][0]) and torch.equal(
        reduction.parameters["W_Q"][0], p["W_Q"][0]
    )
    assert change(attention, p, reduction.parameters) < 1e-10
    assert reduction.fixed == 2 * (kv_heads - 1) * 9 + kv_heads * 3


def test_readers_without_rank_leave_the_balanced_form_open_but_not_the_identity():
    attention = Attention(8, 2, head_dim=3)
    p = attention.random_parameters()
    p["W_O"][0] = 0
    found = {form: reduce_layer(attention, p, form) for form in FORMS}
    assert [found[form].left["value-output"].tolist() for form in FORMS] == [
        [True, False],
        [False, False],
        [False, False],
    ]
    assert all(change(attention, p, each.parameters) < 1e-12 for each in found.values())


def adversarial(attention, near):
    """Heads whose first columns of keys and values are nearly one column."""
    p = attention.random_parameters()
    for name in ("W_K", "W_V"):
        first = p[name][..., : attention.D]
        p[name][..., : attention.D] = first[..., :1] + near * first
    return p


@pytest.mark.parametrize("rotary", [(), ROTARY])
def test_pivots_keep_conditions_sane(rotary):
    attention = Attention(24, 6, head_dim=8, bias="qkvo", rotary=rotary)
    plain, pivoted = (
        worst(reduce_layer(attention, attention.random_parameters(), form)) for form in FORMS[:0:-1]
    )
    assert pivoted < 60 and plain > 2 * pivoted
    p = adversarial(attention, 1e-6)
    plain, pivoted = (reduce_layer(attention, p, form) for form in FORMS[:0:-1])
    assert worst(plain) > 1e5 and worst(pivoted) < 60
    assert change(attention, p, pivoted.parameters) < 1e-12 < change(attention, p, plain.parameters)


def test_what_stays_idle_is_said():
    sink = Attention(6, 2, bias="qkvo", score="sink")  # rows of attention do not sum to one
    p = sink.random_parameters()
    new = reduce_layer(sink, p).parameters
    assert idle_key_coordinates(sink) == [] and not value_bias_folds(sink)
    assert (
        torch.equal(new["b_O"], p["b_O"])
        and new["b_V"].abs().min() > 0
        and new["b_K"].abs().min() > 0
    )
    partial = Attention(12, 2, bias="kvo", rotary=(1.0,))  # two of six coordinates turn
    new = reduce_layer(partial, partial.random_parameters()).parameters
    assert idle_key_coordinates(partial) == [2, 3, 4, 5]
    assert (
        not new["b_K"][:, 2:].any() and new["b_K"][:, :2].abs().min() > 0 and not new["b_V"].any()
    )


@pytest.mark.parametrize(
    "spoil, words",
    [
        (lambda p: p.pop("W_K"), "parameters='W_K'"),
        (lambda p: p.update(b_Q=p["W_Q"]), "parameters='b_Q'"),
        (lambda p: p.update(W_O=p["W_O"].mT), r"W_O=\(2, 3, 6\): shape"),
        (lambda p: p["W_V"].fill_(torch.nan), "W_V=.*nan"),
        (lambda p: p.update(W_Q=p["W_Q"].to(torch.int8)), "W_Q=torch.int8"),
    ],
)
def test_wrong_parameters_are_named(spoil, words):
    attention = Attention(6, 2)
    p = attention.random_parameters()
    spoil(p)
    with pytest.raises(ValueError, match=f"^{words}"):
        reduce_layer(attention, p)


@pytest.mark.parametrize("form", ["Balanced", "", None, ["identity"]])
def test_another_form_is_named(form):
    with pytest.raises(ValueError, match="^form=.*: must be one of"):
        reduce_layer(Attention(6, 2), Attention(6, 2).random_parameters(), form)
