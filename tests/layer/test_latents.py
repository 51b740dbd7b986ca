"""Latent attention: its count is what is measured, and impossible latents are named."""

import numpy as np
import pytest
import torch

from attnid import LatentAttention, count, measure
from attnid.layer.latents import count_latent, forward_latent
from attnid.layer.measuring import cut


@pytest.mark.parametrize("rank", [None, 3])
def test_latent_attention_is_counted_and_measured(rank):
    latent = LatentAttention(6, 2, np.int64(4), np.int32(2), rotary=(1.0,), query_rank=rank)
    measured = measure(latent, seed=np.int64(1))
    assert count(latent).unidentified == measured.nullity and measured.gap > 1e6
    with pytest.raises(ValueError, match="W_K"):
        measure(latent, parameters=latent.random_parameters() | {"W_K": None})
    with pytest.raises(ValueError, match="too many to measure"):
        measure(LatentAttention(512, 8, 64, 64))


def latent_nullity(layer, *, batch=12, length=10):
    """The nullity of the Jacobian of our own forward pass of latent attention, and its gap."""
    x = torch.randn(
        batch,
        length,
        layer.embed_dim,
        generator=torch.Generator().manual_seed(1),
        dtype=torch.float64,
    )
    J = torch.func.jacrev(lambda p: forward_latent(layer, p, x))(layer.random_parameters())
    rank, gap = cut(
        torch.linalg.svdvals(
            torch.cat([J[name].flatten(0, 2).flatten(1) for name in layer.shapes], 1)
        )
    )
    return layer.parameters - rank, gap


@pytest.mark.parametrize(
    "layer",
    [
        LatentAttention(8, 2, 4, 2, rotary=(1.0, 0.3), query_rank=5),
        LatentAttention(8, 3, 4, 3, 2, rotary=(1.0,)),
        LatentAttention(6, 2, 5, 3, 2, rotary=(1.0,), query_rank=6),
        LatentAttention(6, 2, 3, 4, 5, rotary=(1.0,), query_rank=2),
        LatentAttention(6, 1, 2, 1, query_rank=3),
    ],
)
def test_the_count_of_latent_attention_is_what_is_measured(layer):
    nullity, gap = latent_nullity(layer)
    assert count_latent(layer).unidentified == nullity and gap > 1e6


@pytest.mark.parametrize(
    "fields, named",
    [
        (dict(embed_dim=4, heads=2, kv_rank=5, still_dim=2), "kv_rank=5"),
        (dict(embed_dim=4, heads=2, kv_rank=1, still_dim=2), "kv_rank=1"),
        (dict(embed_dim=4, heads=2, kv_rank=2, still_dim=2, query_rank=5), "query_rank=5"),
        (dict(embed_dim=4, heads=0, kv_rank=2, still_dim=2), "heads=0"),
        (dict(embed_dim=4, heads=2, kv_rank=2, still_dim=2, rotary=(1.0, 1.0)), "rotary"),
        (dict(embed_dim=4, heads=2, kv_rank=2, still_dim=2, rotary=(0.0,)), "rotary"),
    ],
)
def test_impossible_latents_are_named(fields, named):
    with pytest.raises(ValueError, match=named):
        LatentAttention(**fields)
