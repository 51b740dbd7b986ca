"""The model: nanoGPT's names and shapes, its own generator, its forward pass, and one head at a time."""

import math

import pytest
import torch
import torch.nn.functional as F
from small_gpts import CONFIG, randomised, tokens

from attnid.network.gpt import GPT, GPTConfig, head_weights, set_head_weights

# ---- names, shapes, sizes


def stock_shapes(V, T, L, E, bias):
    """Names and shapes of a stock nanoGPT checkpoint, written out."""
    shapes = {
        "transformer.wte.weight": (V, E),
        "transformer.wpe.weight": (T, E),
        "lm_head.weight": (V, E),
    }
    layer_norms, maps = ["transformer.ln_f"], {}
    for n in range(L):
        h = f"transformer.h.{n}."
        layer_norms += [h + "ln_1", h + "ln_2"]
        maps |= {
            h + "attn.c_attn": (3 * E, E),
            h + "attn.c_proj": (E, E),
            h + "mlp.c_fc": (4 * E, E),
            h + "mlp.c_proj": (E, 4 * E),
        }
    shapes |= {name + ".weight": (E,) for name in layer_norms} | {
        name + ".weight": shape for name, shape in maps.items()
    }
    if bias:
        shapes |= {name + ".bias": (E,) for name in layer_norms} | {
            name + ".bias": shape[:1] for name, shape in maps.items()
        }
    return shapes


@pytest.mark.parametrize("bias", [False, True])
def test_names_and_shapes_are_nanogpts(bias):
    model = GPT(GPTConfig(11, 6, 2, 3, 12, bias=bias))
    assert {name: tuple(p.shape) for name, p in model.state_dict().items()} == stock_shapes(
        11, 6, 2, 12, bias
    )
    assert model.lm_head.weight is model.transformer.wte.weight


def test_parameter_count_is_nanogpts():
    # nanoGPT reports 10.65M for its Shakespeare model, position embeddings not counted
    model = GPT(GPTConfig(65, 256, 6, 6, 384))
    assert sum(p.numel() for p in model.parameters()) - 256 * 384 == 10_646_784


# ---- initialisation


def test_initialisation_is_seeded_and_leaves_the_global_generator():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    one, same, other = GPT(CONFIG, 1), GPT(CONFIG, 1), GPT(CONFIG, 2)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(3)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters()))
    assert not torch.equal(one.transformer.wte.weight, other.transformer.wte.weight)


def test_initialisation_has_nanogpts_spread():
    model = GPT(GPTConfig(500, 100, 3, 4, 128, bias=True))
    for name, p in model.named_parameters():
        if p.dim() == 2:
            expected = 0.02 / math.sqrt(6) if name.endswith("c_proj.weight") else 0.02
            assert p.std().item() == pytest.approx(expected, rel=0.04), name
            assert abs(p.mean().item()) < 5 * expected / math.sqrt(p.numel()), name
        else:
            assert torch.equal(
                p, torch.zeros_like(p) if name.endswith("bias") else torch.ones_like(p)
            ), name


# ---- forward pass


