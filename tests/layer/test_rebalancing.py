"""Rebalancing: the same function from balanced factors, the nearest ones, with biases and with rotary positions."""

import copy
import math

import pytest
import torch
from descriptions import FREQUENCIES
from hypothesis import given, settings
from hypothesis import strategies as st

from attnid import Attention, head_metrics, rebalance
from attnid.layer.attention import project, random_inputs, rotate, scores
from attnid.layer.rotation import isotypes

SHAPES = [(2, 8), (3, 4), (4, 4), (5, 3), (6, 2), (1, 1), (1, 5), (4, 1)]  # D below, at and above E


def normal(seed, *shape, scale=1.0):
    return scale * torch.randn(
        shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )


def away(new, old):
    """Largest distance of a head, relative to the old one's length."""
    length = torch.linalg.matrix_norm(old)
    return float((torch.linalg.matrix_norm(new - old) / length.clamp_min(1e-300)).max())


def beta(W_Q, W_K):
    return float(head_metrics(W_Q, W_K, W_Q, W_K)["beta"].max())


def distance(new, old):
    return math.sqrt(sum(float((n - o).square().sum()) for n, o in zip(new, old)))


def rotation(seed, D):
    return torch.linalg.qr(normal(seed, D, D)).Q


def cayley(A):
    """A rotation, small where the skew part of A (D, D) is small; it commutes with what that part commutes with."""
    one = torch.eye(len(A), dtype=torch.float64)
    return torch.linalg.solve(one - (A - A.T), one + (A - A.T))


# ---- the product, the balance, the nearest


@pytest.mark.parametrize("D, E", [*SHAPES, (64, 384)])
def test_same_product_balanced_and_at_rest(D, E):
    W_Q, W_K = normal(0, 3, D, E), 5 * normal(1, 3, D, E)
    new = rebalance(W_Q, W_K)
    assert len(new) == 2 and all(n.shape == W_Q.shape and n.dtype == torch.float64 for n in new)
    assert away(new[1].mT @ new[0], W_K.mT @ W_Q) < 1e-12
    assert beta(W_Q, W_K) > 1 and beta(*new) < 1e-10
    again = rebalance(*new)
    assert max(away(again[0], new[0]), away(again[1], new[1])) < 1e-10


@settings(max_examples=40)
@given(
    st.integers(1, 6),
    st.integers(1, 8),
    st.lists(st.integers(1, 3), min_size=1, max_size=2),
    st.integers(0, 1000),
)
def test_heads_of_any_shape_and_batch(D, E, batch, seed):
    W_Q, W_K = normal(seed, 2, *batch, D, E)
    new = rebalance(W_Q, W_K)
    assert new[0].shape == W_Q.shape and new.condition.shape == tuple(batch)
    assert away(new[1].mT @ new[0], W_K.mT @ W_Q) < 1e-12 and beta(*new) < 1e-10
    heads = zip(*(t.reshape(-1, D, E) for t in (W_Q, W_K, *new)))
    for q, k, new_q, new_k in heads:
        alone = rebalance(q[None], k[None])
        assert max(away(alone[0][0], new_q), away(alone[1][0], new_k)) < 1e-10


@pytest.mark.parametrize("D, E", [(1, 4), (2, 6), (3, 3), (4, 2)])
def test_no_other_balanced_pair_is_nearer(D, E):
    # every balanced pair with this product is (Z W_Q, Z W_K) with Z orthogonal
    W_Q, W_K = normal(0, D, E), 2 * normal(1, D, E)
    new = tuple(W[0] for W in rebalance(W_Q[None], W_K[None]))
    least = distance(new, (W_Q, W_K))
    for seed in range(200):
        for Z in (rotation(seed, D), cayley(normal(seed, D, D, scale=10.0 ** -(seed % 5)))):
            assert distance((Z @ new[0], Z @ new[1]), (W_Q, W_K)) >= least - 1e-12
    assert distance((-new[0], -new[1]), (W_Q, W_K)) > least + 1e-3


def test_balanced_factors_stay_where_they_are():
    U, V, s = (
        rotation(0, 5)[:3],
        rotation(1, 5)[:3],
        torch.tensor([3.0, 2.0, 2.0], dtype=torch.float64).sqrt(),
    )
    Z = rotation(2, 3)
    W_Q, W_K = Z @ (s[:, None] * U), Z @ (s[:, None] * V)
    new = rebalance(W_Q, W_K)
    assert max(away(new[0], W_Q), away(new[1], W_K)) < 1e-14 and abs(new.condition - 1) < 1e-14


