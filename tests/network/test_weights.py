"""A network's parameters by what they do: spaces, maps read and written through their norms, and what attention meets."""

import pytest
import torch
from draws import random
from small_networks import KINDS, small

from attnid.network import random_parameters
from attnid.network.weights import Met, Weights, centre, split_space


@pytest.mark.parametrize("m, d, rank", [(2, 5, 2), (9, 5, 5), (9, 5, 3), (3, 5, 1)])
def test_a_space_is_split_into_what_rows_span_and_the_rest(m, d, rank):
    rows = random(m, rank) @ random(rank, d, seed=1)
    span, rest = split_space(rows)
    both = torch.cat((span, rest), 1)
    assert span.shape == (d, rank) and both.shape == (d, d)
    torch.testing.assert_close(rows @ span @ span.T, rows, rtol=0, atol=1e-12)
    assert (both.T @ both - torch.eye(d)).abs().max() < 1e-12


def test_a_softmax_sees_nothing_of_what_centring_takes_out():
    W, x = random(7, 4), random(4, seed=1)
    assert centre(W).mean(0).abs().max() < 1e-15
    torch.testing.assert_close((centre(W) @ x).softmax(0), (W @ x).softmax(0), rtol=1e-13, atol=0)


def weights_of(kind, vocab_size=7):
    config = small(kind, vocab_size)
    return Weights(config, random_parameters(config))


@pytest.mark.parametrize("kind", KINDS[:12], ids=str)
def test_what_is_written_is_what_is_read_to_have_changed(kind):
    w = weights_of(kind)
    for norm, maps in w.readers:
        change = random(3, *w.read(norm, maps).shape)
        for written, expected in zip(zip(*w.write(norm, maps, change).values()), change):
            moved = dict(zip(w.write(norm, maps, change), written))
            other = Weights(w.c, w.p | {name: w.p[name] + part for name, part in moved.items()})
            found = other.read(norm, maps) - w.read(norm, maps)
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS[:12], ids=str)
def test_what_is_read_makes_the_numbers_of_the_model(kind):
    w, x = weights_of(kind), random(5, 4, seed=3)
    for norm, maps in w.readers:
        gain, shift = w.norm(norm)
        n = w.normalised(x)
        bias = w.p.get(maps + ".bias", 0.0)
        expected = (n[:, :4] * gain + shift) @ w.p[maps + ".weight"].T + bias
        torch.testing.assert_close(n @ w.read(norm, maps).T, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("vocab_size", [7, 3])
@pytest.mark.parametrize("kind", KINDS[:12], ids=str)
def test_what_the_first_layer_meets_is_spanned_and_the_rest_is_never_met(kind, vocab_size):
    w = weights_of(kind, vocab_size)
    met, x = Met(w, 0), w.features().flatten(0, 1)
    within = x @ met.keys @ met.keys.T
    torch.testing.assert_close(within, x, rtol=0, atol=1e-12)
    assert met.keys.shape[1] == torch.linalg.matrix_rank(x, rtol=1e-9)
    assert met.keys_beyond.shape[1] == 0 or (x @ met.keys_beyond).abs().max() < 1e-12
    assert met.one is None or (x @ met.one - 1).abs().max() < 1e-10
    assert met.varying.shape[1] == met.keys.shape[1] - (met.one is not None)
