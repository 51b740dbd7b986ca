"""A GPT in nanoGPT's shape: same parameter names, same shapes, so that each reads the other's
checkpoints.

Tokens are rows here, x of shape (B, T, E). A weight has the layout of `nn.Linear.weight`, (out,
in).
"""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.nn.utils.parametrize import is_parametrized

from ..checks import require, require_finite
from ..layer.attention import rotate
from .configuration import GPTConfig as GPTConfig


class CausalSelfAttention(nn.Module):
    def __init__(self, config, layer):
        super().__init__()
        # queries, keys and values of all heads, in this order, from one fused weight (3E, E)
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.resid_dropout = nn.Dropout(config.dropout)
        self.config, self.turns = config, config.turns(layer)

    def forward(self, x):
        B, T, E = x.shape
        H, D = self.config.n_head, self.config.head_dim
        q, k, v = self.c_attn(x).view(B, T, 3, H, D).permute(2, 0, 3, 1, 4)  # each (B, H, T, D)
        if self.turns:
            q, k = rotate(self.config, q), rotate(self.config, k)
        # softmax(q k^T / sqrt(D)) v, each token seeing itself and what came before
        dropout = self.config.dropout if self.training else 0.0
        z = F.scaled_dot_product_attention(
            q, k, v, dropout_p=dropout, is_causal=True
        )  # (B, H, T, D)
        z = z.transpose(1, 2).reshape(B, T, E)  # heads side by side
        return self.resid_dropout(self.c_proj(z))


class MLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.c_fc = nn.Linear(config.n_embd, config.mlp_width, bias=config.bias)
        self.c_proj = nn.Linear(config.mlp_width, config.n_embd, bias=config.bias)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x):
        return self.dropout(self.c_proj(F.gelu(self.c_fc(x))))


def make_norm(config):
    if config.norm == "rmsnorm":
        return nn.RMSNorm(config.n_embd, eps=config.eps)
    return nn.LayerNorm(config.n_embd, eps=config.eps, bias=config.bias)


class Block(nn.Module):
    def __init__(self, config, layer):
        super().__init__()
        self.ln_1 = make_norm(config)
        self.attn = CausalSelfAttention(config, layer)
        self.ln_2 = make_norm(config)
        self.mlp = MLP(config)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """The model that a GPTConfig describes, its weights drawn from a generator of its own, seeded
    with `seed`.

    Linear and embedding weights are normal with standard deviation 0.02, those of the two
    projections into the residual stream with 0.02 / sqrt(2 n_layer); biases are 0 and gains 1.
    Where embeddings are tied, lm_head.weight and transformer.wte.weight are one tensor; where
    positions are not learned, there is no transformer.wpe.

    >>> from attnid import GPTConfig
    >>> model = GPT(GPTConfig(65, 16, n_layer=1, n_head=2, n_embd=8), seed=0)
    >>> logits, loss = model(torch.zeros(4, 16, dtype=torch.int64))
    >>> logits.shape
    torch.Size([4, 16, 65])
    """

    def __init__(self, config, seed=0):
        super().__init__()
        self.config = config
        with torch.random.fork_rng(
            devices=[]
        ):  # the modules' own initialisation, overwritten below, draws from the global generator
            self.transformer = nn.ModuleDict(
                dict(
                    wte=nn.Embedding(config.vocab_size, config.n_embd),
                    **(
                        {"wpe": nn.Embedding(config.block_size, config.n_embd)}
                        if config.positions == "learned"
                        else {}
                    ),
                    drop=nn.Dropout(config.dropout),
                    h=nn.ModuleList([Block(config, layer) for layer in range(config.n_layer)]),
                    ln_f=make_norm(config),
                )
            )
            self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        if config.tied:
            self.lm_head.weight = self.transformer.wte.weight
        self._draw(torch.Generator().manual_seed(seed))

    @torch.no_grad()
    def _draw(self, generator):
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                narrow = (
                    math.sqrt(2 * self.config.n_layer) if name.endswith("c_proj.weight") else 1.0
                )
                parameter.normal_(0.0, 0.02 / narrow, generator=generator)
            elif name.endswith("bias"):
                parameter.zero_()

    def forward(self, idx, targets=None):
        """Logits (B, T, vocab_size) at every position of tokens idx (B, T), and the loss, None
        without targets.

        The loss is the mean cross entropy in nats per token; targets (B, T) of -1 do not count.
        ValueError for another shape, or for more tokens than block_size.
        """
        require(idx.dim() == 2, "idx", tuple(idx.shape), "shape must be (B, T)")
        B, T = idx.shape
        require(
            T <= self.config.block_size,
            "idx",
            (B, T),
            f"is longer than block_size={self.config.block_size}",
        )
        if targets is not None:
            require(
                targets.shape == idx.shape,
                "targets",
                tuple(targets.shape),
                f"shape must be {(B, T)}",
            )
        x = self.transformer.wte(idx)  # (B, T, E)
        if self.config.positions == "learned":
            x = x + self.transformer.wpe(torch.arange(T, device=idx.device))
        x = self.transformer.drop(x)
        for block in self.transformer.h:
            x = block(x)
        logits = self.lm_head(self.transformer.ln_f(x))  # (B, T, vocab_size)
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)


