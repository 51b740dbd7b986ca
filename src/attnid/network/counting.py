"""The closed-form count of what the log-probabilities of a whole network do not identify, symmetry
by symmetry.

Counted are directions in all parameters at once along which no log-probability changes to first
order, at generic weights, over all token sequences up to block_size. Chapter 14 derives the terms.
That there are no more of them is measured (`measuring.py`), not proved.
"""

import math
from dataclasses import dataclass

from ..checks import require
from ..layer.counting import Count, count, pair_rank_loss
from .configuration import GPTConfig

MANY = 256


@dataclass(frozen=True)
class Reach:
    """What of its inputs a layer's attention ever meets, as dimensions: affine functions of
    queries, keys and values (each with the constants, where biases make them), and whether some
    function of the inputs is constant over all of them.
    """

    queries: int
    keys: int
    constant: bool


def stream_rank(config):
    """Dimension of the residual stream that a norm sees: E, or E - 1 where it centres."""
    return config.n_embd - (config.norm == "layernorm")


def embedding_rank(config):
    """Dimension that token and position embeddings span together, as far as a norm sees."""
    positions = config.block_size - 1 if config.positions == "learned" else 0
    return min(config.vocab_size + positions, stream_rank(config))


def reach(config, layer):
    """Layers above the first meet everything; the first only embeddings, which may span less."""
    c, n = config, stream_rank(config)
    if layer > 0:
        return Reach(n + c.bias, n + c.bias, c.bias)
    if c.positions == "learned":  # the first position's query has one key to choose from
        return Reach(
            min(c.vocab_size + c.block_size - 2, n) + c.bias, embedding_rank(c) + c.bias, c.bias
        )
    met = min(
        c.vocab_size, n + c.bias
    )  # as few tokens as dimensions are a table: any function of them is linear
    return Reach(met, met, c.bias or met == c.vocab_size)


def context_rank(config):
    """Dimension of what the mean of a context can tell: V - 1 tokens' shares, at most the norm's
    outputs less the length that it fixes without an eps.
    """
    return min(config.vocab_size - 1, stream_rank(config) - (config.eps == 0))


def contexts(config):
    """How many different contexts there are, at least: without positions the order of earlier
    tokens may not count.

    Infinity where they are more than 2^MANY, and so more than any network has parameters.
    """
    V, T = config.vocab_size, config.block_size
    if config.positions == "none":  # the sum of V C(V + t - 1, t) over t below T
        fewer = min(V, T - 1)  # C(V + T - 1, fewer) is at least 2^fewer
        return V * math.comb(V + T - 1, fewer) if fewer < MANY else math.inf
    if V == 1:
        return T
    return (V ** (T + 1) - V) // (V - 1) if T < MANY else math.inf


def refuse_what_is_not_generic(config):
    """ValueError naming the field for descriptions whose count we do not know in closed form."""
    c, n, V, D = config, stream_rank(config), config.vocab_size, config.head_dim
    require(n >= 2, "n_embd", c.n_embd, f"{c.norm} leaves fewer than two dimensions")
    require(V >= 3, "vocab_size", V, "fewer than three tokens are a special case")
    require(
        c.block_size >= (3 if c.turning else 2),
        "block_size",
        c.block_size,
        "is too short for attention to be seen",
    )
    numbers = contexts(c) * context_rank(c)
    require(
        numbers >= 2 * c.parameters,
        "block_size",
        c.block_size,
        f"its sequences are too few to see {c.parameters} parameters",
    )
    narrow = not c.turning or D <= V or c.block_size > D
    require(
        narrow,
        "vocab_size",
        V,
        f"heads of size {D} turn, and meet too few tokens at too few distances",
    )
    met = embedding_rank(c)
    require(
        met + c.n_head * min(D, met - 1) >= n,
        "vocab_size",
        V,
        f"the first MLP does not meet all {n} dimensions of its input",
    )
    if c.positions == "learned" and V + c.block_size - 2 < n:
        require(
            D <= V,
            "vocab_size",
            V,
            f"embeddings span less than the stream, and heads of size {D} meet too few tokens",
        )
        require(n <= V * V, "vocab_size", V, "the first positions have too few contexts")


