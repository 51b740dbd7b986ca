"""Null directions of learned offsets: tables of keys, queries or biases, one for each distance.

Each function returns rows (dimension, P) over all parameters, as `flat.flatten` has them.
"""

import math

import torch

from .attention import input_basis
from .description import own_offset, shift_is_seen
from .flat import flatten, unflatten, unit
from .gauge import product_kernel

AT_OFFSETS = ("W_Q", "W_K", "b_Q", "b_K", "R_Q", "R_K")


def maps_at_offsets(a, p, group):
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


def offset_key_shift(a, p):
    """All R_K of a group moved alike: a number for each query, the same at all keys."""
    pick = torch.eye(a.G * a.D, dtype=torch.float64).view(-1, a.G, 1, a.D)
    return flatten(a, {"R_K": pick.expand(-1, -1, a.span, -1)})


def offset_bias_shift(a, p):
    """All of a head's offset biases moved alike, and its sink with them."""
    pick = torch.eye(a.H, dtype=torch.float64)
    sink = {"sink": pick} if a.score == "sink" else {}
    return flatten(a, {"R_B": pick[..., None].expand(-1, -1, a.span)} | sink)


def offset_exchange(a, p):
    """Biases moved with R_Q and R_K moved back, and R_Q against R_K at a token's own offset, along
    what keeps the constants of all offsets.
    """
    rows = [flatten(a, unit(a, "sink"))] if a.score == "sink" else []
    for bias, table in (("b_Q", "R_Q"), ("b_K", "R_K")):
        if bias in p:
            units = unit(a, bias)[bias]
            rows.append(
                flatten(a, {bias: units, table: -units[:, :, None].expand(-1, -1, a.span, -1)})
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