# ---- one head at a time


def head_weights(model, layer, *, dtype=None):
    """Copies of layer `layer`'s attention weights, one head at a time, in `dtype` (the model's own
    by default).

    Returns a dict: W_Q, W_K (H, D, E), W_V (H, C, E), W_O (H, E, C), and where the model has biases
    b_Q, b_K (H, D), b_V (H, C), b_O (E). Scores are q k / sqrt(D): the factor is not in the
    weights. ValueError for a layer out of range.

    >>> from attnid import GPTConfig
    >>> model = GPT(GPTConfig(65, 16, n_layer=1, n_head=2, n_embd=8), seed=0)
    >>> head_weights(model, 0)["W_Q"].shape
    torch.Size([2, 4, 8])
    """
    with torch.no_grad():
        return {
            name: part.detach().to(
                dtype or part.dtype, copy=True, memory_format=torch.contiguous_format
            )
            for name, part in _head_views(model, layer).items()
        }


def query_key(
    model, part="weight", *, gradient=False
) -> tuple[Float[Tensor, "layers H D ..."], Float[Tensor, "layers H D ..."]]:
    """Queries' and keys' weights of every head, W_Q and W_K (layers, H, D, E), or with part="bias"
    their biases (layers, H, D).

    Float64 copies on the CPU, of the gradients where `gradient` is set. ValueError for a model
    without biases.
    """
    H, D, E = model.config.n_head, model.config.head_dim, model.config.n_embd
    require(part == "weight" or model.config.bias, "part", part, "this model has no biases")
    tensors = [getattr(block.attn.c_attn, part) for block in model.transformer.h]
    fused = (
        torch.stack([(t.grad if gradient else t).detach()[: 2 * E] for t in tensors]).cpu().double()
    )
    queries, keys = fused.view(len(tensors), 2, H, D, *fused.shape[2:]).unbind(1)
    return queries, keys


def set_head_weights(model, layer, **weights):
    """Copy weights, with names and shapes as head_weights gives them, into layer `layer` in place;
    the rest stays as it is.

    ValueError for a layer whose maps are computed from others (canonical_gpt, factored_gpt), a name
    that the model lacks, no tensor, another shape, or numbers that are not finite; then nothing is
    copied.

    >>> from attnid import GPTConfig
    >>> model = GPT(GPTConfig(65, 16, n_layer=1, n_head=2, n_embd=8), seed=0)
    >>> set_head_weights(model, 0, W_Q=torch.zeros(2, 4, 8))
    >>> float(head_weights(model, 0)["W_Q"].abs().sum())
    0.0
    """
    made = is_parametrized(model.transformer.h[layer].attn.c_attn)
    require(not made, "layer", layer, "its maps are computed from other parameters: set those")
    views = _head_views(model, layer)
    for name, weight in weights.items():
        require(name in views, "weights", name, f"this model has {sorted(views)}")
        require(
            isinstance(weight, torch.Tensor) and not weight.is_complex(),
            name,
            weight,
            "must be a real tensor",
        )
        require(
            weight.shape == views[name].shape,
            name,
            tuple(weight.shape),
            f"shape must be {tuple(views[name].shape)}",
        )
        require_finite(name, weight.to(views[name].dtype))
    with torch.no_grad():
        for name, weight in weights.items():
            views[name].copy_(weight)


def _head_views(model, layer):
    config = model.config
    require(
        type(layer) is int and 0 <= layer < config.n_layer,
        "layer",
        layer,
        f"must be an integer from 0 to {config.n_layer - 1}",
    )
    attn, H, D, E = model.transformer.h[layer].attn, config.n_head, config.head_dim, config.n_embd
    W_Q, W_K, W_V = attn.c_attn.weight.view(3, H, D, E)
    views = {
        "W_Q": W_Q,
        "W_K": W_K,
        "W_V": W_V,
        "W_O": attn.c_proj.weight.view(E, H, D).transpose(0, 1),
    }
    if config.bias:
        b_Q, b_K, b_V = attn.c_attn.bias.view(3, H, D)
        views |= {"b_Q": b_Q, "b_K": b_K, "b_V": b_V, "b_O": attn.c_proj.bias}
    return views
