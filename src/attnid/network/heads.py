"""Symmetries of the attention of each layer: its two circuits, constants, and what it never meets.

One method a term; each returns the number of its coefficients, and a map from coefficients (k,
number) to parts of k directions, which add up.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from ..layer.gauge import product_kernel


def pair_family(K: Float[Tensor, "d a"], Q: Float[Tensor, "d b"]):
    """The directions (dK, dQ) that keep K^T Q, as a number of coefficients and a map from them."""
    d = len(K)
    if d <= min(K.shape[1], Q.shape[1]):
        return d * d, lambda a: (-a.unflatten(1, (d, d)).mT @ K, a.unflatten(1, (d, d)) @ Q)
    dK, dQ = product_kernel(K, Q)
    return len(dK), lambda a: (torch.tensordot(a, dK, 1), torch.tensordot(a, dQ, 1))


def stack(pairs, a):
    """The directions of all heads, (k, H, ...) each, from the coefficients of all."""
    return [
        torch.stack(parts, 1)
        for parts in zip(
            *(apply(part) for (_, apply), part in zip(pairs, a.split([s for s, _ in pairs], 1)))
        )
    ]


class HeadFamilies:
    """The terms of a network's count that have to do with its heads; c, p, w, met: description,
    parameters, Weights, a Met per layer.
    """

    def _heads(self, layer):
        """What queries, keys, values read, (H, D, E) or (H, D, E + 1) each, and W_O (H, E, D)."""
        c, block = self.c, self.w.blocks[layer]
        Q, K, V = self.w.read(block + "ln_1", block + "attn.c_attn").unflatten(
            0, (3, c.n_head, c.head_dim)
        )
        return (
            Q,
            K,
            V,
            self.p[block + "attn.c_proj.weight"].unflatten(1, (c.n_head, -1)).transpose(0, 1),
        )

    def _moved(self, layer, **changes):
        """The direction that changes what queries Q, keys K and values V read by (k, H, D, ...),
        and W_O by O (k, H, E, D).
        """
        block = self.w.blocks[layer]
        if "O" in changes:
            yield {block + "attn.c_proj.weight": changes["O"].transpose(1, 2).flatten(2)}
        read = [changes.get(letter) for letter in "QKV"]
        some = next((change for change in read if change is not None), None)
        if some is not None:
            change = torch.stack(
                [torch.zeros_like(some) if part is None else part for part in read], 1
            ).flatten(1, 3)
            yield self.w.write(block + "ln_1", block + "attn.c_attn", change)

    def _per_layer(self, family):
        """One family for all layers, from one a layer."""
        sizes, maps = zip(*(family(layer) for layer in range(self.c.n_layer)))

        def directions(a):
            for layer, part in enumerate(a.split(sizes, 1)):
                if sizes[layer]:
                    yield from maps[layer](part)

        return sum(sizes), directions

    def query_key_maps(self):
        """Each head's S on its queries, -S^T on its keys: all S, or those that commute with the
        rotations.
        """
        still, turning = self._query_key_maps, self._turning_maps
        return self._per_layer(lambda n: turning(n) if self.c.turns(n) else still(n))

    def _query_key_maps(self, layer):
        met, (Q, K, _, _) = self.met[layer], self._heads(layer)
        pairs = [pair_family(k @ met.varying, q @ met.queries) for q, k in zip(Q, K)]

        def directions(a):
            dK, dQ = stack(pairs, a)
            yield from self._moved(layer, Q=dQ @ met.queries.T, K=dK @ met.varying.T)

        return sum(size for size, _ in pairs), directions

    def _turning_maps(self, layer):
        Q, K, _, _ = self._heads(layer)

        def directions(a):
            x, y = a.unflatten(1, (self.c.n_head, -1, 2, 1)).unbind(3)  # (k, H, planes, 1)
            turn = lambda W, y: torch.stack(
                (x * W[:, 0::2] - y * W[:, 1::2], y * W[:, 0::2] + x * W[:, 1::2]), 3
            ).flatten(2, 3)
            yield from self._moved(layer, Q=turn(Q, y), K=-turn(K, -y))

        return self.c.n_embd, directions

    def key_constants(self):
        """A key that is the same for all tokens where nothing turns it: a bias, or what the rows
        of few tokens make one of.
        """

        def family(layer):
            one = self.met[layer].one
            shape = (self.c.n_head, self.c.head_dim, 1)
            idle = one is not None and not self.c.turns(layer)
            return self.c.n_embd * idle, lambda a: self._moved(layer, K=a.unflatten(1, shape) * one)

        return self._per_layer(family)

    def value_output_maps(self):
        """Each head's S on its values and S^-1 on what reads them; what constants among the values
        then change is taken back.
        """
        return self._per_layer(self._value_output_maps)

    def _value_output_maps(self, layer):
        met, (_, _, V, O) = self.met[layer], self._heads(layer)
        pairs = [pair_family(o.T @ self.w.seen, v @ met.varying) for v, o in zip(V, O)]

        def directions(a):
            dO, dV = stack(pairs, a)
            dO, dV = self.w.seen @ dO.mT, dV @ met.varying.T
            if met.one is None:
                yield from self._moved(layer, O=dO, V=dV)
            else:
                lost = torch.einsum("khed,hd->ke", dO, V @ met.one / met.one.square().sum())
                yield from self._moved(layer, O=dO, V=dV)
                yield from self._constant_output(layer, -lost)

        return sum(size for size, _ in pairs), directions

    def _constant_output(self, layer, u):
        """Add u (k, E) to the layer's output everywhere, by its output bias, or else by a value
        that all tokens share.
        """
        block = self.w.blocks[layer]
        if self.c.bias:
            yield {block + "attn.c_proj.bias": u}
        else:
            v = torch.linalg.solve(self.p[block + "attn.c_proj.weight"], u.T).T.unflatten(
                1, (self.c.n_head, -1)
            )
            yield from self._moved(layer, V=v[..., None] * self.met[layer].one)

    def value_constants(self):
        """A value that all tokens share against the output bias; without one, such a value that
        makes all-ones.
        """

        def family(layer):
            one, W_O = self.met[layer].one, self.p[self.w.blocks[layer] + "attn.c_proj.weight"]
            if one is None or not self.c.bias:
                return int(one is not None and self.w.centred), lambda a: self._constant_output(
                    layer, a * self.w.ones
                )

            def directions(a):
                yield from self._moved(layer, V=a.unflatten(1, (self.c.n_head, -1, 1)) * one)
                yield from self._constant_output(layer, -a @ W_O.T)

            return self.c.n_embd, directions

        return self._per_layer(family)

    def inputs_never_met(self):
        """Rows of the first layer's queries, keys and values, moved along what no embedding has."""
        met, shape = self.met[0], (self.c.n_head, self.c.head_dim, -1)
        spaces = (met.queries_beyond, met.keys_beyond, met.keys_beyond)
        sizes = [self.c.n_embd * space.shape[1] for space in spaces]

        def directions(a):
            parts = zip("QKV", a.split(sizes, 1), spaces)
            yield from self._moved(
                0,
                **{
                    letter: part.unflatten(1, shape) @ space.T
                    for letter, part, space in parts
                    if part.shape[1]
                },
            )

        return sum(sizes), directions
