"""Small models on disk."""

import subprocess

import pytest
import tiny_models as tiny
import torch


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """Folders of a BERT and of a LLaMA in shards."""
    folder = tmp_path_factory.mktemp("sound")
    tiny.model_of(tiny.FOLDERS["bert"], torch.float32).save_pretrained(folder / "bert")
    tiny.model_of(tiny.FOLDERS["llama"], torch.float32).save_pretrained(
        folder / "llama", max_shard_size="4KB"
    )
    return folder


@pytest.fixture
def model(sound, tmp_path):
    """A copy of the BERT that may be spoilt."""
    folder = tmp_path / "model"
    subprocess.run(["cp", "-r", sound / "bert", folder], check=True)
    return folder


@pytest.fixture(scope="session")
def saved(tmp_path_factory):
    """Name of a configuration -> the folder of its tiny model, in float64, made when it is first asked for. Not to be changed."""
    folder, made = tmp_path_factory.mktemp("saved"), {}

    def get(name, seed=0):
        if (name, seed) not in made:
            made[name, seed] = folder / f"{len(made)}"
            tiny.draw(tiny.model_of(tiny.FOLDERS[name]), seed).save_pretrained(made[name, seed])
        return made[name, seed]

    return get