def test_a_scale_is_undone():
    W = normal(0, 3, 7)
    U = torch.linalg.qr(W.T).Q.T
    new = rebalance(4 * U, U)
    assert max(away(new[0], 2 * U), away(new[1], 2 * U)) < 1e-14 and abs(new.condition - 1) < 1e-13


# ---- biases


@pytest.mark.parametrize(
    "rotary",
    [
        (),
        (1.0, 0.37),
        (1.0, 1.0),
        (1.0, -1.0),
        (0.0, math.pi),
        (1.0, 1.0 + 2 * math.pi),
        (math.pi,),
        (0.5,),
    ],
)
@pytest.mark.parametrize("E", [4, 10])
def test_scores_with_biases_stay(rotary, E):
    attention = Attention(E, 3, head_dim=4, bias="qk", rotary=rotary, causal=False)
    p = attention.random_parameters(0)
    p["W_K"] = 3 * p["W_K"]
    names = ("W_Q", "W_K", "b_Q", "b_K")
    new = rebalance(*(p[name] for name in names), rotary=rotary)
    x = random_inputs(attention, 4, 9)
    of = lambda parameters: scores(attention, parameters, *project(attention, parameters, x)[:2])
    before, moved = of(p), dict(zip(names, new))
    assert len(new) == 4 and [n.shape for n in new] == [p[name].shape for name in names]
    assert (of(p | moved) - before).abs().max() < 1e-11 * before.abs().max()
    # weights moved alone change the scores, and a bias alone left behind too
    assert (of(p | {"W_Q": new[0], "W_K": new[1]}) - before).abs().max() > 1e-2
    assert (of(p | moved | {"b_K": p["b_K"]}) - before).abs().max() > 1e-2


def test_biases_do_not_move_the_weights():
    W_Q, W_K, b_Q, b_K = normal(0, 2, 3, 7), normal(1, 2, 3, 7), normal(2, 2, 3), normal(3, 2, 3)
    assert all(
        torch.equal(a, b) for a, b in zip(rebalance(W_Q, W_K), rebalance(W_Q, W_K, b_Q, b_K))
    )


# ---- rotary positions


def blocks(rotary, D):
    return isotypes(Attention(8, 1, head_dim=D, rotary=rotary))


@pytest.mark.parametrize("D, E", [(6, 10), (6, 6), (6, 2)])
@pytest.mark.parametrize(
    "rotary",
    [
        (1.0, 0.37, 2.2),
        (1.0, 0.37),
        (1.0, 1.0, 0.37),
        (1.0, -1.0, 0.37),
        (0.0, math.pi, 1.0),
        (0.0, 0.0, math.pi),
        (math.pi, -math.pi, 3 * math.pi),
        (1.0, 1.0 + 2 * math.pi, -1.0),
    ],
)
def test_the_rotary_form_keeps_scores_at_every_position(rotary, D, E):
    attention = Attention(E, 2, head_dim=D, rotary=rotary, causal=False)
    p = attention.random_parameters(0)
    p["W_K"] = 3 * p["W_K"]
    W_Q, W_K = rebalance(p["W_Q"], p["W_K"], rotary=rotary)
    x = random_inputs(attention, 3, 12)
    of = lambda parameters: scores(attention, parameters, *project(attention, parameters, x)[:2])
    before = of(p)
    assert (of(p | {"W_Q": W_Q, "W_K": W_K}) - before).abs().max() < 1e-12 * before.abs().max()
    again = rebalance(W_Q, W_K, rotary=rotary)
    assert max(away(again[0], W_Q), away(again[1], W_K)) < 1e-10
    if any(
        block.size < D for block in blocks(rotary, D)
    ):  # the plain form does not commute with the rotations
        plain = dict(zip(("W_Q", "W_K"), rebalance(p["W_Q"], p["W_K"])))
        assert (of(p | plain) - before).abs().max() > 1e-2 * before.abs().max()


