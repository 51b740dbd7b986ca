"""What normalised scores see: no scale, and nothing of the directions that they leave idle."""

import pytest
import torch

from attnid import Attention, count
from attnid.layer.attention import project, random_inputs, scores
from attnid.layer.normalised import QUERY_KEY, refuse_many_forms, seen, seen_kernel


def test_too_many_wide_heads_are_refused_before_anything_is_drawn(monkeypatch):
    monkeypatch.setattr(torch, "randn", None)
    with pytest.raises(ValueError, match="qk_norm='layer_gain'.*too many to look through"):
        count(Attention(8192, 64, head_dim=256, qk_norm="layer_gain"))


LAYERS = {
    "plain": Attention(5, 2, head_dim=4, qk_norm="head"),
    "gains": Attention(5, 2, head_dim=4, qk_norm="head_gain", bias="qk"),
    "rotary": Attention(5, 4, 2, 4, qk_norm="head", rotary=(1.0, -1.0)),
    "layer": Attention(5, 2, head_dim=4, qk_norm="layer_gain"),
    "centred": Attention(5, 2, head_dim=4, qk_norm="head", bias="qk", inputs="centred"),
    "wide": Attention(2, 1, head_dim=6, qk_norm="head"),
}


def query_key(attention, parameters):
    return {name: parameters[name] for name in attention.shapes if name in QUERY_KEY}


def score(attention, parameters, x):
    return scores(attention, parameters, *project(attention, parameters, x)[:2])


@pytest.mark.parametrize("attention", LAYERS.values(), ids=LAYERS)
def test_what_is_seen_feels_no_scale_but_the_weights(attention):
    p = attention.random_parameters(1)
    before = seen(attention, p)
    for letter, factor in (("Q", 3.0), ("K", 0.2)):
        maps = [name for name in p if name in (f"W_{letter}", f"b_{letter}")]
        scaled = seen(attention, p | {name: factor * p[name] for name in maps})
        torch.testing.assert_close(scaled, before, rtol=1e-10, atol=1e-12)
    other = attention.random_parameters(2)
    assert (seen(attention, p | {"W_K": other["W_K"]}) - before).abs().max() > 1e-2


@pytest.mark.parametrize("attention", LAYERS.values(), ids=LAYERS)
def test_the_kernel_is_all_that_leaves_the_scores(attention):
    """Not all that `seen` has is a score: that its kernel is theirs is measured on the scores themselves."""
    p = attention.random_parameters(0)
    kernel, x = seen_kernel(attention, p), random_inputs(attention, 12, 5)
    J = torch.func.jacrev(lambda q: score(attention, p | q, x))(query_key(attention, p))
    J = torch.cat([part.flatten(4).flatten(0, 3) for part in J.values()], 1)
    assert torch.linalg.matrix_norm(J @ kernel.T) < 1e-9 * torch.linalg.matrix_norm(J)
    assert len(kernel) == J.shape[1] - torch.linalg.matrix_rank(J, rtol=1e-9) > 0


def test_the_limit_of_what_is_looked_through_is_named():
    refuse_many_forms(Attention(5, 2, head_dim=100, qk_norm="head"))
    with pytest.raises(ValueError, match="^qk_norm='head': .* 2,020 query-key parameters .* 2,000"):
        refuse_many_forms(Attention(5, 2, head_dim=101, qk_norm="head"))
