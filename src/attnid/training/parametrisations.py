"""GPTs whose attention computes the same functions from other parameters: none that is idle, or
more that are.

Each starts as the very function that GPT(config, seed) is, so that runs with the same seed can be
compared in pairs.
"""

import torch
from torch import nn
from torch.nn.utils.parametrize import register_parametrization

from ..layer.attention import Attention
from ..layer.canonical import reduce_layer
from ..network.gpt import GPT, head_weights, set_head_weights


class Held(nn.Module):
    """A tensor some of whose entries, where the mask is true, are held at the values that they have
    now.
    """

    def __init__(self, mask, values):
        super().__init__()
        self.register_buffer("mask", mask)
        self.register_buffer("values", values.detach().clone())

    def forward(self, tensor):
        return torch.where(self.mask, self.values, tensor)


class Factored(nn.Module):
    """Fused maps (3E, E) whose queries and keys are (I + B) W, head by head, with a trained B (2,
    H, D, D) that starts at zero.
    """

    def __init__(self, heads, head_dim):
        super().__init__()
        self.B = nn.Parameter(torch.zeros(2, heads, head_dim, head_dim))

    def forward(self, weight):
        rows = self.B[..., 0].numel()
        both = weight[:rows].view(*self.B.shape[:3], -1)  # (2, H, D, E)
        return torch.cat(((both + self.B @ both).flatten(0, 2), weight[rows:]))


def canonical_gpt(config, seed=0):
    """A GPT whose attention layers are in canonical form and stay so: identity blocks, up to a
    factor, in keys and values, and their biases 0. All other numbers of a layer are trained, and
    all of these are identified.

    >>> from attnid import GPTConfig
    >>> config = GPTConfig(65, 16, n_layer=1, n_head=2, n_embd=8, bias=True)
    >>> tokens = torch.zeros(2, 16, dtype=torch.int64)
    >>> torch.allclose(canonical_gpt(config)(tokens)[0], GPT(config)(tokens)[0], atol=1e-5)
    True
    """
    model = GPT(config, seed)
    layer = Attention(config.n_embd, config.n_head, bias="qkvo" if config.bias else "")
    for number, block in enumerate(model.transformer.h):
        weights = reduce_layer(layer, head_weights(model, number), "identity").parameters
        held = [torch.zeros_like(weights["W_Q"], dtype=torch.bool)] + [
            (weights[name] == 0) | (weights[name] == 1) for name in ("W_K", "W_V")
        ]
        _equal_lengths(weights, "W_K", ("W_Q", "b_Q"))
        _equal_lengths(weights, "W_V", ("W_O",))
        set_head_weights(model, number, **weights)
        maps = block.attn.c_attn
        _hold(maps, "weight", torch.cat(held).flatten(0, 1))
        if config.bias:
            _hold(maps, "bias", torch.arange(len(maps.bias)) >= config.n_embd)
    return model


def factored_gpt(config, seed=0):
    """A GPT whose query and key maps are products of two trained matrices, D x D and D x E: 2 D^2
    more idle numbers for each head.

    >>> from attnid import GPTConfig
    >>> config = GPTConfig(65, 16, n_layer=1, n_head=2, n_embd=8, bias=True)
    >>> sum(p.numel() for p in factored_gpt(config).parameters()) - config.parameters
    64
    """
    model = GPT(config, seed)
    for block in model.transformer.h:
        register_parametrization(
            block.attn.c_attn, "weight", Factored(config.n_head, config.head_dim)
        )
    return model


def _equal_lengths(weights, shared, reading):
    # scale both factors of a product to one Frobenius norm, as an optimizer with one rate for both
    # expects
    square = lambda name: weights[name].square().sum((1, 2), keepdim=True)
    scale = (square(reading[0]) / square(shared)) ** 0.25  # (H, 1, 1)
    weights[shared] = weights[shared] * scale
    for name in (name for name in reading if name in weights):
        weights[name] = weights[name] / (scale if weights[name].ndim == 3 else scale[..., 0])


def _hold(module, name, mask):
    register_parametrization(module, name, Held(mask, getattr(module, name)))
