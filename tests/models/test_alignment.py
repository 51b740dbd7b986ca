"""One checkpoint in the gauge of another: recovered where they are one function, unchanged always."""

import json

import gauges
import pytest
import tiny_models as tiny
import torch
from safetensors.torch import load_file
from small_gpts import randomised

from attnid import align, compare
from attnid.models.alignment import alignment_table
from attnid.models.nanogpt import read_nanogpt
from attnid.network.gpt import GPTConfig
from models.test_nanogpt import checkpoint

# their keys change scale in the gauge of the tests, which only an epsilon sees, and which stays
SCALED = {"qwen3", "qwen3_moe", "gemma3", "gemma3, full", "olmo2"}


@pytest.mark.parametrize("name", tiny.FOLDERS)
def test_a_random_gauge_is_recovered(saved, tmp_path, name):
    moved = gauges.in_another_gauge(saved(name), tmp_path / "moved", 1)
    report = align(saved(name), moved, tmp_path / "out")
    first, found = (load_file(p / "model.safetensors") for p in (saved(name), tmp_path / "out"))
    for key, tensor in first.items():
        if not (name in SCALED and "k_proj" in key):
            assert (tensor - found[key]).abs().max() < 1e-6, key
    assert report["before"] > 10 and report["largest_change"] < 1e-12
    assert name in SCALED or report["after"] < 1e-6
    assert json.loads(json.dumps(report)) == report


@pytest.mark.parametrize("name", tiny.FOLDERS)
def test_another_model_keeps_its_function_and_comes_nearer(saved, tmp_path, name):
    report = align(saved(name), saved(name, 1), tmp_path / "out")
    assert report["after"] < 0.95 * report["before"] and report["largest_change"] < 1e-12
    assert compare(saved(name, 1), tmp_path / "out").same
    outputs = [tiny.outputs(tiny.load(path)) for path in (saved(name, 1), tmp_path / "out")]
    assert tiny.away(outputs[1], outputs[0]) < 1e-5  # parts of these models are in float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_file_keeps_its_own_numbers(tmp_path, dtype):
    tiny.model_of(tiny.FOLDERS["llama"], dtype).save_pretrained(tmp_path / "a")
    gauges.in_another_gauge(tmp_path / "a", tmp_path / "b", 0)
    report = align(tmp_path / "a", tmp_path / "b", tmp_path / "out")
    assert report["after"] < 0.05 * report["before"]
    assert {t.dtype for t in load_file(tmp_path / "out" / "model.safetensors").values()} == {dtype}


def test_nanogpt_checkpoints(tmp_path):
    model = randomised(GPTConfig(11, 6, 2, 3, 12, bias=True)).eval()
    torch.save(checkpoint(model, "module."), tmp_path / "a.pt")
    gauges.in_another_gauge(tmp_path / "a.pt", tmp_path / "b.pt", 0)
    report = align(tmp_path / "a.pt", tmp_path / "b.pt", tmp_path / "c.pt")
    assert report["after"] < 1e-10
    weights = read_nanogpt(tmp_path / "c.pt").weights
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(weights[name], tensor, rtol=1e-10, atol=1e-10)


def test_what_stands_beside_says_what_was_done(saved, tmp_path):
    (source := tmp_path / "b").mkdir()
    for file in saved("bert", 1).iterdir():
        (source / file.name).write_bytes(file.read_bytes())
    (source / "adapter_model.safetensors").write_bytes(b"old")
    (source / "REDUCED.txt").write_text("reduced")
    report = align(saved("bert"), source, tmp_path / "out")
    assert "adapter_model.safetensors" in report["warnings"][0]
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"ALIGNED.txt", "config.json"} <= names
    assert not {"REDUCED.txt", "adapter_model.safetensors"} & names
    assert "in the gauge of" in (tmp_path / "out" / "ALIGNED.txt").read_text()


def test_bad_input_is_named_and_nothing_written(saved, tmp_path):
    (tmp_path / "there").mkdir()
    for a, b, out, options, words in (
        ("llama", "bert", "out", {}, "^model_type='bert': the first has 'llama'"),
        ("llama", "llama, biases", "out", {}, "bias='qkvo': the first has ''.*no gauge in common"),
        ("llama", "llama", "there", {}, "^out=.*is there already"),
        ("llama", "llama", "out", {"tolerance": 0}, "^tolerance=0: must be"),
        ("llama", "llama", "out", {"tolerance": 1e-30}, "nothing is written"),
    ):
        with pytest.raises(ValueError, match=words):
            align(saved(a), saved(b, 1), tmp_path / out, **options)
    assert {path.name for path in tmp_path.iterdir()} == {"there"}


def test_the_table_has_a_row_a_layer(saved, tmp_path):
    lines = alignment_table(align(saved("gpt2"), saved("gpt2", 1), tmp_path / "out")).splitlines()
    assert lines[2].split()[0] == "layer" and [line.split()[0] for line in lines[3:5]] == ["0", "1"]
