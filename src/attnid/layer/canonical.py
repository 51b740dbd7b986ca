"""A layer in a canonical form: the same outputs, with all that its outputs cannot tell set by rule.

Each circuit of a head is a product of two factors, one shared by the heads of a group (W_K, W_V)
and one of those that read it (their W_Q, their W_O): (S A, S^{-H} B) for an invertible S. A form is
a rule that picks S.
"""

from dataclasses import dataclass

import scipy.linalg
import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from ..checks import require
from .description import key_bias_is_idle, value_bias_is_pooled
from .rebalancing import SINGULAR, balance, put_rows, rows_of
from .rotation import Isotype, isotypes

FORMS = ("balanced", "identity", "identity-unpivoted")


@dataclass
class Reduction:
    """A layer in canonical form.

    parameters: as `Attention.shapes` has them, float64. fixed: how many numbers the form took away.
    condition: circuit -> (G,), the condition number of each S, 1 where there is none. left: circuit
    -> (G,), true where the weights determine no S, because a factor that the form looks at has rank
    below the head's width, as that of a head wider than the embedding has; it stays as it was.
    """

    parameters: dict
    fixed: int
    condition: dict
    left: dict


def reduce_layer(attention, parameters, form="balanced"):
    """The layer in canonical form: the same outputs at all inputs, up to float64 rounding. Returns
    a Reduction.

    Key biases that no output sees become 0, value biases move into the output bias where there is
    one, and each circuit takes the form: "balanced" (factors with equal Gram matrices, nearest to
    the old), "identity" (of the shared factor, as many columns as its head is wide are those of the
    identity, chosen by QR with column pivoting of an orthonormal basis of its rows, so that equal
    functions get equal weights) or "identity-unpivoted" (the first columns). Rotary heads change
    within what commutes with the rotations; normalised queries and keys stay as they are.

    Of generic weights `fixed` is the count's number of unidentified ones if inputs are free,
    queries and keys not normalised, and no set of coordinates that turn alike (`isotypes`, or a
    whole value head) is larger than the embedding. Then the only term left over is "value bias"
    where there is no output bias to take it in.

    Raises ValueError for another form, and naming the parameter that is missing, unknown, misshapen
    or not finite. Source: Lemmas 4.1, 4.2 and 4.6, Fact 4.7, Prop. 4.8 and section 5.2.2 of the
    paper.

    >>> from attnid import Attention, count
    >>> layer = Attention(8, 2, bias="qkvo")
    >>> reduced = reduce_layer(layer, layer.random_parameters(seed=0), "identity")
    >>> reduced.fixed == count(layer).unidentified, bool(reduced.parameters["b_K"].any())
    (True, False)
    """
    require(form in FORMS, "form", form, f"must be one of {FORMS}")
    p = {name: tensor.clone() for name, tensor in attention.check_parameters(parameters).items()}
    result = Reduction(p, _silence_key_bias(attention, p) + _fold_value_bias(attention, p), {}, {})
    if attention.qk_norm is None:
        _move_query_key(attention, result, form)
    blocks, values, outputs = value_blocks(attention), ("W_V", "b_V"), ("W_O",)
    _move(attention, result, "value-output", blocks, values, outputs, form)
    return result


def balance_layer(attention, parameters):
    """The layer with balanced queries and keys, as `rebalance` makes those of heads without groups;
    values, outputs and idle biases stay as they are. Returns a Reduction.

    Raises ValueError as `reduce_layer`, and for normalised queries and keys. Source: section 5.2.2
    of the paper.

    >>> from attnid import Attention
    >>> layer = Attention(8, 4, kv_heads=2)
    >>> p = balance_layer(layer, layer.random_parameters()).parameters
    >>> queries = p["W_Q"].view(2, 2, 2, 8).transpose(1, 2).flatten(2)  # of each group
    >>> torch.allclose(queries @ queries.mT, p["W_K"] @ p["W_K"].mT)
    True
    """
    why = "normalised queries and keys have nothing to balance"
    require(attention.qk_norm is None, "qk_norm", attention.qk_norm, why)
    p = {name: tensor.clone() for name, tensor in attention.check_parameters(parameters).items()}
    result = Reduction(p, 0, {}, {})
    _move_query_key(attention, result, "balanced")
    return result


def value_blocks(attention):
    """The coordinates of a value head, none of which turns, as `isotypes` gives those of a key
    head.
    """
    return [Isotype(0.0, tuple(range(attention.C)))]


def idle_key_coordinates(attention):
    """The coordinates of a head in which a key bias shifts all scores of a query alike, and so
    changes nothing (Fact 4.7).
    """
    if not key_bias_is_idle(attention):
        return []
    return [c for isotype in isotypes(attention) if isotype.angle == 0 for c in isotype.coordinates]


def value_bias_folds(attention):
    """Whether the value bias can move into the output bias: both are there, and the weights of
    attention sum to one.
    """
    return "o" in attention.bias and value_bias_is_pooled(attention)


