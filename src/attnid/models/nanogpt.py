"""Checkpoints that people have, read as data: no code in a file is run."""

import os
from itertools import chain

import torch

from ..checks import require, require_finite
from ..network.gpt import GPT, GPTConfig
from .layouts import FLOATS

PREFIX = "_orig_mod."  # what torch.compile puts before every name
MASKS = (
    ".attn.bias",
    ".attn.masked_bias",
)  # causal masks, which older versions of nanoGPT saved as buffers


def load_nanogpt(path):
    """The model in a checkpoint that nanoGPT's train.py saved (ckpt.pt), on the CPU and in evaluation mode.

    FileNotFoundError when there is no such file. ValueError naming the path and what is wrong: not a checkpoint, an impossible
    size, a parameter that is missing, unknown, there twice, of another shape, no real tensor or not finite, or an output map
    that is not tied to the token embedding. The file is read as data only: pickled code in it is refused.
    """
    require(isinstance(path, (str, os.PathLike)), "path", path, "must be a string or a path")
    checkpoint = read_checkpoint(path)
    try:
        for key in ("model", "model_args"):
            require(
                isinstance(checkpoint, dict) and isinstance(checkpoint.get(key), dict),
                "checkpoint",
                key,
                "is not a dict in it",
            )
        weights = _unprefixed(checkpoint["model"])
        config = _nanogpt_config(checkpoint["model_args"], weights)
        _check_weights(config, weights)
    except ValueError as error:
        raise ValueError(f"path={os.fspath(path)!r}: {error}") from None
    model = GPT(config)
    model.load_state_dict(weights)
    return model.eval()


def read_checkpoint(path):
    """What a checkpoint file holds: plain values and tensors, on the CPU. Errors as for load_nanogpt."""
    try:
        with open(path, "rb") as file:
            return torch.load(file, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise
    except Exception as error:  # a damaged file can raise nearly anything; what PyTorch advises, to run the code in it, is not passed on
        why = "cannot be read, or is damaged, or is not a checkpoint of plain weights"
        raise ValueError(f"path={os.fspath(path)!r}: {why} ({type(error).__name__})") from None


def _unprefixed(saved):
    weights = {}
    for name, weight in saved.items():
        require(isinstance(name, str), "model", name, "is not the name of a parameter")
        if not name.endswith(MASKS):
            short = name.removeprefix(PREFIX)
            require(
                short not in weights,
                "model",
                short,
                f"is in the checkpoint twice, with {PREFIX!r} before it and without",
            )
            weights[short] = weight
    return weights


def _nanogpt_config(args, weights):
    sizes = ("block_size", "vocab_size", "n_layer", "n_head", "n_embd")
    for key in sizes:
        require(key in args, "model_args", list(args), f"lacks {key!r}")
    # early versions always had biases and did not say so
    bias = args.get("bias", "transformer.ln_f.bias" in weights)
    return GPTConfig(
        **{key: args[key] for key in sizes}, bias=bias, dropout=args.get("dropout", 0.0)
    )


def _check_weights(config, weights):
    unknown = set(weights)
    saved_twice = [("lm_head.weight", (config.vocab_size, config.n_embd))]  # the tied weight
    for name, shape in chain(
        config.named_shapes(), saved_twice
    ):  # one by one: the sizes may be absurd
        require(name in weights, "model", name, "is missing from the checkpoint")
        unknown.remove(name)
        _check_weight(name, weights[name], shape)
    require(
        not unknown,
        "model",
        min(unknown, default=None),
        "is in the checkpoint but not in a model of these model_args",
    )
    tied = torch.equal(weights["lm_head.weight"].float(), weights["transformer.wte.weight"].float())
    require(
        tied,
        "model",
        "lm_head.weight",
        "differs from transformer.wte.weight, to which nanoGPT ties it",
    )


def _check_weight(name, weight, shape):
    require(isinstance(weight, torch.Tensor), name, type(weight).__name__, "must be a tensor")
    require(weight.shape == shape, name, tuple(weight.shape), f"shape must be {shape}")
    require(weight.dtype in FLOATS, name, weight.dtype, "must be real floating-point numbers")
    stored = (
        weight.layout == torch.strided
        and weight.device.type == "cpu"
        and weight.untyped_storage().nbytes() >= weight.nbytes
    )
    require(stored, name, tuple(weight.shape), "must be stored in full, each number once")
    require_finite(name, weight.float())
