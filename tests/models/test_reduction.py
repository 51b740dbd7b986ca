"""A checkpoint in canonical form: the same model, written whole or not at all."""

import hashlib
import shutil

import numpy as np
import pytest
import tiny_models as tiny
import torch
from safetensors.torch import load_file, save_file
from small_gpts import randomised, tokens

from attnid.layer.canonical import FORMS
from attnid.models.folders import open_model
from attnid.models.nanogpt import load_nanogpt, read_nanogpt
from attnid.models.reduction import output_change, reduce_checkpoint
from attnid.network.gpt import GPTConfig
from models.test_nanogpt import checkpoint


def save(folder, name, dtype=torch.float64, head="AutoModel", **options):
    model = tiny.model_of(tiny.FOLDERS[name], dtype, head)
    model.save_pretrained(folder, **options)
    return model


def digests(folder):
    return {
        str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(folder.rglob("*"))
        if p.is_file()
    }


@pytest.mark.parametrize("name", tiny.FOLDERS)
def test_the_model_is_the_same_in_every_form(tmp_path, name):
    expected = tiny.outputs(save(tmp_path / "model", name))
    before = digests(tmp_path / "model")
    for form in FORMS:
        report = reduce_checkpoint(tmp_path / "model", tmp_path / form, form=form, tolerance=1e-6)
        assert (
            tiny.away(tiny.outputs(tiny.load(tmp_path / form)), expected) < 1e-5
        )  # parts of these models are in float32
        assert (
            report["largest_change"] < 1e-8
            and report["fixed"] <= report["unidentified"]
            and report["fixed"] > 0
        )
        assert any(
            (a != b).any()
            for a, b in zip(
                load_file(tmp_path / form / "model.safetensors").values(),
                load_file(tmp_path / "model" / "model.safetensors").values(),
            )
        )
    assert digests(tmp_path / "model") == before and not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("dtype, bound", [(torch.float32, 1e-5), (torch.bfloat16, 0.1)])
@pytest.mark.parametrize("name", ["bert", "llama", "gpt2"])
def test_the_file_keeps_its_own_numbers(tmp_path, name, dtype, bound):
    expected = tiny.outputs(save(tmp_path / "model", name, dtype))
    reduce_checkpoint(tmp_path / "model", tmp_path / "out")
    assert {t.dtype for t in load_file(tmp_path / "out" / "model.safetensors").values()} == {dtype}
    assert (
        tiny.away(tiny.outputs(tiny.load(tmp_path / "out", dtype)).double(), expected.double())
        < bound
    )


@pytest.mark.parametrize(
    "name, head",
    [
        ("bert", "AutoModelForMaskedLM"),
        ("llama", "AutoModelForCausalLM"),
        ("gpt2", "AutoModelForCausalLM"),
    ],
)
def test_models_with_a_head_keep_their_ties(tmp_path, name, head):
    config = tiny.FOLDERS[name] | {"tie_word_embeddings": True}
    model = tiny.model_of(config, head=head)
    model.save_pretrained(tmp_path / "model")
    reduce_checkpoint(tmp_path / "model", tmp_path / "out", form="identity", tolerance=1e-6)
    again = tiny.load(tmp_path / "out", head=head)
    assert tiny.away(tiny.outputs(again), tiny.outputs(model)) < 1e-5
    assert again.get_output_embeddings().weight is again.get_input_embeddings().weight


def test_shards_stay_shards_and_other_files_come_along(tmp_path):
    expected = tiny.outputs(save(tmp_path / "model", "llama", max_shard_size="4KB"))
    shards = {p.name for p in (tmp_path / "model").glob("*.safetensors")}
    (tmp_path / "model" / "tokenizer.json").write_text("{}")
    (tmp_path / "model" / "pytorch_model.bin").write_bytes(b"old")
    report = reduce_checkpoint(tmp_path / "model", tmp_path / "out", tolerance=1e-6)
    assert len(shards) > 2 and {p.name for p in (tmp_path / "out").glob("*.safetensors")} == shards
    assert (tmp_path / "out" / "tokenizer.json").exists() and not (
        tmp_path / "out" / "pytorch_model.bin"
    ).exists()
    assert any("pytorch_model.bin" in note for note in report["notes"])
    assert tiny.away(tiny.outputs(tiny.load(tmp_path / "out")), expected) < 1e-5


def test_links_to_blobs_are_followed(tmp_path):
    """As in the cache of the Hugging Face hub."""
    save(tmp_path / "blobs", "bert")
    (tmp_path / "model").mkdir()
    for file in (tmp_path / "blobs").iterdir():
        (tmp_path / "model" / file.name).symlink_to(file)
    reduce_checkpoint(tmp_path / "model", tmp_path / "out", tolerance=1e-6)
    assert not any(p.is_symlink() for p in (tmp_path / "out").iterdir())


