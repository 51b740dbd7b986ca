"""Hidden units matched and compared."""

import pytest
import torch
from draws import random

from attnid.models.blocks import Mlp
from attnid.models.units import match_units, row_distance


def mlp(gated, seed=0):
    gate = random(7, 5, seed=seed) if gated else None
    return Mlp(gate, random(7, 5, seed=seed + 10), random(7, 4, seed=seed + 20))


def moved(m, order, scale):
    gate = None if m.gate is None else m.gate[order]
    return Mlp(gate, scale[:, None] * m.up[order], m.down[order] / scale[:, None])


@pytest.mark.parametrize("gated", [True, False])
def test_units_in_another_order_are_the_same(gated):
    ours, order = mlp(gated), torch.tensor([3, 0, 6, 2, 1, 5, 4])
    scale = (
        torch.tensor([2.0, -1, 0.5, 3, -2, 1, -0.1]).double() if gated else torch.ones(7).double()
    )
    found = match_units(ours, moved(ours, order, scale), 1e-12)
    assert order[found.order].tolist() == list(range(7)) and found.distance < 1e-14
    assert found.moved == 6
    assert torch.equal(found.signs, scale[found.order].sign())


@pytest.mark.parametrize("gated", [True, False])
def test_one_unit_that_is_off_is_seen(gated):
    ours = mlp(gated)
    theirs = moved(ours, torch.arange(7), torch.ones(7).double())
    theirs.down[3] *= 1.001
    found = match_units(ours, theirs, 1e-9)
    assert 1e-4 < found.distance < 2e-3 and found.moved == 0
    assert match_units(ours, mlp(gated, 1), 1e-9).distance > 0.1


def test_units_that_are_each_others_favourites_are_assigned_once():
    ours = mlp(False)
    theirs = Mlp(None, ours.up[[0, 0, 2, 3, 4, 5, 6]], ours.down[[0, 0, 2, 3, 4, 5, 6]])
    found = match_units(ours, theirs, 1e-9)
    assert sorted(found.order.tolist()) == list(range(7)) and found.distance > 0.1


def test_a_scale_without_a_gate_is_a_difference():
    ours = mlp(False)
    theirs = moved(ours, torch.arange(7), torch.full((7,), 2.0).double())
    assert match_units(ours, theirs, 1e-9).distance > 0.1


@pytest.mark.parametrize("gated", [True, False])
def test_a_bias_that_one_lacks_is_zero(gated):
    ours = mlp(gated)
    pad = lambda W: None if W is None else torch.nn.functional.pad(W, (0, 1))
    theirs = Mlp(pad(ours.gate), pad(ours.up), ours.down)
    assert match_units(ours, theirs, 1e-9).distance == 0
    theirs.up[0, -1] = 1.0
    assert match_units(ours, theirs, 1e-9).distance > 0.1


def test_units_that_are_dead_are_the_same():
    ours = mlp(True)
    ours.up[2], ours.down[4] = 0, 0
    assert match_units(ours, moved(ours, torch.arange(7), torch.ones(7).double()), 0).distance == 0


def test_the_distance_of_rows():
    a = torch.ones(4, 3)
    b = a.clone()
    b[1] *= 1.5
    assert row_distance(a, b) == pytest.approx(1 / 3)
    assert row_distance(torch.zeros(3), torch.zeros(3)) == 0
    assert row_distance(torch.tensor([3.0, 4.0]), torch.tensor([3.0, 5.0])) == pytest.approx(
        34**-0.5
    )
    tiny = torch.tensor([[1.0, 1.0], [1e-9, 0.0]])  # a row of nothing is no larger than rounding
    assert row_distance(tiny, tiny * torch.tensor([[1.0], [2.0]])) < 1e-8
