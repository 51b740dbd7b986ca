"""Generators: for each term of `count`, as many independent null directions as the term says.

A null direction is one in the space of all parameters along which the outputs have derivative zero,
whatever the input.
"""

from functools import singledispatch

import torch

from ..checks import require
from .attention import forward, random_inputs
from .counting import count
from .description import Attention
from .difference_directions import TERMS
from .differences import DifferentialAttention, forward_difference
from .flat import flatten, unflatten
from .norm_directions import NAMED, wide_heads
from .offset_directions import offset_bias_shift, offset_exchange, offset_key_shift
from .parameters import check_parameters
from .query_key_directions import key_bias, query_key_maps, rotations, sink_against_constant
from .scaling import input_scale
from .value_directions import channel_scales, value_bias, value_output_maps

KNOWN = "must be an Attention, a DifferentialAttention or a GPTConfig"

GENERATORS = NAMED | {
    "value-output maps": value_output_maps,
    "channel scales": channel_scales,
    "value bias": value_bias,
    "query-key maps": query_key_maps,
    "offset bias shift": offset_bias_shift,
    "offset key shift": offset_key_shift,
    "offset exchange": offset_exchange,
    "key bias": key_bias,
    "sink against constant scores": sink_against_constant,
    "rotations": rotations,
    "wide heads": wide_heads,
}


@singledispatch
def generators(attention, parameters):
    """Null directions of the layer at generic parameters: term of `count` -> (name -> (dimension,
    *shape)), float64.

    The directions of all terms together are linearly independent. Raises ValueError for what
    `count` refuses and for parameters that do not fit the description.

    >>> from attnid import Attention
    >>> layer = Attention(8, 2)
    >>> found = generators(layer, layer.random_parameters(seed=0))
    >>> {term: tuple(directions["W_Q"].shape) for term, directions in found.items()}
    {'value-output maps': (32, 2, 4, 8), 'query-key maps': (32, 2, 4, 8)}
    """
    require(isinstance(attention, Attention), "attention", attention, KNOWN)
    parameters = attention.check_parameters(parameters)
    return {
        term: unflatten(attention, GENERATORS[term](attention, parameters))
        for term in count(attention).terms
    }


@generators.register
def generators_of_difference(attention: DifferentialAttention, parameters):
    """The same for a layer of differential attention."""
    parameters = check_parameters(attention.shapes, parameters)
    directions = {term: TERMS[term](attention, parameters) for term in count(attention).terms}
    return {term: unflatten(attention, flatten(attention, d)) for term, d in directions.items()}


@singledispatch
def independent_directions(attention, seed=0):
    """How many independent directions of `generators` change no output, at random parameters: a
    lower bound of what is unidentified.

    Each is tested by a Jacobian-vector product at fresh inputs, to 1e-10 of what a random direction
    does, and those that pass all together for independence.

    >>> from attnid import Attention
    >>> independent_directions(Attention(8, 2))
    64
    """
    require(isinstance(attention, Attention), "attention", attention, KNOWN)
    p = attention.random_parameters(seed)
    x = random_inputs(attention, 3, 8, seed + 7, scale=input_scale(attention, p))
    return independent_at(attention, p, lambda q: forward(attention, q, x), seed)


@independent_directions.register
def independent_of_difference(attention: DifferentialAttention, seed=0):
    """The same for a layer of differential attention."""
    p = attention.random_parameters(seed)
    x = random_inputs(attention.maps, 3, 8, seed + 7)
    return independent_at(attention, p, lambda q: forward_difference(attention, q, x), seed)


def independent_at(description, parameters, function, seed=0):
    """How many independent directions of `generators` do not change function(parameters)."""
    change = lambda d: torch.func.jvp(function, (parameters,), (d,))[1]
    generator, kept = torch.Generator().manual_seed(int(seed)), []
    draw = lambda t: torch.randn(t.shape, generator=generator, dtype=t.dtype)
    anywhere = {name: draw(tensor)[None] for name, tensor in parameters.items()}
    usual = (
        change({n: t[0] for n, t in anywhere.items()}).norm()
        / flatten(description, anywhere).norm()
    )
    for directions in generators(description, parameters).values():
        rows = flatten(description, directions)
        size = rows.norm(dim=1)
        moved = torch.func.vmap(change, chunk_size=64)(directions).flatten(1).norm(dim=1)
        kept.append((rows / size[:, None])[moved < 1e-10 * usual * size])
    return int(torch.linalg.matrix_rank(torch.cat(kept), rtol=1e-9)) if kept else 0