@pytest.mark.parametrize("prefix", ["", "_orig_mod.", "module._orig_mod."])
@pytest.mark.parametrize("bias", [True, False])
def test_a_nanogpt_checkpoint(tmp_path, prefix, bias):
    model = randomised(GPTConfig(11, 6, 2, 3, 12, bias=bias), dtype=torch.float32).eval()
    saved = checkpoint(model, prefix)
    saved["model"][prefix + "lm_head.weight"] = saved["model"][prefix + "transformer.wte.weight"]
    torch.save(saved, tmp_path / "ckpt.pt")
    report = reduce_checkpoint(tmp_path / "ckpt.pt", tmp_path / "out.pt", form="identity")
    again = torch.load(tmp_path / "out.pt", weights_only=True)
    tied = (again["model"][prefix + name] for name in ("lm_head.weight", "transformer.wte.weight"))
    assert len({t.untyped_storage().data_ptr() for t in tied}) == 1
    assert (
        "optimizer" not in again
        and any("optimizer" in note for note in report["notes"])
        and again["iter_num"] == 5
    )
    torch.testing.assert_close(
        load_nanogpt(tmp_path / "out.pt")(tokens())[0], model(tokens())[0], rtol=1e-4, atol=1e-4
    )
    assert report["fixed"] == report["unidentified"] == 2 * 3 * (2 * 4**2 + 2 * 4 * bias)


def test_a_stock_nanogpt_checkpoint_without_its_tied_map(tmp_path):
    """Its best loss is a number of NumPy; what is written is stored as the input was, and says what was done to it."""
    model = randomised(GPTConfig(11, 6, 2, 3, 12, bias=True), dtype=torch.float32).eval()
    saved = checkpoint(model, "module.") | {"best_val_loss": np.float32(1.5)}
    del saved["model"]["module.lm_head.weight"]
    torch.save(saved, tmp_path / "ckpt.pt")
    reduce_checkpoint(tmp_path / "ckpt.pt", tmp_path / "out.pt", form="identity")
    found = read_nanogpt(tmp_path / "out.pt")
    assert found.content["model"].keys() == saved["model"].keys()
    assert found.content["best_val_loss"] == 1.5 and "ckpt.pt" in found.content["remark"]
    outputs = load_nanogpt(tmp_path / "out.pt")(tokens())[0]
    torch.testing.assert_close(outputs, model(tokens())[0], rtol=1e-4, atol=1e-4)


def test_a_change_beyond_the_tolerance_is_refused_and_nothing_written(tmp_path):
    save(tmp_path / "model", "bert", torch.float32)
    weights = load_file(tmp_path / "model" / "model.safetensors")
    keys = weights["encoder.layer.1.attention.self.key.weight"]
    keys[:, 1] = keys[:, 0] + 1e-5 * keys[:, 1]  # the first columns are nearly dependent
    save_file(weights, tmp_path / "model" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        ValueError,
        match=r"^layer 1: tolerance=1e-05: the outputs would change by .* nothing is written",
    ):
        reduce_checkpoint(tmp_path / "model", tmp_path / "out", form="identity-unpivoted")
    assert {p.name for p in tmp_path.iterdir()} == {"model"}
    assert (
        reduce_checkpoint(tmp_path / "model", tmp_path / "out", form="identity")["largest_change"]
        < 1e-5
    )


def test_numbers_that_the_file_cannot_hold_are_refused(tmp_path):
    save(tmp_path / "model", "bert", torch.float16)
    weights = load_file(tmp_path / "model" / "model.safetensors")
    keys = weights["encoder.layer.0.attention.self.key.weight"]
    keys[:, 0] = 0
    keys[:, :3] = torch.eye(3, dtype=torch.float16).repeat(4, 1) * 6e-8  # S is 1 / 6e-8
    save_file(weights, tmp_path / "model" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match="^layer 0: W_K=torch.float16: cannot hold"):
        reduce_checkpoint(
            tmp_path / "model", tmp_path / "out", form="identity-unpivoted", tolerance=1e9
        )


@pytest.mark.parametrize(
    "options, words",
    [
        ({"form": "jordan"}, "^form='jordan': must be one of"),
        ({"tolerance": 0}, "^tolerance=0: must be"),
        ({"tolerance": float("nan")}, "^tolerance=nan: must be"),
    ],
)
def test_impossible_options_are_named(tmp_path, options, words):
    with pytest.raises(ValueError, match=words):
        reduce_checkpoint(tmp_path, tmp_path / "out", **options)


def test_out_must_be_free(tmp_path):
    save(tmp_path / "model", "bert")
    (tmp_path / "there").mkdir()
    for out, words in (
        (tmp_path / "there", "is there already"),
        (tmp_path / "model" / "inside", "lies inside"),
        (tmp_path / "no" / "out", "is not there"),
    ):
        with pytest.raises(ValueError, match=f"^out='{out}': .*{words}"):
            reduce_checkpoint(tmp_path / "model", out)


def test_a_write_that_fails_leaves_nothing(tmp_path, monkeypatch):
    save(tmp_path / "model", "bert")
    monkeypatch.setattr(shutil, "copyfile", lambda *words: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        reduce_checkpoint(tmp_path / "model", tmp_path / "out", tolerance=1e-6)
    assert {p.name for p in tmp_path.iterdir()} == {"model"}


def test_a_change_of_the_outputs_is_seen():
    from attnid import Attention

    layer = Attention(8, 2)
    p = layer.random_parameters(0)
    assert output_change(layer, p, p) == 0
    assert output_change(layer, p, p | {"W_O": 1.1 * p["W_O"]}) == pytest.approx(0.1)
    assert output_change(layer, p, p | {"W_Q": 1.1 * p["W_Q"]}) > 1e-4


def test_the_input_may_be_read_only(tmp_path):
    save(tmp_path / "model", "bert")
    for file in (tmp_path / "model").iterdir():
        file.chmod(0o444)
    reduce_checkpoint(tmp_path / "model", tmp_path / "out", tolerance=1e-6)
    assert open_model(tmp_path / "out").architecture.model_type == "bert"
