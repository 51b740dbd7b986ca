"""Small checkpoints for examples and tests."""

from pathlib import Path

import torch

from ..layer.gauge import act_query_key, act_value_output
from ..network.configuration import GPTConfig
from ..network.gpt import GPT


def save_gpt(folder, name, *, seed=0, gauge=False):
    """The path of a small GPT, saved in a folder as nanoGPT saves one, in float64; with `gauge`,
    each head is moved by a matrix drawn for it, which changes no output.
    """
    config = GPTConfig(11, 6, n_layer=1, n_head=2, n_embd=8)
    weights = GPT(config, seed).double().state_dict()
    if gauge:
        generator = torch.Generator().manual_seed(seed)
        S, T = torch.randn(2, 2, 4, 4, generator=generator, dtype=torch.float64)
        maps, output = (weights[f"transformer.h.0.attn.{n}.weight"] for n in ("c_attn", "c_proj"))
        Q, K, V = maps.view(3, 2, 4, 8)
        O = output.view(8, 2, 4).transpose(0, 1)
        moved = (*act_query_key(S, Q, K), *act_value_output(T, V, O))
        for whole, part in zip((Q, K, V, O), moved):
            whole.copy_(part)
    args = {
        key: getattr(config, key)
        for key in ("vocab_size", "block_size", "n_layer", "n_head", "n_embd", "bias")
    }
    path = Path(folder) / name
    torch.save({"model": weights, "model_args": args}, path)
    return path
