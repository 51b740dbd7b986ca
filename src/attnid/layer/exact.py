"""The exact count: the rank of what a layer's function sees, over a prime field, at a random point.
No tolerance anywhere.

Where queries and keys are not normalised, all that the function sees is polynomial of degree two in
the parameters: the coefficients of the scores, for every offset, up to what the softmax ignores,
those of the values, and those of the gates, which are seen as the linear maps inside their
sigmoids. Over a field with p elements the central difference of a quadratic is its
derivative exactly, a rotation is a point (c, s) with c^2 + s^2 = 1, A random point can only make
the rank too small, with a probability near rank / p.
"""

import math

import flint
import numpy as np

from ..checks import require
from .description import own_offset, shift_is_seen, value_bias_is_pooled
from .rotation import turns

PRIME = 2**31 - 1


def _matmul(a, b):
    """Product of integer matrices modulo PRIME, in halves of 16 bits so that 64 do not overflow."""
    high, low = a >> 16, a & 0xFFFF
    return ((((high @ b) % PRIME) << 16) + low @ b) % PRIME


def rank_mod_prime(matrix):
    """Rank of an integer matrix over the field with PRIME elements."""
    matrix = np.asarray(matrix)
    return flint.nmod_mat(*matrix.shape, matrix.ravel().tolist(), PRIME).rank()


def _rotation(attention, rng):
    """One step of the rotation, (D, D): a random point of the circle for each angle, the same for
    equal ones.
    """
    R, found = np.eye(attention.D, dtype=np.int64), turns(attention.rotary)
    points = {i: (PRIME - 1, 0) for i in found.half}
    for planes in found.turning.values():
        points |= dict.fromkeys(planes, _point(rng))
    for i, (c, s) in points.items():
        s = s if found.signs[i] > 0 else -s
        R[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = [[c, -s % PRIME], [s % PRIME, c]]
    return R


def _power(R, exponent):
    """R to this power; the inverse of a rotation is its transpose."""
    made = np.eye(len(R), dtype=np.int64)
    for _ in range(abs(exponent)):
        made = _matmul(R if exponent > 0 else R.T, made)
    return made


def _point(rng):
    t = int(rng.integers(2, PRIME - 1))
    scale = pow(1 + t * t, -1, PRIME)
    return (1 - t * t) * scale % PRIME, 2 * t * scale % PRIME


def _input_basis(attention):
    """Integer columns (E, n) that span the inputs."""
    identity = np.eye(attention.E, dtype=np.int64)
    return identity if attention.inputs == "free" else identity[:, :-1] - identity[:, -1:]


def _augmented(attention, parameters, letter, basis):
    """Rows of a map over the inputs' basis, then its bias, 0 where there is none."""
    rows = np.stack([_matmul(W, basis % PRIME) for W in parameters["W_" + letter]])
    bias = parameters.get("b_" + letter)
    bias = np.zeros(rows.shape[:-1], dtype=np.int64) if bias is None else bias
    return np.concatenate((rows, bias[..., None]), -1)


def _offsets(attention):
    """Offsets enough for all that scores see, as (power of the rotation, which learned offset); a
    token's own, where that is learned, comes last.
    """
    enough, span = 2 * len(attention.rotary) + 2, attention.span or 1
    before = 0 if attention.causal or attention.relative is None else span // 2
    first = -before - enough if before else 0
    found = [(o, min(max(o + before, 0), span - 1)) for o in range(first, span + enough)]
    return sorted(found, key=lambda pair: pair[1] == own_offset(attention))


def _scores_seen(attention, parameters, R, basis):
    """Coefficients of the scores at each offset in key and query, a 1 beside each. A query's scores
    are known up to one number for all its keys, unless a cap or a sink sees it.
    """
    a, p, capped = attention, parameters, attention.score == "softcap"
    K, Q = _augmented(a, p, "K", basis), _augmented(a, p, "Q", basis)
    for h in range(a.H):
        group, first = h // (a.H // a.G), None
        for offset, at in _offsets(a):
            M = _matmul(K[group].T, _matmul(_power(R, offset), Q[h]))
            if a.relative == "content":
                M[-1] += _matmul(p["R_K"][group, at][None], Q[h])[0]
                M[:, -1] += _matmul(K[group].T, p["R_Q"][h, at][:, None])[:, 0]
            if a.relative == "bias" and not capped:
                M[-1, -1] += p["R_B"][h, at]
            if a.score == "sink":
                M[-1, -1] -= p["sink"][h]
            if not shift_is_seen(a):
                first = M[-1].copy() if first is None else first
                M[-1] -= first
            yield (M + M.T if at == own_offset(a) else M) % PRIME  # key and query are one token
    if a.relative == "bias" and capped:  # outside of the cap
        yield p["R_B"] - p["R_B"][:, :1]


def _values_seen(attention, parameters, basis):
    a = attention
    pools = value_bias_is_pooled(a)
    V = _augmented(a, parameters | {"b_V": None} if pools else parameters, "V", basis)
    pooled = parameters.get("b_O", np.zeros(a.E, dtype=np.int64)).copy()
    for h in range(a.H):
        group, O = h // (a.H // a.G), parameters["W_O"][h]
        if a.gate == "channel":  # gates tell channels apart
            yield O.T[:, :, None] * V[group][:, None] % PRIME
        else:
            yield _matmul(O, V[group])
        if pools:
            pooled = (
                pooled + _matmul(parameters["W_O"][h], parameters["b_V"][group][:, None])[:, 0]
            ) % PRIME
    yield pooled
    if a.gate:
        yield _matmul(parameters["W_G"].reshape(-1, a.E), basis % PRIME)


def exact_nullity(attention, *, seed=0):
    """How many parameters of the layer are unidentified, exactly, with a probability of error below
    1e-5.

    Raises ValueError where queries and keys are normalised, and for soft-capped pairs with a key
    bias: what is seen of those is not polynomial.

    >>> from attnid import Attention
    >>> exact_nullity(Attention(8, 2))
    64
    """
    a = attention
    require(
        a.qk_norm is None,
        "qk_norm",
        a.qk_norm,
        "normalised scores are not polynomial in the weights",
    )
    require(
        not (a.inputs == "centred" and a.E == 2 and a.score == "softcap" and "k" in a.bias),
        "embed_dim",
        a.E,
        "centred pairs take two values only, so that soft-capped scores are not known as "
        "polynomials",
    )
    require(
        not (a.inputs == "centred" and a.E == 2 and a.gate),
        "embed_dim",
        a.E,
        "centred pairs take two values only, too few to tell a gate from what it multiplies",
    )
    rng = np.random.default_rng(seed)
    R, basis = _rotation(a, rng), _input_basis(a)
    point = rng.integers(0, PRIME, a.parameters)

    def seen(vector):
        parts = np.split(vector, np.cumsum([math.prod(shape) for shape in a.shapes.values()])[:-1])
        parameters = {
            name: part.reshape(shape) for (name, shape), part in zip(a.shapes.items(), parts)
        }
        outputs = (*_scores_seen(a, parameters, R, basis), *_values_seen(a, parameters, basis))
        return np.concatenate([output.ravel() for output in outputs])

    steps = np.eye(a.parameters, dtype=np.int64)
    rows = [(seen((point + step) % PRIME) - seen((point - step) % PRIME)) % PRIME for step in steps]
    return a.parameters - rank_mod_prime(rows)
