"""The checks behind the ledger: each returns method -> what that method finds, to be compared with what the claim expects.

A count is found four ways: by formula, by measured rank, by generators (null to 1e-10 and independent), and, where the
function is polynomial in the weights, by exact rank. An identity returns its largest relative deviation.
"""

import itertools
import math

import torch

from ..layer import counting, exact, measuring
from ..layer.attention import Attention, forward, random_inputs
from ..layer.canonical import reduce_layer
from ..layer.directions import flatten, generators
from ..layer.gauge import act_query_key, act_value_output, product_kernel
from ..layer.latents import count_latent, forward_latent
from ..layer.rebalancing import rebalance
from ..network import random_parameters

KEY_BIAS_SEEN = (dict(rotary=(1.0, 0.3)), dict(score="softcap"), dict(score="sink"))


def normal(*shape, seed=0):
    """Standard normal float64 numbers from a generator of their own."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def deviation(found, expected):
    """Largest difference of two tensors over the size of the second's largest entry."""
    return float((found - expected).abs().max() / expected.abs().max())


def independent_null_directions(attention, seed=0):
    """How many independent directions of `generators` change no output, by Jacobian-vector products at fresh inputs."""
    p, rows = attention.random_parameters(seed), []
    x = random_inputs(attention, 3, 8, seed + 7, scale=measuring.input_scale(attention, p))
    for directions in generators(attention, p).values():
        change = torch.func.vmap(
            lambda d: torch.func.jvp(lambda q: forward(attention, q, x), (p,), (d,))[1]
        )(directions)
        flat = flatten(attention, directions)
        still = (
            change.flatten(1).norm(dim=1)
            < 1e-10 * flat.norm(dim=1) * forward(attention, p, x).norm()
        )
        rows.append((flat / flat.norm(dim=1, keepdim=True))[still])
    return int(torch.linalg.matrix_rank(torch.cat(rows), rtol=1e-9))


def four_counts(*descriptions):
    """The number of unidentified parameters of each description, by every method that accepts them all."""
    found = {
        "formula": [counting.count(a).unidentified for a in descriptions],
        "measured rank": [measuring.measure(a).nullity for a in descriptions],
        "generators": [independent_null_directions(a) for a in descriptions],
    }
    if all(a.qk_norm is None for a in descriptions):
        found["exact rank"] = [exact.exact_nullity(a) for a in descriptions]
    return found


def formula_alone(*descriptions):
    """The closed form, for layers of a size at which nothing can be measured."""
    return {"formula": [counting.count(a).terms for a in descriptions]}


def invariance():
    """Lemma 4.1 at random weights and a random S."""
    W_Q, W_K, S = normal(3, 8), normal(3, 8, seed=1), normal(3, 3, seed=2)
    moved_Q, moved_K = act_query_key(S, W_Q, W_K)
    return {"identity": deviation(moved_K.mT @ moved_Q, W_K.mT @ W_Q)} | four_counts(
        Attention(8, 2, head_dim=3)
    )


def canonical_form():
    """Lemma 4.2: the product from diag(sigma) times orthonormal rows, the keys from U and the queries from V."""
    M = normal(3, 8, seed=1).mT @ normal(3, 8)
    U, s, Vh = torch.linalg.svd(M)
    key, query = s[:3, None].sqrt() * U[:, :3].mT, s[:3, None].sqrt() * Vh[:3]
    return {"identity": deviation(key.mT @ query, M)}


def canonical_dimension():
    """2DE - D^2 as the dimension of pairs of orthonormal frames and D scales, by the rank of the constraints."""
    D, E = 3, 8
    frame = torch.linalg.qr(normal(E, D)).Q.mT
    constraints = torch.func.jacrev(lambda u: (u @ u.mT)[tuple(torch.triu_indices(D, D))])(
        frame
    ).flatten(1)
    return 2 * (D * E - int(torch.linalg.matrix_rank(constraints))) + D


def null_directions():
    """Lemma 4.3: the construction by SVDs, for a singular S, and the rank of all of them."""
    W_Q, W_K = normal(3, 8), normal(3, 8, seed=1)
    (U_Q, s_Q, V_Q), (U_K, s_K, V_K) = (
        torch.linalg.svd(W, full_matrices=False) for W in (W_Q, W_K)
    )
    step = lambda S: (U_K / s_K @ S @ V_Q, -U_Q / s_Q @ S.mT @ V_K)
    pairs = [step(S) for S in torch.eye(9, dtype=torch.float64).view(9, 3, 3)]
    worst = max(float((W_K.mT @ dQ + dK.mT @ W_Q).norm()) for dQ, dK in pairs)
    rank = torch.linalg.matrix_rank(torch.stack([torch.cat(pair).flatten() for pair in pairs]))
    return {"identity": worst, "generators": [int(rank)]}


