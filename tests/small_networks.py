"""Whole networks of every kind, small enough to measure, and nanoGPT's; how far a direction changes what one says."""

import torch

from attnid import GPTConfig
from attnid.layer.flat import flatten
from attnid.network import Network

SIZES = dict(n_layer=1, n_head=2, n_embd=4, mlp_width=4)
KINDS = [
    dict(tied=tied, bias=bias, norm=norm, positions=positions)
    for tied in (True, False)
    for bias in (True, False)
    for norm in ("layernorm", "rmsnorm")
    for positions in ("learned", "rotary", "none")
]
NANOGPT = GPTConfig(65, 256, 6, 6, 384)


def small(kind, vocab_size=7, **other):
    """More tokens than dimensions, or fewer, in blocks just long enough for the rank to be seen in float64."""
    block_size = 5 if vocab_size > 4 else 16 if kind["positions"] == "none" else 8
    return GPTConfig(**dict(vocab_size=vocab_size, block_size=block_size) | SIZES | kind | other)


def tokens(config, batch=4, length=None, seed=5):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(
        config.vocab_size, (batch, length or config.block_size), generator=generator
    )


def changes_at(config, parameters, x):
    """Of directions, the norms of the log-probabilities' derivative along each, for unit directions, over that along a random one."""
    network = Network(config)
    derivative = lambda direction: torch.func.jvp(
        lambda p: network(p, x), (parameters,), (direction,)
    )[1]
    generator = torch.Generator().manual_seed(1)
    anywhere = {
        n: t.square().mean().sqrt() * torch.randn(t.shape, generator=generator, dtype=t.dtype)
        for n, t in parameters.items()
    }
    usual = (
        derivative(anywhere).norm() / sum(part.square().sum() for part in anywhere.values()).sqrt()
    )
    return lambda directions: (
        torch.func.vmap(derivative, chunk_size=32)(directions).flatten(1).norm(dim=1)
        / flatten(config, directions).norm(dim=1)
        / usual
    )
