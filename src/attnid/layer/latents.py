"""Latent attention (DeepSeek V2 and V3): keys and values made from one short vector per token, and
its count.

A token y is compressed to a latent of kv_rank numbers, divided by its root mean square; each head
makes its key's still part and its value from that. The turned part of the keys, rotary_dim wide, is
made from y directly and shared by all heads. Queries have a latent of their own, or none
(query_rank None).
"""

import math
from dataclasses import KW_ONLY, dataclass

from ..checks import is_finite, require, require_size
from .counting import Count, count, pair_rank_loss


@dataclass(frozen=True)
class LatentAttention:
    """The description of one layer of latent attention. It holds no weights.

    embed_dim (E), heads (H), kv_rank (of the latent of keys and values), still_dim (of each head's
    part that does not turn), value_dim (C, default still_dim), rotary (the angle in radians per
    position of each plane of the turned part, distinct and in (0, pi)), and query_rank (of the
    latent of the queries, or None for none). Inputs are free and attention is causal.

    Raises ValueError naming the field and the value when the description is impossible, and where a
    latent is wider than the inputs or a single number, for which the count below does not hold.

    >>> from attnid import count
    >>> count(LatentAttention(8, 2, 4, 2, rotary=(1.0, 0.3), query_rank=5)).unidentified
    47
    """

    embed_dim: int
    heads: int
    kv_rank: int
    still_dim: int
    value_dim: int | None = None
    _: KW_ONLY
    rotary: tuple = ()
    query_rank: int | None = None

    def __post_init__(self):
        if self.value_dim is None:
            object.__setattr__(self, "value_dim", self.still_dim)
        for field in ("embed_dim", "heads", "still_dim", "value_dim"):
            require_size(field, getattr(self, field))
            object.__setattr__(self, field, int(getattr(self, field)))
        for field in ("kv_rank", "query_rank"):
            rank = getattr(self, field)
            if field == "kv_rank" or rank is not None:
                require_size(field, rank, 2)
                require(
                    rank <= self.embed_dim,
                    field,
                    rank,
                    f"a latent wider than embed_dim={self.embed_dim} is not counted",
                )
                object.__setattr__(self, field, int(rank))
        good = isinstance(self.rotary, (tuple, list)) and all(
            is_finite(f) and 0 < f < math.pi for f in self.rotary
        )
        require(
            good and len(set(self.rotary)) == len(self.rotary),
            "rotary",
            self.rotary,
            "must list distinct angles in (0, pi)",
        )
        object.__setattr__(self, "rotary", tuple(float(f) for f in self.rotary))

    @property
    def query_width(self):
        """How many numbers the heads' query maps read: the latent's, or the token's own."""
        return self.query_rank or self.embed_dim

    @property
    def shapes(self):
        """Name -> shape of every parameter. D: down to a latent, gain: of its norm, Q, K, V: per
        head, R: turned, O: outputs.
        """
        E, H, r, n, C, t = (
            self.embed_dim,
            self.heads,
            self.kv_rank,
            self.still_dim,
            self.value_dim,
            2 * len(self.rotary),
        )
        down = (
            {}
            if self.query_rank is None
            else {"W_DQ": (self.query_rank, E), "gain_DQ": (self.query_rank,)}
        )
        return down | {
            "W_Q": (H, n, self.query_width),
            "W_QR": (H, t, self.query_width),
            "W_DKV": (r, E),
            "gain_DKV": (r,),
            "W_K": (H, n, r),
            "W_KR": (t, E),
            "W_V": (H, C, r),
            "W_O": (H, E, C),
        }

    @property
    def parameters(self):
        """How many numbers the layer has."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    def random_parameters(self, seed=0):
        """Random float64 parameters, name -> tensor: weights normal over the root of their input
        width, gains in [0.5, 1.5].
        """
        from .parameters import random_parameters

        fan_in = {name: shape[-1] for name, shape in self.shapes.items()}
        return random_parameters(self.shapes, fan_in, seed)


@count.register
def count_latent(a: LatentAttention):
    """Closed-form count of the unidentified parameters of one layer of latent attention, as a
    Count.

    Each latent loses r(r - 1)/2 rotations, one scale, which its norm divides out, and r gains,
    which the maps that read it could take over. The products of what reads a latent lose what any
    product loses, and each turned plane one complex number.

    >>> count_latent(LatentAttention(8, 2, 4, 2)).terms
    {'value-output maps': 8, 'query-key maps': 8, 'key-value latent': 11}
    """
    q, r = a.query_width, a.kv_rank
    terms = {
        "value-output maps": a.heads * pair_rank_loss(a.value_dim, r, a.embed_dim),
        "query-key maps": a.heads * pair_rank_loss(a.still_dim, r, q)
        + 2 * len(a.rotary) * pair_rank_loss(1, a.embed_dim, a.heads * q),
        "key-value latent": r * (r + 1) // 2 + 1,
    }
    if a.query_rank is not None:
        terms["query latent"] = q * (q + 1) // 2 + 1
    return Count(a.parameters, terms)


def latent(W, gain, x):
    """W x over its root mean square, times the gains: tokens x (..., L, E) to (..., L, r)."""
    c = x @ W.mT
    return gain * c / c.square().mean(-1, keepdim=True).sqrt()


def forward_latent(a, p, x):
    """The layer's outputs (..., L, E) at inputs x (..., L, E), with parameters p: name -> tensor,
    shaped as `shapes` says.

    >>> layer = LatentAttention(8, 2, 4, 2)
    >>> from attnid.tensors import normal
    >>> forward_latent(layer, layer.random_parameters(seed=0), normal(3, 5, 8)).shape
    torch.Size([3, 5, 8])
    """
    import torch

    from .attention import rotate

    per_head = lambda W, c: torch.einsum("...lr,hdr->...hld", c, W)
    c_q = x if a.query_rank is None else latent(p["W_DQ"], p["gain_DQ"], x)
    c = latent(p["W_DKV"], p["gain_DKV"], x)
    turned_q, turned_k = (
        rotate(a, per_head(p["W_QR"], c_q)),
        rotate(a, x @ p["W_KR"].mT).unsqueeze(-3),
    )  # one key for all heads
    s = (
        per_head(p["W_Q"], c_q) @ per_head(p["W_K"], c).mT + turned_q @ turned_k.mT
    )  # (..., H, L, L)
    later = torch.ones(s.shape[-2:], dtype=torch.bool).triu(1)
    weights = (
        (s / math.sqrt(a.still_dim + 2 * len(a.rotary))).masked_fill(later, -torch.inf).softmax(-1)
    )
    return torch.einsum("...hlc,hec->...le", weights @ per_head(p["W_V"], c), p["W_O"])
