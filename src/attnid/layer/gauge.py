"""The group actions of the two circuits of a head, and the directions that keep a product of two
matrices.

Moving along an action leaves the layer's function as it is; the tangents of the actions are the
generators.
"""

import torch
from jaxtyping import Float, Inexact
from torch import Tensor


def act_query_key(
    S: Float[Tensor, "*#batch D D"],
    W_Q: Float[Tensor, "*#batch D E"],
    W_K: Float[Tensor, "*#batch D E"],
    b_Q: Float[Tensor, "*#batch D"] | None = None,
    b_K: Float[Tensor, "*#batch D"] | None = None,
) -> tuple[Tensor, ...]:
    """Lemma 4.1 and section 4.6: (S W_Q, S^{-T} W_K), and biases likewise. S (..., D, D), W (...,
    D, E), b (..., D).

    Returns the new tensors in the order given, biases only where given.

    >>> from attnid.tensors import normal
    >>> S, W_Q, W_K = normal(2, 2), normal(2, 8, seed=1), normal(2, 8, seed=2)
    >>> moved_Q, moved_K = act_query_key(S, W_Q, W_K)
    >>> torch.allclose(moved_K.mT @ moved_Q, W_K.mT @ W_Q)
    True
    """
    moved_Q = [S @ W_Q] + ([] if b_Q is None else [torch.einsum("...ij,...j->...i", S, b_Q)])
    dual = torch.linalg.inv(S).transpose(-1, -2)
    moved_K = [dual @ W_K] + ([] if b_K is None else [torch.einsum("...ij,...j->...i", dual, b_K)])
    return (moved_Q[0], moved_K[0], *moved_Q[1:], *moved_K[1:])


def act_value_output(
    S: Float[Tensor, "*batch C C"],
    W_V: Float[Tensor, "*batch C E"],
    W_O: Float[Tensor, "*batch E C"],
) -> tuple[Float[Tensor, "*batch C E"], Float[Tensor, "*batch E C"]]:
    """Lemma 4.6: (S W_V, W_O S^{-1}). S (..., C, C), W_V (..., C, E), W_O (..., E, C).

    >>> from attnid.tensors import normal
    >>> S, W_V, W_O = normal(2, 2), normal(2, 8, seed=1), normal(8, 2, seed=2)
    >>> moved_V, moved_O = act_value_output(S, W_V, W_O)
    >>> torch.allclose(moved_O @ moved_V, W_O @ W_V)
    True
    """
    return S @ W_V, torch.linalg.solve(S.transpose(-1, -2), W_O.transpose(-1, -2)).transpose(-1, -2)


def product_kernel(
    K: Inexact[Tensor, "d a"], Q: Inexact[Tensor, "d b"]
) -> tuple[Inexact[Tensor, "k d a"], Inexact[Tensor, "k d b"]]:
    """A basis of the pairs (dK, dQ) that keep K^H Q to first order, for generic K (d, a) and Q (d,
    b), real or complex.

    (-S^H K, S Q) for every S, which is all where d is the smallest size; else also what lies beyond
    the other's columns. Returned over the reals, as tensors (k, d, a) and (k, d, b).
    """
    d, units = len(K), [1.0, 1j] if K.is_complex() else [1.0]
    S = torch.cat([u * torch.eye(d * d, dtype=K.dtype).view(-1, d, d) for u in units])
    dK, dQ = [-S.mH @ K], [S @ Q]
    for beyond, other in ((K, Q), (Q, K)):
        outside = (
            torch.linalg.svd(beyond).U[:, min(beyond.shape) :].T
        )  # (d - rank, d), empty in the usual case
        wide = torch.cat(
            [
                u
                * torch.einsum(
                    "kd,ce->kcde", outside, torch.eye(other.shape[1], dtype=K.dtype)
                ).flatten(0, 1)
                for u in units
            ]
        )
        still = wide.new_zeros(len(wide), *beyond.shape)
        dK.append(wide if other is K else still)
        dQ.append(wide if other is Q else still)
    return _independent(torch.cat(dK), torch.cat(dQ))


def _independent(dK, dQ):
    """Pairs that span the same real space as the given ones, orthonormal where the given ones are
    dependent.
    """
    rows = torch.cat((dK.flatten(1), dQ.flatten(1)), 1)
    flat = torch.view_as_real(rows).flatten(1) if rows.is_complex() else rows
    values, Vh = torch.linalg.svd(flat, full_matrices=False)[1:]
    rank = int((values > 1e-10 * values[0]).sum())
    if rank == len(rows):
        return dK, dQ
    flat = Vh[:rank].contiguous()
    rows = torch.view_as_complex(flat.view(rank, -1, 2)) if rows.is_complex() else flat
    left = dK[0].numel()
    return rows[:, :left].reshape(rank, *dK.shape[1:]), rows[:, left:].reshape(rank, *dQ.shape[1:])


def skew_hermitian(d, dtype) -> Inexact[Tensor, "k d d"]:
    """A basis (k, d, d), over the reals, of the d x d matrices with S^H = -S: the tangents of
    rotations that keep lengths.
    """
    E = torch.eye(d * d, dtype=dtype).view(d, d, d, d)
    i, j = torch.triu_indices(d, d, 1)
    skew = E[i, j] - E[j, i]
    if not dtype.is_complex:
        return skew
    return torch.cat((skew, 1j * (E[i, j] + E[j, i]), 1j * E[range(d), range(d)]))
