"""Generators: for each term of `count`, as many independent null directions as the term says.

A null direction is one in the space of all parameters along which the outputs have derivative zero,
whatever the input.
"""

import math
from functools import singledispatch

import torch
from jaxtyping import Shaped
from torch import Tensor

from ..checks import require
from .attention import forward, input_basis, random_inputs
from .counting import count
from .description import (
    Attention,
    key_bias_is_idle,
    own_offset,
    shift_is_seen,
    value_bias_is_pooled,
)
from .difference_directions import TERMS
from .differences import DifferentialAttention, forward_difference
from .gauge import product_kernel, skew_hermitian
from .normalised import QUERY_KEY, seen_kernel
from .parameters import check_parameters
from .rebalancing import put_rows, rows_of
from .rotation import isotypes
from .scaling import input_scale

KNOWN = "must be an Attention, a DifferentialAttention or a GPTConfig"
AT_OFFSETS = ("W_Q", "W_K", "b_Q", "b_K", "R_Q", "R_K")


def flatten(attention, direction) -> Shaped[Tensor, "k P"]:
    """Directions, name -> (k, *shape), as rows (k, P) in the description's order; names left out
    are zero.
    """
    k, dtype = next((len(d), d.dtype) for d in direction.values())
    return torch.cat(
        [
            direction[name].reshape(k, math.prod(shape))
            if name in direction
            else torch.zeros(k, math.prod(shape), dtype=dtype)
            for name, shape in attention.shapes.items()
        ],
        1,
    )


def unflatten(attention, rows: Shaped[Tensor, "k P"]) -> dict:
    """The inverse of `flatten`."""
    parts = rows.split([math.prod(shape) for shape in attention.shapes.values()], -1)
    return {
        name: part.reshape(-1, *shape)
        for (name, shape), part in zip(attention.shapes.items(), parts)
    }


class _Maps:
    """The key map and the query maps of one group, restricted to one isotype, as matrices over the
    inputs' basis.

    K is (d, columns) and Q (d, sharing * columns); complex where the isotype's planes turn. A bias
    is one more column.
    """

    def __init__(self, attention, parameters, isotype, group):
        self.a, self.p, self.isotype, self.group = attention, parameters, isotype, group
        sharing = attention.H // attention.G
        self.heads = list(range(group * sharing, (group + 1) * sharing))
        self.basis = input_basis(attention)
        idle = isotype.angle == 0 and key_bias_is_idle(attention)
        self.key_bias = "k" in attention.bias and not idle

    def _read(self, W, b):
        rows = W @ self.basis if b is None else torch.cat((W @ self.basis, b[:, None]), 1)
        return rows_of(self.isotype, rows)

    def _write(self, rows, bias):
        """Real directions (k, D, E) and, with a bias, (k, D), from (k, d, columns)."""
        full = rows.real.new_zeros(len(rows), self.a.D, rows.shape[-1])
        put_rows(self.isotype, full, rows)
        return (
            (full[..., :-1] @ self.basis.T, full[..., -1]) if bias else (full @ self.basis.T, None)
        )

    def read(self):
        K = self._read(
            self.p["W_K"][self.group], self.p["b_K"][self.group] if self.key_bias else None
        )
        b = self.p.get("b_Q")
        return K, torch.cat(
            [self._read(self.p["W_Q"][h], None if b is None else b[h]) for h in self.heads], 1
        )

    def write(self, dK, dQ):
        """Rows (k, P) of the directions (dK, dQ)."""
        zeros = lambda name: torch.zeros(len(dK), *self.a.shapes[name], dtype=torch.float64)
        direction = {"W_K": zeros("W_K"), "W_Q": zeros("W_Q")} | {
            b: zeros(b) for b in ("b_K", "b_Q") if b in self.p
        }
        direction["W_K"][:, self.group], bias = self._write(dK, self.key_bias)
        if self.key_bias:
            direction["b_K"][:, self.group] = bias
        for h, part in zip(self.heads, dQ.chunk(len(self.heads), -1)):
            direction["W_Q"][:, h], bias = self._write(part, "b_Q" in self.p)
            if bias is not None:
                direction["b_Q"][:, h] = bias
        return flatten(self.a, direction)


