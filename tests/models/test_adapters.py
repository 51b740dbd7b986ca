"""A LoRA moved along with its model: what it does to the outputs stays."""

import json

import pytest
import torch
from gauges import in_another_gauge
from safetensors.torch import load_file, save_file
from tiny_models import FOLDERS, away, load, model_of, outputs

from attnid.models.adapters import rewrite_adapter
from attnid.models.layouts import LAYOUTS
from attnid.models.reduction import reduce_checkpoint

SCALE = 2.0
NAMES = ("llama", "gpt2", "bert", "gpt_neox", "phi3", "qwen2")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """name -> the folder of a tiny model."""
    home = tmp_path_factory.mktemp("models")
    for name in NAMES:
        model_of(FOLDERS[name]).save_pretrained(home / name)
    return home


def lora(model, path, maps, **options):
    """An adapter of rank 2 for maps of both layers, as peft stores it."""
    layout, generator, tensors = (
        LAYOUTS[model.config.model_type],
        torch.Generator().manual_seed(5),
        {},
    )
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64) / 3
    for name, weight in model.state_dict().items():
        if any(name.endswith(f"{layout.layer.format(n)}.{m}.weight") for n in (0, 1) for m in maps):
            rows, columns = weight.shape[::-1] if layout.transposed else weight.shape
            stem = f"base_model.model.{name.removesuffix('.weight')}"
            tensors[f"{stem}.lora_A.weight"] = draw(2, columns)
            tensors[f"{stem}.lora_B.weight"] = draw(rows, 2)
    path.mkdir()
    save_file(tensors, path / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 2 * SCALE, "target_modules": list(maps)}
    (path / "adapter_config.json").write_text(json.dumps(config | options))
    return path


def adapted(model, path):
    """The model's outputs with an adapter."""
    tensors, state = load_file(path / "adapter_model.safetensors"), model.state_dict()
    for name in {n.rpartition(".lora_")[0] for n in tensors}:
        change = SCALE * tensors[f"{name}.lora_B.weight"] @ tensors[f"{name}.lora_A.weight"]
        weight = state[f"{name.removeprefix('base_model.model.')}.weight"]
        weight += change.T if LAYOUTS[model.config.model_type].transposed else change
    return outputs(model)


@pytest.mark.parametrize("name", NAMES)
def test_an_adapter_does_to_the_new_what_it_did_to_the_old(folders, tmp_path, name):
    old, layout = folders / name, LAYOUTS[FOLDERS[name]["model_type"]]
    biased = name in (
        "gpt2",
        "bert",
        "gpt_neox",
    )  # value biases fold, which adapted outputs would see
    maps = layout.maps if biased else (*layout.maps, layout.output)
    path = lora(load(old), tmp_path / "lora", maps)
    for form in ("balanced", "identity"):
        new, out = tmp_path / form, tmp_path / f"lora-{form}"
        reduce_checkpoint(old, new, form=form)
        found = rewrite_adapter(path, old, new, out)
        expected = adapted(load(old), path)
        assert away(adapted(load(new), out), expected) < 1e-6 and found["largest_change"] < 1e-9
        assert away(adapted(load(new), path), expected) > 1e-3  # as it was, it does not fit
        assert away(outputs(load(old)), expected) > 1e-3
        assert (out / "adapter_config.json").read_text() == (
            path / "adapter_config.json"
        ).read_text()


def test_heads_in_another_order_are_found(folders, tmp_path):
    old = folders / "llama"
    path = lora(load(old), tmp_path / "lora", ("q_proj", "k_proj", "v_proj", "o_proj"))
    new = in_another_gauge(old, tmp_path / "new", 3)
    rewrite_adapter(path, old, new, tmp_path / "out")
    assert away(adapted(load(new), tmp_path / "out"), adapted(load(old), path)) < 1e-9


def test_adapters_of_an_mlp_stay_where_it_is_the_same(folders, tmp_path):
    old, new = folders / "llama", tmp_path / "new"
    reduce_checkpoint(old, new)
    model = load(old)
    path = lora(model, tmp_path / "lora", ("q_proj",))
    tensors, name = (
        load_file(path / "adapter_model.safetensors"),
        "base_model.model.layers.0.mlp.up_proj",
    )
    rows, columns = model.layers[0].mlp.up_proj.weight.shape
    tensors |= {f"{name}.lora_A.weight": torch.ones(2, columns).double() / 9}
    tensors |= {f"{name}.lora_B.weight": torch.ones(rows, 2).double() / 9}
    save_file(tensors, path / "adapter_model.safetensors")
    rewrite_adapter(path, old, new, tmp_path / "out")
    assert away(adapted(load(new), tmp_path / "out"), adapted(load(old), path)) < 1e-9
    moved = in_another_gauge(old, tmp_path / "moved", 3)
    with pytest.raises(ValueError, match="up_proj.lora_A.weight': belongs to a map that is not"):
        rewrite_adapter(path, old, moved, tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_an_output_map_that_would_see_folded_biases_is_refused(folders, tmp_path):
    old, new = folders / "gpt2", tmp_path / "new"
    reduce_checkpoint(old, new)
    path = lora(load(old), tmp_path / "lora", ("c_proj",))
    with pytest.raises(ValueError, match="^layer 0: tolerance=.* adapted outputs would differ by"):
        rewrite_adapter(path, old, new, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "options, message",
    [
        ({"peft_type": "IA3"}, "^peft_type='IA3'"),
        ({"use_dora": True}, "^use_dora=True"),
        ({"bias": "all"}, "^bias='all'"),
        ({"modules_to_save": ["lm_head"]}, "^modules_to_save="),
        ({"r": 0}, "^r=0"),
        ({"lora_alpha": "two"}, "^lora_alpha='two'"),
        ({"rank_pattern": {"q_proj": 3}}, "^rank_pattern="),
    ],
)
def test_adapters_of_other_kinds_are_refused(folders, tmp_path, options, message):
    path = lora(load(folders / "llama"), tmp_path / "lora", ("q_proj",), **options)
    with pytest.raises(ValueError, match=message):
        rewrite_adapter(path, folders / "llama", folders / "llama", tmp_path / "out")


@pytest.mark.parametrize("what", ["missing", "damaged", "nan", "unknown", "out"])
def test_bad_files_are_named(folders, tmp_path, what):
    old, path = folders / "llama", tmp_path / "lora"
    lora(load(old), path, ("q_proj",))
    weights, tensors = path / "adapter_model.safetensors", None
    if what == "missing":
        weights.unlink()
    elif what == "damaged":
        weights.write_bytes(weights.read_bytes()[:50])
    elif what == "out":
        (tmp_path / "out").mkdir()
    else:
        tensors = load_file(weights)
        name = min(tensors)
        if what == "nan":
            tensors[name][0, 0] = torch.nan
        else:
            tensors["base_model.model.layers.7.self_attn.q_proj.lora_A.weight"] = tensors.pop(name)
        save_file(tensors, weights)
    message = {"missing": "is not there", "damaged": "is damaged", "nan": "lora_A.weight=.*finite"}
    message |= {"unknown": "layers.7.*belongs to no map", "out": "^out=.*is there already"}
    with pytest.raises(ValueError, match=message[what]):
        rewrite_adapter(path, old, old, tmp_path / "out")
