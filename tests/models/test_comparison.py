"""Two checkpoints compared: the same in every gauge, and each difference named where it is."""

import json
import re
import shutil
import weakref
from dataclasses import asdict

import gauges
import pytest
import tiny_models as tiny
import torch
from safetensors.torch import load_file, save_file
from small_gpts import randomised

from attnid import compare
from attnid.layer.canonical import FORMS
from attnid.models import findings
from attnid.models.architectures import read_architecture
from attnid.models.comparison import Comparison, comparison_table
from attnid.models.findings import Difference
from attnid.models.reduction import reduce_checkpoint
from attnid.network.gpt import GPTConfig
from models.test_nanogpt import checkpoint

# what the gauge of the tests leaves alone: scales of normalised queries and keys are not counted, and a phase that falls on the real axis never happens
UNCOUNTED = {"qwen3": 16, "qwen3_moe": 16, "gemma3": 16, "gemma3, full": 16, "olmo2": 12}


@pytest.mark.parametrize("name", tiny.FOLDERS)
def test_the_same_model_in_other_gauges_is_the_same(saved, tmp_path, name):
    first = saved(name)
    unidentified = read_architecture(first).total.unidentified
    for seed in range(3):
        out = gauges.in_another_gauge(first, tmp_path / str(seed), seed)
        found = compare(first, out)
        assert found.same and found.differences == () and found.largest < 1e-13
        assert found.moved == unidentified - UNCOUNTED.get(name, 0)
        assert found.reordered > 0
    expected = tiny.outputs(tiny.load(first))  # the gauge of this test is one
    assert tiny.away(tiny.outputs(tiny.load(out)), expected) < 2e-4


@pytest.mark.parametrize("name", tiny.FOLDERS)
def test_what_reduce_writes_is_the_same(saved, tmp_path, name):
    for form in FORMS:
        report = reduce_checkpoint(saved(name), tmp_path / form, form=form, tolerance=1e-6)
        found = compare(saved(name), tmp_path / form)
        assert found.same
        # the phase of a balanced plane does not move: the other half of each complex number does
        planes = sum(a.G * len(a.rotary) for _, a in read_architecture(saved(name)).layers)
        still = planes if form == "balanced" and name not in UNCOUNTED else 0
        assert found.moved == report["fixed"] - still


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["bert", "llama, biases", "gpt2", "phi"])
def test_what_reduce_writes_in_few_bits_is_the_same(tmp_path, name, dtype):
    tiny.model_of(tiny.FOLDERS[name], dtype).save_pretrained(tmp_path / "model")
    for form in ("balanced", "identity"):
        reduce_checkpoint(tmp_path / "model", tmp_path / form, form=form, tolerance=0.5)
        found = compare(tmp_path / "model", tmp_path / form)
        assert found.same and found.largest < 100 * torch.finfo(dtype).eps


@pytest.mark.parametrize("name", tiny.FOLDERS)
def test_independent_seeds_are_different_everywhere(saved, name):
    found = compare(saved(name), saved(name, 1))
    layers = read_architecture(saved(name)).layers
    seen = {(d.layer, d.circuit, d.head) for d in found.differences}
    for number, (_, a) in enumerate(layers):
        for circuit in ("query-key", "value-output"):
            assert {(number, circuit, head) for head in range(a.H)} <= seen
    assert not found.same and found.moved == 0
    assert not any(d.accident for d in found.differences)


@pytest.mark.parametrize("name", tiny.FOLDERS)
def test_a_head_that_is_off_by_a_thousandth_is_named(saved, tmp_path, name):
    moved = gauges.in_another_gauge(saved(name), tmp_path / "moved", 0, order=False)

    def off(a, p):
        noise = gauges.draw(torch.Generator().manual_seed(0), *p["W_O"][1].shape)
        W = p["W_O"].clone()
        W[1] += 1e-3 * noise * W[1].square().mean().sqrt()
        return {"W_O": W}

    found = compare(saved(name), gauges.changed_layer(moved, tmp_path / "off", off))
    heads = [d for d in found.differences if d.head is not None]
    assert [(d.layer, d.head, d.circuit, d.accident) for d in heads] == [
        (1, 1, "value-output", None)
    ]
    assert 2e-4 < heads[0].size < 3e-3
    assert all(
        d.layer == 1 and d.circuit == "output bias" for d in found.differences if d.head is None
    )


# whose last number is the bias of a key's coordinate that keeps still, which may be anything
IDLE = {"bert": "self.key.bias", "vit": "attention.key.bias", "phi": "k_proj.bias"}