def _all_maps(attention, parameters):
    return [
        _Maps(attention, parameters, i, g) for g in range(attention.G) for i in isotypes(attention)
    ]


def _unit(attention, name, keep=None):
    """Unit directions of one parameter, those entries only that the mask `keep` marks."""
    shape = attention.shapes[name]
    units = torch.eye(math.prod(shape), dtype=torch.float64).view(-1, *shape)
    return {name: units if keep is None else units[keep.flatten()]}


def _query_key_maps(a, p):
    if a.relative == "content":
        return torch.cat([_maps_at_offsets(a, p, group) for group in range(a.G)])
    return torch.cat([m.write(*product_kernel(*m.read())) for m in _all_maps(a, p)])


def _maps_at_offsets(a, p, group):
    """Pairs that keep a group's K^T Q and R_K^T Q, with the R_Q that keep K^T R_Q; and those R_Q
    that K does not meet.
    """
    n, span, heads, basis = a.input_rank, range(a.span), _readers_of(a, group), input_basis(a)
    K, R_K, R_Q = p["W_K"][group] @ basis, p["R_K"][group], p["R_Q"][heads]
    own = own_offset(a)
    still = None if shift_is_seen(a) else next(at for at in span if at != own)
    keys = R_K if still is None else R_K - R_K[still]  # differences alone are seen
    moving = [at for at in span if at != still and (at != own or a.D <= n)]
    left = torch.cat((K, keys[moving].T, *_column(p, "b_K", group)), 1)
    right = torch.cat((p["W_Q"][heads] @ basis, *_column(p, "b_Q", heads)), -1)
    dK, dQ = product_kernel(left, right.transpose(0, 1).flatten(1))
    dQ = dQ.unflatten(-1, (len(right), -1)).transpose(1, 2)  # (k, sharing, D, columns)
    changed = torch.einsum("kcn,hsc->khsn", dK[..., :n], R_Q)
    if own is not None and own not in moving:  # there K^T R_Q makes up for R_K^T Q
        changed[:, :, own] += torch.einsum("khdn,d->khn", dQ[..., :n], keys[own])
    apart = torch.tensor([at != own for at in span]).repeat(len(R_Q))
    unmet = torch.kron(torch.eye(len(apart), dtype=K.dtype)[apart], _beyond(K))
    k = len(dK)
    zeros = lambda name: torch.zeros(k + len(unmet), *a.shapes[name], dtype=torch.float64)
    direction = {name: zeros(name) for name in a.shapes if name in AT_OFFSETS}
    direction["W_K"][:k, group] = dK[..., :n] @ basis.T
    direction["W_Q"][:k, heads] = dQ[..., :n] @ basis.T
    direction["R_K"][:k, group, moving] = dK[..., n : n + len(moving)].mT
    direction["R_Q"][:k, heads] = -changed @ torch.linalg.pinv(K)
    direction["R_Q"][k:, heads] = unmet.unflatten(1, R_Q.shape)
    if "b_K" in p:
        direction["b_K"][:k, group] = dK[..., -1]
    if "b_Q" in p:
        direction["b_Q"][:k, heads] = dQ[..., -1]
    return flatten(a, direction)


