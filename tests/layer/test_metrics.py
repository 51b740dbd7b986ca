"""The head metrics, against a least-squares solve on the explicit null space and against their plain formulas."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnid import head_metrics
from attnid.bench import plain_metrics
from attnid.layer.gauge import act_query_key, product_kernel
from attnid.layer.metrics import metrics_of_products, step_products, with_bias

NAMES = ("rho", "beta", "tau", "mu", "drift")
SHAPES = [(2, 8), (3, 4), (4, 4), (5, 3), (6, 2), (1, 1), (1, 5), (4, 1)]  # D below, at and above E


def normal(seed, *shape, scale=1.0):
    return scale * torch.randn(
        shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )


def step(seed, *shape, length=0.1):
    """Weights W_Q, W_K and a step away from them: the four arguments."""
    W_Q, W_K, dQ, dK = normal(seed, 4, *shape)
    return W_Q, W_K, W_Q + length * dQ, W_K + length * dK


def null_space(W_Q, W_K):
    """Columns that span {(S W_Q, -S^T W_K)}, one for each unit matrix S: (2 D E, D^2)."""
    D = len(W_Q)
    units = torch.eye(D * D, dtype=torch.float64).view(-1, D, D)
    return torch.cat(((units @ W_Q).flatten(1), (-units.mT @ W_K).flatten(1)), 1).T


def share_in(basis, W_Q, W_K, W_Q_next, W_K_next):
    """The share of the squared step in the span of the basis, by an SVD-based least-squares solve."""
    direction = torch.cat(((W_Q_next - W_Q).flatten(), (W_K_next - W_K).flatten()))
    solution = torch.linalg.lstsq(basis, direction[:, None], driver="gelsd", rcond=1e-12).solution
    return float((basis @ solution).square().sum() / direction.square().sum())


def low_rank(seed, D, E, rank):
    return normal(seed, D, rank) @ normal(seed + 1, rank, E)


# ---- rho


@pytest.mark.parametrize("D, E", SHAPES)
def test_rho_is_the_least_squares_share(D, E):
    for seed in range(5):
        weights = step(seed, D, E)
        assert (
            abs(float(head_metrics(*weights)["rho"]) - share_in(null_space(*weights[:2]), *weights))
            < 1e-10
        )


@pytest.mark.parametrize("D, E", SHAPES)
def test_the_null_space_is_all_that_keeps_the_product(D, E):
    weights = step(7, D, E)
    dK, dQ = product_kernel(weights[1], weights[0])
    columns, _ = torch.linalg.qr(torch.cat((dQ.flatten(1), dK.flatten(1)), 1).T)
    direction = torch.cat(
        ((weights[2] - weights[0]).flatten(), (weights[3] - weights[1]).flatten())
    )
    expected = (columns.T @ direction).square().sum() / direction.square().sum()
    assert abs(head_metrics(*weights)["rho"] - expected) < 1e-10


@settings(max_examples=40)
@given(
    st.integers(1, 6),
    st.integers(1, 8),
    st.lists(st.integers(1, 3), max_size=2),
    st.integers(0, 1000),
)
def test_heads_of_any_shape_and_batch(D, E, batch, seed):
    weights = step(seed, *batch, D, E)
    result = head_metrics(*weights)
    assert list(result) == list(NAMES)
    assert all(v.shape == tuple(batch) and v.dtype == torch.float64 for v in result.values())
    for index, head in enumerate(zip(*(w.reshape(-1, D, E) for w in weights))):
        assert (
            abs(float(result["rho"].flatten()[index]) - share_in(null_space(*head[:2]), *head))
            < 1e-10
        )
        assert all(
            torch.allclose(
                result[n].flatten()[index], head_metrics(*head)[n], rtol=1e-12, atol=1e-13
            )
            for n in NAMES
        )


@pytest.mark.parametrize("rank_Q, rank_K", [(2, 2), (2, 4), (1, 3), (0, 2), (0, 4)])
def test_rank_deficient_heads(rank_Q, rank_K):
    D, E = 4, 7
    W_Q, W_K = low_rank(0, D, E, rank_Q), low_rank(2, D, E, rank_K)
    weights = (W_Q, W_K, W_Q + normal(4, D, E), W_K + normal(5, D, E))
    result = head_metrics(*weights)
    assert abs(float(result["rho"]) - share_in(null_space(W_Q, W_K), *weights)) < 1e-10
    assert (result["mu"] < 1e-13) == (rank_Q < D and rank_K < D)


@pytest.mark.parametrize("D, E", [(2, 8), (4, 4), (5, 3), (64, 384)])
def test_a_gradient_step_is_outside(D, E):
    W_Q, W_K, G = normal(0, 3, D, E), normal(1, 3, D, E), normal(2, 3, E, E)
    for rate in (1.0, 1e-2):
        result = head_metrics(W_Q, W_K, W_Q - rate * W_K @ G, W_K - rate * W_Q @ G.mT)
        assert result["rho"].max() < 1e-20


def test_the_gradient_of_a_loss_is_outside():
    W_Q, W_K, x = (
        normal(0, 4, 3, 6).requires_grad_(),
        normal(1, 4, 3, 6).requires_grad_(),
        normal(2, 5, 6),
    )
    loss = (torch.softmax((x @ W_Q.mT) @ (x @ W_K.mT).mT, -1) @ x).pow(3).sum()
    g_Q, g_K = torch.autograd.grad(loss, (W_Q, W_K))
    assert head_metrics(W_Q, W_K, W_Q - 0.1 * g_Q, W_K - 0.1 * g_K)["rho"].max() < 1e-20


@pytest.mark.parametrize("D, E", [(2, 8), (4, 4), (5, 3), (64, 384)])
def test_a_null_step_is_inside(D, E):
    W_Q, W_K, S = normal(0, 3, D, E), normal(1, 3, D, E), normal(2, 3, D, D, scale=0.1)
    rho = head_metrics(W_Q, W_K, W_Q + S @ W_Q, W_K - S.mT @ W_K)["rho"]
    assert (rho - 1).abs().max() < 1e-12 and rho.max() <= 1


def test_a_null_step_that_the_conserved_matrix_does_not_see():
    W_Q, W_K = normal(0, 3, 5), normal(1, 3, 5)
    (p, U), (k, V) = torch.linalg.eigh(W_Q @ W_Q.T), torch.linalg.eigh(W_K @ W_K.T)
    skew = normal(2, 3, 3)
    S = V @ ((V.T @ (skew - skew.T) @ U) / (k[:, None] + p)) @ U.T  # S P + K S is skew
    for length in (1e-3, 1e-4):
        result = head_metrics(W_Q, W_K, W_Q + length * S @ W_Q, W_K - length * S.T @ W_K)
        change = length**2 * torch.linalg.matrix_norm(S @ W_Q @ W_Q.T @ S.T - S.T @ W_K @ W_K.T @ S)
        assert abs(result["rho"] - 1) < 1e-10 and abs(result["drift"] / change - 1) < 1e-8


@pytest.mark.parametrize("D, E", [(4, 16), (3, 3), (6, 4)])
def test_isotropic_steps_average_the_share_of_dimensions(D, E):
    n = 20_000
    W_Q, W_K = normal(0, D, E).expand(n, D, E), normal(1, D, E).expand(n, D, E)
    rho = head_metrics(W_Q, W_K, W_Q + normal(2, n, D, E), W_K + normal(3, n, D, E))["rho"]
    dimensions = D * D if D <= E else E * (2 * D - E)
    assert abs(rho.mean() - dimensions / (2 * D * E)) < 4 * rho.std() / math.sqrt(n)
    assert rho.std() < 0.2


def test_no_step_has_no_share():
    W_Q, W_K = normal(0, 2, 3, 5), normal(1, 2, 3, 5)
    result = head_metrics(W_Q, W_K, torch.stack((W_Q[0], W_Q[1] + 1)), W_K)
    assert result["rho"][0] == 0 and result["drift"][0] == 0 and result["rho"][1] > 0


def test_heads_of_zeros():
    zero = torch.zeros(3, 5)
    assert {n: float(v) for n, v in head_metrics(zero, zero, zero, zero).items()} == dict.fromkeys(
        NAMES, 0.0
    )
    moved = head_metrics(zero, zero, zero + 2, zero)
    assert moved["rho"] == 0 and moved["drift"] == pytest.approx(3 * 4 * 5)


@settings(max_examples=40)
@given(st.integers(-30, 30))
def test_rho_has_no_unit(power):
    weights = step(3, 2, 3, 6)
    scaled = head_metrics(*(w * 2.0**power for w in weights))
    plain = head_metrics(*weights)
    assert torch.allclose(scaled["rho"], plain["rho"], rtol=1e-12, atol=0)
    assert all(
        torch.allclose(scaled[n], plain[n] * 4.0**power, rtol=1e-10, atol=0)
        for n in ("beta", "tau", "mu", "drift")
    )


# ---- the others


def test_plain_formulas():
    weights = step(1, 2, 3, 4, 9)
    result = head_metrics(*weights)
    P, K, P_next, K_next = (weights[i] @ weights[i].mT for i in range(4))
    assert torch.allclose(result["beta"], (P - K).square().sum((-2, -1)).sqrt(), rtol=1e-13, atol=0)
    assert torch.allclose(
        result["tau"],
        torch.einsum("...ii->...", P) - torch.einsum("...ii->...", K),
        rtol=1e-11,
        atol=1e-12,
    )
    smallest = lambda W: torch.linalg.svdvals(W)[..., -1].square()
    assert torch.allclose(
        result["mu"], smallest(weights[0]) + smallest(weights[1]), rtol=1e-11, atol=0
    )
    assert torch.allclose(
        result["drift"],
        ((P_next - K_next) - (P - K)).square().sum((-2, -1)).sqrt(),
        rtol=1e-11,
        atol=0,
    )


def test_drift_of_a_gradient_step_is_second_order():
    W_Q, W_K, G = normal(0, 3, 8), normal(1, 3, 8), normal(2, 8, 8)
    for rate in (
        2.0**-4,
        2.0**-14,
    ):  # the next weights are rounded, which counts by rounding / rate^2
        result = head_metrics(W_Q, W_K, W_Q - rate * W_K @ G, W_K - rate * W_Q @ G.T)
        exact = rate**2 * torch.linalg.matrix_norm(W_K @ G @ G.T @ W_K.T - W_Q @ G.T @ G @ W_Q.T)
        assert abs(result["drift"] / exact - 1) < 1e-16 / rate**2 + 1e-13


def test_drift_keeps_the_digits_that_a_plain_difference_loses():
    rate = 2.0**-20
    W_Q, W_K, G = normal(0, 2, 3), normal(1, 2, 3), normal(2, 3, 3)
    weights = (W_Q, W_K, W_Q - rate * W_K @ G, W_K - rate * W_Q @ G.T)
    exact = [
        [[Fraction(x) for x in row] for row in W.tolist()] for W in weights
    ]  # every float is a fraction
    gram = lambda W, i, j: sum(a * b for a, b in zip(W[i], W[j]))
    change = lambda i, j: (
        gram(exact[2], i, j) - gram(exact[3], i, j) - gram(exact[0], i, j) + gram(exact[1], i, j)
    )
    drift = math.sqrt(sum(change(i, j) ** 2 for i in range(2) for j in range(2)))
    plain = torch.linalg.matrix_norm(
        weights[2] @ weights[2].T - weights[3] @ weights[3].T - W_Q @ W_Q.T + W_K @ W_K.T
    )
    assert abs(head_metrics(*weights)["drift"] / drift - 1) < 1e-8 < abs(plain / drift - 1)


def test_the_plain_loop_agrees():
    weights = step(5, 2, 3, 4, 9)
    assert torch.allclose(
        torch.stack(list(head_metrics(*weights).values())),
        plain_metrics(*weights),
        rtol=1e-11,
        atol=0,
    )


# ---- biases, number formats, views


def test_biases_are_one_more_column():
    W_Q, W_K, b_Q, b_K = normal(0, 2, 3, 6), normal(1, 2, 3, 6), normal(2, 2, 3), normal(3, 2, 3)
    A_Q, A_K = with_bias(W_Q, b_Q), with_bias(W_K, b_K)
    assert (
        A_Q.shape == (2, 3, 7)
        and torch.equal(A_Q[..., -1], b_Q)
        and torch.equal(A_Q[..., :-1], W_Q)
    )
    S = torch.eye(3, dtype=torch.float64) + normal(4, 2, 3, 3, scale=1e-6)
    V_Q, V_K, c_Q, c_K = act_query_key(S, W_Q, W_K, b_Q, b_K)
    joint = head_metrics(A_Q, A_K, with_bias(V_Q, c_Q), with_bias(V_K, c_K))
    alone = head_metrics(A_Q, A_K, with_bias(V_Q, b_Q), with_bias(V_K, b_K))
    assert (joint["rho"] - 1).abs().max() < 1e-5 and alone["rho"].max() < 0.99
    for h in range(2):
        head = (A_Q[h], A_K[h], with_bias(V_Q, b_Q)[h], with_bias(V_K, b_K)[h])
        assert abs(float(alone["rho"][h]) - share_in(null_space(*head[:2]), *head)) < 1e-10


def test_products_of_weights_and_biases_add_up():
    weights, biases = step(0, 2, 3, 6), step(1, 2, 3)
    joint = head_metrics(*map(with_bias, weights, biases))
    columns = [b.unsqueeze(-1) for b in biases]
    queries, keys = (
        step_products(weights[i], weights[i + 2]) + step_products(columns[i], columns[i + 2])
        for i in range(2)
    )
    assert queries.shape == (3, 2, 3, 3)
    assert all(
        torch.allclose(value, joint[n], rtol=1e-11, atol=0)
        for n, value in metrics_of_products(queries, keys).items()
    )


def test_lower_precision_comes_in_and_float64_goes_out():
    weights = [w.float() for w in step(2, 2, 3, 5)]
    result, expected = head_metrics(*weights), head_metrics(*(w.double() for w in weights))
    assert all(
        torch.equal(result[n], expected[n]) and result[n].dtype == torch.float64 for n in NAMES
    )
    assert head_metrics(*(w.bfloat16() for w in weights))["rho"].dtype == torch.float64


def test_views_into_fused_weights_and_parameters():
    before, after = normal(0, 3, 2, 4, 6).requires_grad_(), normal(1, 3, 2, 4, 6)
    result = head_metrics(before[:, 0], before[:, 1], after[:, 0], after[:, 1])
    copies = head_metrics(*(t[:, i].detach().clone() for t in (before, after) for i in range(2)))
    assert all(
        torch.allclose(result[n], copies[n], rtol=1e-12, atol=0) and not result[n].requires_grad
        for n in NAMES
    )


def test_no_heads():
    assert head_metrics(*torch.zeros(4, 0, 3, 5))["rho"].shape == (0,)


# ---- bad input

GOOD = dict(zip(("W_Q", "W_K", "W_Q_next", "W_K_next"), step(0, 2, 3, 5)))


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize(
    "value",
    [
        None,
        [[1.0]],
        torch.ones(2, 3, 5, dtype=torch.complex128),
        torch.ones(2, 3, 5, dtype=torch.int64),
        torch.ones(5),
        torch.ones(2, 3, 0),
        torch.full((2, 3, 5), math.nan),
        torch.full((2, 3, 5), math.inf),
    ],
    ids=str,
)
def test_bad_input_is_named(name, value):
    with pytest.raises(ValueError, match=f"^{name}="):
        head_metrics(**GOOD | {name: value})


@pytest.mark.parametrize("name", list(GOOD)[1:])
def test_another_shape_is_named(name):
    with pytest.raises(ValueError, match=f"^{name}=.*W_Q, \\(2, 3, 5\\)"):
        head_metrics(**GOOD | {name: torch.ones(2, 3, 4)})


def test_numbers_that_cancel_in_a_sum_are_found():
    wrong = GOOD["W_K"].clone()
    wrong[0, 0, 0], wrong[1, 0, 0] = math.inf, -math.inf
    with pytest.raises(ValueError, match="^W_K=inf"):
        head_metrics(**GOOD | {"W_K": wrong})
    huge = torch.full((2, 2), 3e38)  # finite in float32, its float32 sum is not
    assert torch.isfinite(head_metrics(huge, huge, huge, huge)["mu"])


@pytest.mark.parametrize("power", [1020, 664, -664, -1000])
def test_rho_is_right_at_the_edge_of_float64(power):
    weights, unit = step(3, 2, 3, 6), 2.0**power  # 1e307, 1e200, 1e-200, 1e-301
    plain, scaled = head_metrics(*weights), head_metrics(*(W * unit for W in weights))
    assert torch.equal(scaled["rho"], plain["rho"])
    for name in ("beta", "tau", "mu", "drift"):  # beyond float64's reach they are infinite or zero
        assert torch.equal(scaled[name], plain[name] * unit * unit)
