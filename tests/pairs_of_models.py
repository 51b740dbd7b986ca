"""Small GPTs away from their initial weights, and other parameters of the same function."""

import torch

from attnid import GPT, GPTConfig
from attnid.layer.gauge import act_query_key, act_value_output
from attnid.models.stream_gauge import permute_stream
from attnid.network.gpt import head_weights, set_head_weights


def noisy_gpt(seed, **options):
    """A float64 GPT with noise on all its weights, gains and biases too."""
    config = GPTConfig(7, 5, n_layer=2, n_head=2, n_embd=8, **dict(bias=True) | options)
    model, generator = GPT(config, seed).double(), torch.Generator().manual_seed(seed + 10)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=generator, dtype=torch.float64))
    return model


@torch.no_grad()
def moved(model, seed, *, stream=False):
    """The same function: circuits moved, heads and units reordered; with `stream` its coordinates too."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)
    new = permute_stream(
        model,
        torch.randperm(model.config.n_embd, generator=generator)
        if stream
        else torch.arange(model.config.n_embd),
    )
    H, D = model.config.n_head, model.config.head_dim
    for number, block in enumerate(new.transformer.h):
        p = head_weights(new, number)
        q, k, b_q, b_k = act_query_key(draw(H, D, D), *(p[n] for n in ("W_Q", "W_K", "b_Q", "b_K")))
        S = draw(H, D, D)
        v, o = act_value_output(S, p["W_V"], p["W_O"])
        order = torch.randperm(H, generator=generator)
        names = dict(
            W_Q=q,
            W_K=k,
            W_V=v,
            W_O=o,
            b_Q=b_q,
            b_K=b_k + draw(H, D),
            b_V=torch.einsum("hij,hj->hi", S, p["b_V"]),
        )
        set_head_weights(new, number, **{name: t[order] for name, t in names.items()})
        units = torch.randperm(model.config.mlp_width, generator=generator)
        block.mlp.c_fc.weight.copy_(block.mlp.c_fc.weight[units])
        block.mlp.c_fc.bias.copy_(block.mlp.c_fc.bias[units])
        block.mlp.c_proj.weight.copy_(block.mlp.c_proj.weight[:, units])
    return new


@torch.no_grad()
def outputs(model):
    tokens = torch.randint(7, (4, 5), generator=torch.Generator().manual_seed(0))
    return torch.log_softmax(model(tokens)[0], -1)