def written_out(model, idx):
    """Logits from the state dict by the formulas alone: no module, no fused map, no fused attention."""
    W, E, H = model.state_dict(), model.config.n_embd, model.config.n_head
    bias = lambda name: W.get(name + ".bias", 0.0)
    linear = lambda x, name: x @ W[name + ".weight"].T + bias(name)

    def norm(x, name):
        x = x - x.mean(-1, keepdim=True)
        return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * W[name + ".weight"] + bias(
            name
        )

    x = W["transformer.wte.weight"][idx] + W["transformer.wpe.weight"][: idx.shape[1]]
    for n in range(model.config.n_layer):
        name = f"transformer.h.{n}."
        qkv, heads = linear(norm(x, name + "ln_1"), name + "attn.c_attn"), []
        for h in range(H):
            q, k, v = (qkv[..., i * E + h * E // H : i * E + (h + 1) * E // H] for i in range(3))
            s = q @ k.transpose(1, 2) / math.sqrt(E // H)
            later = torch.arange(s.shape[-1])[None, :] > torch.arange(s.shape[-1])[:, None]
            heads.append(s.masked_fill(later, -torch.inf).softmax(-1) @ v)
        x = x + linear(torch.cat(heads, -1), name + "attn.c_proj")
        u = linear(norm(x, name + "ln_2"), name + "mlp.c_fc")
        x = x + linear(0.5 * u * (1 + torch.erf(u / math.sqrt(2))), name + "mlp.c_proj")
    return norm(x, "transformer.ln_f") @ W["lm_head.weight"].T


@pytest.mark.parametrize("bias", [False, True])
def test_forward_is_the_formulas(bias):
    config = GPTConfig(11, 6, 2, 3, 12, bias=bias)
    model, idx = randomised(config), tokens(config)
    logits, loss = model(idx)
    assert logits.shape == (2, 6, 11) and loss is None
    torch.testing.assert_close(logits, written_out(model, idx), rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(model(idx[:, :4])[0], logits[:, :4])  # causal


def test_loss_is_the_mean_cross_entropy_of_the_targets_that_count():
    model, idx, targets = randomised(), tokens(), tokens(seed=1)
    targets[0, :3] = -1
    logits, loss = model(idx, targets)
    expected = (
        -logits.log_softmax(-1)
        .gather(-1, targets.clamp(min=0)[..., None])[..., 0][targets >= 0]
        .mean()
    )
    torch.testing.assert_close(loss, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_forward_and_gradients_repeat_bit_for_bit(dtype):
    def run():
        model = randomised(dtype=dtype)
        logits, loss = model(tokens(), tokens(seed=1))
        loss.backward()
        return [logits, loss, *(p.grad for p in model.parameters())]

    assert all(a.dtype == dtype and torch.equal(a, b) for a, b in zip(run(), run()))


def test_dropout_acts_in_training_only():
    model = GPT(GPTConfig(11, 6, 2, 3, 12, dropout=0.5))
    assert not torch.equal(model(tokens())[0], model(tokens())[0])
    model.eval()
    assert torch.equal(model(tokens())[0], model(tokens())[0])


def test_wrong_tokens_are_named():
    model = GPT(CONFIG)
    with pytest.raises(ValueError, match=r"idx=\(1, 7\).*block_size=6"):
        model(torch.zeros(1, 7, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"idx=\(6,\)"):
        model(torch.zeros(6, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"targets=\(2, 5\)"):
        model(tokens(), tokens()[:, :5])


# ---- heads


def test_head_weights_are_copies_that_go_back():
    model, other = randomised(), randomised(seed=1)
    shapes = dict(
        W_Q=(3, 4, 12),
        W_K=(3, 4, 12),
        W_V=(3, 4, 12),
        W_O=(3, 12, 4),
        b_Q=(3, 4),
        b_K=(3, 4),
        b_V=(3, 4),
        b_O=(12,),
    )
    weights = head_weights(model, 1)
    assert {name: tuple(w.shape) for name, w in weights.items()} == shapes
    before = {name: p.clone() for name, p in model.state_dict().items()}
    for w in weights.values():
        w.zero_()
    assert all(torch.equal(p, before[name]) for name, p in model.state_dict().items())
    set_head_weights(other, 1, **head_weights(model, 1))
    for name, p in other.state_dict().items():
        assert torch.equal(p, before[name]) == name.startswith("transformer.h.1.attn."), name


def test_heads_without_biases_and_in_float64():
    model = GPT(GPTConfig(11, 6, 1, 2, 8))
    weights = head_weights(model, 0, dtype=torch.float64)
    assert sorted(weights) == ["W_K", "W_O", "W_Q", "W_V"] and all(
        w.dtype == torch.float64 for w in weights.values()
    )
    assert not any(w.requires_grad for w in weights.values())


def test_heads_make_the_layer():
    model = randomised()
    w, layer = head_weights(model, 0), model.transformer.h[0].attn
    x = torch.randn(2, 6, 12, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    q, k, v = (torch.einsum("ble,hde->bhld", x, w["W_" + c]) + w["b_" + c][:, None] for c in "QKV")
    z = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(layer(x), torch.einsum("bhlc,hec->ble", z, w["W_O"]) + w["b_O"])


def test_each_head_moves_by_its_own_S():
    model, idx = randomised(), tokens()
    before = model(idx)[0].detach()
    w = head_weights(model, 1)
    S = torch.eye(4, dtype=torch.float64) + 0.3 * torch.randn(
        3, 4, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64
    )
    S_inv_T = torch.linalg.inv(S).transpose(1, 2)
    moved = dict(
        W_Q=S @ w["W_Q"], W_K=S_inv_T @ w["W_K"], b_K=torch.einsum("hij,hj->hi", S_inv_T, w["b_K"])
    )
    set_head_weights(model, 1, **moved)
    assert (model(idx)[0] - before).abs().max() > 1e-3  # the queries' biases have not moved yet
    set_head_weights(model, 1, b_Q=torch.einsum("hij,hj->hi", S, w["b_Q"]))
    torch.testing.assert_close(model(idx)[0], before, rtol=1e-9, atol=1e-9)


def test_wrong_heads_are_named_and_nothing_is_copied():
    model = randomised(GPTConfig(11, 6, 2, 3, 12))
    before = {name: p.clone() for name, p in model.state_dict().items()}
    good = torch.zeros(3, 4, 12)
    for bad, words in [
        (dict(b_Q=torch.zeros(3, 4)), "b_Q"),
        (dict(W_K=torch.zeros(12, 12)), r"W_K=\(12, 12\)"),
        (dict(W=good), "weights='W'"),
        (dict(W_K=None), "W_K=None"),
        (dict(W_K=good + 0j), "W_K="),
        (dict(W_K=good * math.nan), "W_K=nan"),
        (dict(W_V=good - math.inf), "W_V=-inf"),
    ]:
        with pytest.raises(ValueError, match=words):
            set_head_weights(model, 0, W_Q=good, **bad)
    assert all(torch.equal(p, before[name]) for name, p in model.state_dict().items())
    for layer in (-1, 2, 0.0):
        with pytest.raises(ValueError, match=f"layer={layer}"):
            head_weights(model, layer)


# ---- layers that turn beside layers that do not


def test_each_layer_turns_as_it_is_told():
    sizes = dict(vocab_size=11, block_size=6, n_layer=2, n_head=2, n_embd=8)
    models = {
        positions: GPT(GPTConfig(**sizes, positions=positions), seed=1)
        for positions in ("rotary", "none", ("rotary", "none"), ("none", "rotary"))
    }
    x = torch.arange(6)[None]

    def logits(silent):
        for model in models.values():
            with torch.no_grad():
                for name, p in model.named_parameters():
                    p.normal_(generator=torch.Generator().manual_seed(len(name)))
                model.transformer.h[silent].attn.c_proj.weight.zero_()
        return {positions: model(x)[0] for positions, model in models.items()}

    first_seen = logits(silent=1)
    assert torch.equal(first_seen["rotary"], first_seen["rotary", "none"])
    assert torch.equal(first_seen["none"], first_seen["none", "rotary"])
    second_seen = logits(silent=0)
    assert torch.equal(second_seen["rotary"], second_seen["none", "rotary"])
    assert torch.equal(second_seen["none"], second_seen["rotary", "none"])
    assert not torch.allclose(first_seen["rotary"], first_seen["none"])