def straight_line():
    """Cor. 4.5 and after: (W_Q, -W_K) is null, and along a null line the product moves by exactly t^2 dK^T dQ."""
    W_Q, W_K, T, t = normal(3, 8), normal(3, 8, seed=1), normal(3, 3, seed=2), 0.3
    dQ, dK = T @ W_Q, -T.mT @ W_K
    moved = (W_K + t * dK).mT @ (W_Q + t * dQ) - W_K.mT @ W_Q
    first_order = torch.func.jvp(lambda q, k: k.mT @ q, (W_Q, W_K), (W_Q, -W_K))[1]
    return {
        "identity": max(deviation(moved, -t * t * W_K.mT @ T @ T @ W_Q), float(first_order.norm()))
    }


def value_output():
    """Lemma 4.6, with the sign that the paper's directions lack."""
    W_V, W_O, S = normal(3, 8), normal(8, 3, seed=1), normal(3, 3, seed=2)
    moved_V, moved_O = act_value_output(S, W_V, W_O)
    first_order = torch.func.jvp(lambda v, o: o @ v, (W_V, W_O), (S @ W_V, -W_O @ S))[1]
    return {
        "identity": max(deviation(moved_O @ moved_V, W_O @ W_V), float(first_order.norm()))
    } | four_counts(Attention(8, 2, value_dim=3))


def outputs_after(attention, change, seed=0):
    """Relative change of the outputs when the parameters that `change` returns replace the old ones."""
    p = attention.random_parameters(seed)
    x = random_inputs(attention, 4, 7, 3)
    return deviation(forward(attention, p | change(p), x), forward(attention, p, x))


def moved_together(p, biases=True):
    """Weights moved by one S, with their biases or without."""
    S = normal(*p["b_Q"].shape, p["b_Q"].shape[-1], seed=5)
    moved = dict(
        zip(("W_Q", "W_K", "b_Q", "b_K"), act_query_key(S, p["W_Q"], p["W_K"], p["b_Q"], p["b_K"]))
    )
    return moved if biases else {name: moved[name] for name in ("W_Q", "W_K")}


def biases_move_along():
    """Section 4.6: weights and biases move together, or the outputs change."""
    layer = Attention(8, 2, bias="qkvo")
    assert outputs_after(layer, lambda p: moved_together(p, biases=False)) > 1e-2
    return {"identity": outputs_after(layer, moved_together)} | four_counts(layer)


def idle_key_bias():
    """Fact 4.7, and the three layers in which a key bias matters."""
    layers = [
        Attention(8, 2, bias="qk"),
        *(Attention(8, 2, bias="qk", **seen) for seen in KEY_BIAS_SEEN),
    ]
    assert all(outputs_after(layer, new_key_bias) > 1e-3 for layer in layers[1:])
    return {"identity": outputs_after(layers[0], new_key_bias)} | four_counts(*layers)


def pooled_bias():
    """Section 4.7.2, and the sink under which values and output keep their biases apart."""
    layer, with_sink = Attention(8, 2, bias="vo"), Attention(8, 2, bias="vo", score="sink")
    assert outputs_after(with_sink, pooled_value_bias) > 1e-2
    return {"identity": outputs_after(layer, pooled_value_bias)} | four_counts(layer, with_sink)


def new_key_bias(p):
    return {"b_K": normal(*p["b_K"].shape, seed=6)}