def test_each_plane_is_balanced():
    W_Q, W_K = normal(0, 5, 6, 10), 3 * normal(1, 5, 6, 10)
    planes = lambda W: W.square().sum(-1).unflatten(-1, (3, 2)).sum(-1)  # (heads, D / 2)
    new = rebalance(W_Q, W_K, rotary=(1.0, 0.37, 2.2))
    assert (planes(W_Q) - planes(W_K)).abs().max() > 1 and (
        planes(new[0]) - planes(new[1])
    ).abs().max() < 1e-10
    assert beta(*new) > 0.1  # and nothing more than the planes
    S = new[0] @ torch.linalg.pinv(W_Q)
    apart = (
        S[:, :2, 2:],
        S[:, 0, 0] - S[:, 1, 1],
        S[:, 0, 1] + S[:, 1, 0],
    )  # zero where S is a complex number in each plane
    assert all(numbers.abs().max() < 1e-12 for numbers in apart)


def test_planes_that_turn_alike_are_balanced_together():
    number = lambda W, sign: torch.complex(
        W[0::2], torch.tensor([[1.0], [sign]], dtype=torch.float64) * W[1::2]
    )
    W_Q, W_K = normal(0, 4, 9), 3 * normal(1, 4, 9)
    for sign in (1.0, -1.0):
        q, k = (number(W, sign) for W in rebalance(W_Q, W_K, rotary=(0.7, 0.7 * sign)))
        assert (q @ q.mH - k @ k.mH).abs().max() < 1e-10
        other, wrong = (number(W, -sign) for W in rebalance(W_Q, W_K, rotary=(0.7, 0.7 * sign)))
        assert (other @ other.mH - wrong @ wrong.mH).abs().max() > 1e-2


@pytest.mark.parametrize("rotary", [(1.0, 0.37), (1.0, -1.0), (0.0, math.pi)])
def test_no_other_pair_of_the_rotary_form_is_nearer(rotary):
    D, E = 4, 9
    W_Q, W_K = normal(0, D, E), 2 * normal(1, D, E)
    new = rebalance(W_Q, W_K, rotary=rotary)
    least = distance(new, (W_Q, W_K))
    turn = turns(Attention(E, 1, head_dim=D, rotary=rotary), 5)
    for seed in range(100):
        Z = commuting_rotation(turn, seed, scale=10.0 ** -(seed % 4))
        assert (Z @ turn - turn @ Z).abs().max() < 1e-12 and (
            Z @ Z.T - torch.eye(D)
        ).abs().max() < 1e-12
        assert distance((Z @ new[0], Z @ new[1]), (W_Q, W_K)) >= least - 1e-12


def turns(attention, positions):
    """How a head is turned at each position: (positions, D, D)."""
    axes = torch.eye(attention.D, dtype=torch.float64)[:, None].expand(-1, positions, -1)
    return rotate(attention, axes).permute(1, 2, 0).contiguous()


def commuting_rotation(turn, seed, scale):
    """A random rotation that commutes with all of turn, from a matrix projected onto those that do."""
    D = turn.shape[-1]
    one = torch.eye(D, dtype=torch.float64)
    commutators = torch.cat([torch.kron(R, one) - torch.kron(one, R.T.contiguous()) for R in turn])
    _, s, Vh = torch.linalg.svd(commutators)
    commutant = Vh[s < 1e-9]
    return cayley((commutant.T @ (commutant @ normal(seed, D * D, scale=scale))).view(D, D))


@settings(max_examples=40)
@given(
    st.lists(st.sampled_from(FREQUENCIES), max_size=3),
    st.integers(0, 2),
    st.integers(1, 9),
    st.integers(0, 1000),
)
def test_rotary_heads_of_any_kind(rotary, still, E, seed):
    D = max(1, 2 * len(rotary) + still)
    attention = Attention(E, 1, head_dim=D, rotary=tuple(rotary), causal=False)
    W_Q, W_K = normal(seed, 2, 1, D, E)
    new = rebalance(W_Q, W_K, rotary=tuple(rotary))
    x = random_inputs(attention, 2, 6, seed)
    of = lambda W_Q, W_K: scores(
        attention, {}, *project(attention, {"W_Q": W_Q, "W_K": W_K, "W_V": W_Q}, x)[:2]
    )
    size = sum(float(w.square().sum()) for w in (W_Q, W_K)) * float(x.square().sum(-1).max())
    assert (of(*new) - of(W_Q, W_K)).abs().max() < 1e-12 * size
    for block in blocks(tuple(rotary), D):
        part = [t[0, list(block.coordinates)] for t in new]
        assert abs(float(part[0].square().sum() - part[1].square().sum())) < 1e-10


