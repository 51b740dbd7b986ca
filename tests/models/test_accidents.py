"""What goes wrong in conversions: planted in each family, in another gauge, and named."""

import gauges
import pytest
import tiny_models as tiny
import torch
from einops import rearrange
from safetensors.torch import load_file

from attnid import compare
from attnid.models import accidents
from attnid.models.architectures import read_architecture
from attnid.models.layouts import stored_coordinates


def rows(p, letters, change):
    names = [f"{kind}_{letter}" for letter in letters for kind in "Wb"]
    return {name: change(p[name]) for name in names if name in p}


def halves(a, p):
    order = stored_coordinates(a)
    return rows(p, "QK", lambda t: t[:, order]) if len(a.rotary) > 1 else None


def pairs(a, p):
    order = stored_coordinates(a).argsort()
    return rows(p, "QK", lambda t: t[:, order]) if len(a.rotary) > 1 else None


def transposed(letter):
    def change(a, p):
        W, back = p[f"W_{letter}"], stored_coordinates(a).argsort()
        if letter == "O":
            stored = rearrange(W, "h e c -> e (h c)")
            turn = lambda t: rearrange(t, "e (h c) -> h e c", h=a.H)
        else:
            stored = (W[:, back] if letter in "QK" else W).flatten(0, 1)
            turn = lambda t: (
                t.reshape(W.shape)[:, stored_coordinates(a)]
                if letter in "QK"
                else t.reshape(W.shape)
            )
        return {f"W_{letter}": turn(stored.T)} if stored.shape == (a.E, a.E) else None

    return change


def keys_swapped(a, p):
    return rows(p, "K", lambda t: t.roll(1, 0)) if a.G > 1 else None


def keys_and_values_swapped(a, p):
    return rows(p, "KV", lambda t: t.roll(1, 0)) if 1 < a.G < a.H else None


def in_turn(a, p):
    order = torch.arange(a.H).view(a.G, -1).T.flatten()
    shared = ("W_Q", "b_Q", "W_O", "sink")
    return {n: p[n][order] for n in shared if n in p} if 1 < a.G < a.H else None


def dropped(letter):
    name = f"b_{letter}"
    return lambda a, p: {name: torch.zeros_like(p[name])} if name in p else None


def scores_scaled(a, p):
    return rows(p, "Q", lambda t: t * 2**0.5) if a.qk_norm is None else None


def outputs_scaled(a, p):
    return {"W_O": 1.5 * p["W_O"]}


PLANTED = {
    "halves": (halves, accidents.ROTARY),
    "pairs": (pairs, accidents.ROTARY),
    **{
        f"transposed {letter}": (transposed(letter), f"{accidents.TRANSPOSED}: W_{letter}")
        for letter in "QKVO"
    },
    "keys swapped": (keys_swapped, f"{accidents.GROUPS}: keys"),
    "keys and values swapped": (keys_and_values_swapped, f"{accidents.GROUPS}: keys and values"),
    "in turn": (in_turn, f"{accidents.GROUPS}: queries read them in turn"),
    "no query bias": (dropped("Q"), f"{accidents.BIAS}: that of the query map"),
    "no key bias": (dropped("K"), f"{accidents.BIAS}: that of the key map"),
    "no value bias": (dropped("V"), f"{accidents.BIAS}: that of the value map"),
    "no output bias": (dropped("O"), f"{accidents.BIAS}: that of the output map"),
    "scores": (scores_scaled, f"{accidents.FACTOR}: 1.414"),
    "outputs": (outputs_scaled, f"{accidents.OUTPUT_FACTOR}: 1.5"),
}
HARMLESS = {"bert", "gpt2", "vit", "falcon, alibi"}  # whose key biases are idle


