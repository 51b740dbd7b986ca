"""The description of a GPT in nanoGPT's shape. It holds no weights, and is made without PyTorch."""

import math
from dataclasses import KW_ONLY, dataclass

from ..checks import is_finite, require, require_size

NORMS = ("layernorm", "rmsnorm")
POSITIONS = ("learned", "rotary", "none")
OF_ONE_LAYER = ("rotary", "none")


@dataclass(frozen=True)
class GPTConfig:
    """The description of a GPT. It holds no weights.

    vocab_size (number of tokens), block_size (longest context, in tokens), n_layer, n_head (H) and
    n_embd (E) are sizes. bias: whether linear maps and layer norms have biases. dropout: the share
    of activations dropped in training. The rest is nanoGPT's unless it is said otherwise. tied:
    whether logits are read with the embedding's own weights. norm: "layernorm" or "rmsnorm" (a gain
    and never a bias); eps is added to what they take the root of. positions: "learned", "rotary"
    (plane i of each query and key turns by 10000^(-2i/D) radians per position) or "none", or a
    tuple with "rotary" or "none" for each layer.
    mlp_width: hidden units of an MLP, 4 n_embd by default.

    Raises ValueError naming the field and the value when the description is impossible.

    >>> config = GPTConfig(65, 256, n_layer=6, n_head=6, n_embd=384)
    >>> config.head_dim, config.mlp_width, config.parameters
    (64, 1536, 10745088)
    """

    vocab_size: int
    block_size: int
    n_layer: int
    n_head: int
    n_embd: int
    _: KW_ONLY
    bias: bool = False
    dropout: float = 0.0
    tied: bool = True
    norm: str = "layernorm"
    positions: str | tuple = "learned"
    mlp_width: int | None = None
    eps: float = 1e-5

    def __post_init__(self):
        for field in ("vocab_size", "block_size", "n_layer", "n_head", "n_embd"):
            require_size(field, getattr(self, field))
            self._set(field, int(getattr(self, field)))
        require(
            self.n_embd % self.n_head == 0,
            "n_embd",
            self.n_embd,
            f"is not divisible by n_head={self.n_head}",
        )
        for field in ("bias", "tied"):
            require(
                isinstance(getattr(self, field), bool),
                field,
                getattr(self, field),
                "must be True or False",
            )
        require(
            type(self.dropout) in (int, float) and 0 <= self.dropout < 1,
            "dropout",
            self.dropout,
            "must be in [0, 1)",
        )
        if isinstance(self.positions, tuple):
            known = all(isinstance(word, str) and word in OF_ONE_LAYER for word in self.positions)
            why = f"must have one of {OF_ONE_LAYER} for each of {self.n_layer} layers"
            require(known and len(self.positions) == self.n_layer, "positions", self.positions, why)
            if len(set(self.positions)) == 1:
                self._set("positions", self.positions[0])
        words_of = {"norm": NORMS}
        if not isinstance(self.positions, tuple):
            words_of["positions"] = POSITIONS
        for field, words in words_of.items():
            value = getattr(self, field)
            require(
                isinstance(value, str) and value in words, field, value, f"must be one of {words}"
            )
        paired = not self.turning or self.head_dim % 2 == 0
        require(
            paired,
            "positions",
            self.positions,
            f"turns pairs of numbers, and heads have {self.head_dim}",
        )
        if self.mlp_width is None:
            self._set("mlp_width", 4 * self.n_embd)
        require_size("mlp_width", self.mlp_width)
        self._set("mlp_width", int(self.mlp_width))
        require(is_finite(self.eps) and self.eps >= 0, "eps", self.eps, "must be at least 0")

    @property
    def head_dim(self):
        """D = E / H; values have the same size, C = D."""
        return self.n_embd // self.n_head

    def _with_biases(self, maps):
        for name, shape in maps.items():
            yield f"{name}.weight", shape
            if self.bias and (len(shape) == 2 or self.norm == "layernorm"):
                yield f"{name}.bias", shape[:1]

    def _layer_shapes(self):
        E, F = self.n_embd, self.mlp_width
        attention = {"ln_1": (E,), "attn.c_attn": (3 * E, E), "attn.c_proj": (E, E)}
        mlp = {"ln_2": (E,), "mlp.c_fc": (F, E), "mlp.c_proj": (E, F)}
        return self._with_biases(attention | mlp)

    def named_shapes(self, n_layer=None):
        """Name and shape of every parameter of the model, one by one, in the model's order; tied
        weights are one.
        """
        V, T, E = self.vocab_size, self.block_size, self.n_embd
        yield "transformer.wte.weight", (V, E)
        if self.positions == "learned":
            yield "transformer.wpe.weight", (T, E)
        for n in range(self.n_layer if n_layer is None else n_layer):
            for name, shape in self._layer_shapes():
                yield f"transformer.h.{n}.{name}", shape
        yield from self._with_biases({"transformer.ln_f": (E,)})
        if not self.tied:
            yield "lm_head.weight", (V, E)

    @property
    def shapes(self):
        """Name -> shape of every parameter of the model, as in named_shapes."""
        return dict(self.named_shapes())

    @property
    def parameters(self):
        """How many numbers the model has, tied weights counted once."""
        size = lambda shapes: sum(math.prod(shape) for _, shape in shapes)
        return size(self.named_shapes(n_layer=0)) + self.n_layer * size(self._layer_shapes())

    def _set(self, field, value):
        object.__setattr__(self, field, value)  # the description is frozen once it is made

    def turns(self, layer):
        """Whether the queries and keys of a layer turn."""
        mixed = isinstance(self.positions, tuple)
        return (self.positions[layer] if mixed else self.positions) == "rotary"

    @property
    def turning(self):
        """How many layers turn their queries and keys."""
        if isinstance(self.positions, tuple):
            return self.positions.count("rotary")
        return self.n_layer * (self.positions == "rotary")

    @property
    def rotary(self):
        """Angle in radians per position of each plane of a head in the layers that turn; none where
        no layer does.
        """
        D = self.head_dim
        return tuple(10_000.0 ** (-2 * i / D) for i in range(D // 2)) if self.turning else ()
