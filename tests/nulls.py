"""Whether directions change outputs."""

import torch
from draws import random

from attnid import count, forward
from attnid.layer.attention import random_inputs
from attnid.layer.flat import flatten, unflatten


def relative_changes(attention, parameters, directions, x):
    """Norms of the outputs' derivative along each direction, for unit directions, over that along a random one."""
    derivative = lambda direction: torch.func.jvp(
        lambda p: forward(attention, p, x), (parameters,), (direction,)
    )[1]
    rows = flatten(attention, directions)
    changes = torch.func.vmap(derivative)(directions).flatten(1).norm(dim=1) / rows.norm(dim=1)
    anywhere = {name: random(*p.shape, seed=1) for name, p in parameters.items()}
    length = sum(d.square().sum() for d in anywhere.values()).sqrt()
    return changes / (derivative(anywhere).norm() / length)


def assert_term(attention, term, function):
    """function(attention, parameters) gives as many rows as `count` says of a term, independent, and no output
    changes along them."""
    parameters = attention.random_parameters(3)
    rows = function(attention, parameters)
    assert len(rows) == count(attention).terms[term]
    assert torch.linalg.matrix_rank(rows, rtol=1e-9) == len(rows)
    x = random_inputs(attention, 3, 7, 5)
    assert relative_changes(attention, parameters, unflatten(attention, rows), x).max() < 1e-10
