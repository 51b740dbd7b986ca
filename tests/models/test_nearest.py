"""The gauge nearest to another layer's: recovered where there is one, a minimum where not."""

import gauges
import pytest
import torch
from draws import random

from attnid import Attention
from attnid.layer.attention import forward, random_inputs
from attnid.models.nearest import nearest_gauge, nearest_parameters

LAYERS = {
    "plain": Attention(16, 4, bias="qkvo"),
    "no output bias": Attention(16, 4, bias="qkv"),
    "grouped": Attention(16, 4, 2, 4, 3),
    "rotary": Attention(16, 4, 2, 6, bias="qkvo", rotary=(1.0, 0.3)),
    "turning alike": Attention(16, 2, 2, 8, bias="qkvo", rotary=(0.5, -0.5, 1.0)),
    "sink": Attention(16, 4, bias="qkvo", score="sink"),
    "wide": Attention(4, 2, 2, 6),
}


def squares(p, q):
    return sum((p[n] - q[n]).square().sum() for n in p).item()


@pytest.mark.parametrize("name", LAYERS)
def test_a_random_gauge_is_recovered(name):
    a = LAYERS[name]
    p = a.random_parameters(0)
    for seed in range(5):
        q = gauges.moved(a, p, torch.Generator().manual_seed(seed))
        found = nearest_parameters(a, p, q)
        # of a head wider than its inputs no start is the minimum itself
        assert squares(p, found) < (1e-20 if name != "wide" else 0.5 * squares(p, q))


@pytest.mark.parametrize("name", LAYERS)
def test_another_function_stays_that_and_comes_nearer(name):
    a = LAYERS[name]
    p, q = a.random_parameters(0), a.random_parameters(1)
    found = nearest_parameters(a, p, q)
    x = random_inputs(a, 2, 8)
    torch.testing.assert_close(forward(a, found, x), forward(a, q, x), rtol=1e-10, atol=1e-10)
    assert squares(p, found) < squares(p, q)


@pytest.mark.parametrize("complex_", [False, True])
def test_no_small_step_from_a_minimum_leads_down(complex_):
    draw = lambda seed, n: (
        torch.complex(random(1, 3, n, seed=seed), random(1, 3, n, seed=seed + 100))
        if complex_
        else random(1, 3, n, seed=seed)
    )
    A, B, X, Y = draw(0, 5), draw(1, 7), draw(2, 5), draw(3, 7)
    S, dual = nearest_gauge(A, B, X, Y)
    torch.testing.assert_close(dual, torch.linalg.inv(S).mH)
    cost = lambda S: (
        torch.linalg.matrix_norm(A - S @ X).square()
        + torch.linalg.matrix_norm(B - torch.linalg.inv(S).mH @ Y).square()
    ).item()
    least = cost(S)
    assert least < cost(torch.eye(3, dtype=A.dtype)[None])
    for seed in range(50):
        step = draw(seed + 10, 3) * 1e-4
        assert cost(S + step @ S) >= least - 1e-10 * least


def test_it_is_as_near_as_what_many_starts_find():
    """A general minimiser from random starts finds nothing nearer, of a pair made near the other."""
    import scipy.optimize

    A, B = random(1, 2, 5, seed=0), random(1, 2, 4, seed=1)
    T = random(1, 2, 2, seed=2) + 2 * torch.eye(2)
    X = T @ A + 0.1 * random(1, 2, 5, seed=3)
    Y = torch.linalg.inv(T).mT @ B + 0.1 * random(1, 2, 4, seed=4)

    def cost(numbers):
        S = torch.as_tensor(numbers).view(2, 2)
        inverse = torch.linalg.inv_ex(S)[0].mT
        return ((A[0] - S @ X[0]).square().sum() + (B[0] - inverse @ Y[0]).square().sum()).item()

    S, _ = nearest_gauge(A, B, X, Y)
    starts = [random(4, seed=seed).numpy() for seed in range(20)]
    least = min(scipy.optimize.minimize(cost, start).fun for start in starts)
    assert cost(S[0].flatten()) == pytest.approx(least, rel=1e-6)


def test_normalised_queries_and_keys_stay():
    a = Attention(16, 4, 2, qk_norm="head_gain")
    p, q = a.random_parameters(0), a.random_parameters(1)
    found = nearest_parameters(a, p, q)
    assert all(torch.equal(found[n], q[n]) for n in ("W_Q", "W_K", "gain_Q", "gain_K"))
    assert not torch.equal(found["W_V"], q["W_V"])


def test_a_head_of_rank_below_its_width_is_no_error():
    a = Attention(16, 2)
    p, q = a.random_parameters(0), a.random_parameters(1)
    q["W_K"][0, 0] = 0
    q["W_Q"][1] = 0
    found = nearest_parameters(a, p, q)
    assert all(t.isfinite().all() for t in found.values()) and squares(p, found) < squares(p, q)
    x = random_inputs(a, 2, 8)
    torch.testing.assert_close(forward(a, found, x), forward(a, q, x), rtol=1e-8, atol=1e-8)


def test_value_biases_and_output_bias_share_their_sum_best():
    a = Attention(8, 2, bias="qkvo")
    p = a.random_parameters(0)
    q = p | {"b_V": random(2, 4, seed=5), "b_O": random(8, seed=6)}
    found = nearest_parameters(a, p, q)
    pooled = lambda r: r["b_O"] + torch.einsum("hec,hc->e", r["W_O"], r["b_V"])
    torch.testing.assert_close(pooled(found), pooled(q))
    away = lambda r: squares(*({n: x[n] for n in ("b_V", "b_O")} for x in (p, r)))
    for seed in range(20):
        step = 1e-3 * random(2, 4, seed=seed)
        moved = {
            "b_V": found["b_V"] + step,
            "b_O": found["b_O"] - torch.einsum("hec,hc->e", found["W_O"], step),
        }
        assert away(found | moved) >= away(found) - 1e-12
