"""One attention layer: its description, random parameters for it, and its forward pass.

The text writes tokens as columns, X in R^{E x L}; the code keeps them as rows, x of shape (..., L, E), as PyTorch does.
Weights have one layout in both, that of `nn.Linear.weight`: W_Q, W_K are D x E, W_V is C x E, W_O is E x C, one per head.
"""

import math
from dataclasses import KW_ONLY, dataclass

import torch

from ..checks import is_finite, require, require_size

SOFTCAP = 2.0  # the bound of soft-capped scores; a count does not depend on it
BIASES = "qkvo"
NORMS = (None, "head", "head_gain", "layer_gain")
SCORES = ("softmax", "softcap", "alibi", "sink")
INPUTS = ("free", "centred")


@dataclass(frozen=True)
class Attention:
    """The description of one attention layer. It holds no weights.

    embed_dim (E), heads (H), kv_heads (G, default H), head_dim (D, default E // H) and value_dim (C, default D) are sizes.
    bias: which of the four maps have a bias, any of the letters "qkvo".
    rotary: the angle in radians per position of each rotated plane; plane i is coordinates 2i and 2i + 1 of every query
        and key head, and planes that are not listed do not turn.
    qk_norm: None, "head" (each head's query and key divided by their root mean square), "head_gain" (the same, then gains
        of size D, one for queries and one for keys, shared by the heads) or "layer_gain" (root mean square over all heads
        at once, then gains of the full width).
    score: "softmax", "softcap" (scores bounded by a tanh), "alibi" (minus a fixed slope times the distance) or "sink"
        (one learned logit per head that takes its share of the softmax and no value).
    inputs: "free", or "centred" for what a LayerNorm without gain or bias puts out.
    causal: whether a token sees only itself and what came before.

    Raises ValueError naming the field and the value when the description is impossible.
    """

    embed_dim: int
    heads: int
    kv_heads: int | None = None
    head_dim: int | None = None
    value_dim: int | None = None
    _: KW_ONLY
    bias: str = ""
    rotary: tuple = ()
    qk_norm: str | None = None
    score: str = "softmax"
    inputs: str = "free"
    causal: bool = True

    def __post_init__(self):
        self._settle_sizes()
        for field in ("embed_dim", "heads", "kv_heads", "head_dim", "value_dim"):
            self._set(field, int(getattr(self, field)))
        for field, words in (
            ("qk_norm", NORMS),
            ("score", SCORES),
            ("inputs", INPUTS),
            ("causal", (True, False)),
        ):
            value = getattr(self, field)
            require(
                isinstance(value, (str, bool, type(None))) and value in words,
                field,
                value,
                f"must be one of {words}",
            )
        require(
            isinstance(self.bias, str)
            and set(self.bias) <= set(BIASES)
            and len(set(self.bias)) == len(self.bias),
            "bias",
            self.bias,
            f"must be letters of {BIASES!r}, each at most once",
        )
        self._set("bias", "".join(letter for letter in BIASES if letter in self.bias))
        require(
            isinstance(self.rotary, (tuple, list)) and all(is_finite(f) for f in self.rotary),
            "rotary",
            self.rotary,
            "must list finite angles, in radians per position",
        )
        self._set("rotary", tuple(float(f) for f in self.rotary))
        require(
            2 * len(self.rotary) <= self.head_dim,
            "rotary",
            self.rotary,
            f"is more planes than head_dim={self.head_dim} holds",
        )
        require(
            self.inputs == "free" or self.embed_dim >= 2,
            "embed_dim",
            self.embed_dim,
            "must be at least 2 with inputs='centred': a single number, centred, is always zero",
        )

    def _settle_sizes(self):
        require_size("embed_dim", self.embed_dim)
        require_size("heads", self.heads)
        if self.kv_heads is None:
            self._set("kv_heads", self.heads)
        require_size("kv_heads", self.kv_heads)
        require(
            self.heads % self.kv_heads == 0,
            "kv_heads",
            self.kv_heads,
            f"must divide heads={self.heads}",
        )
        if self.head_dim is None:
            require(
                self.embed_dim % self.heads == 0,
                "embed_dim",
                self.embed_dim,
                f"is not divisible by heads={self.heads}; give head_dim",
            )
            self._set("head_dim", self.embed_dim // self.heads)
        require_size("head_dim", self.head_dim)
        if self.value_dim is None:
            self._set("value_dim", self.head_dim)
        require_size("value_dim", self.value_dim)

    def _set(self, field, value):
        object.__setattr__(self, field, value)  # the description is frozen once it is made

    # the paper's letters
    @property
    def E(self):
        return self.embed_dim

    @property
    def H(self):
        return self.heads

    @property
    def G(self):
        return self.kv_heads

    @property
    def D(self):
        return self.head_dim

    @property
    def C(self):
        return self.value_dim

    @property
    def input_rank(self):
        """Dimension of the space that the inputs fill: E, or E - 1 when they are centred."""
        return self.E - (self.inputs == "centred")

    @property
    def shapes(self):
        """Name -> shape of every parameter, in the order in which parameters are laid out as one vector."""
        E, H, G, D, C = self.E, self.H, self.G, self.D, self.C
        shapes = {"W_Q": (H, D, E), "W_K": (G, D, E), "W_V": (G, C, E), "W_O": (H, E, C)}
        biases = {"b_Q": (H, D), "b_K": (G, D), "b_V": (G, C), "b_O": (E,)}
        shapes |= {name: shape for name, shape in biases.items() if name[-1].lower() in self.bias}
        if self.qk_norm == "head_gain":
            shapes |= {"gain_Q": (D,), "gain_K": (D,)}
        if self.qk_norm == "layer_gain":
            shapes |= {"gain_Q": (H, D), "gain_K": (G, D)}
        if self.score == "sink":
            shapes |= {"sink": (H,)}
        return shapes

    @property
    def parameters(self):
        """How many numbers the layer has."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    def random_parameters(self, seed=0, *, scale=1.0):
        """Random float64 parameters, name -> tensor: normal entries, weights divided by the root of their input width.

        Gains are drawn in [0.5, 1.5]. `scale` multiplies all but the gains.
        """
        generator = torch.Generator().manual_seed(seed)
        normal = lambda shape: torch.randn(shape, generator=generator, dtype=torch.float64)
        uniform = lambda shape: 0.5 + torch.rand(shape, generator=generator, dtype=torch.float64)
        fan_in = {"W_Q": self.E, "W_K": self.E, "W_V": self.E, "W_O": self.H * self.C}
        return {
            name: uniform(shape)
            if name.startswith("gain")
            else scale * normal(shape) / math.sqrt(fan_in.get(name, 1))
            for name, shape in self.shapes.items()
        }

    def check_parameters(self, parameters):
        """The parameters as detached float64 tensors on the CPU, in the description's order.

        Raises ValueError naming the parameter that is missing, unknown, not a real tensor, of another shape, or not finite.
        """
        require(
            isinstance(parameters, dict), "parameters", parameters, "must be a dict, name -> tensor"
        )
        for name in parameters.keys() ^ self.shapes.keys():
            require(False, "parameters", name, f"this description has {list(self.shapes)}")
        for name, shape in self.shapes.items():
            tensor = parameters[name]
            real = (
                isinstance(tensor, torch.Tensor)
                and tensor.is_floating_point()
                and tensor.layout == torch.strided
                and not tensor.is_meta
            )
            require(
                real,
                name,
                getattr(tensor, "dtype", type(tensor)),
                "must be a dense tensor of floating-point numbers",
            )
            require(
                tuple(tensor.shape) == shape, name, tuple(tensor.shape), f"shape must be {shape}"
            )
            bad = tensor[~torch.isfinite(tensor)]
            require(bad.numel() == 0, name, bad[:1].tolist(), "has a NaN or infinite entry")
        return {name: parameters[name].detach().to("cpu", torch.float64) for name in self.shapes}


def input_basis(attention):
    """Orthonormal columns (E, n) that span the inputs: all of R^E, or what is orthogonal to the all-ones vector."""
    identity = torch.eye(attention.E, dtype=torch.float64)
    if attention.inputs == "free":
        return identity
    return torch.linalg.qr(torch.cat((torch.ones_like(identity[:, :1]), identity[:, 1:]), 1)).Q[
        :, 1:
    ]


def shift_is_seen(attention):
    """Whether a shift of a query's scores, common to all keys, changes the output."""
    return attention.score in ("softcap", "sink")


def project(attention, parameters, x):
    """Queries (..., H, L, D), keys (..., G, L, D) and values (..., G, L, C) of inputs x (..., L, E)."""

    def linear(letter):
        out = torch.einsum("...li,hdi->...hld", x, parameters["W_" + letter])
        bias = parameters.get("b_" + letter)
        return out if bias is None else out + bias[:, None, :]

    return linear("Q"), linear("K"), linear("V")


def normalise(attention, vectors, gain=None):
    """Divide vectors (..., heads, L, D) by their root mean square as `qk_norm` says, then multiply by the gains."""
    if attention.qk_norm is None:
        return vectors
    over = (-3, -1) if attention.qk_norm == "layer_gain" else (-1,)
    vectors = vectors / vectors.square().mean(over, keepdim=True).sqrt()
    if gain is None:
        return vectors
    return vectors * (gain[:, None, :] if gain.ndim == 2 else gain)


def rotate(attention, vectors):
    """Turn plane i of the vectors (..., L, D) at position l by the angle l * rotary[i]."""
    planes = len(attention.rotary)
    if planes == 0:
        return vectors
    position = torch.arange(vectors.shape[-2], dtype=vectors.dtype, device=vectors.device)
    angle = position[:, None] * torch.tensor(
        attention.rotary, dtype=vectors.dtype, device=vectors.device
    )  # (L, planes)
    even, odd = vectors[..., 0 : 2 * planes : 2], vectors[..., 1 : 2 * planes : 2]
    turned = torch.stack(
        (even * angle.cos() - odd * angle.sin(), even * angle.sin() + odd * angle.cos()), -1
    )
    return torch.cat((turned.flatten(-2), vectors[..., 2 * planes :]), -1)


def scores(attention, parameters, q, k):
    """Scores (..., H, L, L), before mask and softmax: row l, column m is how much query l asks for key m."""
    q = rotate(attention, normalise(attention, q, parameters.get("gain_Q")))
    k = rotate(attention, normalise(attention, k, parameters.get("gain_K")))
    k = k.repeat_interleave(attention.H // attention.G, dim=-3)  # head h reads group h // (H / G)
    s = (
        q @ k.transpose(-1, -2) / math.sqrt(attention.D)
    )  # the text absorbs this factor into the weights
    if attention.score == "softcap":
        s = SOFTCAP * torch.tanh(s / SOFTCAP)
    if attention.score == "alibi":
        position = torch.arange(s.shape[-1], dtype=s.dtype, device=s.device)
        slope = 2.0 ** (
            -8.0 * torch.arange(1, attention.H + 1, dtype=s.dtype, device=s.device) / attention.H
        )
        s = s - slope[:, None, None] * (position[:, None] - position).abs()
    return s


def attend(attention, parameters, q, k, v):
    """Weighted values (..., H, L, C) from queries, keys and values as `project` gives them."""
    s = scores(attention, parameters, q, k)
    if attention.causal:
        later = torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device).triu(1)
        s = s.masked_fill(later, -torch.inf)
    if attention.score == "sink":
        logit = parameters["sink"][:, None, None].expand(*s.shape[:-1], 1)
        p = torch.cat((s, logit), -1).softmax(-1)[..., :-1]
    else:
        p = s.softmax(-1)
    return p @ v.repeat_interleave(attention.H // attention.G, dim=-3)


def forward(attention, parameters, x):
    """The layer's outputs (..., L, E) at inputs x (..., L, E)."""
    z = attend(attention, parameters, *project(attention, parameters, x))
    y = torch.einsum("...hlc,hec->...le", z, parameters["W_O"])
    return y + parameters["b_O"] if "b_O" in parameters else y


def random_inputs(attention, batch, length, seed=0, *, scale=1.0):
    """Random inputs (batch, length, E) of the kind that `inputs` names; `scale` applies to free ones only."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn((batch, length, attention.E), generator=generator, dtype=torch.float64)
    if attention.inputs == "free":
        return scale * x
    x = x - x.mean(-1, keepdim=True)
    return x / x.square().mean(-1, keepdim=True).sqrt()
