"""Attention whose parameters are the products that its outputs see, W_K^T W_Q and W_O W_V: an
optimizer of these knows of no factors, so how the factors began cannot matter.
"""

import torch
import torch.nn.functional as F
from torch import nn

from ..checks import require
from ..network.gpt import GPT, head_weights


class ProductAttention(nn.Module):
    """Causal attention from scores M (H, E, E + 1), W_K^T (W_Q b_Q) of each head, maps N (H, E, E),
    W_O W_V, and the bias b_O (E) that is left where value biases are folded in; None without.
    """

    def __init__(self, config, M, N, b_O):
        super().__init__()
        self.config = config
        self.M, self.N = nn.Parameter(M), nn.Parameter(N)
        self.b_O = None if b_O is None else nn.Parameter(b_O)

    def forward(self, x):
        E, D = self.config.n_embd, self.config.head_dim
        heads = x.unsqueeze(1).expand(-1, self.config.n_head, -1, -1)  # (B, H, T, E)
        queries = heads @ self.M[..., :E].mT + self.M[..., E].unsqueeze(1)
        seen = F.scaled_dot_product_attention(queries, heads, heads, is_causal=True, scale=D**-0.5)
        y = (seen @ self.N.mT).sum(1)  # (B, T, E)
        return y if self.b_O is None else y + self.b_O


def product_gpt(config, seed=0, *, start=GPT):
    """A GPT whose attention layers are ProductAttention, with the products of start(config, seed),
    which may be any model whose layers have head_weights. It starts as the same function, without
    dropout in its attention. Positions must not be rotary: then scores are no function of M.

    >>> from attnid import GPTConfig
    >>> config = GPTConfig(65, 16, n_layer=1, n_head=2, n_embd=8, bias=True)
    >>> tokens = torch.zeros(2, 16, dtype=torch.int64)
    >>> torch.allclose(product_gpt(config)(tokens)[0], GPT(config)(tokens)[0], atol=1e-5)
    True
    """
    why = "has no products that are parameters"
    require(config.positions != "rotary", "positions", config.positions, why)
    require(config.dropout == 0, "dropout", config.dropout, "must be 0")
    model = start(config, seed)
    for number, block in enumerate(model.transformer.h):
        block.attn = ProductAttention(config, *_products(head_weights(model, number)))
    return model


def _products(weights):
    W_Q, W_K, W_V, W_O = (weights[name].double() for name in ("W_Q", "W_K", "W_V", "W_O"))
    b_Q = weights["b_Q"].double() if "b_Q" in weights else W_Q.new_zeros(W_Q.shape[:2])
    M = W_K.mT @ torch.cat((W_Q, b_Q.unsqueeze(-1)), -1)
    b_O = None
    if "b_O" in weights:
        b_V = weights["b_V"].double()
        b_O = weights["b_O"] + torch.einsum("hed,hd->e", W_O, b_V).to(weights["b_O"].dtype)
    to = lambda product: product.to(weights["W_Q"].dtype)
    return to(M), to(W_O @ W_V), b_O


def return_to_rank(model, optimizer):
    """From now on each step of the optimizer is followed by a return of all products to the nearest
    of rank D, so that the model stays one that heads of width D can be.
    """

    def after(*_):
        D = model.config.head_dim
        with torch.no_grad():
            for block in model.transformer.h if D < model.config.n_embd else ():
                for product in (block.attn.M, block.attn.N):
                    U, s, Vh = torch.linalg.svd(product, full_matrices=False)
                    product.copy_((U[..., :D] * s[..., None, :D]) @ Vh[..., :D, :])

    optimizer.register_step_post_hook(after)
