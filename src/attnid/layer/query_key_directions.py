"""Null directions of queries and keys: what their products and their biases do not show.

Each function returns rows (dimension, P) over all parameters, as `flat.flatten` has them.
"""

import math

import torch

from .attention import input_basis
from .description import key_bias_is_idle
from .flat import flatten, unit
from .gauge import product_kernel, skew_hermitian
from .offset_directions import maps_at_offsets
from .rebalancing import put_rows, rows_of
from .rotation import isotypes


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


def query_key_maps(a, p):
    if a.relative == "content":
        return torch.cat([maps_at_offsets(a, p, group) for group in range(a.G)])
    return torch.cat([m.write(*product_kernel(*m.read())) for m in _all_maps(a, p)])


def key_bias(a, p):
    still = [i.coordinates for i in isotypes(a) if i.angle == 0][0]
    keep = torch.zeros(a.G, a.D, dtype=torch.bool)
    keep[:, list(still)] = True
    return flatten(a, unit(a, "b_K", keep))


def sink_against_constant(a, p):
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


def rotations(a, p):
    rows = []
    for m in _all_maps(a, p):
        K, Q = m.read()
        S = skew_hermitian(len(K), K.dtype)
        rows.append(m.write(S @ K, S @ Q))
    return torch.cat(rows)
