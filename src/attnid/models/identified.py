"""What of an attention layer its outputs tell, as products of its heads' factors, and how far the
products of two layers are apart.

No gauge changes a product, so none is chosen. Products are never formed: their factors are d rows,
and norms come from triangles of size d.
"""

from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
import torch
from jaxtyping import Float, Inexact, Int
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from ..layer.canonical import idle_key_coordinates
from ..layer.description import value_bias_is_pooled
from ..layer.rebalancing import rows_of
from ..layer.rotation import isotypes


@dataclass
class Product:
    """One kind of product of all heads: head h has the sum over blocks of shared[g]^H reading[h],
    each block by itself, where g is the head's group. shared (G, blocks, d, m), reading (H, blocks,
    d, n), real or complex; G = H = 1 for what the layer has as a whole.
    """

    circuit: str
    shared: Inexact[Tensor, "G blocks d m"]
    reading: Inexact[Tensor, "H blocks d n"]

    @property
    def sharing(self):
        """How many heads share one factor."""
        return len(self.reading) // len(self.shared)

    def sizes(self) -> Float[Tensor, "H"]:
        """The Frobenius norm of each head's product."""
        return torch.linalg.vector_norm(self._core(), dim=(1, 2, 3))

    def singular_values(self) -> Float[Tensor, "H blocks _"]:
        """Of each block of each head's product, the largest first."""
        return torch.linalg.svdvals(self._core())

    def _core(self):
        # a small matrix with the singular values of the product
        if self.shared.shape[-1] == 1:  # a column: the product is no larger than a factor
            return self.shared.mH.repeat_interleave(self.sharing, 0) @ self.reading
        left = _triangle(self.shared).repeat_interleave(self.sharing, 0)
        return left @ _triangle(self.reading).mH

    def minus(self, other):
        """The Product that is the difference of two, of twice as many rows."""
        shared, reading = (
            torch.cat((getattr(self, side), sign * getattr(other, side)), 2)
            for side, sign in (("shared", 1), ("reading", -1))
        )
        return Product(self.circuit, shared, reading)

    def taken(self, order: Int[Tensor, "H"]):
        """The Product with its heads in another order, which keeps groups together."""
        if len(self.reading) == 1:
            return self
        groups = order[:: self.sharing] // self.sharing
        return Product(self.circuit, self.shared[groups], self.reading[order])

    def rounding(self) -> Float[Tensor, "H"]:
        """How far each product moves, in the root mean square, where all numbers of its factors
        are rounded with independent relative errors of mean square one. Source: prop-rounding.
        """
        rows = self.shared.norm(dim=-1).repeat_interleave(self.sharing, 0)
        return (2 * (rows * self.reading.norm(dim=-1)).square().sum((1, 2))).sqrt()


