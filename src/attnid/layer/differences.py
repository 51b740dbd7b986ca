"""Differential attention (Ye et al., 2024): two softmax maps subtracted, and its count.

Head h has two pairs of query and key maps and one value map: z = V X (a1 - lambda a2), with a1 and
a2 the weights of the two pairs, lambda one number for the layer. The head may divide z by its root
mean square before it is read by W_O, and may multiply it by gains that all heads share.
"""

import math
from dataclasses import KW_ONLY, dataclass

from ..checks import is_finite, require, require_size
from .counting import Count, count, pair_rank_loss
from .description import Attention

NORMS = (None, "head", "head_gain")
MIXINGS = ("vectors", "number")


@dataclass(frozen=True)
class DifferentialAttention:
    """The description of one layer of differential attention. It holds no weights.

    embed_dim (E), heads (H), kv_heads (G, default H, each with two key maps and one value map),
    head_dim (D, of one map, default E / 2H) and value_dim (C, default 2D) are sizes. rotary: the
    angle in radians per position of each plane that turns, in both maps alike. norm: None, "head"
    (each head's output divided by its root mean square) or "head_gain" (and then multiplied by C
    gains, the same for all heads). mixing: "vectors" (lambda = exp(a . b) - exp(c . d) + start, of
    four trained vectors of size D) or "number" (lambda itself is trained). start: the fixed part of
    lambda. Inputs are free and attention is causal.

    Raises ValueError naming the field and the value when the description is impossible, and where
    values that are normalised are wider than the inputs or single numbers, for which the count
    below does not hold.

    >>> from attnid import count
    >>> layer = DifferentialAttention(8, 1, head_dim=2, norm="head")
    >>> layer.parameters, count(layer).unidentified
    (136, 22)
    """

    embed_dim: int
    heads: int
    kv_heads: int | None = None
    head_dim: int | None = None
    value_dim: int | None = None
    _: KW_ONLY
    rotary: tuple = ()
    norm: str | None = "head_gain"
    mixing: str = "vectors"
    start: float = 0.8

    def __post_init__(self):
        self._settle_sizes()
        for field, known in (("norm", NORMS), ("mixing", MIXINGS)):
            value = getattr(self, field)
            named = isinstance(value, (str, type(None))) and value in known
            require(named, field, value, f"must be one of {known}")
        require(is_finite(self.start), "start", self.start, "must be a finite number")
        object.__setattr__(self, "rotary", self.maps.rotary)
        if self.norm is not None:
            require(self.embed_dim >= 2, "embed_dim", self.embed_dim, "is too few to normalise")
            lone = "a single number, normalised, is a sign"
            require(self.value_dim >= 2, "value_dim", self.value_dim, lone)
            wide = f"normalised values wider than embed_dim={self.embed_dim} are not counted"
            require(self.value_dim <= self.embed_dim, "value_dim", self.value_dim, wide)

    def _settle_sizes(self):
        require_size("embed_dim", self.embed_dim)
        require_size("heads", self.heads)
        if self.kv_heads is None:
            object.__setattr__(self, "kv_heads", self.heads)
        if self.head_dim is None:
            why = f"is not divisible by 2 heads={2 * self.heads}; give head_dim"
            require(self.embed_dim % (2 * self.heads) == 0, "embed_dim", self.embed_dim, why)
            object.__setattr__(self, "head_dim", self.embed_dim // (2 * self.heads))
        require_size("head_dim", self.head_dim)
        if self.value_dim is None:
            object.__setattr__(self, "value_dim", 2 * self.head_dim)
        for field in ("embed_dim", "heads", "kv_heads", "head_dim", "value_dim"):
            require_size(field, getattr(self, field))
            object.__setattr__(self, field, int(getattr(self, field)))
        shared = self.heads % self.kv_heads == 0
        require(shared, "kv_heads", self.kv_heads, f"must divide heads={self.heads}")

    @property
    def maps(self):
        """The 2H softmax maps as the heads of a plain layer, those of one group and one side of the
        difference together.
        """
        return Attention(
            self.embed_dim,
            2 * self.heads,
            2 * self.kv_heads,
            self.head_dim,
            self.value_dim,
            rotary=self.rotary,
        )

    @property
    def shapes(self):
        """Name -> shape of every parameter; the second size of W_Q and W_K is the side of the
        difference.
        """
        E, H, G, D, C = (self.embed_dim, self.heads, self.kv_heads, self.head_dim, self.value_dim)
        shapes = {"W_Q": (H, 2, D, E), "W_K": (G, 2, D, E), "W_V": (G, C, E), "W_O": (H, E, C)}
        if self.norm == "head_gain":
            shapes["gain"] = (C,)
        return shapes | {"mixing": (2, 2, D) if self.mixing == "vectors" else (1,)}

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
def count_difference(a: DifferentialAttention):
    """Closed-form count of the unidentified parameters of one layer of differential attention, as a
    Count.

    Each of the two maps loses what the products of a plain layer lose. The value that both share
    loses a change of basis, of which a norm leaves the rotations and a scale; gains could be taken
    over by W_O. Of the four vectors one number is seen.

    >>> count(DifferentialAttention(8, 1, head_dim=2)).terms
    {'query-key maps': 8, 'value scales': 1, 'value rotations': 6, 'gain exchange': 4, 'mixing': 7}
    """
    terms = {"query-key maps": count(a.maps).terms["query-key maps"]}
    G, C, E = a.shapes["W_V"]
    if a.norm is None:
        terms["value-output maps"] = G * pair_rank_loss(C, E, a.heads // G * E)
    else:
        terms["value scales"] = G
        terms["value rotations"] = G * C * (C - 1) // 2
        terms["gain exchange"] = C * (a.norm == "head_gain")
    terms["mixing"] = math.prod(a.shapes["mixing"]) - 1
    return Count(a.parameters, {name: size for name, size in terms.items() if size})


def as_maps(a, W):
    """Weights (H or G, 2, D, E) of both sides as those of the heads of `maps`."""
    return W.unflatten(0, (a.kv_heads, -1)).transpose(1, 2).flatten(0, 2)


def share_of_second(a, mixing):
    """The number lambda from what is trained of it."""
    if a.mixing == "number":
        return mixing[0]
    plus, minus = mixing.prod(1).sum(-1).exp()
    return plus - minus + a.start


def forward_difference(a, p, x):
    """The layer's outputs (..., L, E) at inputs x (..., L, E), with parameters p: name -> tensor,
    shaped as `shapes` says.

    >>> layer = DifferentialAttention(8, 2)
    >>> from attnid.tensors import normal
    >>> forward_difference(layer, layer.random_parameters(seed=0), normal(3, 5, 8)).shape
    torch.Size([3, 5, 8])
    """
    import torch

    from .attention import attend, project

    weights = {"W_Q": as_maps(a, p["W_Q"]), "W_K": as_maps(a, p["W_K"])}
    weights["W_V"] = p["W_V"].repeat_interleave(2, 0)
    z = attend(a.maps, {}, *project(a.maps, weights, x))  # (..., 2H, L, C)
    first, second = z.unflatten(-3, (a.kv_heads, 2, -1)).unbind(-4)
    z = (first - share_of_second(a, p["mixing"]) * second).flatten(-4, -3)  # (..., H, L, C)
    if a.norm is not None:
        z = z / z.square().mean(-1, keepdim=True).sqrt()
    return torch.einsum("...hlc,hec->...le", z * p["gain"] if "gain" in p else z, p["W_O"])
