"""A model on disk: what is wrong with it is named before any work is done."""

import errno
import json
import os
import re
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest
import safetensors.torch
import torch
from safetensors.torch import load_file, save_file
from test_main import call
from tiny_models import no_work, reduced

from attnid.models import folders
from attnid.models.folders import open_model
from attnid.models.reduction import reduce_checkpoint

STEM = "encoder.layer.1.attention."


def reconfigure(folder, **fields):
    config = json.loads((folder / "config.json").read_text()) | fields
    (folder / "config.json").write_text(json.dumps(config))


def reweigh(folder, change):
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def rename(weights, old, new):
    weights[new] = weights.pop(old)


def as_int8(weights):
    weights[STEM + "self.key.weight"] = weights[STEM + "self.key.weight"].to(torch.int8)


def with_nan(weights):
    weights[STEM + "self.key.weight"][0, 0] = torch.nan


def missing(weights):
    del weights[STEM + "output.dense.bias"]


def longer(weights):
    weights["encoder.layer.2.attention.self.query.weight"] = torch.ones(12, 12)


def adapted(weights):
    weights[STEM + "self.query.lora_A.weight"] = torch.ones(1, 12)


def narrow(weights):
    weights[STEM + "self.value.weight"] = torch.ones(6, 12)


def prefixed_twice(weights):
    weights["bert.encoder.layer.0.attention.self.query.weight"] = torch.ones(12, 12)


SPOILT = {
    "no configuration": (lambda f: (f / "config.json").unlink(), "config.json"),
    "not JSON": (lambda f: (f / "config.json").write_text("{"), "is not JSON"),
    "quantised": (
        lambda f: reconfigure(f, quantization_config={"quant_method": "gptq"}),
        "quantization_config=",
    ),
    "unknown family": (lambda f: reconfigure(f, model_type="rwkv"), "model_type='rwkv'"),
    "pickled only": (
        lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"),
        "pytorch_model.bin is pickled",
    ),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "has no model.safetensors"),
    "damaged": (
        lambda f: (f / "model.safetensors").write_bytes(b"x" * 100),
        "is damaged, or no safetensors",
    ),
    "fewer layers described": (
        lambda f: reconfigure(f, num_hidden_layers=1),
        "tensors='encoder.layer.1.*is beyond the 1 layers",
    ),
    "more layers described": (
        lambda f: reconfigure(f, num_hidden_layers=3),
        r"layer 2 .*is missing from the checkpoint",
    ),
    "int8": (lambda f: reweigh(f, as_int8), r"layer 1 .*self.key.weight=torch.int8: .*quantised"),
    "missing": (lambda f: reweigh(f, missing), r"layer 1 .*'output.dense.bias': is missing"),
    "longer": (lambda f: reweigh(f, longer), "is beyond the 2 layers"),
    "adapted": (lambda f: reweigh(f, adapted), "lora_A.weight': is in the checkpoint but not"),
    "narrow": (lambda f: reweigh(f, narrow), r"self.value.weight=\(6, 12\): shape must be"),
    "not finite": (lambda f: reweigh(f, with_nan), "layer 1: W_K"),
    "two models": (lambda f: reweigh(f, prefixed_twice), "after each of the prefixes"),
}


@pytest.mark.parametrize("name", SPOILT)
def test_what_is_wrong_is_named_and_nothing_is_written(monkeypatch, capsys, model, name):
    spoil, words = SPOILT[name]
    spoil(model)
    for command in (("audit", model), ("reduce", model, model.parent / "out")):
        status, out, err = call(monkeypatch, capsys, *command)
        assert (
            status == 2
            and out == ""
            and err.count("\n") == 1
            and err.startswith(f"python -m attnid {command[0]}: ")
        )
        assert re.search(words, err)
    assert {p.name for p in model.parent.iterdir()} == {"model"}


@pytest.mark.parametrize(
    "family, words",
    [
        ("deepseek_v3", "its latents are counted, but its weights are not read"),
        ("whisper", "weights are read of"),
    ],
)
def test_families_that_are_not_laid_out_are_refused(tmp_path, family, words):
    import real_layers

    config = next(
        config for config, _ in real_layers.CASES.values() if config["model_type"] == family
    )
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file({"x": torch.ones(1)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=f"^model_type='{family}': {words}"):
        open_model(tmp_path)


@pytest.mark.parametrize(
    "change, words",
    [
        (
            lambda index: index["weight_map"].update(
                {name: "gone.safetensors" for name in list(index["weight_map"])[:1]}
            ),
            "is listed in the index, and not there",
        ),
        (
            lambda index: index["weight_map"].update(
                {name: "../evil" for name in list(index["weight_map"])[:1]}
            ),
            "^weight_map='dict': ",
        ),
        (lambda index: index.pop("weight_map"), "^weight_map='NoneType': "),
        (
            lambda index: index["weight_map"].popitem(),
            "is in one of the file and model.safetensors.index.json only",
        ),
    ],
)
def test_an_index_that_does_not_fit_is_refused(sound, tmp_path, change, words):
    folder = tmp_path / "model"
    subprocess.run(["cp", "-r", sound / "llama", folder], check=True)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    change(index)
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match=words):
        open_model(folder)


