"""What the scores see of normalised queries and keys: products, and lengths up to scale.

With a root-mean-square norm a score is x^T M_m y / sqrt(A(x) B(y)): the products M_m = K^T R_m Q of
the (gained) maps, over the quadratic forms A = K^T K and B = Q^T Q of the (ungained) ones. A bias
is one more column of its map. On centred inputs |x|^2 = E, so with a bias a form is known only up
to a multiple of |x|^2 - E.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from ..checks import require
from .attention import input_basis
from .rotation import isotypes

MAX_SIZE = 2000  # query-key parameters whose kernel is looked for numerically
QUERY_KEY = ("W_Q", "W_K", "b_Q", "b_K", "gain_Q", "gain_K")


def augmented(attention, parameters, letter) -> Float[Tensor, "heads D columns"]:
    """Query or key maps (heads, D, columns) over a basis of the inputs, their bias as the last
    column.
    """
    rows = parameters["W_" + letter] @ input_basis(attention)
    bias = parameters.get("b_" + letter)
    return rows if bias is None else torch.cat((rows, bias[..., None]), -1)


def _products(attention, K, Q):
    """K^T R_m Q for every offset m, as its coefficients: one matrix per still or half-turning part,
    two per angle.
    """
    for isotype in isotypes(attention):
        k, q = K[:, list(isotype.coordinates)], Q[:, list(isotype.coordinates)]
        if isotype.complex:  # conjugate(k) q, real and imaginary part
            sign = torch.tensor(isotype.signs, dtype=K.dtype)[:, None]
            k, q = (k[:, 0::2], sign * k[:, 1::2]), (q[:, 0::2], sign * q[:, 1::2])
            yield k[0].mT @ q[0] + k[1].mT @ q[1]
            yield k[0].mT @ q[1] - k[1].mT @ q[0]
        else:
            yield k.mT @ q


def _forms(attention, maps, with_bias):
    """Quadratic forms (forms, columns, columns): one per head, or one for the layer; without their
    idle part on centred inputs.
    """
    forms = maps.mT @ maps
    if attention.qk_norm == "layer_gain":
        forms = forms.sum(0, keepdim=True)
    if with_bias and attention.inputs == "centred":
        sphere = torch.ones(forms.shape[-1], dtype=forms.dtype)
        sphere[-1] = -attention.E
        sphere = torch.diag(sphere / sphere.norm())
        forms = forms - (forms * sphere).sum((-1, -2), keepdim=True) * sphere
    return forms


def seen(attention, parameters) -> Float[Tensor, "numbers"]:
    """All that normalised scores depend on, as one vector that does not feel the scale of queries
    or keys.
    """
    K, Q = augmented(attention, parameters, "K"), augmented(attention, parameters, "Q")
    if attention.qk_norm == "layer_gain" and attention.G * attention.D == 1:
        K = K.detach()  # a lone number, normalised, is a sign
    A, B = _forms(attention, K, "k" in attention.bias), _forms(attention, Q, "q" in attention.bias)
    a, b = A.norm(dim=(-1, -2), keepdim=True), B.norm(dim=(-1, -2), keepdim=True)
    sharing = attention.H // attention.G
    if "gain_Q" in parameters:
        K, Q = parameters["gain_K"][..., None] * K, parameters["gain_Q"][..., None] * Q
    a_of_head = a.repeat_interleave(sharing, 0) if len(a) > 1 else a
    products = [
        m / (a_of_head * b).sqrt() for m in _products(attention, K.repeat_interleave(sharing, 0), Q)
    ]
    return torch.cat([part.flatten() for part in (*products, A / a, B / b)])


def refuse_many_forms(attention):
    """ValueError where the query-key parameters are too many to look through."""
    shapes = attention.shapes
    size = sum(math.prod(shapes[name]) for name in shapes if name in QUERY_KEY)
    require(
        size <= MAX_SIZE,
        "qk_norm",
        attention.qk_norm,
        f"heads wider than their inputs have no closed form with this norm, "
        f"and {size:,} query-key parameters are too many to look through (at most {MAX_SIZE:,})",
    )


def seen_kernel(attention, parameters) -> Float[Tensor, "k P"]:
    """Directions (k, P') of the query-key parameters that change nothing of `seen`.

    Raises ValueError where there are too many to look through, and ArithmeticError where the rank
    is not clear.
    """
    refuse_many_forms(attention)
    names = [n for n in attention.shapes if n in QUERY_KEY]
    jacobian = torch.func.jacrev(lambda p: seen(attention, parameters | p))(
        {n: parameters[n] for n in names}
    )
    J = torch.cat([jacobian[n].flatten(1) for n in names], 1)
    values, Vh = torch.linalg.svd(J, full_matrices=True)[1:]
    rank = int((values > 1e-9 * values[0]).sum())
    if rank < len(values) and values[rank] > 1e-12 * values[0]:
        raise ArithmeticError("what normalised scores see has no clear rank here")
    return Vh[rank:]
