"""Products of heads without the products: sizes, distances, matching."""

import gauges
import pytest
import tiny_models as tiny
import torch

from attnid import Attention
from attnid.models.blocks import fold, read_block
from attnid.models.folders import open_model
from attnid.models.identified import (
    Product,
    distances,
    identified,
    level,
    match,
    nearest_order,
    overlaps,
    roundings,
)

LAYERS = {
    "plain": Attention(12, 4, bias="qkvo"),
    "rotary groups": Attention(12, 4, 2, 6, bias="qkv", rotary=(1.0, 0.3)),
    "sink": Attention(12, 4, 2, score="sink", bias="qkvo"),
    "normalised": Attention(12, 4, 2, qk_norm="head_gain", rotary=(1.0,)),
    "normalised together": Attention(12, 4, 2, qk_norm="layer_gain"),
}


def whole(product):
    """The products themselves, (H, blocks, m, n)."""
    shared = product.shared.repeat_interleave(product.sharing, 0)
    return shared.mH @ product.reading


@pytest.fixture(params=LAYERS)
def layer(request):
    a = LAYERS[request.param]
    return a, a.random_parameters(0), a.random_parameters(1)


def test_sizes_distances_and_singular_values_are_those_of_the_products(layer):
    a, p, q = layer
    for x, y in zip(identified(a, p), identified(a, q)):
        X, Y = whole(x), whole(y)
        norm = lambda M: torch.linalg.vector_norm(M, dim=(1, 2, 3))
        torch.testing.assert_close(x.sizes(), norm(X))
        torch.testing.assert_close(x.minus(y).sizes(), norm(X - Y))
        values = x.singular_values()
        expected = torch.linalg.svdvals(X)[..., : values.shape[-1]]
        torch.testing.assert_close(values[..., : expected.shape[-1]], expected)
        inner = torch.einsum("gbmn,hbmn->gh", X, Y.conj()).real
        torch.testing.assert_close(overlaps(x, y), inner)


def test_products_of_rotary_heads_are_those_of_every_offset():
    a = LAYERS["rotary groups"]
    p = a.random_parameters(0)
    K, Q = (torch.cat((p[f"W_{x}"], p[f"b_{x}"][..., None]), -1) for x in "KQ")
    K[:, 4:, -1] = 0  # biases of keys that keep still
    quarter = torch.tensor([[0.0, -1], [1, 0]], dtype=torch.float64)
    turn = lambda t: torch.block_diag(
        *(torch.linalg.matrix_exp(t * f * quarter) for f in a.rotary), torch.eye(2).double()
    )
    still, planes = (x for x in identified(a, p) if x.circuit == "query-key")
    for offset in range(3):
        scores = K.repeat_interleave(2, 0).mT @ turn(offset) @ Q
        angle = offset * torch.tensor(sorted(a.rotary), dtype=torch.float64)  # slowest first
        phases = torch.polar(torch.ones(2).double(), angle)[:, None, None]
        made = whole(still).sum(1) + (phases * whole(planes)).real.sum(1)
        torch.testing.assert_close(made, scores)


def test_a_gauge_changes_nothing_and_another_function_does(layer):
    a, p, q = layer
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        apart = distances(identified(a, p), identified(a, gauges.moved(a, p, generator)))
        assert max(d.max() for d in apart.values()) < 1e-13
    apart = distances(identified(a, p), identified(a, q))
    assert min(apart["query-key"].min(), apart["value-output"].min()) > 0.5


@pytest.mark.parametrize("name", tiny.FOLDERS)
def test_a_hundred_gauges_of_a_layer_of_each_family(saved, name):
    layer = read_block(open_model(saved(name)), 1)
    attention, p = fold(layer)
    ours = identified(attention, p)
    nothing = {x.circuit: torch.full((len(x.reading),), 1e-12).double() for x in ours}
    gains = {n: t for n, t in layer.raw.items() if n.startswith("gain")}
    for seed in range(100):
        generator = torch.Generator().manual_seed(seed)
        raw = gauges.moved(layer.attention, layer.raw, generator) | gains
        if attention.score != "alibi" and attention.qk_norm != "layer_gain":
            raw = gauges.reordered(attention, raw, {}, generator)
        theirs = identified(attention, fold(layer, raw)[1])
        _, apart = nearest_order(attention, ours, theirs, nothing)
        assert max(d.max() for d in apart.values()) < 1e-12


def test_heads_and_groups_are_matched():
    a = Attention(16, 6, 3, 4)
    p = a.random_parameters(0)
    order = torch.tensor([5, 4, 0, 1, 3, 2])
    q = {n: t[order] if len(t) == 6 else t[order[::2] // 2] for n, t in p.items()}
    found = match(a, identified(a, p), identified(a, q))
    assert torch.equal(order[found], torch.arange(6))
    taken = [x.taken(found) for x in identified(a, q)]
    assert max(d.max() for d in distances(identified(a, p), taken).values()) < 1e-14
    alone = Attention(16, 1)
    q = alone.random_parameters(0)
    assert match(alone, identified(alone, q), identified(alone, q)).tolist() == [0]


def test_heads_with_slopes_of_their_own_are_not_reordered():
    a = Attention(16, 4, score="alibi")
    p = a.random_parameters(0)
    q = {n: t.flip(0) for n, t in p.items()}
    none = {"query-key": torch.zeros(4).double(), "value-output": torch.zeros(4).double()}
    order, apart = nearest_order(a, identified(a, p), identified(a, q), none)
    assert order.tolist() == [0, 1, 2, 3] and apart["query-key"].min() > 0.5


def test_a_bias_that_one_lacks_is_zero():
    a, b = Attention(12, 4, bias="qkv"), Attention(12, 4, bias="o")
    (x, p), (y, q) = level((a, a.random_parameters(0)), (b, b.random_parameters(0)))
    assert x == y and p.keys() == q.keys() == x.shapes.keys()
    assert not p["b_O"].any() and not q["b_V"].any() and p["b_V"].any()


def test_what_rounding_costs_is_foretold(layer):
    """The root mean square of many roundings, of relative errors that are drawn."""
    a, p, _ = layer
    generator, sigma = torch.Generator().manual_seed(0), 1e-6
    for x in identified(a, p):
        moved = []
        for _ in range(400):
            off = [
                1 + sigma * torch.randn(t.shape, generator=generator, dtype=torch.float64)
                for t in (x.shared, x.reading)
            ]
            y = Product(x.circuit, x.shared * off[0], x.reading * off[1])
            moved.append(x.minus(y).sizes().square())
        measured = torch.stack(moved).mean(0).sqrt() / sigma
        torch.testing.assert_close(measured, x.rounding(), rtol=0.25, atol=0)
    assert roundings(identified(a, p))["query-key"].min() > 1  # relative to the product


def test_products_that_are_zero_are_no_distance_apart():
    a = Attention(12, 4, bias="o")
    p = a.random_parameters(0) | {
        "b_O": torch.zeros(12).double(),
        "W_V": torch.zeros(4, 3, 12).double(),
    }
    apart = distances(identified(a, p), identified(a, p))
    assert apart["output bias"].item() == 0 and not apart["value-output"].any()