@count.register
def count_network(config: GPTConfig):
    """Closed-form count of the parameters of a whole network that its log-probabilities do not
    identify.

    Returns a Count; `terms` names each symmetry. Raises ValueError naming the field for the few
    descriptions whose count we do not know in closed form: hardly any tokens, positions or
    contexts.

    >>> from attnid import GPTConfig
    >>> nanogpt = count_network(GPTConfig(65, 256, n_layer=6, n_head=6, n_embd=384))
    >>> nanogpt.parameters, nanogpt.unidentified
    (10745088, 451748)
    """
    refuse_what_is_not_generic(config)
    terms = _norms(config) | _stream(config) | _attention(config) | _embeddings(config)
    return Count(
        config.parameters, {name: dimension for name, dimension in terms.items() if dimension}
    )


def _norms(c):
    """Gains and biases of norms against what reads them; centred inputs; what writers put along the
    all-ones direction.
    """
    E, F, N, V = c.n_embd, c.mlp_width, c.n_layer, c.vocab_size
    terms = {"norm gains": E * (2 * N + (not c.tied))}
    if c.norm == "rmsnorm":
        return terms
    if c.bias:
        terms["norm biases"] = 2 * N * E + (max(0, E - V + 1) if c.tied else E)
    terms["centred inputs"] = N * (3 * E + F) + (V - 1) * (not c.tied and not c.bias)
    embeddings = c.block_size * (c.positions == "learned") + (
        c.positions != "learned" if c.tied else V
    )
    terms["writing along ones"] = N * (E + F + 2 * c.bias) + embeddings
    return terms


def _stream(c):
    """Rotations of the residual stream, and its scale where eps is 0.

    Tied embeddings read and write with the same weights, and the last gain tells coordinates apart.
    Where tokens are fewer than dimensions, k = E - V + 1 of these are out of the logits' sight, and
    the symmetric forms on them set rotations free.
    """
    E, n = c.n_embd, stream_rank(c)
    k = max(0, E - c.vocab_size + 1)
    tied = k * (k + 1) // 2 if c.norm == "rmsnorm" else max(0, k * (k + 1) // 2 + 4 - E)
    return {
        "residual rotations": tied if c.tied else n * (n - 1) // 2,
        "residual scale": int(c.eps == 0),
    }


def _attention(c):
    """The two circuits of every head, over what it meets; constants of keys and of values; and what
    is never met.
    """
    E, H, D, n = c.n_embd, c.n_head, c.head_dim, stream_rank(c)
    names = (
        "query-key maps",
        "value-output maps",
        "key constants",
        "value constants",
        "inputs never met",
    )
    terms = dict.fromkeys(names, 0)
    first = c.turns(0)
    above = c.turning - first  # how many of those above the first turn, which are alike otherwise
    for layer, turning, alike in (
        (0, first, 1),
        (1, True, above),
        (1, False, c.n_layer - 1 - above),
    ):
        met = reach(c, layer)
        varying = met.keys - met.constant
        terms["query-key maps"] += (
            alike * H * (D if turning else pair_rank_loss(D, varying, met.queries))
        )
        terms["value-output maps"] += alike * H * pair_rank_loss(D, varying, n)
        terms["key constants"] += alike * E * (met.constant and not turning)
        terms["value constants"] += alike * met.constant * (E if c.bias else E - n)
        terms["inputs never met"] += alike * E * (3 * (n + c.bias) - met.queries - 2 * met.keys)
    return terms


def _embeddings(c):
    """Shifts of the embedding: against positions, against output biases where the first layer does
    not notice, of all logits.
    """
    n, met = stream_rank(c), reach(c, 0)
    learned = c.positions == "learned"
    unnoticed = (n - embedding_rank(c)) * c.bias if learned else n * (met.keys == c.vocab_size)
    return {
        "embedding against positions": learned * (c.n_embd - (n < c.n_embd and not c.tied)),
        "embedding against values": unnoticed,
        "softmax shift": 0 if c.tied else c.n_embd,
    }
