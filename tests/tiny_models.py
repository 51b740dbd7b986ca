"""Models of transformers with two small layers and random weights, in memory and as folders on disk."""

import pytest
import real_layers as real
import torch

from attnid.models import reduction
from attnid.models.layouts import LAYOUTS
from attnid.models.reduction import reduce_checkpoint

DECODERS = {"vocab_size": 30, "max_position_embeddings": 32}
# id -> configuration, of every family whose weights are read
FOLDERS = {
    name: config
    | ({"n_layer": 2} if "n_layer" in config else {"num_hidden_layers": 2})
    | ({} if config["model_type"] == "vit" else DECODERS)
    | ({"image_size": 8, "patch_size": 4} if config["model_type"] == "vit" else {})
    for name, (config, _) in real.CASES.items()
    if config["model_type"] in LAYOUTS
}
for name in ("qwen3_moe", "gpt_oss"):
    FOLDERS[name] = FOLDERS[name] | {"num_experts_per_tok": 1}
FOLDERS["gemma3, full"] = FOLDERS["gemma3, full"] | {
    "layer_types": ["full_attention", "sliding_attention"]
}
FOLDERS["gpt_oss"] = FOLDERS["gpt_oss"] | {"layer_types": ["sliding_attention", "full_attention"]}


def draw(model, seed=0):
    """Random parameters, none of them 0 or 1: matrices of a size that keeps scores of order one, and biases and gains that matter."""
    generator = torch.Generator().manual_seed(seed)
    for name, p in sorted(model.named_parameters()):
        drawn = torch.randn(p.shape, generator=generator, dtype=torch.float64)
        norm = p.ndim == 1 and name.endswith("weight")
        p.data = (1 + 0.2 * drawn if norm else 0.3 * drawn).to(p.dtype)
    return model.eval()


def model_of(config, dtype=torch.float64, head="AutoModel"):
    """A model of that class and configuration with random weights."""
    import transformers  # slow to import, so only where a model is built

    options = dict(config)
    config = transformers.AutoConfig.for_model(options.pop("model_type"), **options)
    model = getattr(transformers, head).from_config(config, attn_implementation="eager").to(dtype)
    return draw(model)


def load(path, dtype=torch.float64, head="AutoModel"):
    """The model in a folder, as people load it. Every tensor of the file must belong to it, and the other way round."""
    import transformers

    model, found = getattr(transformers, head).from_pretrained(
        path, dtype=dtype, attn_implementation="eager", output_loading_info=True
    )
    assert not any(found[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    return model.eval()


@torch.no_grad()
def outputs(model):
    """What a model puts out for random tokens, or for random pictures."""
    generator = torch.Generator().manual_seed(7)
    if model.config.model_type == "vit":
        return model(pixel_values=torch.randn(2, 3, 8, 8, generator=generator).to(model.dtype))[0]
    return model(input_ids=torch.randint(1, 30, (3, 9), generator=generator))[0]


def away(new, old):
    """Largest change of outputs, relative to the largest."""
    return float((new - old).abs().max() / old.abs().max())


def reduced(folder, out):
    return reduce_checkpoint(folder, out, tolerance=1e-4)


def no_work(monkeypatch):
    monkeypatch.setattr(
        reduction, "_reduce_layer", lambda *words: pytest.fail("work before the check")
    )
