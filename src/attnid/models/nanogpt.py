"""Checkpoints that people have, read as data: no code in a file is run."""

import os
import re
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch

from ..checks import require, require_finite
from ..network.gpt import GPT, GPTConfig
from .layouts import FLOATS

# what torch.compile and DistributedDataParallel put before every name, in either order
PREFIX = re.compile(r"^((_orig_mod|module)\.)+")
MASKS = (
    ".attn.bias",
    ".attn.masked_bias",
)  # causal masks, which older versions of nanoGPT saved as buffers
TOKENS, HEAD = "transformer.wte.weight", "lm_head.weight"  # one tensor, which files may hold once

# numbers of NumPy, such as a best_val_loss, by the names that its versions give them; none of these
# runs code of a file
_scalar = np.float64(0).__reduce__()[0]
NUMBERS = [
    np.dtype,
    *(type(np.dtype(kind)) for kind in ("float64", "float32", "float16", "int64", "int32", "bool")),
    (_scalar, "numpy.core.multiarray.scalar"),
    (_scalar, "numpy._core.multiarray.scalar"),
]


@dataclass
class SavedGPT:
    """A checkpoint of nanoGPT's train.py, checked. content: all that it holds. config: the model's
    sizes. stored: the name of each tensor in nanoGPT's model -> its name in the file, which may
    have prefixes. weights: the model's state, by nanoGPT's names.
    """

    content: dict
    config: GPTConfig
    stored: dict
    weights: dict


def load_nanogpt(path):
    """The model in a checkpoint that nanoGPT's train.py saved (ckpt.pt), on the CPU and in
    evaluation mode.

    Names may have the prefixes of torch.compile and DistributedDataParallel, and the tied output
    map may be left out. FileNotFoundError when there is no such file. ValueError naming the path
    and what is wrong: not a checkpoint, an impossible size, a parameter that is missing, unknown,
    there twice, of another shape, no real tensor or not finite, or an output map that is not tied
    to the token embedding. The file is read as data only: pickled code in it is refused.
    """
    saved = read_nanogpt(path)
    model = GPT(saved.config)
    model.load_state_dict(saved.weights)
    return model.eval()


def read_nanogpt(path):
    """The checkpoint that nanoGPT's train.py saved at a path, on the CPU, as a SavedGPT. Errors as
    for load_nanogpt.
    """
    require(isinstance(path, (str, os.PathLike)), "path", path, "must be a string or a path")
    content = _read_content(path)
    try:
        for key in ("model", "model_args"):
            require(
                isinstance(content, dict) and isinstance(content.get(key), dict),
                "checkpoint",
                key,
                "is not a dict in it",
            )
        stored = _unprefixed(content["model"])
        weights = {n: content["model"][s] for n, s in stored.items() if not n.endswith(MASKS)}
        if TOKENS in weights:
            weights.setdefault(HEAD, weights[TOKENS])
        config = _nanogpt_config(content["model_args"], weights)
        _check_weights(config, weights)
    except ValueError as error:
        raise ValueError(f"path={os.fspath(path)!r}: {error}") from None
    return SavedGPT(content, config, stored, weights)


def _read_content(path):
    """What a checkpoint file holds: plain values and tensors, on the CPU."""
    try:
        with open(path, "rb") as file, torch.serialization.safe_globals(NUMBERS):
            return torch.load(file, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise
    # a damaged file can raise nearly anything; what PyTorch advises, to run the code in it, is not
    # passed on
    except Exception as error:
        why = "cannot be read, or is damaged, or is not a checkpoint of plain weights"
        raise ValueError(f"path={os.fspath(path)!r}: {why} ({type(error).__name__})") from None


def _unprefixed(saved):
    """Name without prefixes -> name in the file."""
    stored = {}
    for name in saved:
        require(isinstance(name, str), "model", name, "is not the name of a parameter")
        short = PREFIX.sub("", name)
        require(
            short not in stored, "model", short, "is in the checkpoint twice, with other prefixes"
        )
        stored[short] = name
    return stored


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
    saved_twice = [(HEAD, (config.vocab_size, config.n_embd))]
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
    tied = torch.equal(weights[HEAD].float(), weights[TOKENS].float())
    require(tied, "model", HEAD, f"differs from {TOKENS}, to which nanoGPT ties it")


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
