"""Hidden units in the order and scale nearest to another model's."""

import gauges
import pytest
import torch
from draws import random

from attnid.models.blocks import read_block
from attnid.models.folders import open_model
from attnid.models.unit_gauge import align_units, unit_scales

NAMES = ["llama", "phi3", "gpt2", "bert", "phi", "falcon, groups", "gemma"]


@pytest.mark.parametrize("name", NAMES)
def test_units_come_back(saved, tmp_path, name):
    one, other = (
        open_model(path)
        for path in (saved(name), gauges.in_another_gauge(saved(name), tmp_path / "out", 0))
    )
    ours, theirs = (read_block(model, 1) for model in (one, other))
    tensors, report = align_units(other, 1, ours, theirs)
    assert report.change < 1e-13 and report.before > 1 and report.after < 1e-20 and report.moved > 2
    for full, tensor in tensors.items():
        torch.testing.assert_close(tensor, one.read(full), rtol=1e-12, atol=1e-12)


def test_units_of_another_model_keep_their_function(saved):
    one, other = open_model(saved("llama")), open_model(saved("llama", 1))
    ours, theirs = (read_block(model, 0) for model in (one, other))
    tensors, report = align_units(other, 0, ours, theirs)
    assert report.change < 1e-13 and report.after < report.before
    assert tensors.keys() == {n for n in one.names if n.startswith("layers.0.mlp.")}


def test_another_number_of_units_is_named(saved):
    model = open_model(saved("llama"))
    ours, theirs = read_block(model, 0), read_block(model, 0)
    theirs.mlp.down = theirs.mlp.down[:5]
    with pytest.raises(ValueError, match=r"^mlp=\(5, 12\): the first has shape \(8, 12\)"):
        align_units(model, 0, ours, theirs)


def test_experts_stay(saved):
    model = open_model(saved("mixtral"))
    layer = read_block(model, 0)
    tensors, report = align_units(model, 0, layer, layer)
    assert tensors == {} and report.before == report.after == report.moved == 0


def test_the_scale_of_a_unit_is_the_nearest_of_many():
    """Against a search over factors of both signs."""
    up, down, u, d = (random(4, n, seed=s) for s, n in enumerate((5, 3, 5, 3)))
    found = unit_scales(up, down, u, d)
    tried = torch.cat((-torch.logspace(-3, 3, 40001), torch.logspace(-3, 3, 40001))).double()
    cost = lambda c: (
        (up[:, None] - c[..., None] * u[:, None]).square().sum(-1)
        + (down[:, None] - d[:, None] / c[..., None]).square().sum(-1)
    )
    reached, least = cost(found[:, None])[:, 0], cost(tried.expand(4, -1)).amin(1)
    # a minimum for each unit; where its sign is the better one, the least of all
    same = (reached - least).abs() < 1e-6
    assert same.sum() >= 3 and (reached <= cost(torch.ones(4, 1).double())[:, 0]).all()