def pooled_value_bias(p):
    """No value bias, and an output bias that holds what it added."""
    added = torch.einsum(
        "hec,hc->e", p["W_O"], p["b_V"].repeat_interleave(len(p["W_O"]) // len(p["b_V"]), 0)
    )
    return {"b_V": torch.zeros_like(p["b_V"]), "b_O": p["b_O"] + added}


def null_basis(W_Q, W_K):
    """Orthonormal rows that span the null directions (S W_Q, -S^T W_K), as vectors of length 2 D E."""
    dK, dQ = product_kernel(W_K, W_Q)
    return torch.linalg.qr(torch.cat((dQ.flatten(1), dK.flatten(1)), 1).mT).Q.mT


def rho(basis, step):
    """The share of a step, as a vector, that lies in the span of orthonormal rows."""
    return float((basis @ step).square().sum() / step.square().sum())


def mean_rho():
    """Section 5.2: over isotropic steps rho averages D/(2E), here by the mean of 2,000 steps; a null step has rho 1."""
    basis = null_basis(normal(3, 12), normal(3, 12, seed=1))
    mean = sum(rho(basis, step) for step in normal(2000, 72, seed=2)) / 2000
    return {"identity": abs(rho(basis, basis[4]) - 1), "mean of 2,000 steps": abs(mean - 3 / 24)}


def unseen_null_step():
    """A null step along which W_Q W_Q^T - W_K W_K^T keeps still to first order, relative to its own length: S P + K S is skew."""
    W_Q, W_K, A = normal(3, 8), normal(3, 8, seed=1), normal(3, 3, seed=2)
    P, K = W_Q @ W_Q.mT, W_K @ W_K.mT
    (p, U_Q), (k, U_K) = torch.linalg.eigh(P), torch.linalg.eigh(K)
    S = U_K @ ((U_K.mT @ (A - A.mT) @ U_Q) / (k[:, None] + p)) @ U_Q.mT
    change = torch.func.jvp(lambda q, w: q @ q.mT - w @ w.mT, (W_Q, W_K), (S @ W_Q, -S.mT @ W_K))[1]
    return {"identity": float(change.norm() / S.norm())}


def drift_of_one_step(decay=0.3):
    """Lemma 5.1 under SGD: a step with decoupled decay turns C = W_Q W_Q^T - W_K W_K^T into exactly
    (1 - eta decay)^2 C + eta^2 (W_K G G^T W_K^T - W_Q G^T G W_Q^T), and without decay C drifts by the second term alone."""
    W_Q, W_K, eta = normal(3, 8), normal(3, 8, seed=1), 0.1
    loss = lambda M: (M.sin() + M.square() / 9).sum()
    G = torch.func.grad(loss)(W_K.mT @ W_Q)
    dQ, dK = torch.func.grad(lambda q, k: loss(k.mT @ q), argnums=(0, 1))(W_Q, W_K)
    conserved = lambda q, k: q @ q.mT - k @ k.mT
    second_order = eta**2 * (W_K @ G @ G.mT @ W_K.mT - W_Q @ G.mT @ G @ W_Q.mT)
    worst = 0.0
    for shrink in (1.0, 1 - eta * decay):
        moved = conserved(shrink * W_Q - eta * dQ, shrink * W_K - eta * dK)
        worst = max(worst, deviation(moved - shrink**2 * conserved(W_Q, W_K), second_order))
    return {"identity": worst}


def least_squares_sign():
    """Section 5.1: a null step is recovered by the least-squares S of the Sylvester equation only with a plus sign."""
    W_Q, W_K, S = normal(3, 8), normal(3, 8, seed=1), normal(3, 3, seed=2)
    dQ, dK = S @ W_Q, -S.mT @ W_K
    residual = lambda sign: float((dQ - S @ W_Q).norm() + (dK + sign * S.mT @ W_K).norm())
    sylvester = S @ W_Q @ W_Q.mT + W_K @ W_K.mT @ S
    assert residual(-1) > 1  # as printed
    return {"identity": max(residual(1), deviation(dQ @ W_Q.mT - W_K @ dK.mT, sylvester))}


def rebalancing():
    """Section 5.2.2: rebalancing keeps the product and makes P = K, and a second time it moves nothing."""
    W_Q, W_K = normal(3, 8), normal(3, 8, seed=1)
    Q, K = rebalance(W_Q, W_K)
    again = torch.cat(rebalance(Q, K))
    return {
        "identity": max(
            deviation(K.mT @ Q, W_K.mT @ W_Q),
            deviation(Q @ Q.mT, K @ K.mT),
            deviation(again, torch.cat((Q, K))),
        )
    }


def conserved_with_biases():
    """Lemma 5.1 for a head with biases: the gradient of a loss of its attention keeps [W b] [W b]^T of queries minus keys, not W W^T."""
    layer = Attention(8, 1, head_dim=3, bias="qk")
    p, x = layer.random_parameters(1), random_inputs(layer, 4, 6, 2)
    g = torch.func.grad(lambda q: forward(layer, q, x).sin().sum())(p)
    change = lambda *names: sum(sign * (g[n] @ p[n].mT + p[n] @ g[n].mT) for n, sign in names)
    p, g = (
        {name: t[0] if t.dim() == 3 else t.mT for name, t in d.items()} for d in (p, g)
    )  # one head; b as a column
    weights, biases = change(("W_Q", 1), ("W_K", -1)), change(("b_Q", 1), ("b_K", -1))
    assert float(weights.norm()) > 1e-3 * float(g["W_Q"].norm())
    return {"identity": deviation(weights, -biases)}


def whole_networks(*configs):
    """Unidentified parameters of whole networks by formula, by measured rank, and by how many independent directions the generators make."""

    def independent(config):
        rows = [
            flatten(config, directions)
            for directions in generators(config, random_parameters(config)).values()
        ]
        return int(
            torch.linalg.matrix_rank(
                torch.cat([part / part.norm(dim=1, keepdim=True) for part in rows]), rtol=1e-9
            )
        )

    return {
        "formula": [counting.count(c).unidentified for c in configs],
        "measured rank": [measuring.measure(c).nullity for c in configs],
        "generators": [independent(c) for c in configs],
    }


def norms_and_latents(normalised, *latent):
    """Unidentified parameters of a layer with normalised queries and keys, and of layers of latent attention, by formula and by measured rank."""

    def nullity(layer):
        p, x = layer.random_parameters(1), normal(6, 9, layer.embed_dim, seed=2)
        J = torch.func.jacrev(lambda q: forward_latent(layer, q, x))(p)
        values = torch.linalg.svdvals(
            torch.cat([part.flatten(3).flatten(0, 2) for part in J.values()], 1)
        )
        return layer.parameters - int((values > 1e-10 * values[0]).sum())

    return {
        "formula": [
            counting.count(normalised).unidentified,
            *(count_latent(layer).unidentified for layer in latent),
        ],
        "measured rank": [measuring.measure(normalised).nullity, *map(nullity, latent)],
    }


def canonical_layers(*descriptions):
    """Unidentified parameters of layers by formula and by measured rank, and how many numbers their canonical form sets."""
    fixed = [reduce_layer(a, a.random_parameters(1), "identity").fixed for a in descriptions]
    return {
        "formula": [counting.count(a).unidentified for a in descriptions],
        "measured rank": [measuring.measure(a).nullity for a in descriptions],
        "numbers set": fixed,
    }


def rounding_of_gauges(sigma=0.1):
    """The expected squared error of a rounded product, over all signs of the errors, and its least value, over balanced factors turned to equal rows."""
    K, Q = normal(2, 2), normal(2, 2, seed=1)
    signs = torch.tensor(
        list(itertools.product((1 - sigma, 1 + sigma), repeat=8)), dtype=torch.float64
    ).view(-1, 2, 2, 2)
    mean = ((signs[:, 0] * K).mT @ (signs[:, 1] * Q) - K.mT @ Q).square().sum((1, 2)).mean()
    error = lambda K, Q: (2 * sigma**2 + sigma**4) * (K.square().sum(1) * Q.square().sum(1)).sum()
    U, s, Vh = torch.linalg.svd(K.mT @ Q)
    turn = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64) / math.sqrt(2)
    best = error(turn @ (U * s.sqrt()).mT, turn @ (s.sqrt()[:, None] * Vh))
    assert float(best) < 0.99 * float(error(K, Q))
    return {
        "identity": max(
            deviation(mean, error(K, Q)),
            deviation(best, (2 * sigma**2 + sigma**4) * s.sum() ** 2 / 2),
        )
    }


