"""The closed-form count of a layer's unidentified parameters, symmetry by symmetry.

Two kinds of fact are used. What the function sees: each head's product W_K^T R_m W_Q for every
offset m that occurs, the lengths of queries and keys where these are normalised, and the products
W_O W_V. And how many numbers are lost in such products: (a x d)(d x b) has rank p = min(a, d, b), p
(a + b - p) dimensions, so d (a + b) - p (a + b - p) are idle; d^2 where d is the smallest.
"""

import math
from dataclasses import dataclass
from functools import singledispatch

from ..checks import require
from .description import (
    Attention,
    key_bias_is_idle,
    own_offset,
    shift_is_seen,
    value_bias_is_pooled,
)
from .rotation import isotype_kinds


@dataclass(frozen=True)
class Count:
    """How many of a layer's parameters are unidentified, and why: `terms` names each symmetry and
    its dimension.

    >>> from attnid import Attention, count
    >>> found = count(Attention(8, 2, bias="qk"))
    >>> found.parameters, found.unidentified, found.terms
    (272, 72, {'value-output maps': 32, 'query-key maps': 32, 'key bias': 8})
    >>> found.identified, round(found.share, 3)
    (200, 0.735)
    """

    parameters: int
    terms: dict

    @property
    def unidentified(self):
        return sum(self.terms.values())

    @property
    def identified(self):
        return self.parameters - self.unidentified

    @property
    def share(self):
        """The identified share of the parameters."""
        return self.identified / self.parameters


def pair_rank_loss(d, a, b):
    """Dimensions lost in the product of an (a x d) and a (d x b) matrix of full rank: d^2 where d
    is the smallest.
    """
    p = min(d, a, b)
    return d * (a + b) - p * (a + b - p)


@singledispatch
def count(attention):
    """Closed-form count of the unidentified parameters of one attention layer.

    Returns a Count; its terms sum to the dimension of the set of generic parameters with the same
    function (the paper's sections 4.2 to 4.9, completed for wide heads, equal frequencies, norms
    and other scores). One term has no closed form that we know: "wide heads", where normalised
    heads are wider than their inputs, is the number of directions that keep what the scores see,
    from the rank of its derivative at a random point (`normalised.py`; no outputs are looked at).
    Raises ValueError for the few descriptions whose count depends on more than the description, and
    where that term's layer is too large to look through.

    >>> from attnid import Attention
    >>> count(Attention(4096, 32, rotary=tuple(1e4 ** (-i / 64) for i in range(64)))).terms
    {'value-output maps': 524288, 'query-key maps': 4096}
    """
    known = "must be an Attention, a LatentAttention, a DifferentialAttention or a GPTConfig"
    require(isinstance(attention, Attention), "attention", attention, known)
    _refuse_what_is_not_generic(attention)
    terms = _value_output(attention) | _query_key(attention) | _centred(attention)
    return Count(
        attention.parameters, {name: dimension for name, dimension in terms.items() if dimension}
    )


def _refuse_what_is_not_generic(a):
    two_points = a.inputs == "centred" and a.E == 2
    if two_points and (
        a.qk_norm and set("qk") & set(a.bias) or a.score == "softcap" and "k" in a.bias
    ):
        raise ValueError(
            "embed_dim=2: centred pairs take two values only, and with these biases the count "
            "depends on that"
        )
    if two_points and a.gate:
        raise ValueError(
            "embed_dim=2: centred pairs take two values only, too few to tell a gate from what it "
            "multiplies"
        )
    lone = a.D == 1 and (
        a.qk_norm in ("head", "head_gain") or a.qk_norm == "layer_gain" and a.G == 1
    )
    if lone and (
        a.input_rank == 1 and a.H > 1 or a.inputs == "centred" and set("qk") & set(a.bias)
    ):
        raise ValueError(
            "head_dim=1: a normalised number is only a sign, and whether two signs ever differ "
            "depends on the weights"
        )


def _centred(a):
    """Centred inputs are orthogonal to the all-ones vector: each row of W_Q, W_K, W_V and W_G has
    one direction never met.
    """
    if a.inputs == "free":
        return {}
    gates = {None: 0, "head": a.H, "channel": a.H * a.C}[a.gate]
    return {"centred inputs": a.H * a.D + a.G * a.D + a.G * a.C + gates}


def _value_output(a):
    """Lemma 4.6 for heads that share values in groups, and section 4.7.2 for the value bias. Gates
    tell channels apart, so that each is a product of its own.
    """
    if a.gate == "channel":
        return {"channel scales": a.G * a.C}
    bias_in_product = "v" in a.bias and not value_bias_is_pooled(a)
    readers = a.H // a.G * a.E
    terms = {
        "value-output maps": a.G * pair_rank_loss(a.C, a.input_rank + bias_in_product, readers)
    }
    if "v" in a.bias and not bias_in_product:
        seen = 0 if "o" in a.bias else min(a.E, a.G * a.C)
        terms["value bias"] = a.G * a.C - seen
    return terms


