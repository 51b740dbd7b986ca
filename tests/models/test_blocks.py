"""What stands beside the attention: norms taken into the maps, MLPs read and written."""

import pytest
import tiny_models as tiny
import torch

from attnid.layer.attention import forward, random_inputs
from attnid.models.blocks import (
    BLOCKS,
    Norm,
    check_numbers,
    fold,
    read_block,
    stored_maps,
    unit_maps,
)
from attnid.models.folders import open_model
from attnid.models.layouts import LAYOUTS


def test_every_family_whose_weights_are_read_has_a_block():
    assert BLOCKS.keys() == LAYOUTS.keys()


@pytest.mark.parametrize("name", tiny.FOLDERS)
def test_a_layer_takes_every_tensor_once(saved, name):
    model = open_model(saved(name))
    for number in range(2):
        layer = read_block(model, number)
        stored = model.beside(number)
        assert layer.parts <= {*stored, *(f"{p[:-6]}bias" for p in stored if p.endswith("weight"))}
        beside = {n for n in layer.rest if not n.startswith("attention.output.LayerNorm")}
        assert beside | (layer.parts & stored.keys()) == stored.keys()
        assert layer.raw.keys() == layer.attention.shapes.keys()


@pytest.mark.parametrize("name", tiny.FOLDERS)
@pytest.mark.parametrize("raw", [False, True])
def test_a_folded_layer_reads_what_was_normalised(saved, name, raw):
    layer = read_block(open_model(saved(name)), 0)
    p = {n: t.double() for n, t in layer.raw.items()}
    given = {n: 1.5 * t for n, t in p.items()} if raw else p
    attention, folded = fold(layer, given if raw else None)
    x = random_inputs(attention, 2, 6)
    norm = layer.norm
    if norm is not None and norm.centred:
        x = x - x.mean(-1, keepdim=True)
    read = x if norm is None else x * norm.gain + (0 if norm.shift is None else norm.shift)
    outputs = forward(layer.attention, given, read)
    torch.testing.assert_close(forward(attention, folded, x), outputs)
    assert (norm is None) == (name in ("bert", "olmo2"))


def test_what_reads_the_mean_is_gone_where_there_is_none():
    norm = Norm(torch.full((3,), 2.0).double(), torch.arange(3.0).double(), True)
    W, b = norm.fold(torch.ones(1, 3).double(), None)
    assert not W.any() and b.tolist() == [3.0]


@pytest.mark.parametrize("name", tiny.FOLDERS)
def test_maps_of_units_are_read_and_written_back(saved, name):
    model = open_model(saved(name))
    block, transposed = BLOCKS[model.architecture.model_type], model.layout.transposed
    if not block.up:
        assert read_block(model, 0).mlp is None
        return
    tensors = model.beside(0)
    maps = unit_maps(block, tensors, transposed)
    back = stored_maps(block, maps, transposed)
    assert all(torch.equal(tensors[n], t) for n, t in back.items())
    assert {f"{n}.weight" for n in (*block.up, block.down)} <= back.keys()
    assert len({len(W) for W in maps.values()}) == 1  # a row a unit


@pytest.mark.parametrize("name", ["llama", "phi3", "gpt2", "bert", "phi"])
def test_units_make_the_outputs_of_the_real_mlp(saved, name):
    model = open_model(saved(name))
    loaded = tiny.load(saved(name))
    maps = unit_maps(
        BLOCKS[model.architecture.model_type], model.beside(0), model.layout.transposed
    )
    x = torch.randn(5, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    bias = lambda kind: maps.get(f"{kind}.bias", torch.zeros(1).double())
    made = {k: x @ maps[k].T + bias(k) for k in ("gate", "up") if k in maps}
    if name == "bert":
        layer = loaded.encoder.layer[0]
        act, last = layer.intermediate.intermediate_act_fn, layer.output.dense
        real = last(layer.intermediate(x))
    else:
        part = loaded.h[0].mlp if name == "gpt2" else loaded.layers[0].mlp
        act = getattr(part, "act", None) or getattr(part, "act_fn", None) or part.activation_fn
        last = getattr(part, "c_proj", None) or getattr(part, "fc2", None) or part.down_proj
        real = part(x)
    hidden = act(made["gate"]) * made["up"] if "gate" in made else act(made["up"])
    bias = 0 if last.bias is None else last.bias
    torch.testing.assert_close(hidden @ maps["down"] + bias, real)


def test_numbers_that_are_not_finite_are_named_with_their_place():
    t = torch.ones(3, 4)
    t[2, 1] = torch.inf
    with pytest.raises(ValueError, match=r"^W\[2, 1\]=inf: must be finite"):
        check_numbers("W", t)
    check_numbers("embeddings.position_ids", torch.arange(3))
    check_numbers("rotary_emb.inv_freq", t)
    with pytest.raises(ValueError, match="^W=torch.float8_e4m3fn: .*quantised"):
        check_numbers("W", torch.ones(3).to(torch.float8_e4m3fn))
