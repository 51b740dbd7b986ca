"""The log-probabilities as a function of parameters: by the formulas alone, and what does not fit named."""

import math

import pytest
import torch
from small_networks import KINDS, NANOGPT, small, tokens

from attnid import GPTConfig, measure
from attnid.network import Network, check_parameters, random_parameters


def test_wrong_parameters_are_named():
    config = small(KINDS[0])
    good = random_parameters(config)
    bias = "transformer.ln_f.bias"
    for bad, words in (
        (good | {"x": good[bias]}, "parameters='x'"),
        (good | {bias: torch.ones(3)}, "ln_f.bias="),
        (None, "parameters='NoneType'"),
        (good | {bias: torch.full((4,), math.nan)}, "ln_f.bias=nan"),
    ):
        with pytest.raises(ValueError, match=words):
            check_parameters(config, bad)
    with pytest.raises(ValueError, match="parameters=.*too many"):
        measure(NANOGPT)


def written_out(config, W, idx):
    """Logits of a model with root-mean-square norms, turning heads and an output map of its own, one head and one pair at a time."""
    norm = lambda x, name: (
        x / (x.square().mean(-1, keepdim=True) + config.eps).sqrt() * W[name + ".weight"]
    )
    D, x = config.head_dim, W["transformer.wte.weight"][idx]
    T = idx.shape[1]
    turn = lambda v, p: torch.cat(
        [
            torch.stack(
                (
                    v[..., i] * math.cos(p * f) - v[..., i + 1] * math.sin(p * f),
                    v[..., i] * math.sin(p * f) + v[..., i + 1] * math.cos(p * f),
                ),
                -1,
            )
            for i, f in ((i, 10_000 ** (-i / D)) for i in range(0, D, 2))
        ],
        -1,
    )
    for n in range(config.n_layer):
        block, heads = f"transformer.h.{n}.", []
        q, k, v = (norm(x, block + "ln_1") @ W[block + "attn.c_attn.weight"].T).chunk(3, -1)
        for h in range(config.n_head):
            part = slice(h * D, (h + 1) * D)
            turned = [torch.stack([turn(a[:, p, part], p) for p in range(T)], 1) for a in (q, k)]
            s = (turned[0] @ turned[1].mT / math.sqrt(D)).masked_fill(
                torch.ones(T, T, dtype=torch.bool).triu(1), -math.inf
            )
            heads.append(s.softmax(-1) @ v[..., part])
        x = x + torch.cat(heads, -1) @ W[block + "attn.c_proj.weight"].T
        hidden = norm(x, block + "ln_2") @ W[block + "mlp.c_fc.weight"].T
        x = (
            x
            + (hidden * (1 + torch.erf(hidden / math.sqrt(2))) / 2)
            @ W[block + "mlp.c_proj.weight"].T
        )
    return norm(x, "transformer.ln_f") @ W["lm_head.weight"].T


def test_logits_by_the_formulas_alone():
    config = GPTConfig(
        7, 5, 2, 2, 8, tied=False, norm="rmsnorm", positions="rotary", mlp_width=5, eps=0.1
    )
    parameters = random_parameters(config)
    expected = written_out(config, parameters, tokens(config)).log_softmax(-1)
    torch.testing.assert_close(
        Network(config)(parameters, tokens(config)), expected, rtol=1e-10, atol=1e-10
    )