def identified(attention, p):
    """The Products that outputs tell, of a layer with float64 parameters p.

    "query-key": scores, biases as one more column on either side, one block for each set of
    coordinates that turn alike; key biases that no output sees are left out. "value-output".
    "output bias": what biases add to all outputs. "sink". Where queries and keys are normalised,
    products of what is left of them then, and "key norm" and "query norm", the forms that they are
    divided by, up to scale.
    """
    a = attention
    K, Q, V = (_joined(a, p, letter) for letter in "KQV")
    one = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    found = []
    if a.qk_norm is not None:
        K, Q = (
            W / W.norm(dim=None if a.qk_norm == "layer_gain" else (1, 2), keepdim=True)
            for W in (K, Q)
        )
        for name, W in (("key norm", K), ("query norm", Q)):
            form = W.flatten(0, 1)[None, None] if a.qk_norm == "layer_gain" else W[:, None]
            if name == "key norm" and len(form) > 1:
                found.append(Product(name, form, form.repeat_interleave(a.H // a.G, 0)))
            else:
                found.append(Product(name, form, form))
        if "gain_Q" in p:
            K, Q = p["gain_K"][..., None] * K, p["gain_Q"][..., None] * Q
    for _, alike in groupby(isotypes(a), lambda block: (block.size, block.complex)):
        blocks = list(alike)
        K_rows, Q_rows = (torch.stack([rows_of(b, W) for b in blocks], 1) for W in (K, Q))
        found.append(Product("query-key", K_rows, Q_rows))
    found.append(Product("value-output", V[:, None], p["W_O"].mT[:, None]))
    found += _output_bias(a, p)
    if "sink" in p:
        found.append(Product("sink", one.expand(a.G, 1, 1, 1), p["sink"][:, None, None, None]))
    return found


def _joined(attention, p, letter):
    # a map and, as one more column, that of its bias which is seen with it
    W, b = p[f"W_{letter}"], p.get(f"b_{letter}")
    if b is None or letter == "V" and value_bias_is_pooled(attention):
        return W
    if letter == "K":
        b = b.clone()
        b[:, idle_key_coordinates(attention)] = 0
    return torch.cat((W, b[..., None]), -1)


def _output_bias(attention, p):
    # the outputs' own bias, and what value biases come to, each times what it meets
    meets, outputs = [], []
    if value_bias_is_pooled(attention):
        meets.append(p["b_V"].repeat_interleave(attention.H // attention.G, 0).flatten())
        outputs.append(p["W_O"].mT.flatten(0, 1))
    if "b_O" in p:
        meets.append(torch.ones(1, dtype=torch.float64))
        outputs.append(p["b_O"][None])
    if not meets:
        return []
    return [
        Product(
            "output bias", torch.cat(meets)[None, None, :, None], torch.cat(outputs)[None, None]
        )
    ]


def level(one, other):
    """Two pairs (description, parameters) with the same biases: one that either lacks is 0."""
    letters = "".join(set(one[0].bias) | set(other[0].bias))
    both = []
    for attention, p in (one, other):
        whole = replace(attention, bias=letters)
        zeros = {n: torch.zeros(s).double() for n, s in whole.shapes.items() if n not in p}
        both.append((whole, zeros | p))
    return both


def distances(ours, theirs):
    """Circuit -> (H,) or (1,), how far each head's product is from the other's, relative to the
    larger of both; 0 where both are 0.
    """
    squares = {}
    for a, b in zip(ours, theirs):
        new = torch.stack([product.sizes().square() for product in (a.minus(b), a, b)])
        squares[a.circuit] = squares.get(a.circuit, 0) + new
    return {
        circuit: (apart / torch.maximum(a, b)).nan_to_num(0).sqrt()
        for circuit, (apart, a, b) in squares.items()
    }


def roundings(products):
    """Circuit -> (H,) or (1,), `Product.rounding` of each head relative to its size."""
    squares = {}
    for product in products:
        new = torch.stack((product.rounding().square(), product.sizes().square()))
        squares[product.circuit] = squares.get(product.circuit, 0) + new
    return {circuit: (r / s).nan_to_num(0).sqrt() for circuit, (r, s) in squares.items()}


def match(attention, ours, theirs) -> Int[Tensor, "H"]:
    """Which of their heads plays the part of each of ours, so that the squares of the relative
    distances add up to the least; heads of a group stay together.
    """
    H, G = attention.H, attention.G
    if H == 1:
        return torch.zeros(1, dtype=torch.long)
    costs = torch.stack([_costs(a, b) for a, b in zip(ours, theirs) if len(a.reading) == H])
    s = H // G
    cost = costs.sum(0).view(G, s, G, s).transpose(1, 2).numpy()  # (G, G, s, s)
    within = np.array([[linear_sum_assignment(pair)[1] for pair in row] for row in cost])
    total = np.take_along_axis(cost, within[..., None], -1).sum((-1, -2))
    groups = linear_sum_assignment(total)[1]
    return torch.from_numpy(groups[:, None] * s + within[np.arange(G), groups]).flatten()


def _costs(a, b) -> Float[Tensor, "H H"]:
    # squared distance of each head from each of the other's, over the sum of their squares
    squares = a.sizes().square()[:, None] + b.sizes().square()
    return ((squares - 2 * overlaps(a, b)) / squares).nan_to_num(0)


def overlaps(a, b) -> Float[Tensor, "H H"]:
    """The inner product of each head's product with each of the other's."""
    X = torch.einsum("gbim,hbjm->ghbij", a.shared, b.shared.conj())
    X = X.repeat_interleave(a.sharing, 0).repeat_interleave(b.sharing, 1)
    Y = torch.einsum("gbim,hbjm->ghbij", a.reading, b.reading.conj())
    return (X * Y.conj()).real.sum((2, 3, 4))


def _triangle(W):
    return torch.linalg.qr(W.mH, mode="r").R  # W = R^H O^H


def nearest_order(attention, ours, theirs, small):
    """The order of their heads and the distances in it: as they are where all distances are `small`
    or no other order is nearer.
    """
    plain = distances(ours, theirs)
    order = torch.arange(attention.H)
    fixed = attention.score == "alibi"  # each head's slope is its own
    if fixed or all((small[circuit] >= d).all() for circuit, d in plain.items()):
        return order, plain
    other = match(attention, ours, theirs)
    matched = distances(ours, [product.taken(other) for product in theirs])
    total = lambda d: sum(x.square().sum().item() for x in d.values())
    return (other, matched) if total(matched) < total(plain) else (order, plain)