def _query_key(a):
    if a.relative == "content":
        return _query_key_at_offsets(a)
    shift = {"offset bias shift": a.H} if a.relative == "bias" else {}
    return shift | (_plain_query_key(a) if a.qk_norm is None else _query_key_normalised(a))


def _query_key_at_offsets(a):
    """Scores see K^T Q, K^T (b_Q + R_Q) and (R_K + b_K)^T Q at each offset, and one constant an
    offset and head, b_Q^T R_K + b_K^T (b_Q + R_Q), less the sink; of R_K and the constants their
    differences alone, where a shift is not seen. At a token's own offset the maps meet one input,
    and only the sum K^T (b_Q + R_Q) + Q^T (R_K + b_K) is seen.
    """
    n, sharing, own = a.input_rank, a.H // a.G, int(own_offset(a) is not None)
    q, k, sink = "q" in a.bias, "k" in a.bias, a.score == "sink"
    why = f"with learned offsets and biases no head wider than its inputs ({n}) is counted"
    require(a.D <= n or not (q or k), "head_dim", a.D, why)
    seen = a.span - own - (not shift_is_seen(a))  # apart from a token's own
    loss = a.G * pair_rank_loss(a.D, n + seen, sharing * n)
    unmet = a.H * (a.span - own) * max(0, a.D - n)
    alone = a.D - min(a.D, sharing * max(0, n - a.D)) + sharing * max(0, a.D - n) if own else 0
    of_head = min(q * a.D + sink, seen + own)  # constants that its own bias and sink move freely
    of_group = min(k * a.D + (q or k) * min(alone, sharing), sharing * (seen + own - of_head))
    free = sharing * (q * a.D + sink - of_head) + k * a.D + alone - of_group
    return {
        "query-key maps": loss + unmet,
        "offset key shift": 0 if shift_is_seen(a) else a.G * a.D,
        "offset exchange": a.G * free,
    }


def _widths(a):
    """Columns of the key and the query maps of one head, biases counted where the scores are affine
    in them.
    """
    return a.input_rank + ("k" in a.bias), a.input_rank + ("q" in a.bias)


def _plain_query_key(a):
    """Lemma 4.1, Prop. 4.8 and section 4.9; Fact 4.7 for the key bias, which is idle only where
    nothing turns it.
    """
    keys, queries = _widths(a)
    sharing = a.H // a.G
    terms = {"query-key maps": 0}
    for (still, size, is_complex), alike in isotype_kinds(a).items():
        idle = still and key_bias_is_idle(a)
        if idle:
            terms["key bias"] = a.G * size
        loss = pair_rank_loss(size, keys - idle, sharing * queries)
        terms["query-key maps"] += alike * a.G * loss * (2 if is_complex else 1)
        wide = still and size > a.input_rank
        if a.score == "sink" and set("qk") <= set(a.bias) and wide:
            terms["sink against constant scores"] = a.H
    return terms


def _query_key_normalised(a):
    """Scores see the products, and the lengths of queries and keys up to scale: per head, or over
    the whole layer.
    """
    whole = a.qk_norm == "layer_gain"
    parts = isotype_kinds(a).items()
    exchanges = {"head": 0, "head_gain": 1, "layer_gain": a.G}[a.qk_norm]
    exchange = exchanges * sum(alike * size for (_, size, _), alike in parts)
    lone_keys, lone_queries = (a.G * a.D == 1, a.H * a.D == 1) if whole else (a.D == 1, a.D == 1)
    if lone_keys:
        return _signs_only(a, exchange, lone_queries)
    terms = {
        "query scales": 1 if whole else a.H,
        "key scales": 1 if whole else a.G,
        "gain exchange": exchange,
    }
    narrow = (a.H if whole else 1) * a.D <= a.input_rank
    if narrow and a.qk_norm == "head":
        terms["rotations"] = a.G * sum(
            alike * (size**2 if is_complex else size * (size - 1) // 2)
            for (_, size, is_complex), alike in parts
        )
    if not narrow:
        centred = (a.H + a.G) * a.D if a.inputs == "centred" else 0
        terms["wide heads"] = _seen_kernel_dimension(a) - sum(terms.values()) - centred
    return terms


def _seen_kernel_dimension(a):
    from .normalised import refuse_many_forms, seen_kernel  # the one count that looks at numbers

    refuse_many_forms(a)
    return len(seen_kernel(a, a.random_parameters(1)))


def _signs_only(a, exchange, lone_queries):
    """A single number, normalised, is a sign: the maps that make it have derivative zero almost
    everywhere.
    """
    names = ("W_K", "b_K", "W_Q", "b_Q") if lone_queries else ("W_K", "b_K")
    weights = sum(
        math.prod(a.shapes[n][:-1]) * a.input_rank if n[0] == "W" else math.prod(a.shapes[n])
        for n in names
        if n in a.shapes
    )
    terms = {"signs only": weights, "gain exchange": exchange}
    if (
        not lone_queries
    ):  # one key of width one for several query heads, whose lengths then make one form
        columns = _widths(a)[1]
        forms = columns * (columns + 1) // 2 - (a.inputs == "centred" and "q" in a.bias)
        terms |= {"query scales": 1, "wide heads": max(0, a.H - forms)}
    return terms
