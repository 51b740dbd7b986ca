"""At what scale a layer is measured, and what float64 can't tell there.

A rank does not feel units, but rounding does: heads, circuits and inputs are brought to one size
before a Jacobian is made of them, and what is lost all the same is refused by name.
"""

import itertools
import math
from dataclasses import replace

import torch
from jaxtyping import Float, Inexact
from torch import Tensor

from .attention import gate_logits, project, random_inputs, scores
from .description import shift_is_seen
from .rotation import turns

MIN_ANGLE = 1e-5  # radians; rotations closer than this can't be told apart over the sequences drawn
MIN_SCORE = 1e-7  # where scores differ by less than this, every softmax is as good as uniform
# where scores differ by more than this, a softmax or a tanh has lost its derivative to rounding
MAX_SCORE = 20
MIN_GATE = 1e-3  # where logits are all below this, gates are as good as halves
MAX_UNEVEN = 1e6  # a bias and what its weight makes of inputs may differ by this factor in size


class NoGapError(ValueError):
    """The singular values do not fall into kept and dropped ones.

    >>> raise NoGapError("the largest drop is 30 fold, below 1e6")
    Traceback (most recent call last):
    attnid.layer.scaling.NoGapError: the largest drop is 30 fold, below 1e6
    """


def exponent(*matrices: Inexact[Tensor, "*batch _ _"]) -> Float[Tensor, "*batch 1 1"]:
    """The exponent (..., 1, 1) of a power of two near the largest entry of matrices of one batch,
    (..., n, m); 0 where all is zero.
    """
    largest = torch.stack([matrix.abs().amax((-2, -1), keepdim=True) for matrix in matrices])
    return torch.frexp(largest.amax(0)).exponent.clamp(-1000, 1000).double()


def input_scale(attention, parameters, seed=0):
    """The power of two, as near one as may be, by which to scale free inputs so that scores spread
    by about one.
    """
    if attention.qk_norm is not None and attention.gate:
        return 2.0  # normalised scores are bounded, and gates are not to saturate
    if attention.qk_norm is not None:
        return (
            8.0 if attention.D > 1 else 1024.0
        )  # normalised scores are bounded; no bias should decide all signs of a lone number
    plain = replace(attention, score="softmax", causal=False)
    x = random_inputs(attention, 16, 4, seed)
    powers = 2.0 ** torch.arange(-30, 31, dtype=torch.float64)
    spreads = torch.stack(
        [
            scores(plain, parameters, *project(plain, parameters, t * x)[:2]).std(0).mean((-1, -2))
            for t in powers
        ]
    )
    cost = spreads.log().abs().mean(-1) + 0.1 * powers.log().abs()
    return float(powers[cost.nan_to_num(torch.inf).argmin()])


def refuse_what_rounding_hides(attention, parameters, x):
    """Raise NoGapError naming what is zero, too alike, uneven, saturated or vanishing, so that its
    Jacobian is lost to rounding.
    """
    for name, tensor in parameters.items():
        if name.startswith("W") and not tensor.any():
            raise NoGapError(f"{name}: all entries are zero, and what meets them can't be measured")
    angles = [0.0, *turns(attention.rotary).turning, math.pi]
    near = [(a, b) for a, b in itertools.pairwise(angles) if b - a < MIN_ANGLE]
    if near:
        raise NoGapError(
            f"rotary: angles {near[0][0]!r} and {near[0][1]!r} (modulo sign and 2 pi) differ, "
            f"but too little to be measured"
        )
    _refuse_uneven_biases(attention, parameters, x)
    if attention.gate:
        _refuse_idle_gates(gate_logits(attention, parameters, x))
    s = scores(
        replace(attention, score="softmax"), parameters, *project(attention, parameters, x)[:2]
    )
    if not shift_is_seen(attention):
        s = s - s.mean(-1, keepdim=True)
    typical = s.abs().transpose(0, 1).flatten(1).median(1).values
    if not typical.max() < MAX_SCORE:
        raise NoGapError(
            f"parameters: the scores saturate (they differ by {typical.max():.1e}), which hides "
            "what moves them; scale W_Q or W_K down"
        )
    if typical.min() < MIN_SCORE:
        raise NoGapError(
            f"parameters: the scores vanish (they differ by {typical.min():.1e}), which hides "
            "what moves them; scale W_Q or W_K up"
        )


