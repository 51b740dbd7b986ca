import dataclasses
import itertools
import math

import pytest
import torch
import torch.nn.functional as F

from attnid import Attention, forward
from attnid.layer.attention import attend, normalise, project, random_inputs, rotate, scores


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_forward_agrees_with_pytorch(causal, kv_heads):
    a = Attention(8, 4, kv_heads, bias="qkvo", causal=causal)
    p, x = a.random_parameters(0), random_inputs(a, 3, 6)
    q, k, v = project(a, p, x)
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
    assert torch.allclose(attend(a, p, q, k, v), expected, rtol=0, atol=1e-12)
    W, b = p["W_O"].permute(1, 0, 2).flatten(1), p["b_O"]
    assert torch.allclose(
        forward(a, p, x), F.linear(expected.transpose(1, 2).flatten(2), W, b), rtol=0, atol=1e-12
    )


def test_scores_of_rotated_vectors_depend_on_the_offset_alone():
    a = Attention(8, 2, rotary=(0.7,))
    u, w = torch.randn(2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    turned_u, turned_w = rotate(a, u.expand(9, 4)), rotate(a, w.expand(9, 4))
    products = turned_u @ turned_w.T
    for offset in range(-4, 5):
        diagonal = products.diagonal(offset)
        assert torch.allclose(diagonal, diagonal[:1].expand_as(diagonal), rtol=0, atol=1e-12)
    assert torch.equal(turned_u[:, 2:], u[2:].expand(9, 2))


@pytest.mark.parametrize(
    "norm, over", [("head", (-1,)), ("head_gain", (-1,)), ("layer_gain", (-3, -1))]
)
def test_norms_have_root_mean_square_one(norm, over):
    vectors = torch.randn(
        5, 2, 7, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    normal = normalise(Attention(8, 2, qk_norm=norm), vectors)
    assert torch.allclose(
        normal.square().mean(over), torch.ones(1, dtype=torch.float64), rtol=0, atol=1e-12
    )


def test_a_sink_takes_weight_and_a_deep_one_takes_none():
    a = Attention(4, 1, score="sink")
    p, x = a.random_parameters(0), random_inputs(a, 1, 5)
    plain = forward(dataclasses.replace(a, score="softmax"), p, x)
    assert not torch.allclose(forward(a, p, x), plain, atol=1e-3)
    assert torch.allclose(
        forward(a, p | {"sink": torch.tensor([-800.0], dtype=torch.float64)}, x),
        plain,
        rtol=0,
        atol=1e-12,
    )


@pytest.mark.parametrize("gate", ["head", "channel"])
def test_a_gate_multiplies_each_head_by_the_sigmoid_of_its_token(gate):
    a = Attention(6, 2, bias="v", gate=gate)
    p, x = a.random_parameters(0), random_inputs(a, 2, 5)
    z = attend(a, p, *project(a, p, x))
    rows = p["W_G"].reshape(2, -1, 6)  # (H, 1 or C, E)
    open_by = torch.stack([(x @ row.T).sigmoid() for row in rows], 1)
    expected = torch.einsum("bhlc,hec->ble", open_by * z, p["W_O"])
    assert torch.allclose(forward(a, p, x), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("relative", ["bias", "content"])
@pytest.mark.parametrize("causal", [True, False])
def test_learned_offsets_enter_the_scores_one_by_one(relative, causal):
    a = Attention(6, 2, kv_heads=1, head_dim=3, relative=relative, span=3, causal=causal)
    p, x = a.random_parameters(0), random_inputs(a, 1, 6)
    q, k, _ = project(a, p, x)
    for h, l, m in itertools.product(range(2), range(6), range(6)):
        at = min(max(l - m + (0 if causal else 1), 0), 2)
        expected = q[0, h, l] @ k[0, 0, m]
        if relative == "content":
            expected = expected + q[0, h, l] @ p["R_K"][0, at] + k[0, 0, m] @ p["R_Q"][h, at]
        expected = expected / math.sqrt(3) + (p["R_B"][h, at] if relative == "bias" else 0)
        assert abs(scores(a, p, q, k)[0, h, l, m] - expected) < 1e-12


def test_a_causal_layer_does_not_look_ahead():
    a = Attention(4, 2, bias="qkvo", score="alibi")
    p, x = a.random_parameters(0), random_inputs(a, 1, 6)
    changed = x.clone()
    changed[:, 4:] += 1
    assert torch.equal(forward(a, p, x)[:, :4], forward(a, p, changed)[:, :4])


def test_centred_inputs_are_what_a_layer_norm_puts_out():
    a = Attention(6, 2, inputs="centred")
    x = random_inputs(a, 2, 3)
    assert torch.allclose(F.layer_norm(x, (6,), eps=0.0), x, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_far_positions_differ_in_every_number_format(dtype):
    a, vectors = Attention(8, 1, rotary=(1.0, 0.01)), torch.ones(1, 258, 8, dtype=dtype)
    turned, exact = rotate(a, vectors), rotate(a, vectors.double())
    assert turned.dtype == dtype and not torch.equal(turned[0, 256], turned[0, 257])
    assert (turned - exact).abs().max() < 4 * torch.finfo(dtype).eps + 1e-5 * (dtype.itemsize < 8)
