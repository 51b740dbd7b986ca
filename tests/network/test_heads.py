"""The symmetries of attention in a whole network: where they act, and how many they are."""

import pytest
import torch
from draws import random
from small_networks import KINDS, small

from attnid.network import NullSpace, count, random_parameters
from attnid.network.heads import pair_family, stack


@pytest.mark.parametrize("d, a, b, size", [(2, 5, 4, 4), (3, 3, 6, 9), (5, 3, 4, 23)])
def test_a_pair_keeps_its_product_along_all_of_its_family(d, a, b, size):
    K, Q = random(d, a), random(d, b, seed=1)
    found, apply = pair_family(K, Q)
    dK, dQ = apply(torch.eye(found, dtype=torch.float64))
    assert found == size and dK.shape == (size, d, a) and dQ.shape == (size, d, b)
    assert (dK.mT @ Q + K.T @ dQ).abs().max() < 1e-12
    assert torch.linalg.matrix_rank(torch.cat((dK.flatten(1), dQ.flatten(1)), 1)) == size


def test_heads_are_stacked_each_with_its_own_coefficients():
    Q, K, a = random(3, 2, 5), random(3, 2, 5, seed=1), random(7, 12, seed=2)
    pairs = [pair_family(k, q) for k, q in zip(K, Q)]
    dK, dQ = stack(pairs, a)
    assert dK.shape == dQ.shape == (7, 3, 2, 5)
    for h, ((_, apply), part) in enumerate(zip(pairs, a.split(4, 1))):
        assert all(map(torch.equal, apply(part), (dK[:, h], dQ[:, h])))


READ = {"attn.c_attn.weight", "attn.c_attn.bias"}
MOVES = {
    "query-key maps": READ,
    "key constants": READ,
    "inputs never met": READ,
    "value-output maps": READ | {"attn.c_proj.weight", "attn.c_proj.bias"},
    "value constants": READ | {"attn.c_proj.bias"},
}


@pytest.mark.parametrize("kind", KINDS[:12], ids=str)
def test_what_each_term_moves(kind):
    config = small(kind, 3, n_layer=2)
    null = NullSpace(config, random_parameters(config))
    terms = MOVES.keys() & count(config).terms.keys()
    assert {"query-key maps", "value-output maps"} <= terms
    for term in terms:
        moved = null.random(term, 2)
        parts = {name.split(".", 3)[-1] for name, change in moved.items() if change.any()}
        assert parts and parts <= MOVES[term], term
        assert len(moved["transformer.wte.weight"]) == 2
