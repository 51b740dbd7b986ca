"""One comparison as it goes: how much is allowed, and what is not looked at."""

import shutil

import pytest
import tiny_models as tiny
import torch
from safetensors.torch import load_file, save_file

from attnid.models.findings import TOLERANCES, Findings
from attnid.models.folders import open_model


@pytest.fixture
def pair(saved):
    model = open_model(saved("llama"))
    return Findings(model, model, None)


def test_the_coarser_dtype_decides(pair):
    assert pair.allowed(torch.float64, torch.float32) == TOLERANCES[torch.float32]
    assert pair.allowed(torch.float64) == TOLERANCES[torch.float64]
    assert pair.floor == TOLERANCES[torch.float32]


def test_a_tolerance_that_is_given_holds_for_all(saved):
    model = open_model(saved("llama"))
    assert Findings(model, model, 0.5).allowed(torch.float64) == 0.5


def test_each_part_is_found_by_itself(saved):
    one, other = open_model(saved("bert")), open_model(saved("bert", 1))
    found = Findings(one, other, None)
    found.configurations()
    assert found.differences == []
    found.outside()
    outside = {d.circuit for d in found.differences}
    assert outside == set(one.outside()) and all(d.layer is None for d in found.differences)
    found.layer(1)
    inside = [d for d in found.differences if d.layer is not None]
    assert {d.layer for d in inside} == {1} and "mlp" in {d.circuit for d in inside}
    assert {"output.LayerNorm.weight", "attention.output.LayerNorm.bias"} <= {
        d.circuit for d in inside
    }


def test_buffers_are_not_looked_at(saved, tmp_path):
    other = shutil.copytree(saved("bert"), tmp_path / "other")
    weights = load_file(other / "model.safetensors")
    weights["embeddings.position_ids"] = torch.arange(32)
    save_file(weights, other / "model.safetensors", metadata={"format": "pt"})
    found = Findings(open_model(saved("bert")), open_model(other), None)
    found.outside()
    assert found.differences == [] and found.largest == 0


def test_names_of_old_files_are_those_of_new_ones(saved, tmp_path):
    """BERT's norms once had a gamma and a beta."""
    other = shutil.copytree(saved("bert"), tmp_path / "other")
    old = lambda n: n.replace(
        "attention.output.LayerNorm.weight", "attention.output.LayerNorm.gamma"
    )
    weights = {old(n): t for n, t in load_file(other / "model.safetensors").items()}
    save_file(weights, other / "model.safetensors", metadata={"format": "pt"})
    found = Findings(open_model(saved("bert")), open_model(other), None)
    found.layer(0)
    assert found.differences == []


def test_a_body_and_a_model_with_a_prefix_are_set_side_by_side(tmp_path):
    config = tiny.FOLDERS["gpt2"] | {"tie_word_embeddings": True}
    head = tiny.model_of(config, head="AutoModelForCausalLM")
    head.save_pretrained(tmp_path / "head")
    head.transformer.save_pretrained(tmp_path / "body")
    found = Findings(open_model(tmp_path / "body"), open_model(tmp_path / "head"), None)
    found.outside()
    found.layer(0)
    assert found.differences == []