def _refuse_idle_gates(logits):
    """NoGapError where the gates of a head are open or shut at most tokens, or a half at most."""
    typical = logits.abs().transpose(0, 1).flatten(1).median(1).values
    state = "saturate" if not typical.max() < MAX_SCORE else "keep still"
    if state == "saturate" or typical.min() < MIN_GATE:
        size = typical.max() if state == "saturate" else typical.min()
        raise NoGapError(
            f"W_G: the gates {state} (their logits are {size:.1e} in size), which hides what moves "
            "them; scale W_G"
        )


def _refuse_uneven_biases(attention, parameters, x):
    """NoGapError where a head's bias and what its weight makes of x differ so much that float64
    loses the smaller one.
    """
    for letter, made in zip("QKV", project(attention, parameters, x)):
        if letter.lower() not in attention.bias:
            continue
        bias = parameters["b_" + letter]  # (heads, D)
        made, bias = (made - bias[:, None]).square().mean((0, -2, -1)).sqrt(), rms(bias).flatten()
        uneven = (made > MAX_UNEVEN * bias) & (bias > 0) | (bias > MAX_UNEVEN * made)
        for head in uneven.nonzero().flatten()[:1]:
            raise NoGapError(
                f"b_{letter}: of head {head} it is {bias[head]:.1e} in size and W_{letter} x "
                f"{made[head]:.1e}, so that rounding hides the smaller one"
            )


def rms(tensor: Float[Tensor, "heads ..."]) -> Float[Tensor, "_ ..."]:
    """Root mean square of each slice (heads, ...), kept as (heads, 1, ...)."""
    return tensor.square().mean(tuple(range(1, tensor.dim())), keepdim=True).sqrt()


def even_heads(attention, parameters):
    """name -> factors (heads, 1, ...) that leave the function as it is and make the two factors of
    each product one size.

    Powers of two, so that nothing is rounded: keys of a group go up as the queries that read them
    go down, values as outputs; biases along. Queries and keys that are normalised keep their scale.
    """
    circuits = [("W_V", "b_V", None, "W_O", None, None)]
    if attention.qk_norm is None:
        circuits.append(("W_K", "b_K", "R_K", "W_Q", "b_Q", "R_Q"))
    factors = {}
    for shared, shared_bias, shared_at, reading, reading_bias, reading_at in circuits:
        ratio = _of_group(attention, rms(parameters[reading])) / rms(parameters[shared])
        ratio = ratio.where((ratio > 0) & (ratio < torch.inf), 1.0)  # a head of zeros stays
        up = 2.0 ** (ratio.log2() / 2).round()
        down = 1 / up.repeat_interleave(attention.H // attention.G, 0)
        factors |= {shared: up, shared_bias: up[..., 0], reading: down, reading_bias: down[..., 0]}
        factors |= {shared_at: up, reading_at: down}
    return {name: factors[name] for name in parameters if name in factors}


def _of_group(attention, sizes):
    """The size of what a group's heads have together, from theirs (H, 1, 1)."""
    return sizes.view(attention.G, -1).square().mean(1).sqrt()[:, None, None]


def units(attention, parameters):
    """name -> (heads, 1, ...): how far to move each head's parameters so that outputs move about as
    far as along any other's.

    Derivatives relative to these hide no head behind a larger one, and no unit of measurement
    matters.
    """
    a = attention
    values = _size(parameters["W_V"]).repeat_interleave(a.H // a.G, 0)
    moved = _size(parameters["W_O"]) * values  # how far a head's outputs move with its pattern
    moved_by = {"Q": moved, "K": moved.view(a.G, -1).amax(1)}
    found = {"W_O": 1 / values, "b_O": torch.ones(1, dtype=values.dtype)}
    for name in parameters.keys() - found.keys():
        of_query = name in ("sink", "W_G", "R_B") or name[-1] == "Q"
        far, tensor = moved_by["Q" if of_query else "K"], parameters[name]
        shared = name.startswith("gain") and tensor.dim() == 1
        by_head = far.max() if shared else far.view(-1, *[1] * (tensor.dim() - 1))
        found[name] = _size(tensor) / by_head
    return {name: found[name] for name in parameters}


def _size(tensor):
    size = rms(tensor)
    return size.where(size > 0, 1.0)  # what is zero can move all the same