@pytest.mark.parametrize("name", tiny.FOLDERS)
def test_no_number_can_change_unseen(saved, tmp_path, name):
    """The last number of each tensor, by a hundredth of the others' size."""
    weights = load_file(saved(name) / "model.safetensors")
    out = shutil.copytree(saved(name), tmp_path / "out")
    for key, tensor in weights.items():
        if ".0." in key and key.replace(".0.", ".1.") in weights:
            continue  # of two layers alike, one
        other = tensor.clone()
        other.view(-1)[-1] += 0.01 * tensor.square().mean().sqrt()
        save_file(weights | {key: other}, out / "model.safetensors", metadata={"format": "pt"})
        found = compare(saved(name), out)
        idle = name in IDLE and key.endswith(IDLE[name])
        assert found.same == idle and found.moved == idle, key
        assert {d.layer for d in found.differences} <= {1 if ".1." in key else None}


def test_the_tolerance_is_the_callers(saved, tmp_path):
    off = lambda a, p: {"W_Q": p["W_Q"] * torch.tensor([1, 1, 1, 1 + 1e-6])[:, None, None]}
    other = gauges.changed_layer(saved("llama"), tmp_path / "off", off)
    assert not compare(saved("llama"), other).same
    assert compare(saved("llama"), other, 1e-5).same
    for wrong in (0, -1, float("nan"), "small"):
        with pytest.raises(ValueError, match="^tolerance="):
            compare(saved("llama"), other, wrong)


def test_layers_are_read_one_at_a_time(saved, monkeypatch):
    read, alive = findings.read_block, []

    def counted(model, number):
        layer = read(model, number)
        assert sum(ref() is not None for ref in alive) <= 2  # and this one
        alive.append(weakref.ref(layer))
        return layer

    monkeypatch.setattr(findings, "read_block", counted)
    assert compare(saved("llama"), saved("llama")).same and len(alive) == 4


def test_nanogpt_checkpoints(tmp_path):
    for bias in (True, False):
        model = randomised(GPTConfig(11, 6, 2, 3, 12, bias=bias)).eval()
        torch.save(checkpoint(model, ""), tmp_path / f"a{bias}.pt")
        torch.save(checkpoint(model, "_orig_mod."), tmp_path / f"b{bias}.pt")
        gauges.in_another_gauge(tmp_path / f"b{bias}.pt", tmp_path / f"c{bias}.pt", 0)
        found = compare(tmp_path / f"a{bias}.pt", tmp_path / f"c{bias}.pt")
        assert found.same and found.moved == 2 * 3 * (2 * 4**2 + 2 * 4 * bias)


NORMS = {
    "llama": "input_layernorm",
    "gpt2": "ln_1",
    "phi": "input_layernorm",
    "falcon, groups": "ln_attn",
    "gemma": "input_layernorm",
    "vit": "layernorm_before",
}
READERS = ("q_proj", "k_proj", "v_proj", "c_attn", "query_key_value", "query", "key", "value")


@pytest.mark.parametrize("name", NORMS)
def test_gains_of_norms_may_be_inside_the_maps(saved, tmp_path, name):
    offset = 1.0 if name == "gemma" else 0.0
    number = lambda key: re.search(r"\.(\d)\.", "." + key)[1]
    weights = load_file(saved(name) / "model.safetensors")
    gains = {
        number(k): t + offset for k, t in weights.items() if k.endswith(f"{NORMS[name]}.weight")
    }
    readers = READERS + (("mlp.fc1",) if name == "phi" else ())

    def bare(key, tensor):
        if key.endswith(f"{NORMS[name]}.weight"):
            return torch.ones_like(tensor) - offset
        return tensor / gains[number(key)] if key.endswith(f"{NORMS[name]}.bias") else None

    def folded(key, tensor):
        if not key.endswith(tuple(f"{reader}.weight" for reader in readers)):
            return None
        return (gains[number(key)][:, None] if name == "gpt2" else gains[number(key)]) * tensor

    without = gauges.changed_tensors(saved(name), tmp_path / "bare", bare)
    out = gauges.changed_tensors(without, tmp_path / "folded", folded)
    assert compare(saved(name), out).same and not compare(saved(name), without).same
    outputs = [tiny.outputs(tiny.load(path)) for path in (saved(name), out)]
    assert len(gains) == 2 and tiny.away(*outputs) < 1e-5  # norms are in float32


def test_configurations_that_outputs_see_are_compared(saved, tmp_path):
    other = shutil.copytree(saved("llama"), tmp_path / "other")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(
        json.dumps(config | {"hidden_act": "gelu", "rope_theta": 50.0, "use_cache": False})
    )
    found = compare(saved("llama"), other)
    words = [(d.layer, d.circuit, d.accident) for d in found.differences]
    assert words == [
        (None, "configuration", "hidden_act: 'silu' against 'gelu'"),
        (0, "configuration", "rotary is not the same"),
        (1, "configuration", "rotary is not the same"),
    ]


