"""GPTs whose attention computes the same functions from other parameters: none that is idle, or
more that are; and ones that have lost identified parameters, to compare.

But for the last, each starts as the very function that GPT(config, seed) is, so that runs with the
same seed can be compared in pairs.
"""

import torch
from torch import nn
from torch.nn.utils.parametrize import register_parametrization

from ..checks import require, require_size
from ..layer.attention import Attention
from ..layer.canonical import reduce_layer
from ..network.gpt import GPT, head_weights, set_head_weights


class Held(nn.Module):
    """A tensor some of whose entries, where the mask is true, are held at the values that they have
    now.
    """

    def __init__(self, mask, values):
        super().__init__()
        self.register_buffer("mask", mask.clone())  # one that was expanded takes no saved state
        self.register_buffer("values", values.detach().clone())

    def forward(self, tensor):
        return torch.where(self.mask, self.values, tensor)


class Factored(nn.Module):
    """Fused maps (3E, E) whose queries and keys are multiplied, head by head, by I + B_i in turn,
    with trained B (dose, H, D, D) that start at zero; those of even i act on the queries, the
    others on the keys.
    """

    def __init__(self, heads, head_dim, dose=2):
        super().__init__()
        self.B = nn.Parameter(torch.zeros(dose, heads, head_dim, head_dim))

    def forward(self, weight):
        _, H, D, _ = self.B.shape
        parts = list(weight.view(3, H, D, -1))  # each (H, D, E)
        for i, B in enumerate(self.B):
            parts[i % 2] = parts[i % 2] + B @ parts[i % 2]
        return torch.stack(parts).flatten(0, 2)


def canonical_gpt(config, seed=0, *, hold=True):
    """A GPT whose attention layers are in canonical form and stay so: identity blocks, up to a
    factor, in keys and values, and their biases 0. All other numbers of a layer are trained, and
    all of these are identified.

    Without `hold` it starts there, and all is trained.

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
        if hold:
            _hold(maps, "weight", torch.cat(held).flatten(0, 1))
        if hold and config.bias:
            _hold(maps, "bias", torch.arange(len(maps.bias)) >= config.n_embd)
    return model


def factored_gpt(config, seed=0, *, dose=2):
    """A GPT whose query and key maps are products of trained matrices, D x D each but for the last,
    D x E: `dose` times D^2 more idle numbers for each head. The usual dose is one matrix before the
    queries and one before the keys. ValueError for a dose below 1.

    >>> from attnid import GPTConfig
    >>> config = GPTConfig(65, 16, n_layer=1, n_head=2, n_embd=8, bias=True)
    >>> sum(p.numel() for p in factored_gpt(config).parameters()) - config.parameters
    64
    """
    require_size("dose", dose)
    model = GPT(config, seed)
    for block in model.transformer.h:
        register_parametrization(
            block.attn.c_attn, "weight", Factored(config.n_head, config.head_dim, dose)
        )
    return model


def shrunk_gpt(config, seed=0, *, head_dim=None, mlp_width=None):
    """A GPT that has lost identified numbers: all but `head_dim` coordinates of each head, of
    queries, keys and values alike, or all but `mlp_width` units of each MLP, are held at zero. What
    is left starts as in GPT(config, seed), scores divided by the root of the whole D included.
    ValueError for a size outside 1 to the config's own.

    >>> from attnid import GPTConfig
    >>> config = GPTConfig(65, 16, n_layer=1, n_head=2, n_embd=8, bias=True)
    >>> trained(GPT(config)) - trained(shrunk_gpt(config, mlp_width=30))  # 2 units: 2 (2 E + 1)
    34
    """
    model = GPT(config, seed)
    for field, size, whole in (
        ("head_dim", head_dim, config.head_dim),
        ("mlp_width", mlp_width, config.mlp_width),
    ):
        require_size(field, whole if size is None else size)
        require(size is None or size <= whole, field, size, f"must be at most {whole}")
    coordinate = torch.arange(config.n_embd) % config.head_dim
    for block in model.transformer.h:
        if head_dim is not None:
            lost = coordinate >= head_dim  # (H D,)
            _silence(block.attn.c_attn, lost.repeat(3), block.attn.c_proj, lost)
        if mlp_width is not None:
            lost = torch.arange(config.mlp_width) >= mlp_width
            _silence(block.mlp.c_fc, lost, block.mlp.c_proj, lost)
    return model


def cut_gpt(config, seed=0):
    """A GPT with D units fewer in each MLP: 2 D E + D identified numbers a layer, nearly as many as
    the idle ones that its canonical form lacks, 2 D^2 + 2 D for each head.
    """
    return shrunk_gpt(config, seed, mlp_width=config.mlp_width - config.head_dim)


def trained(model):
    """How many numbers of a model are trained: all but those that are held."""
    held = sum(int(part.mask.sum()) for part in model.modules() if isinstance(part, Held))
    return sum(p.numel() for p in model.parameters()) - held


def _silence(into, rows, out_of, columns):
    # hold at zero what makes some units of a map, and what reads them
    for name in ("weight", "bias") if into.bias is not None else ("weight",):
        tensor = getattr(into, name)
        _hold(into, name, rows.view(-1, *[1] * (tensor.dim() - 1)).expand_as(tensor), 0.0)
    _hold(out_of, "weight", columns.expand_as(out_of.weight), 0.0)


def _equal_lengths(weights, shared, reading):
    # scale both factors of a product to one Frobenius norm, as an optimizer with one rate for both
    # expects
    square = lambda name: weights[name].square().sum((1, 2), keepdim=True)
    scale = (square(reading[0]) / square(shared)) ** 0.25  # (H, 1, 1)
    weights[shared] = weights[shared] * scale
    for name in (name for name in reading if name in weights):
        weights[name] = weights[name] / (scale if weights[name].ndim == 3 else scale[..., 0])


def _hold(module, name, mask, value=None):
    # at the value given, else at those that they have now
    values = getattr(module, name)
    held = values if value is None else torch.full_like(values, value)
    register_parametrization(module, name, Held(mask, held))
