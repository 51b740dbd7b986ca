"""Every recipe of the page "Use it on your model" runs as it stands, on small models."""

import re
import shutil

import pytest
import torch
from pairing import NOTEBOOKS
from safetensors.torch import load_file, save_file
from tiny_models import FOLDERS, model_of

PAGE = (NOTEBOOKS.parent / "book" / "use.md").read_text()
HEADED = re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
BLOCKS = [
    pytest.param(block, id=f"{title} {number}")
    for title, text in HEADED
    for number, block in enumerate(re.findall(r"^```python\n(.*?)^```", text, re.M | re.S))
]


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """A model, the same balanced, and the same with keys' halves taken for pairs."""
    folder = tmp_path_factory.mktemp("models")
    model_of(FOLDERS["llama"], head="AutoModelForCausalLM").save_pretrained(folder / "model")
    from attnid.models.reduction import reduce_checkpoint

    reduce_checkpoint(folder / "model", folder / "other")
    shutil.copytree(folder / "model", folder / "converted")
    path = folder / "converted" / "model.safetensors"
    tensors = load_file(path)
    for name, tensor in tensors.items():
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            heads = FOLDERS["llama"]["num_attention_heads"]
            width = FOLDERS["llama"].get("head_dim", FOLDERS["llama"]["hidden_size"] // heads)
            halves = tensor.view(-1, 2, width // 2, tensor.shape[1])
            tensors[name] = halves.transpose(1, 2).reshape(tensor.shape).contiguous()
    save_file(tensors, path, metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize("block", BLOCKS)
def test_a_recipe_runs(block, models, tmp_path, monkeypatch, capsys):
    for each in models.iterdir():
        (tmp_path / each.name).symlink_to(each)
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    assert len(block.splitlines()) <= 10
    exec(compile(block, "use.md", "exec"), {})
    out = capsys.readouterr().out
    assert "assert" in block or out.strip()


def test_each_recipe_has_a_block():
    assert len(HEADED) == 7 and all("```python" in text for _, text in HEADED)
