"""The generators of differential attention, term by term: null, independent, and as many as counted."""

import pytest
import torch
from draws import random

from attnid import DifferentialAttention, count, generators
from attnid.layer.differences import forward_difference
from attnid.layer.flat import flatten

LAYERS = [
    DifferentialAttention(8, 4, 2, 2, 4, rotary=(0.7,)),
    DifferentialAttention(6, 2, 1, 3, 4, norm=None),
    DifferentialAttention(4, 2, norm="head"),
]


@pytest.mark.parametrize("layer", LAYERS)
def test_each_term_has_its_directions_and_they_are_null(layer):
    p, x, rows = layer.random_parameters(1), random(3, 7, layer.embed_dim, seed=2), []
    change = lambda d: torch.func.jvp(lambda q: forward_difference(layer, q, x), (p,), (d,))[1]
    usual = change({name: random(*t.shape, seed=3) for name, t in p.items()}).norm()
    for term, directions in generators(layer, p).items():
        rows.append(flatten(layer, directions))
        assert len(rows[-1]) == count(layer).terms[term], term
        assert torch.func.vmap(change)(directions).norm() < 1e-10 * usual, term
    values = torch.linalg.svdvals(torch.cat(rows))
    assert values[-1] > 1e-6 * values[0]


def test_a_missing_parameter_is_named():
    layer = LAYERS[2]
    with pytest.raises(ValueError, match="mixing"):
        generators(layer, {n: t for n, t in layer.random_parameters().items() if n != "mixing"})