def idle_parameters_steer():
    """The velocity of M = W_K^T W_Q under gradient flow, with plain, canonical and factored parameters, by formula and by differentiation."""
    E, D = 8, 3
    C, Q, K = (
        normal(E, E),
        normal(D, E, seed=1),
        torch.cat((torch.eye(D, dtype=torch.float64), normal(D, E - D, seed=2)), 1),
    )
    loss = lambda M: (C * M).sin().sum()

    def velocity(product, *parameters):
        gradient = torch.func.grad(lambda p: loss(product(*p)))(parameters)
        return torch.func.jvp(product, parameters, tuple(-g for g in gradient))[1]

    G, P, R, zero = (
        torch.func.grad(loss)(K.mT @ Q),
        K.mT @ K,
        Q.mT @ Q,
        torch.zeros(D, D, dtype=torch.float64),
    )
    outside = (torch.arange(E) >= D).double()[:, None]
    pairs = (
        (velocity(lambda K, Q: K.mT @ Q, K, Q), -(P @ G + G @ R)),
        (
            velocity(lambda X, Q: torch.cat((K[:, :D], X), 1).mT @ Q, K[:, D:], Q),
            -(P @ G + outside * (G @ R)),
        ),
        (
            velocity(lambda A, B, K, Q: (K + A @ K).mT @ (Q + B @ Q), zero, zero, K, Q),
            -(P @ G @ R * 2 + P @ G + G @ R),
        ),
    )
    assert all(float((G * found).sum()) < 0 for found, _ in pairs)
    return {"identity": max(deviation(found, formula) for found, formula in pairs)}
