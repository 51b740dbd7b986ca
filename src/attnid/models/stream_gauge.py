"""What may be done to the residual stream of a GPT without changing its outputs: permuted as it
is, and rotated where the norms' gains are in the maps that read them and the head is not tied.
"""

from copy import deepcopy
from dataclasses import replace

import torch
from jaxtyping import Float, Int
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from ..checks import require
from ..network.gpt import GPT
from .blocks import Norm

LAST, TOKENS, HEAD = "transformer.ln_f", "transformer.wte.weight", "lm_head.weight"
READERS = {"ln_1": "attn.c_attn", "ln_2": "mlp.c_fc"}


def stream_axis(name):
    """Which dimension of a parameter of a GPT, by its name, runs along the stream; None for the
    biases inside a layer.

    >>> stream_axis("transformer.h.0.mlp.c_fc.weight"), stream_axis("transformer.h.0.ln_1.bias")
    (1, 0)
    """
    if "ln_" in name or "c_proj" in name:
        return 0
    return None if name.endswith("bias") else 1


def stream_features(model, anchored=False) -> Float[Tensor, "E n"]:
    """All numbers of a GPT that belong to one coordinate of its stream, a row for each, float64;
    `anchored`: those alone that need no matching of heads and units, the embeddings, output biases
    and norms.
    """
    rows = []
    for name, p in model.named_parameters():
        axis = stream_axis(name)
        inside = name.endswith("weight") and (".attn." in name or ".mlp." in name)
        if axis is not None and not (anchored and inside):
            rows.append(p.detach().double().movedim(axis, 0).reshape(model.config.n_embd, -1))
    return torch.cat(rows, 1)


@torch.no_grad()
def permute_stream(model, order: Int[Tensor, "E"]):
    """A copy of a GPT whose coordinate i of the stream is coordinate order[i] of the model's."""
    moved = deepcopy(model)
    for name, p in moved.named_parameters():
        if stream_axis(name) is not None:
            p.copy_(p.index_select(stream_axis(name), order))
    return moved


def nearest_permutation(ours, theirs, anchored=False) -> Int[Tensor, "E"]:
    """The order for permute_stream that brings theirs nearest to ours, two GPTs of one shape."""
    A, B = (stream_features(model, anchored) for model in (ours, theirs))
    return torch.from_numpy(linear_sum_assignment((A @ B.T).numpy(), maximize=True)[1])


@torch.no_grad()
def fold_norms(model):
    """A GPT of the same function in float64 that is not tied and whose gains are all 1: gains and
    shifts are in the maps that read them, the last shift beside its norm; what LayerNorm takes out
    is left out of whatever reads from the stream or writes into it.

    ValueError for norms without a mean to take out, and for a last gain of 0.
    """
    require(model.config.norm == "layernorm", "norm", model.config.norm, "must be 'layernorm'")
    gain = model.transformer.ln_f.weight.double()
    require(bool((gain != 0).all()), "ln_f.weight", 0.0, "must not be 0")
    folded = GPT(replace(model.config, tied=False)).double()
    old = {name: t.double() for name, t in model.state_dict().items()}
    new = dict(old)
    for n in range(model.config.n_layer):
        for norm, maps in READERS.items():
            norm, maps = (f"transformer.h.{n}.{part}" for part in (norm, maps))
            whole = Norm(old[f"{norm}.weight"], old.get(f"{norm}.bias"), centred=True)
            W, b = whole.fold(old[f"{maps}.weight"], old.get(f"{maps}.bias"))
            new |= {f"{maps}.weight": W} | ({} if b is None else {f"{maps}.bias": b})
    new[HEAD] = old[HEAD] * gain
    for name, t in new.items():
        if "ln_" in name:
            new[name] = torch.ones_like(t) if name.endswith("weight") else torch.zeros_like(t)
        elif "c_proj" in name or "wte" in name or "wpe" in name:
            new[name] = t - t.mean(stream_axis(name), keepdim=True)
    if model.config.bias:
        new[f"{LAST}.bias"] = old[f"{LAST}.bias"] / gain
    folded.load_state_dict(new)
    return folded


@torch.no_grad()
def rotate_stream(model, Q: Float[Tensor, "E E"]):
    """A copy of a GPT, as `fold_norms` makes it, with its stream turned by an orthogonal Q that
    keeps all-ones. ValueError for a gain that is not 1.
    """
    moved = deepcopy(model)
    for name, p in moved.named_parameters():
        if "ln_" in name and name.endswith("weight"):
            require(bool((p == 1).all()), name, p.detach().tolist()[0], "gains must be 1")
        elif stream_axis(name) is not None:
            p.copy_(p @ Q.T if stream_axis(name) else Q @ p)
    return moved


def nearest_rotation(ours, theirs, anchored=False) -> Float[Tensor, "E E"]:
    """The Q for rotate_stream that brings theirs nearest to ours (orthogonal Procrustes)."""
    A, B = (stream_features(model, anchored) for model in (ours, theirs))
    E = len(A)
    ones = torch.full((E, 1), E**-0.5, dtype=torch.float64)
    rest = torch.linalg.qr(torch.cat((ones, torch.eye(E).double()[:, 1:]), 1)).Q[:, 1:]
    U, _, Vh = torch.linalg.svd(rest.T @ A @ B.T @ rest)
    return ones @ ones.T + rest @ U @ Vh @ rest.T