@pytest.mark.parametrize("name", tiny.FOLDERS)
def test_each_accident_is_named(saved, tmp_path, name):
    moved = gauges.in_another_gauge(saved(name), tmp_path / "moved", 0, order=False, shift=False)
    attention = read_architecture(saved(name)).layers[1][1]
    planted = 0
    for key, (change, word) in PLANTED.items():
        given = change(attention, {n: torch.zeros(s) for n, s in attention.shapes.items()})
        if given is None:
            continue
        planted += 1
        found = compare(saved(name), gauges.changed_layer(moved, tmp_path / key, change))
        if key == "no key bias" and name in HARMLESS:
            assert found.same and [d.accident for d in found.harmless] == [
                f"{word}, which changes no output"
            ]
            continue
        assert not found.same and found.differences, key
        assert {d.layer for d in found.differences} == {1}
        assert {d.accident for d in found.differences} == {word}
    assert planted >= 3


def test_a_bias_that_was_never_written_is_one_that_is_dropped(saved, tmp_path):
    """As where a configuration says that there is none."""
    from models.test_comparison import spoilt

    def bare(weights, config):
        for name in [n for n in weights if n.endswith("_proj.bias")]:
            del weights[name]
        config["attention_bias"] = False

    found = compare(saved("llama, biases"), spoilt(saved("llama, biases"), tmp_path / "bare", bare))
    assert not found.same
    assert {d.circuit for d in found.differences} == {"query-key", "output bias"}


@pytest.mark.parametrize("untied_first", [True, False])
def test_tied_against_untied(tmp_path, untied_first):
    config = tiny.FOLDERS["llama"]
    model = tiny.model_of(config | {"tie_word_embeddings": True}, head="AutoModelForCausalLM")
    model.save_pretrained(tmp_path / "tied")
    other = tiny.model_of(config | {"tie_word_embeddings": False}, head="AutoModelForCausalLM")
    other.load_state_dict(model.state_dict())
    other.save_pretrained(tmp_path / "equal")
    other.lm_head.weight.data[3] *= 1.01
    other.save_pretrained(tmp_path / "apart")
    assert "lm_head.weight" not in load_file(tmp_path / "tied" / "model.safetensors")
    pair = lambda name: (tmp_path / name, tmp_path / "tied")[:: 1 if untied_first else -1]
    found = compare(*pair("equal"))
    assert found.same and [d.accident.split(":")[0] for d in found.harmless] == [accidents.TIED]
    found = compare(*pair("apart"))
    assert [(d.circuit, d.accident) for d in found.differences] == [
        ("lm_head.weight", accidents.TIED)
    ]


def test_a_head_that_a_bare_model_lacks_is_named(saved, tmp_path):
    model = tiny.model_of(tiny.FOLDERS["llama"], head="AutoModelForCausalLM")
    model.save_pretrained(tmp_path / "head")
    with pytest.raises(ValueError, match="'lm_head.weight': is not in the first"):
        compare(saved("llama"), tmp_path / "head")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["bert", "llama", "phi3", "gpt_oss"])
def test_rounding_is_named(saved, tmp_path, name, dtype):
    """Numbers of a coarser dtype in a file of a finer one."""
    round_all = lambda _, tensor: tensor.to(dtype).to(tensor.dtype)
    found = compare(saved(name), gauges.changed_tensors(saved(name), tmp_path / "out", round_all))
    assert not found.same
    assert {d.accident for d in found.differences} == {f"{accidents.ROUNDED}: {dtype}"}
    # and in a file of its own dtype it is rounding, and none
    as_such = gauges.changed_tensors(saved(name), tmp_path / "such", lambda _, t: t.to(dtype))
    assert compare(saved(name), as_such).same


def test_tensors_beside_the_attention_have_accidents_too(saved, tmp_path):
    def change(name, tensor):
        if name == "pooler.dense.weight":
            return tensor.T.contiguous()
        return tensor - 1 if name == "embeddings.LayerNorm.weight" else None

    found = compare(saved("bert"), gauges.changed_tensors(saved("bert"), tmp_path / "out", change))
    assert [(d.circuit, d.accident) for d in found.differences] == [
        ("embeddings.LayerNorm.weight", accidents.OFFSET),
        ("pooler.dense.weight", accidents.TRANSPOSED),
    ]


def test_the_coarser_dtype_of_two():
    x = torch.tensor([0.1, 0.3], dtype=torch.float64)
    assert accidents.coarser(x, x) is None
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        assert (
            accidents.coarser(x, x.to(dtype)) is dtype
            and accidents.coarser(x.to(dtype), x) is dtype
        )
