"""The description of one attention layer. It holds no weights, and is made without PyTorch."""

import math
from dataclasses import KW_ONLY, dataclass

from ..checks import is_finite, require, require_size

BIASES = "qkvo"
NORMS = (None, "head", "head_gain", "layer_gain")
SCORES = ("softmax", "softcap", "alibi", "sink")
INPUTS = ("free", "centred")
RELATIVES = (None, "bias", "content")
GATES = (None, "head", "channel")


@dataclass(frozen=True)
class Attention:
    """The description of one attention layer. It holds no weights.

    embed_dim (E), heads (H), kv_heads (G, default H), head_dim (D, default E // H) and value_dim
    (C, default D) are sizes.
    bias: which of the four maps have a bias, any of the letters "qkvo".
    rotary: the angle in radians per position of each rotated plane; plane i is coordinates 2i and
        2i + 1 of every query and key head, and planes that are not listed do not turn.
    qk_norm: None, "head" (each head's query and key divided by their root mean square), "head_gain"
        (the same, then gains of size D, one for queries and one for keys, shared by the heads) or
        "layer_gain" (root mean square over all heads at once, then gains of the full width).
    score: "softmax", "softcap" (scores bounded by a tanh), "alibi" (minus a fixed slope times the
        distance) or "sink" (one learned logit per head that takes its share of the softmax and no
        value).
    gate: None, "head" or "channel": before W_O each head's weighted value is multiplied by the
        sigmoid of a linear map W_G, without bias, of the same token's input, one number for the
        head or one for each of its channels.
    relative: None, "bias" (one learned number a head and offset, added to what enters the softmax)
        or "content" (a learned key and a learned query for each offset, which meet the queries and
        the keys of the tokens; neither rotary positions nor qk_norm go with them).
    span: how many offsets, query minus key, `relative` tells apart: 0 to span - 1 where causal,
        else -(span // 2) and up; those beyond count as the last.
    inputs: "free", or "centred" for what a LayerNorm without gain or bias puts out.
    causal: whether a token sees only itself and what came before.

    Raises ValueError naming the field and the value when the description is impossible.

    >>> layer = Attention(64, 8, kv_heads=2, bias="qkv", rotary=(1.0, 0.1))
    >>> layer.head_dim, layer.shapes["W_K"], layer.parameters
    (8, (2, 8, 64), 10336)
    >>> Attention(64, 6)
    Traceback (most recent call last):
    ValueError: embed_dim=64: is not divisible by heads=6; give head_dim
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
    gate: str | None = None
    relative: str | None = None
    span: int | None = None
    inputs: str = "free"
    causal: bool = True

    def __post_init__(self):
        self._settle_sizes()
        for field in ("embed_dim", "heads", "kv_heads", "head_dim", "value_dim"):
            self._set(field, int(getattr(self, field)))
        words = {"qk_norm": NORMS, "score": SCORES, "gate": GATES, "inputs": INPUTS}
        words |= {"relative": RELATIVES, "causal": (True, False)}
        for field, known in words.items():
            value = getattr(self, field)
            named = isinstance(value, (str, bool, type(None))) and value in known
            require(named, field, value, f"must be one of {known}")
        letters = isinstance(self.bias, str) and set(self.bias) <= set(BIASES)
        once = letters and len(set(self.bias)) == len(self.bias)
        require(once, "bias", self.bias, f"must be letters of {BIASES!r}, each at most once")
        self._set("bias", "".join(letter for letter in BIASES if letter in self.bias))
        finite = isinstance(self.rotary, (tuple, list)) and all(map(is_finite, self.rotary))
        angles = "must list finite angles, in radians per position"
        require(finite, "rotary", self.rotary, angles)
        self._set("rotary", tuple(float(f) for f in self.rotary))
        fits, many = 2 * len(self.rotary) <= self.head_dim, "is more planes than head_dim={} holds"
        require(fits, "rotary", self.rotary, many.format(self.head_dim))
        self._settle_offsets()
        varies = self.inputs == "free" or self.embed_dim >= 2
        lone = "must be at least 2 with inputs='centred': a single number, centred, is always zero"
        require(varies, "embed_dim", self.embed_dim, lone)

    def _settle_sizes(self):
        require_size("embed_dim", self.embed_dim)
        require_size("heads", self.heads)
        if self.kv_heads is None:
            self._set("kv_heads", self.heads)
        require_size("kv_heads", self.kv_heads)
        shared = self.heads % self.kv_heads == 0
        require(shared, "kv_heads", self.kv_heads, f"must divide heads={self.heads}")
        if self.head_dim is None:
            why = f"is not divisible by heads={self.heads}; give head_dim"
            require(self.embed_dim % self.heads == 0, "embed_dim", self.embed_dim, why)
            self._set("head_dim", self.embed_dim // self.heads)
        require_size("head_dim", self.head_dim)
        if self.value_dim is None:
            self._set("value_dim", self.head_dim)
        require_size("value_dim", self.value_dim)

    def _settle_offsets(self):
        if self.relative is None:
            require(self.span is None, "span", self.span, "goes with relative, which is None")
            return
        require_size("span", self.span)
        self._set("span", int(self.span))
        alone = self.relative == "bias" or not (self.rotary or self.qk_norm)
        why = "goes neither with rotary positions nor with qk_norm"
        require(alone, "relative", self.relative, why)

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
        """Name -> shape of every parameter, in the order in which parameters are laid out as one
        vector.
        """
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
        if self.relative == "bias":
            shapes |= {"R_B": (H, self.span)}
        if self.relative == "content":
            shapes |= {"R_Q": (H, self.span, D), "R_K": (G, self.span, D)}
        if self.gate:
            shapes |= {"W_G": (H, E) if self.gate == "head" else (H, C, E)}
        return shapes

    @property
    def parameters(self):
        """How many numbers the layer has."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    def random_parameters(self, seed=0, *, scale=1.0):
        """Random float64 parameters, name -> tensor: normal entries, weights divided by the root of
        their input width.

        Gains are drawn in [0.5, 1.5]. `scale` multiplies all but the gains.
        """
        from .parameters import random_parameters

        fan_in = {"W_Q": self.E, "W_K": self.E, "W_V": self.E, "W_O": self.H * self.C}
        fan_in |= {"W_G": self.E}
        return random_parameters(self.shapes, fan_in, seed, scale)

    def check_parameters(self, parameters):
        """The parameters as detached float64 tensors on the CPU, in the description's order.

        Raises ValueError naming the parameter that is missing, unknown, not a real tensor, of
        another shape, or not finite.
        """
        from .parameters import check_parameters

        return check_parameters(self.shapes, parameters)


def shift_is_seen(attention):
    """Whether a shift of a query's scores, common to all keys, changes the output."""
    return attention.score in ("softcap", "sink")


def key_bias_is_idle(attention):
    """Whether there is a key bias that changes no output where a key keeps still: it shifts all
    scores of a query alike (Fact 4.7). Learned queries of offsets tell it apart.
    """
    shifts = attention.qk_norm is None and attention.relative != "content"
    return "k" in attention.bias and shifts and not shift_is_seen(attention)


def value_bias_is_pooled(attention):
    """Whether there is a value bias that adds a constant to all outputs, as the weights of
    attention sum to one (section 4.7.2). A gate, which differs from token to token, tells it apart.
    """
    return "v" in attention.bias and attention.score != "sink" and attention.gate is None


def own_offset(attention):
    """Which of the learned offsets a token has to itself alone, or None where it shares it with
    others or nothing is learned.
    """
    if attention.relative is None:
        return None
    own = 0 if attention.causal else attention.span // 2
    return own if own < attention.span - 1 and (attention.causal or own > 0) else None
