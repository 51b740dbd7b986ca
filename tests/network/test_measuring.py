"""Measuring a whole network: its sequences, its refusals, and weights that are not generic."""

import pytest
import torch
from small_networks import KINDS, NANOGPT, small

from attnid.network import count, measure, random_parameters
from attnid.network.measuring import draw


def test_sequences_are_all_there_are_where_they_are_few_and_random_ones_else():
    few, many = small(KINDS[0], 3, block_size=3), small(KINDS[0])
    every = draw(few, 14, 0)
    assert every.shape == (27, 3) and len(every.unique(dim=0)) == 27
    assert draw(few, 13, 0).shape == (13, 3)  # 27 are more than twice as many
    drawn = draw(many, 20, 3)
    assert drawn.shape == (20, 5) and set(drawn.flatten().tolist()) == set(range(7))
    assert torch.equal(drawn, draw(many, 20, 3)) and not torch.equal(drawn, draw(many, 20, 4))


def test_a_network_too_large_is_refused_before_anything_is_drawn(monkeypatch):
    monkeypatch.setattr(torch, "randn", None)
    with pytest.raises(ValueError, match="^parameters=10745088: .*too many to measure"):
        measure(NANOGPT)


def test_weights_that_are_not_generic_show_a_larger_null_space():
    config = small(KINDS[0])
    parameters = random_parameters(config)
    assert measure(config, parameters=parameters).nullity == count(config).unidentified
    parameters["transformer.h.0.mlp.c_proj.weight"][:, 0] = 0.0  # an MLP unit that nobody reads
    more = measure(config, parameters=parameters).nullity - count(config).unidentified
    assert more == config.n_embd - 1 + config.bias  # what it reads of a centred input