# ---- the condition number


def test_condition_of_the_step():
    W_Q, W_K = normal(0, 4, 3, 7), 2 * normal(1, 4, 3, 7)
    new = rebalance(W_Q, W_K)
    S = new[0] @ torch.linalg.pinv(W_Q)
    assert new.condition.shape == (4,) and new.condition.dtype == torch.float64
    assert torch.allclose(new.condition, torch.linalg.cond(S), rtol=1e-10, atol=0)
    assert torch.allclose(torch.linalg.inv(S).mT @ W_K, new[1], rtol=0, atol=1e-11)


def test_condition_of_a_rotary_step_is_that_of_the_whole():
    Q = torch.linalg.qr(normal(0, 8, 4)).Q.T
    W_Q, W_K = (
        torch.tensor([[4.0, 4.0, 1.0, 1.0]]).T * Q,
        torch.tensor([[1.0, 1.0, 4.0, 4.0]]).T * Q,
    )
    new = rebalance(W_Q, W_K, rotary=(1.0, 0.37))  # the planes shrink and grow by 2 each
    assert (
        new.condition == pytest.approx(4)
        and torch.allclose(new[0], 2 * Q)
        and torch.allclose(new[1], 2 * Q)
    )
    assert rebalance(normal(1, 4, 9), normal(2, 4, 9), rotary=(1.0,)).condition.shape == ()


def test_a_copy_keeps_the_condition():
    new = copy.deepcopy(rebalance(normal(0, 3, 7), normal(1, 3, 7)))
    assert isinstance(new, tuple) and new.condition >= 1


# ---- singular heads


@pytest.mark.parametrize("rank_Q, rank_K", [(2, 2), (2, 4), (4, 1), (0, 4), (0, 0)])
def test_singular_heads(rank_Q, rank_K):
    W_Q = normal(0, 4, rank_Q) @ normal(1, rank_Q, 7)
    W_K = normal(2, 4, rank_K) @ normal(3, rank_K, 7)
    new = rebalance(W_Q, W_K)
    assert (
        away(new[1].T @ new[0], W_K.T @ W_Q) < 1e-12
        and beta(*new) < 1e-10
        and new.condition == math.inf
    )
    assert int(torch.linalg.matrix_rank(new[0])) == min(rank_Q, rank_K)
    again = rebalance(*new)
    assert distance(again, new) < 1e-10
    with pytest.raises(ValueError, match="^W_K\\^T W_Q='rank below D'"):
        rebalance(W_Q, W_K, torch.zeros(4), torch.zeros(4))


def test_a_singular_head_leaves_the_others_alone():
    W_Q, W_K = normal(0, 2, 3, 7), normal(1, 2, 3, 7)
    W_Q[1, 0] = W_Q[1, 1]
    new, alone = rebalance(W_Q, W_K), rebalance(W_Q[0], W_K[0])
    assert distance((new[0][0], new[1][0]), alone) < 1e-12
    assert abs(new.condition[0] - alone.condition) < 1e-9 and new.condition[1] == math.inf


def test_a_dead_plane_is_a_singular_head():
    W_Q, W_K = normal(0, 4, 7), normal(1, 4, 7)
    W_Q[:2] = 0
    new = rebalance(W_Q, W_K, rotary=(1.0, 0.37))
    assert new.condition == math.inf and not new[0][:2].any() and not new[1][:2].any()


def test_wide_heads_leave_the_step_open():
    W_Q, W_K = normal(0, 5, 3), normal(1, 5, 3)
    assert rebalance(W_Q, W_K).condition == math.inf
    with pytest.raises(ValueError, match="biases cannot be carried"):
        rebalance(W_Q, W_K, torch.zeros(5), torch.zeros(5))


# ---- number formats, and what comes in


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_number_format_stays(dtype):
    given = [
        t.to(dtype)
        for t in (normal(0, 2, 3, 7), normal(1, 2, 3, 7), normal(2, 2, 3), normal(3, 2, 3))
    ]
    new, exact = rebalance(*given), rebalance(*(t.double() for t in given))
    assert all(n.dtype == dtype and torch.equal(n, e.to(dtype)) for n, e in zip(new, exact))
    assert torch.equal(new.condition, exact.condition)


