"""The forward pass of an attention layer.

The text writes tokens as columns, X in R^{E x L}; the code keeps them as rows, x of shape (..., L,
E), as PyTorch does. Weights have one layout in both, that of `nn.Linear.weight`: W_Q, W_K are D x
E, W_V is C x E, W_O is E x C, one per head.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from .description import Attention as Attention
from .description import shift_is_seen as shift_is_seen

SOFTCAP = 2.0  # the bound of soft-capped scores; a count does not depend on it


def input_basis(attention) -> Float[Tensor, "E n"]:
    """Orthonormal columns (E, n) that span the inputs: all of R^E, or what is orthogonal to the
    all-ones vector.
    """
    identity = torch.eye(attention.E, dtype=torch.float64)
    if attention.inputs == "free":
        return identity
    return torch.linalg.qr(torch.cat((torch.ones_like(identity[:, :1]), identity[:, 1:]), 1)).Q[
        :, 1:
    ]


def project(
    attention, parameters, x: Float[Tensor, "*batch L E"]
) -> tuple[
    Float[Tensor, "*batch H L D"], Float[Tensor, "*batch G L D"], Float[Tensor, "*batch G L C"]
]:
    """Queries (..., H, L, D), keys (..., G, L, D) and values (..., G, L, C) of inputs x (..., L,
    E).

    >>> from attnid import Attention
    >>> layer = Attention(8, 4, kv_heads=2)
    >>> x = random_inputs(layer, 3, 5)
    >>> [tuple(part.shape) for part in project(layer, layer.random_parameters(seed=0), x)]
    [(3, 4, 5, 2), (3, 2, 5, 2), (3, 2, 5, 2)]
    """

    def linear(letter):
        out = torch.einsum("...li,hdi->...hld", x, parameters["W_" + letter])
        bias = parameters.get("b_" + letter)
        return out if bias is None else out + bias[:, None, :]

    return linear("Q"), linear("K"), linear("V")


def gate_logits(
    attention, parameters, x: Float[Tensor, "*batch L E"]
) -> Float[Tensor, "*batch H L channels"]:
    """W_G x, whose sigmoid is the gate of a layer that has one: (..., H, L, 1), or (..., H, L, C).

    >>> from attnid import Attention
    >>> layer = Attention(8, 2, gate="channel")
    >>> gate_logits(layer, layer.random_parameters(seed=0), random_inputs(layer, 3, 5)).shape
    torch.Size([3, 2, 5, 4])
    """
    W_G = parameters["W_G"]
    W_G = W_G[:, None] if attention.gate == "head" else W_G
    return torch.einsum("...li,hci->...hlc", x, W_G)


def normalise(
    attention, vectors: Float[Tensor, "*batch heads L D"], gain=None
) -> Float[Tensor, "*batch heads L D"]:
    """Divide vectors (..., heads, L, D) by their root mean square as `qk_norm` says, then multiply
    by the gains.
    """
    if attention.qk_norm is None:
        return vectors
    over = (-3, -1) if attention.qk_norm == "layer_gain" else (-1,)
    vectors = vectors / vectors.square().mean(over, keepdim=True).sqrt()
    if gain is None:
        return vectors
    return vectors * (gain[:, None, :] if gain.ndim == 2 else gain)


def rotate(attention, vectors: Float[Tensor, "*batch L D"]) -> Float[Tensor, "*batch L D"]:
    """Turn plane i of the vectors (..., L, D) at position l by the angle l * rotary[i]."""
    planes = len(attention.rotary)
    if planes == 0:
        return vectors
    wide = torch.promote_types(
        vectors.dtype, torch.float32
    )  # half precision can't tell 256 from 257
    position = torch.arange(vectors.shape[-2], dtype=wide, device=vectors.device)
    frequency = torch.tensor(attention.rotary, dtype=wide, device=vectors.device)
    angle = position[:, None] * frequency  # (L, planes)
    cos, sin = angle.cos().to(vectors.dtype), angle.sin().to(vectors.dtype)
    even, odd = vectors[..., 0 : 2 * planes : 2], vectors[..., 1 : 2 * planes : 2]
    turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1)
    return torch.cat((turned.flatten(-2), vectors[..., 2 * planes :]), -1)


def offsets(attention, length):
    """Which of the `span` offsets, query minus key, stands where: (length, length), row l, column
    m.

    >>> from attnid import Attention
    >>> offsets(Attention(8, 2, relative="bias", span=3, causal=False), 4)
    tensor([[1, 0, 0, 0],
            [2, 1, 0, 0],
            [2, 2, 1, 0],
            [2, 2, 2, 1]])
    """
    position, before = torch.arange(length), 0 if attention.causal else attention.span // 2
    return (position[:, None] - position + before).clamp(0, attention.span - 1)


def scores(
    attention, parameters, q: Float[Tensor, "*batch H L D"], k: Float[Tensor, "*batch G M D"]
) -> Float[Tensor, "*batch H L M"]:
    """Scores (..., H, L, L), before mask and softmax: row l, column m is how much query l asks for
    key m. `parameters` give gains and learned offsets, where there are any.

    >>> from attnid import Attention
    >>> layer = Attention(8, 2)
    >>> p = layer.random_parameters(seed=0)
    >>> q, k, _ = project(layer, p, random_inputs(layer, 3, 5))
    >>> scores(layer, p, q, k).shape
    torch.Size([3, 2, 5, 5])
    """
    q = rotate(attention, normalise(attention, q, parameters.get("gain_Q")))
    k = rotate(attention, normalise(attention, k, parameters.get("gain_K")))
    k = k.repeat_interleave(attention.H // attention.G, dim=-3)  # head h reads group h // (H / G)
    s = q @ k.transpose(-1, -2)
    if attention.relative:
        offset = offsets(attention, s.shape[-1]).to(s.device)
        row = torch.arange(len(offset), device=s.device)
    if attention.relative == "content":
        R_K = parameters["R_K"].repeat_interleave(attention.H // attention.G, dim=0)
        s = s + (q @ R_K.mT)[..., row[:, None], offset]
        s = s + (k @ parameters["R_Q"].mT)[..., row, offset]
    s = s / math.sqrt(attention.D)  # the text absorbs this factor into the weights
    if attention.score == "softcap":
        s = SOFTCAP * torch.tanh(s / SOFTCAP)
    if attention.score == "alibi":
        position = torch.arange(s.shape[-1], dtype=s.dtype, device=s.device)
        slope = 2.0 ** (
            -8.0 * torch.arange(1, attention.H + 1, dtype=s.dtype, device=s.device) / attention.H
        )
        s = s - slope[:, None, None] * (position[:, None] - position).abs()
    return s + parameters["R_B"][:, offset] if attention.relative == "bias" else s


def attend(
    attention,
    parameters,
    q: Float[Tensor, "*batch H L D"],
    k: Float[Tensor, "*batch G M D"],
    v: Float[Tensor, "*batch G M C"],
    gate: Float[Tensor, "*batch H L channels"] | None = None,
) -> Float[Tensor, "*batch H L C"]:
    """Weighted values (..., H, L, C) from queries, keys and values as `project` gives them, gated
    where `gate_logits` are given.

    >>> from attnid import Attention
    >>> layer = Attention(8, 2)
    >>> p = layer.random_parameters(seed=0)
    >>> attend(layer, p, *project(layer, p, random_inputs(layer, 3, 5))).shape
    torch.Size([3, 2, 5, 4])
    """
    s = scores(attention, parameters, q, k)
    if attention.causal:
        later = torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device).triu(1)
        s = s.masked_fill(later, -torch.inf)
    if attention.score == "sink":
        logit = parameters["sink"][:, None, None].expand(*s.shape[:-1], 1)
        p = torch.cat((s, logit), -1).softmax(-1)[..., :-1]
    else:
        p = s.softmax(-1)
    z = p @ v.repeat_interleave(attention.H // attention.G, dim=-3)
    return z if gate is None else gate.sigmoid() * z


def forward(attention, parameters, x: Float[Tensor, "*batch L E"]) -> Float[Tensor, "*batch L E"]:
    """The layer's outputs (..., L, E) at inputs x (..., L, E).

    >>> from attnid import Attention
    >>> layer = Attention(8, 2)
    >>> forward(layer, layer.random_parameters(seed=0), random_inputs(layer, 4, 10)).shape
    torch.Size([4, 10, 8])
    """
    gate = gate_logits(attention, parameters, x) if attention.gate else None
    z = attend(attention, parameters, *project(attention, parameters, x), gate)
    y = torch.einsum("...hlc,hec->...le", z, parameters["W_O"])
    return y + parameters["b_O"] if "b_O" in parameters else y


def random_inputs(attention, batch, length, seed=0, *, scale=1.0) -> Float[Tensor, "batch L E"]:
    """Random inputs (batch, length, E) of the kind that `inputs` names; `scale` applies to free
    ones only.

    >>> from attnid import Attention
    >>> x = random_inputs(Attention(8, 2, inputs="centred"), 4, 10)
    >>> x.shape, bool(x.mean(-1).abs().max() < 1e-12)
    (torch.Size([4, 10, 8]), True)
    """
    generator = torch.Generator().manual_seed(int(seed))
    x = torch.randn((batch, length, attention.E), generator=generator, dtype=torch.float64)
    if attention.inputs == "free":
        return scale * x
    x = x - x.mean(-1, keepdim=True)
    return x / x.square().mean(-1, keepdim=True).sqrt()
