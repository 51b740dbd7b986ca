"""How many parameters an attention layer cannot see, bounded from below: its generators, tried one by one and all together."""

import torch

from .attention import Attention, forward, random_inputs
from .directions import flatten, generators
from .measuring import input_scale


def independent_directions(attention: Attention, seed: int = 0) -> int:
    """How many independent directions of `generators` change no output.

    Each is tried by a Jacobian-vector product at fresh inputs, to 1e-10 of its own length; all that pass are tried for
    independence, to 1e-9 of their largest singular value.
    """
    p = attention.random_parameters(seed)
    x = random_inputs(attention, 3, 8, seed + 7, scale=input_scale(attention, p))
    y = forward(attention, p, x)
    change = lambda d: torch.func.jvp(lambda q: forward(attention, q, x), (p,), (d,))[1]
    rows = []
    for directions in generators(attention, p).values():
        flat = flatten(attention, directions)
        length = flat.norm(dim=1)
        still = (
            torch.func.vmap(change)(directions).flatten(1).norm(dim=1) < 1e-10 * length * y.norm()
        )
        rows.append((flat / length[:, None])[still])
    return int(torch.linalg.matrix_rank(torch.cat(rows), rtol=1e-9))