def test_what_comes_in_is_left_as_it_is():
    W_Q, W_K, b_Q, b_K = (
        normal(0, 3, 7).requires_grad_(),
        normal(1, 3, 7),
        normal(2, 3),
        normal(3, 3),
    )
    before = [t.detach().clone() for t in (W_Q, W_K, b_Q, b_K)]
    new = rebalance(W_Q, W_K, b_Q, b_K)
    assert all(torch.equal(t, b) for t, b in zip((W_Q, W_K, b_Q, b_K), before)) and not any(
        t.requires_grad for t in new
    )
    fused = (
        torch.stack((before[0], before[1])).mT.contiguous().mT
    )  # a view in another memory order, and one number for many
    again = rebalance(*fused, b_Q[0].detach().expand(3), b_K)
    assert distance(again[:2], new[:2]) < 1e-12 and again[2].shape == (3,)


def test_no_heads():
    new = rebalance(torch.zeros(0, 3, 5), torch.zeros(0, 3, 5))
    assert new[0].shape == (0, 3, 5) and new.condition.shape == (0,)


GOOD = dict(
    W_Q=normal(0, 2, 3, 5), W_K=normal(1, 2, 3, 5), b_Q=normal(2, 2, 3), b_K=normal(3, 2, 3)
)


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize(
    "value",
    [
        [[1.0]],
        torch.ones(2, 3, 5, dtype=torch.complex128),
        torch.ones(2, 3, 5, dtype=torch.int64),
        torch.ones(5),
        torch.ones(2, 3, 0),
    ],
    ids=str,
)
def test_bad_input_is_named(name, value):
    with pytest.raises(ValueError, match=f"^{name}="):
        rebalance(**GOOD | {name: value})


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_numbers_that_are_none_are_named(name, value):
    with pytest.raises(ValueError, match=f"^{name}={value}"):
        rebalance(**GOOD | {name: torch.full_like(GOOD[name], value)})


def test_one_bias_alone_is_named():
    for missing in ("b_Q", "b_K"):
        with pytest.raises(ValueError, match=f"^{missing}=None: give both biases or neither"):
            rebalance(**GOOD | {missing: None})


@pytest.mark.parametrize("rotary", [(1.0, 2.0), ("x",), 1.0, (math.nan,)])
def test_bad_rotary_is_named(rotary):
    with pytest.raises(ValueError, match="^rotary="):
        rebalance(**GOOD, rotary=rotary)


@pytest.mark.parametrize(
    "powers", [(1000, 1000), (664, 664), (-664, -664), (664, -664), (-301, 664)]
)
def test_the_same_factors_at_any_scale(powers):
    W_Q, W_K = normal(0, 2, 3, 7), 3 * normal(1, 2, 3, 7)
    up, down = (2.0**power for power in powers)
    near, far = rebalance(W_Q, W_K), rebalance(W_Q * up, W_K * down)
    unit = 2.0 ** (sum(powers) / 2)
    assert beta(*(W / unit for W in far)) < 1e-10
    product = (far[1] / unit).mT @ (far[0] / unit)
    assert away(product, W_K.mT @ W_Q) < 1e-12 and torch.isfinite(far.condition).all()
    if up == down:
        assert max(away(f / unit, n) for f, n in zip(far, near)) < 1e-12


@pytest.mark.parametrize("shape", [(64, 64), (2, 2)])
def test_a_whole_linear_weight_is_no_head(shape):
    W_Q, W_K = normal(0, *shape), normal(1, *shape)
    with pytest.raises(ValueError, match=r"W_Q=.*give W.view\(heads, D, E\)"):
        rebalance(W_Q, W_K)
    assert beta(*rebalance(W_Q[None], W_K[None])) < 1e-10  # one head as wide as its inputs


@pytest.mark.parametrize("given", [None, torch.zeros(2, 3, 5).to(torch.float8_e4m3fn)], ids=str)
def test_what_is_no_weight_to_calculate_with_is_named(given):
    with pytest.raises(ValueError, match="^W_Q="):
        rebalance(given, given)
