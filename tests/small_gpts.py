"""A small model with random weights, and tokens for it."""

import torch

from attnid.network.gpt import GPT, GPTConfig

CONFIG = GPTConfig(11, 6, 2, 3, 12, bias=True)


def tokens(config=CONFIG, batch=2, seed=0):
    return torch.randint(
        config.vocab_size, (batch, config.block_size), generator=torch.Generator().manual_seed(seed)
    )


def randomised(config=CONFIG, seed=0, dtype=torch.float64):
    """A model none of whose parameters is 0 or 1."""
    model = GPT(config, seed).to(dtype)
    generator = torch.Generator().manual_seed(seed + 100)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=generator, dtype=dtype), alpha=0.3)
    return model