def test_a_path_is_a_folder_or_a_checkpoint(sound, tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no such file or folder"):
        open_model(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="^path=3: must be"):
        open_model(3)
    with pytest.raises(ValueError, match="give the folder that holds it"):
        open_model(sound / "bert" / "model.safetensors")
    assert open_model(str(sound / "bert") + "/").architecture.model_type == "bert"


def test_a_killed_write_leaves_no_folder(sound, tmp_path):
    """Killed while its files are being written: nothing is at `out`, and the input is whole."""
    script = (
        "import os, signal, sys\nfrom attnid.models import folders, reduction\n"
        "folders.Folder._write_file = lambda *words: os.kill(os.getpid(), signal.SIGKILL)\n"
        "reduction.reduce_checkpoint(sys.argv[1], sys.argv[2])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(sound / "bert"), str(tmp_path / "out")]
    )
    assert done.returncode == -9 and not (tmp_path / "out").exists()
    reduce_checkpoint(
        sound / "bert", tmp_path / "out"
    )  # and what the kill left does not stand in the way


@pytest.mark.parametrize("name", ["x" * 250, "é" * 125, "x" * 255])
def test_out_may_have_a_long_name(model, tmp_path, name):
    reduced(model, tmp_path / name)
    assert {p.name for p in tmp_path.iterdir()} == {"model", name}


def test_a_disk_without_room_is_named_before_any_work(monkeypatch, model):
    monkeypatch.setattr(folders.shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    no_work(monkeypatch)
    with pytest.raises(ValueError, match=r"^out='.*/out': needs [\d,]+ bytes, .* has 1,000 left$"):
        reduce_checkpoint(model, model.parent / "out")


def test_a_folder_that_cannot_be_written_in_is_named_before_any_work(monkeypatch, model):
    allowed = os.access
    no_write = lambda path, mode: not mode & os.W_OK and allowed(path, mode)
    monkeypatch.setattr(folders.os, "access", no_write)  # root may write everywhere
    no_work(monkeypatch)
    with pytest.raises(ValueError, match="^out='.*/out': .*cannot be written in$"):
        reduce_checkpoint(model, model.parent / "out")


def full(*_, **__):
    raise safetensors.SafetensorError("I/O error: No space left on device (os error 28)")


def refuse(*_):
    raise PermissionError(errno.EACCES, "Permission denied")


@pytest.mark.parametrize(
    "place, name, fault, words",
    [
        (safetensors.torch, "save_file", full, "I/O error: No space left on device"),
        (shutil, "copyfile", refuse, "Permission denied"),
        (os, "replace", refuse, "Permission denied"),
    ],
)
def test_a_write_that_fails_is_one_clear_line(
    monkeypatch, capsys, model, place, name, fault, words
):
    out = model.parent / "out"
    monkeypatch.setattr(place, name, fault)
    status, text, err = call(monkeypatch, capsys, "reduce", model, out)
    assert status == 2 and text == "" and err.count("\n") == 1 and words in err
    assert err.startswith(f"python -m attnid reduce: path='{out}': is not written: ")
    assert {p.name for p in model.parent.iterdir()} == {"model"}


def test_importing_the_package_imports_neither_reader():
    script = "import sys, attnid; print([name for name in ('safetensors', 'transformers') if name in sys.modules])"
    assert (
        subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "[]"
    )


@pytest.mark.parametrize("command", ["audit", "reduce"])
def test_both_commands_print_a_table_or_json(monkeypatch, capsys, sound, tmp_path, command):
    out = [tmp_path / "first", tmp_path / "second"] if command == "reduce" else [None, None]
    words = lambda place: [command, sound / "bert", *([place] if place else [])]
    status, text, _ = call(monkeypatch, capsys, *words(out[0]))
    assert (
        status == 0
        and text.startswith("bert (bert), 2 attention layers")
        and str(2 * 4 * (2 * 3**2 + 2 * 3)) in text
    )
    status, text, _ = call(monkeypatch, capsys, *words(out[1]), "--json")
    assert status == 0 and len(json.loads(text)["layers"]) == 2