def spoilt(folder, out, change):
    """A copy of a folder with its tensors, or its configuration, changed in place."""
    shutil.copytree(folder, out)
    weights = load_file(out / "model.safetensors")
    config = json.loads((out / "config.json").read_text())
    change(weights, config)
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps(config))
    return out


def bigger(weights, config):
    name = "embed_tokens.weight"
    weights[name] = torch.cat((weights[name], weights[name][:1]))
    config["vocab_size"] += 1


def fewer(weights, config):
    for name in [name for name in weights if name.startswith("layers.1.")]:
        del weights[name]
    config["num_hidden_layers"] = 1


def nan(weights, config):
    weights["layers.1.self_attn.k_proj.weight"][3, 7] = torch.nan


def nan_outside(weights, config):
    weights["embed_tokens.weight"][2, 5] = torch.inf


def quantised(weights, config):
    config["quantization_config"] = {"quant_method": "gptq"}


def in_bytes(weights, config):
    weights["layers.0.mlp.up_proj.weight"] = weights["layers.0.mlp.up_proj.weight"].to(
        torch.float8_e4m3fn
    )


@pytest.mark.parametrize(
    "change, words",
    [
        (bigger, r"embed_tokens.weight=\(31, 12\): the first checkpoint has \(30, 12\)"),
        (fewer, "layers=1: the first has 2"),
        (nan, r"layers.1.self_attn.k_proj.weight\[3, 7\]=nan: must be finite"),
        (nan_outside, r"embed_tokens.weight\[2, 5\]=inf: must be finite"),
        (quantised, "quantization_config=.*quantised weights are not read"),
        (in_bytes, "layers.0.mlp.up_proj.weight=torch.float8_e4m3fn: .*quantised"),
        (lambda w, c: w.pop("norm.weight"), "'norm.weight': is not in the second checkpoint"),
        (lambda w, c: w.pop("layers.1.mlp.up_proj.weight"), "up_proj.weight': is missing"),
        (lambda w, c: w.pop("layers.0.self_attn.o_proj.weight"), "o_proj.weight': is missing"),
        (lambda w, c: w.pop("layers.0.input_layernorm.weight"), "input_layernorm.*is missing"),
        (lambda w, c: w.update(more=torch.ones(2)), "'more': is not in the first checkpoint"),
        (lambda w, c: c.update(model_type="mistral"), "model_type='mistral': the first has"),
    ],
)
def test_what_cannot_be_compared_is_named(saved, tmp_path, change, words):
    with pytest.raises(ValueError, match=words):
        compare(saved("llama"), spoilt(saved("llama"), tmp_path / "other", change))


def test_other_sizes_are_named(saved):
    for first, second, words in (
        ("llama", "llama, null", "heads=3: the first has 4"),
        ("falcon, groups", "falcon, alibi", "embed_dim=12: the first has 8"),
    ):
        with pytest.raises(ValueError, match=f"^{words}: the two cannot be compared"):
            compare(saved(first), saved(second))


def test_units_beyond_those_of_the_first_are_named(saved, tmp_path):
    def wider(weights, config):
        for name, W in list(weights.items()):
            if ".mlp." in name:
                weights[name] = torch.cat((W, W), 1 if "down" in name else 0)
        config["intermediate_size"] *= 2

    with pytest.raises(ValueError, match=r"^mlp=\(16, 12\): the first has shape \(8, 12\)"):
        compare(saved("llama"), spoilt(saved("llama"), tmp_path / "wide", wider))


def test_the_table_says_what_differs_and_the_json_all():
    some = [Difference(3, head, "query-key", 0.1 * head, "a factor") for head in (1, 2)]
    whole = Difference(None, None, "norm.weight", 0.5)
    idle = [Difference(n, None, "key bias", 1.0, "a bias dropped") for n in (0, 1)]
    found = Comparison(("a", "b"), False, (*some, whole), tuple(idle), 12, 3, 0.5, 1e-5, ("so",))
    lines = comparison_table(found).splitlines()
    assert lines[0] == "a and b: different"
    assert "    -   5.0e-01  norm.weight" in lines
    assert "    3   2.0e-01  query-key of heads 1, 2: a factor" in lines
    assert "harmless: key bias of layers 0, 1: a bias dropped" in lines
    assert lines[-1] == "note: so"
    assert json.loads(json.dumps(asdict(found)))["differences"][0]["head"] == 1
