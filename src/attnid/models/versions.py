"""One GPT rewritten near another, one symmetry after another, in memory."""

from copy import deepcopy
from dataclasses import replace

import torch
from jaxtyping import Int
from torch import Tensor

from ..checks import require
from ..layer.description import Attention
from ..network.gpt import head_weights, set_head_weights
from .accidents import products
from .blocks import Layer, Mlp, Norm
from .identified import nearest_order
from .nearest import nearest_parameters
from .stream_gauge import (
    fold_norms,
    nearest_permutation,
    nearest_rotation,
    permute_stream,
    rotate_stream,
)
from .units import match_units

INSIDE = ("circuits", "heads", "units")
ROUNDS, SETTLED = 30, 1e-3  # of stream, heads and units in turn: how many, at which relative gain
STEPS = 20  # of the minimisation in a circuit, which are within a thousandth of 200


def distance(ours, theirs):
    """The norm of the difference of all parameters of two GPTs of one shape."""
    pairs = zip(ours.parameters(), theirs.parameters())
    return sum((p.double() - q.double()).square().sum().item() for p, q in pairs) ** 0.5


def versions(ours, theirs):
    """Their model near ours by more and more symmetries: name -> (ours, theirs), float64 GPTs of
    one shape, theirs of the same function throughout.

    "as trained"; "circuits", each head of attention in its nearest gauge, biases along; "heads",
    also matched; "units", those of the MLPs too; "stream", its coordinates too, by alternating.
    Then both in another form, not tied, the norms' gains and shifts in the maps that read them:
    "norms", matched as "units"; "rotations", the stream turned too; and this without one of the
    others. ValueError for two GPTs that are not of one shape, or whose norms are not LayerNorms.

    >>> from attnid import GPT, GPTConfig
    >>> a, b = (GPT(GPTConfig(7, 5, n_layer=1, n_head=2, n_embd=8), seed) for seed in (0, 1))
    >>> found = {name: distance(*pair) for name, pair in versions(a, b).items()}
    >>> found["as trained"] > found["circuits"] > found["units"] >= found["stream"]
    True
    """
    require(theirs.config == ours.config, "config", theirs.config, f"the first has {ours.config}")
    require(ours.config.norm == "layernorm", "norm", ours.config.norm, "must be 'layernorm'")
    a, b = (deepcopy(model).double() for model in (ours, theirs))
    found = {
        "as trained": (a, b),
        "circuits": (a, nearest_gauge_of(a, b, ("circuits",))),
        "heads": (a, nearest_gauge_of(a, b, ("circuits", "heads"))),
        "units": (a, nearest_gauge_of(a, b)),
        "stream": (a, _alternated(a, b, _permuted)),
    }
    a, b = fold_norms(a), fold_norms(b)
    found["norms"] = a, nearest_gauge_of(a, b)
    found["rotations"] = a, _alternated(a, b, _turned)
    for left_out in INSIDE:
        rest = tuple(name for name in INSIDE if name != left_out)
        found[f"without {left_out}"] = a, _alternated(a, b, _turned, rest)
    return found


def _permuted(a, b, anchored):
    return permute_stream(b, nearest_permutation(a, b, anchored))


def _turned(a, b, anchored):
    return rotate_stream(b, nearest_rotation(a, b, anchored))


def _alternated(a, b, move, symmetries=INSIDE):
    # stream by what needs no matching, then heads and units, then the stream by all, and so on
    best = nearest_gauge_of(a, b, symmetries)
    tried = nearest_gauge_of(a, move(a, b, True), symmetries)
    for _ in range(ROUNDS):
        best = min(best, tried, key=lambda model: distance(a, model))
        new = nearest_gauge_of(a, move(a, tried, False), symmetries)
        if distance(a, new) >= (1 - SETTLED) * distance(a, tried):
            break
        tried = new
    return best


@torch.no_grad()
def nearest_gauge_of(ours, theirs, symmetries=INSIDE):
    """A copy of theirs near to ours by some of the symmetries INSIDE its layers: its heads matched,
    their circuits each in the nearest gauge, the units of its MLPs matched. Float64 GPTs of one
    shape; the stream stays.
    """
    moved = deepcopy(theirs)
    for number in range(ours.config.n_layer):
        a, b = (_layer(model, number) for model in (ours, theirs))
        if "heads" in symmetries:
            attention, one, other = products(a, b)
            none = {p.circuit: torch.zeros(len(p.reading)).double() for p in one}
            b = _taken(b, nearest_order(attention, one, other, none)[0])
        if "circuits" in symmetries:
            b = replace(b, raw=nearest_parameters(a.attention, a.raw, b.raw, STEPS))
        set_head_weights(moved, number, **b.raw)
        if "units" in symmetries:
            _take_units(moved.transformer.h[number].mlp, match_units(a.mlp, b.mlp, 0.0).order)
    return moved


def _layer(model, number):
    c, block = model.config, model.transformer.h[number]
    attention = Attention(c.n_embd, c.n_head, bias="qkvo" if c.bias else "", rotary=c.rotary)
    norm, mlp_norm = (
        Norm(n.weight.double(), None if n.bias is None else n.bias.double(), centred=True)
        for n in (block.ln_1, block.ln_2)
    )
    up, b = mlp_norm.fold(block.mlp.c_fc.weight.double(), block.mlp.c_fc.bias)
    up = up if b is None else torch.cat((up, b.double()[:, None]), 1)
    mlp = Mlp(None, up, block.mlp.c_proj.weight.double().T)
    return Layer(attention, head_weights(model, number), norm, mlp, {}, set())


def _taken(layer, order: Int[Tensor, "H"]):
    raw = {name: t if name == "b_O" else t[order] for name, t in layer.raw.items()}
    return replace(layer, raw=raw)


def _take_units(mlp, order: Int[Tensor, "F"]):
    mlp.c_fc.weight.copy_(mlp.c_fc.weight[order])
    if mlp.c_fc.bias is not None:
        mlp.c_fc.bias.copy_(mlp.c_fc.bias[order])
    mlp.c_proj.weight.copy_(mlp.c_proj.weight[:, order])