def _readers_of(a, group):
    return slice(group * (a.H // a.G), (group + 1) * (a.H // a.G))


def _beyond(K):
    """Rows that span what is orthogonal to the columns of K."""
    return torch.linalg.svd(K).U[:, min(K.shape) :].T


def _column(p, name, of):
    """A bias as a column, where there is one."""
    return [p[name][of][..., None]] if name in p else []


def _offset_key_shift(a, p):
    """All R_K of a group moved alike: a number for each query, the same at all keys."""
    pick = torch.eye(a.G * a.D, dtype=torch.float64).view(-1, a.G, 1, a.D)
    return flatten(a, {"R_K": pick.expand(-1, -1, a.span, -1)})


def _offset_bias_shift(a, p):
    """All of a head's offset biases moved alike, and its sink with them."""
    pick = torch.eye(a.H, dtype=torch.float64)
    sink = {"sink": pick} if a.score == "sink" else {}
    return flatten(a, {"R_B": pick[..., None].expand(-1, -1, a.span)} | sink)


def _offset_exchange(a, p):
    """Biases moved with R_Q and R_K moved back, and R_Q against R_K at a token's own offset, along
    what keeps the constants of all offsets.
    """
    rows = [flatten(a, _unit(a, "sink"))] if a.score == "sink" else []
    for bias, table in (("b_Q", "R_Q"), ("b_K", "R_K")):
        if bias in p:
            unit = _unit(a, bias)[bias]
            rows.append(
                flatten(a, {bias: unit, table: -unit[:, :, None].expand(-1, -1, a.span, -1)})
            )
    if own_offset(a) is not None:
        rows += [_own(a, p, group) for group in range(a.G)]
    rows = torch.cat(rows)
    constants = lambda d: torch.func.jvp(_constants(a), (p,), (d,))[1]
    found = torch.func.vmap(constants)(unflatten(a, rows)).flatten(1)
    U, values, _ = torch.linalg.svd(found)
    rank = int((values > 1e-9 * values.max()).sum()) if values.any() else 0
    return U[:, rank:].T @ rows


def _own(a, p, group):
    """What keeps Q^T R_K + K^T R_Q at a token's own offset, for all heads of a group."""
    heads, basis = _readers_of(a, group), input_basis(a)
    Q, K = p["W_Q"][heads] @ basis, p["W_K"][group] @ basis
    met = torch.cat((Q.transpose(0, 1).flatten(1), torch.kron(torch.eye(len(Q), dtype=K.dtype), K)))
    idle = _beyond(met)  # (k, D + sharing D)
    shapes = {name: torch.zeros(len(idle), *a.shapes[name]).double() for name in ("R_K", "R_Q")}
    shapes["R_K"][:, group, own_offset(a)] = idle[:, : a.D]
    shapes["R_Q"][:, heads, own_offset(a)] = idle[:, a.D :].unflatten(1, (len(Q), a.D))
    return flatten(a, shapes)


def _constants(a):
    """The scores' constants of each head and offset, as a function of the parameters."""
    zero = torch.zeros(1, 1, dtype=torch.float64)
    spread = lambda rows: rows.repeat_interleave(a.H // a.G, 0)

    def constants(p):
        b_Q, b_K = p.get("b_Q", zero)[:, None], (spread(p["b_K"]) if "b_K" in p else zero)[:, None]
        R_K, R_Q = spread(p["R_K"]), p["R_Q"]
        found = (b_Q * (R_K + b_K) + b_K * R_Q).sum(-1) / math.sqrt(a.D)
        found = found - p["sink"][:, None] if "sink" in p else found
        return found if shift_is_seen(a) else found[:, 1:] - found[:, :1]

    return constants


def _key_bias(a, p):
    still = [i.coordinates for i in isotypes(a) if i.angle == 0][0]
    keep = torch.zeros(a.G, a.D, dtype=torch.bool)
    keep[:, list(still)] = True
    return flatten(a, _unit(a, "b_K", keep))


def _sink_against_constant(a, p):
    """Where b_K^T b_Q can be moved alone, it shifts all of a head's scores by a constant, and its
    sink can follow.
    """
    rows = []
    for m in _all_maps(a, p):
        if m.isotype.angle == 0:
            K, _ = m.read()
            lift = torch.linalg.pinv(K.T)[:, -1]  # K^T lift = last unit vector
            for h in m.heads:
                direction = {
                    "b_Q": torch.zeros(1, a.H, a.D, dtype=torch.float64),
                    "sink": torch.zeros(1, a.H, dtype=torch.float64),
                }
                direction["b_Q"][0, h, list(m.isotype.coordinates)] = lift
                direction["sink"][0, h] = 1 / math.sqrt(a.D)
                rows.append(flatten(a, direction))
    return torch.cat(rows)


def _readers(a, p):
    """Sum over the heads of a group of W_O: what a group's constant value adds to the output, (E,
    GC).
    """
    return p["W_O"].view(a.G, -1, a.E, a.C).sum(1).transpose(0, 1).flatten(1)


def _value_output_maps(a, p):
    basis, sharing, rows = input_basis(a), a.H // a.G, []
    in_product = "v" in a.bias and not value_bias_is_pooled(a)
    for g in range(a.G):
        heads = slice(g * sharing, (g + 1) * sharing)
        V = p["W_V"][g] @ basis
        V = torch.cat((V, p["b_V"][g][:, None]), 1) if in_product else V
        dO, dV = product_kernel(p["W_O"][heads].flatten(0, 1).T, V)
        zeros = lambda name: torch.zeros(len(dV), *a.shapes[name], dtype=torch.float64)
        direction = {"W_O": zeros("W_O"), "W_V": zeros("W_V")}
        direction["W_O"][:, heads] = dO.transpose(1, 2).unflatten(1, (sharing, a.E))
        direction["W_V"][:, g] = (dV[..., :-1] if in_product else dV) @ basis.T
        if in_product:
            direction["b_V"] = zeros("b_V")
            direction["b_V"][:, g] = dV[..., -1]
        elif "v" in a.bias:
            pooled = (
                direction["W_O"][:, heads].sum(1) @ p["b_V"][g]
            )  # change of the pooled bias, to be taken back
            if "o" in a.bias:
                direction["b_O"] = -pooled
            else:
                direction["b_V"] = -(pooled @ torch.linalg.pinv(_readers(a, p)).T).unflatten(
                    1, (a.G, a.C)
                )
        rows.append(flatten(a, direction))
    return torch.cat(rows)


def _channel_scales(a, p):
    """A channel of a gated head, up in its values as it goes down in the outputs that read it."""
    pick = torch.eye(a.G * a.C, dtype=torch.float64).unflatten(1, (a.G, a.C))  # (GC, G, C)
    read = pick.repeat_interleave(a.H // a.G, 1)[:, :, None]
    scaled = {"W_V": pick[..., None] * p["W_V"], "W_O": -read * p["W_O"]}
    return flatten(a, scaled | ({"b_V": pick * p["b_V"]} if "v" in a.bias else {}))


def _value_bias(a, p):
    readers = _readers(a, p)
    if "o" in a.bias:
        units = torch.eye(a.G * a.C, dtype=torch.float64)
        return flatten(a, {"b_V": units.unflatten(1, (a.G, a.C)), "b_O": -units @ readers.T})
    idle = torch.linalg.svd(readers).Vh[min(readers.shape) :]
    return flatten(a, {"b_V": idle.unflatten(1, (a.G, a.C))})


def _rows_times(a, name, vectors):
    """Directions of a weight: each of its rows moved along each of the vectors (k, E)."""
    rows = torch.eye(math.prod(a.shapes[name][:-1]), dtype=torch.float64)
    return {name: torch.einsum("rs,ke->rkse", rows, vectors).reshape(-1, *a.shapes[name])}


def _centred_inputs(a, p):
    ones = torch.ones(1, a.E, dtype=torch.float64)
    names = ("W_Q", "W_K", "W_V") + (("W_G",) if a.gate else ())
    return torch.cat([flatten(a, _rows_times(a, name, ones)) for name in names])


def _scales(a, p, letter):
    """A normalised query or key does not feel its own scale: one per head, or one for the layer."""
    heads = {"Q": a.H, "K": a.G}[letter]
    if a.qk_norm == "layer_gain":
        return flatten(a, {n: p[n][None] for n in ("W_" + letter, "b_" + letter) if n in p})
    pick = torch.eye(heads, dtype=torch.float64)
    return flatten(
        a,
        {
            n: torch.einsum("kh,h...->kh...", pick, p[n])
            for n in ("W_" + letter, "b_" + letter)
            if n in p
        },
    )


def _gain_exchange(a, p):
    """Gains of queries up, of keys down, by what commutes with the rotations: one factor a plane,
    or a still coordinate.
    """
    masks = []
    for isotype in isotypes(a):
        step = 2 if isotype.complex else 1
        for start in range(0, len(isotype.coordinates), step):
            mask = torch.zeros(a.D, dtype=torch.float64)
            mask[list(isotype.coordinates[start : start + step])] = 1
            masks.append(mask)
    masks = torch.stack(masks)
    if a.qk_norm == "head_gain":
        return flatten(a, {"gain_Q": masks * p["gain_Q"], "gain_K": -masks * p["gain_K"]})
    group = torch.eye(a.G, dtype=torch.float64)
    spread = lambda sharing: torch.einsum(
        "gj,md->gmjd", group.repeat_interleave(sharing, 1), masks
    ).flatten(0, 1)
    return flatten(
        a, {"gain_Q": spread(a.H // a.G) * p["gain_Q"], "gain_K": -spread(1) * p["gain_K"]}
    )


def _signs_only(a, p):
    letters = "KQ" if a.qk_norm != "layer_gain" or a.H == 1 else "K"
    weights = [flatten(a, _rows_times(a, "W_" + letter, input_basis(a).T)) for letter in letters]
    return torch.cat(
        weights + [flatten(a, _unit(a, "b_" + letter)) for letter in letters if "b_" + letter in p]
    )


def _wide_heads(a, p):
    """What else keeps the products and the lengths: the kernel of their derivative, beside the
    directions named already.
    """
    kernel = seen_kernel(a, p)
    names = [n for n in a.shapes if n in QUERY_KEY]
    sizes = [math.prod(a.shapes[n]) for n in names]
    kernel = flatten(
        a, {n: part.unflatten(-1, a.shapes[n]) for n, part in zip(names, kernel.split(sizes, -1))}
    )
    within = ("query scales", "key scales", "gain exchange", "signs only", "centred inputs")
    known = [GENERATORS[term](a, p) for term in within if term in count(a).terms]
    known = torch.cat(known) @ kernel.T  # within the kernel's coordinates, where W_V has none
    known = known[known.norm(dim=1) > 1e-9]
    return torch.linalg.svd(known).Vh[len(known) :] @ kernel


def _rotations(a, p):
    rows = []
    for m in _all_maps(a, p):
        K, Q = m.read()
        S = skew_hermitian(len(K), K.dtype)
        rows.append(m.write(S @ K, S @ Q))
    return torch.cat(rows)


GENERATORS = {
    "value-output maps": _value_output_maps,
    "channel scales": _channel_scales,
    "value bias": _value_bias,
    "query-key maps": _query_key_maps,
    "offset bias shift": _offset_bias_shift,
    "offset key shift": _offset_key_shift,
    "offset exchange": _offset_exchange,
    "key bias": _key_bias,
    "sink against constant scores": _sink_against_constant,
    "query scales": lambda a, p: _scales(a, p, "Q"),
    "key scales": lambda a, p: _scales(a, p, "K"),
    "gain exchange": _gain_exchange,
    "rotations": _rotations,
    "signs only": _signs_only,
    "wide heads": _wide_heads,
    "centred inputs": _centred_inputs,
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