def _silence_key_bias(attention, p):
    idle = idle_key_coordinates(attention)
    if idle:
        p["b_K"][:, idle] = 0
    return attention.G * len(idle)


def _fold_value_bias(attention, p):
    if not value_bias_folds(attention):
        return 0
    b_V = p["b_V"].repeat_interleave(attention.H // attention.G, 0)  # (H, C), as the heads read it
    p["b_O"] += torch.einsum("hec,hc->e", p["W_O"], b_V)
    p["b_V"].zero_()
    return b_V[:: attention.H // attention.G].numel()


def factor(parameters, names, groups) -> Float[Tensor, "G d n"]:
    """The weights of each group's heads side by side, then their biases, of those names that are
    there: (G, d, n), W_O transposed.
    """
    views = [_as_rows(name, parameters[name]) for name in names if name in parameters]
    return torch.cat([rearrange(rows, "(g s) d n -> g d (s n)", g=groups) for rows in views], -1)


def _as_rows(name, tensor):
    return tensor.unsqueeze(-1) if name[0] == "b" else tensor.mT if name == "W_O" else tensor


def put_factor(parameters, names, joined):
    """The inverse of `factor`, in place."""
    views = [_as_rows(name, parameters[name]) for name in names if name in parameters]
    widths = [len(rows) // len(joined) * rows.shape[-1] for rows in views]
    for rows, part in zip(views, joined.split(widths, -1)):
        rows.copy_(rearrange(part, "g d (s n) -> (g s) d n", n=rows.shape[-1]))


def _move_query_key(attention, result, form):
    turning, keys, queries = isotypes(attention), ("W_K", "b_K"), ("W_Q", "b_Q")
    _move(attention, result, "query-key", turning, keys, queries, form)


def _move(attention, result, circuit, blocks, shared, reading, form):
    # in place, one circuit of every group, by one S for each block of coordinates that turn alike
    p, sharing = result.parameters, attention.H // attention.G
    A, B = (factor(p, names, attention.G) for names in (shared, reading))
    a, b = (
        attention.E,
        sharing * attention.E,
    )  # columns of weights; what follows are biases, which move along
    moves = [
        SOLVERS[form](rows_of(block, A)[..., :a], rows_of(block, B)[..., :b]) for block in blocks
    ]
    scales = torch.cat(
        [scale for *_, scale in moves], -1
    )  # (G, d), singular values of S, zeros where none is determined
    left = scales.amin(-1) <= SINGULAR * scales.amax(-1)
    for block, (S, dual, columns, _) in zip(blocks, moves):
        moved_A, moved_B = S @ rows_of(block, A), dual @ rows_of(block, B)
        if columns is not None:  # exactly the identity, without the rounding
            moved_A.scatter_(
                -1,
                columns[:, None, :].expand_as(S),
                torch.eye(block.size, dtype=S.dtype).expand_as(S),
            )
        for whole, part in ((A, moved_A), (B, moved_B)):
            put_rows(block, whole, torch.where(left[:, None, None], rows_of(block, whole), part))
    put_factor(p, shared, A)
    put_factor(p, reading, B)
    result.left[circuit] = left
    result.condition[circuit] = (scales.amax(-1) / scales.amin(-1)).masked_fill(left, 1.0)
    result.fixed += int((~left).sum()) * sum(
        block.size**2 * (2 if block.complex else 1) for block in blocks
    )


def _no_move(A):
    G, d, _ = A.shape
    one = torch.eye(d, dtype=A.dtype).expand(G, d, d)
    return one, one, None, torch.zeros(G, d, dtype=torch.float64)


def _balanced(A, B):
    if A.shape[-2] > A.shape[-1]:
        return _no_move(A)
    _, _, S, dual, scales = balance(A, B)
    return S, dual, None, scales


def _identity(A, B, *, pivoted=True):
    G, d, n = A.shape
    if d > n:
        return _no_move(A)
    columns = (
        torch.stack([_pivots(head) for head in A]) if pivoted else torch.arange(d).expand(G, d)
    )
    T = A.gather(-1, columns[:, None, :].expand(G, d, d))  # S^{-1}
    scales = torch.linalg.svdvals(T)
    lost = scales[:, -1:] <= SINGULAR * scales[:, :1]
    T = torch.where(lost[..., None], torch.eye(d, dtype=T.dtype), T)
    return torch.linalg.inv(T), T.mH, columns, scales.masked_fill(lost, 0)


def _pivots(A):
    # the columns that QR with column pivoting takes first, in the order of the matrix; of
    # orthonormal rows, so that they depend on the span alone
    rows = torch.linalg.qr(A.mH).Q.mH.resolve_conj()
    return (
        torch.from_numpy(scipy.linalg.qr(rows.numpy(), mode="r", pivoting=True)[1][: len(A)])
        .long()
        .sort()
        .values
    )


def _unpivoted(A, B):
    return _identity(A, B, pivoted=False)


SOLVERS = dict(zip(FORMS, (_balanced, _identity, _unpivoted)))
