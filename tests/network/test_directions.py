"""Null directions of a whole network, at nanoGPT's size too."""

from dataclasses import replace

import pytest
import torch
from small_networks import KINDS, NANOGPT, changes_at, small, tokens

from attnid import GPT, count
from attnid.network import NullSpace, random_parameters


@pytest.mark.slow
def test_generators_at_nanogpts_size():
    config = replace(NANOGPT, bias=True)
    generator = torch.Generator().manual_seed(0)
    initial = {name: p.detach().double() for name, p in GPT(config).named_parameters()}
    parameters = {
        name: p + 0.02 * torch.randn(p.shape, generator=generator, dtype=p.dtype)
        for name, p in initial.items()
    }
    null = NullSpace(config, parameters)
    relative_changes = changes_at(config, parameters, tokens(config, 1, 24))
    for term, (size, _) in null.families.items():
        assert size == count(config).terms[term]
        assert relative_changes(null.random(term, 1)).max() < 1e-10, term


def test_a_direction_that_is_not_null_is_seen():
    config = small(KINDS[0])
    parameters = random_parameters(config)
    relative_changes = changes_at(config, parameters, tokens(config))
    wrong = {
        name: torch.zeros(1, *shape, dtype=torch.float64) for name, shape in config.shapes.items()
    }
    wrong["transformer.wte.weight"][:] = 1.0
    wrong["transformer.wpe.weight"][:] = (
        0.5  # the sign of the second is not that of a symmetry, but all-ones is
    )
    assert relative_changes(wrong).max() < 1e-10
    wrong["transformer.wpe.weight"][..., 0] = 0.0
    assert relative_changes(wrong).max() > 1e-3
