"""The files beside a model's weights: which go along, which do not, and what is said of them."""

import json
import os

import pytest
import tiny_models as tiny
import torch
from safetensors.torch import save_file
from test_main import call
from tiny_models import no_work, reduced

from attnid.models.auditing import audit
from attnid.models.reduction import reduce_checkpoint


def test_links_are_followed_to_files_and_noted_where_they_lead_out(model, tmp_path):
    (tmp_path / "elsewhere").write_text("from elsewhere")
    (tmp_path / "more").mkdir()
    (model / "far.txt").symlink_to(tmp_path / "elsewhere")
    (model / "near.json").symlink_to("config.json")
    (model / "folder").symlink_to(tmp_path / "more")
    notes = reduced(model, tmp_path / "out")["notes"]
    assert "copied from where links lead: far.txt" in notes
    assert "left out, as it is a link to a folder: folder" in notes
    assert not any(path.is_symlink() for path in (tmp_path / "out").rglob("*"))
    assert (tmp_path / "out" / "far.txt").read_text() == "from elsewhere"
    near, config = (tmp_path / "out" / name for name in ("near.json", "config.json"))
    assert near.read_bytes() == config.read_bytes() and not (tmp_path / "out" / "folder").exists()


def dangling(path):
    path.symlink_to("nowhere")


def circular(path):
    path.symlink_to(path.name)


@pytest.mark.parametrize("make", [dangling, circular, os.mkfifo])
def test_what_cannot_be_copied_is_named_before_any_work(monkeypatch, model, make):
    make(model / "strange")
    no_work(monkeypatch)
    named = f"^path='{model / 'strange'}': is no file that can be read and copied$"
    with pytest.raises(ValueError, match=named):
        reduce_checkpoint(model, model.parent / "out")
    assert not (model.parent / "out").exists() and len(audit(model)["layers"]) == 2


def test_a_dangling_link_that_is_not_copied_does_not_matter(model, tmp_path):
    (model / "pytorch_model.bin").symlink_to("nowhere")
    assert any("pytorch_model.bin" in note for note in reduced(model, tmp_path / "out")["notes"])


def test_adapters_are_named_and_not_copied_and_a_remark_stays(monkeypatch, capsys, model):
    """An adapter beside the model was made for its old weights; what is written says so for those to come."""
    out, names = model.parent / "out", ["adapter_config.json", "adapter_model.safetensors"]
    (model / names[0]).write_text("{}")
    save_file({"x": torch.ones(1)}, model / names[1])
    (model / "lora").mkdir()
    (model / "lora" / "adapter_config.json").write_text("{}")
    status, text, err = call(monkeypatch, capsys, "reduce", model, out, "--json")
    warned = [line.split(": ")[2] for line in err.splitlines()]
    assert status == 0 and warned == [*names, "lora/adapter_config.json"]
    assert all("do not fit the reduced ones" in line for line in err.splitlines())
    assert len(json.loads(text)["warnings"]) == 3
    assert not any("adapter" in path.name for path in out.rglob("*"))
    remark = (out / "REDUCED.txt").read_text()
    assert "those of model in balanced form" in remark and "adapters (LoRA" in remark
    assert any("an adapter is not looked at" in note for note in audit(model)["notes"])
    assert tiny.load(out, torch.float32).config.model_type == "bert"


def test_a_reduced_model_that_was_given_an_adapter_is_warned_of_when_reduced_again(model, tmp_path):
    assert reduced(model, tmp_path / "once")["warnings"] == []
    (tmp_path / "once" / "adapter_config.json").write_text("{}")
    again = reduce_checkpoint(tmp_path / "once", tmp_path / "twice", form="identity")
    assert again["warnings"][0].startswith("adapter_config.json: ")
    assert "those of once in identity form" in (tmp_path / "twice" / "REDUCED.txt").read_text()
