"""The log-probabilities that a GPT gives, as a function of its parameters: name -> tensor, as
`GPTConfig.shapes` says.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..layer.parameters import check_parameters as parameters_that_fit
from .gpt import GPT


class Network:
    """The log-probabilities of the model that a GPTConfig describes, as a function of its
    parameters.
    """

    def __init__(self, config):
        self.config, self.model = config, GPT(config).double().eval()

    def __call__(self, parameters, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T V"]:
        """Log-probabilities (B, T, vocab_size) after each of the tokens (B, T). Differentiable to
        any order, forwards as well.
        """
        with sdpa_kernel(SDPBackend.MATH):
            return torch.func.functional_call(self.model, parameters, (tokens,))[0].log_softmax(-1)


def check_parameters(config, parameters):
    """The parameters as detached float64 tensors in the model's order. ValueError naming what is
    missing, unknown or misshapen.
    """
    return parameters_that_fit(config.shapes, parameters)


def random_parameters(config, seed=0):
    """Generic float64 parameters, name -> tensor: what reads the residual stream makes numbers of
    size about one.

    The residual stream itself is small enough for eps to be felt, as if eps were 0.1 in a stream of
    size one.
    """
    generator = torch.Generator().manual_seed(int(seed))
    stream = math.sqrt(config.eps / 0.1) or 1.0
    E = config.n_embd

    def size(name):
        if name.endswith(("wte.weight", "wpe.weight")):
            return stream
        if "ln_f" in name:
            return (
                2 / math.sqrt(E) / stream if config.tied else 1.0
            )  # tied logits are read with the small embedding
        if "c_proj" in name:
            return stream * (
                0.5 if name.endswith("bias") else 1.5 / math.sqrt(config.shapes[name][1])
            )
        return (
            0.5
            if name.endswith("bias")
            else 1.0
            if "ln_" in name
            else (2.0 if name.startswith("lm_head") else 1.5) / math.sqrt(E)
        )

    def draw(name, shape):
        gain = len(shape) == 1 and name.endswith("weight")
        number = (torch.rand if gain else torch.randn)(
            shape, generator=generator, dtype=torch.float64
        )
        return size(name) * (0.5 + number if gain else number)

    return {name: draw(name, shape) for name, shape in config.shapes.items()}
