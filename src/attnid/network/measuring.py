"""The measured count of a whole network: the rank of the Jacobian of its log-probabilities in all its parameters.

Nothing here knows of symmetries. Derivatives are in float64, taken relative to each parameter tensor's own size.
"""

import itertools
import math

import torch

from ..checks import require, require_size
from ..layer.measuring import MAX_ATTEMPTS, MAX_RESIDUAL, Measurement, NoGapError, cut, measure
from .counting import stream_rank
from .function import Network, check_parameters, random_parameters
from .gpt import GPTConfig

MAX_PARAMETERS = 3000
ROWS = 3  # rows of the Jacobian for each parameter, at first


def jacobian(network, parameters, tokens):
    """Columns (B T V, P) of the log-probabilities after tokens (B, T), in the parameters' order, relative to their sizes."""
    one = lambda p, sequence: network(p, sequence[None]).flatten()
    blocks = torch.func.vmap(torch.func.jacrev(one), (None, 0), chunk_size=16)(
        parameters, tokens
    )  # name -> (B, TV, *shape)
    return torch.cat(
        [blocks[name].flatten(2).flatten(0, 1) * size for name, size in sizes(parameters).items()],
        1,
    )


def sizes(parameters):
    return {name: tensor.square().mean().sqrt() for name, tensor in parameters.items()}


def draw(config, number, seed):
    """Random token sequences (B, T) of full length, or every one there is where these are not many more."""
    V, T = config.vocab_size, config.block_size
    if V**T <= 2 * number:
        return torch.tensor(list(itertools.product(range(V), repeat=T)))
    return torch.randint(V, (number, T), generator=torch.Generator().manual_seed(seed))


@measure.register
def measure_network(config: GPTConfig, *, seed=0, parameters=None):
    """Count the unidentified parameters of a whole network by the rank of its Jacobian, in float64 on the CPU.

    The Jacobian is that of the log-probabilities after every token of random sequences, at `parameters` (random ones by
    default). That the sequences are enough is shown on fresh ones, on which the log-probabilities may not change along the
    null directions of the first; if they do, more are drawn.

    Raises ValueError for a network too large to measure, and where a parameter is missing, of another shape or not finite;
    NoGapError where the singular values have no gap to cut at.
    """
    require_size("seed", seed, 0)
    require(
        config.parameters <= MAX_PARAMETERS,
        "parameters",
        config.parameters,
        f"are more than {MAX_PARAMETERS}, too many to measure",
    )
    parameters = check_parameters(
        config, random_parameters(config, seed) if parameters is None else parameters
    )
    network, P = Network(config), config.parameters
    seen = min(
        config.vocab_size - 1, stream_rank(config) - (config.eps == 0)
    )  # numbers that one context can tell, at most
    batch = math.ceil(ROWS * P / (config.block_size * max(seen, 1)))
    for _ in range(MAX_ATTEMPTS):
        R = torch.linalg.qr(
            jacobian(network, parameters, draw(config, batch, seed + 1)), mode="r"
        ).R
        spectrum, Vh = torch.linalg.svd(torch.cat((R, R.new_zeros(max(0, P - len(R)), P))))[1:]
        rank, gap = cut(spectrum)
        fresh = jacobian(network, parameters, draw(config, 2 + batch // 4, seed + 2))
        residual = (
            float((fresh @ Vh[rank:].T).norm(dim=0).max() / fresh.norm(dim=0).mean())
            if rank < P
            else 0.0
        )
        if residual < MAX_RESIDUAL:
            null = (
                Vh[rank:]
                * torch.cat(
                    [
                        size.expand(parameters[name].numel())
                        for name, size in sizes(parameters).items()
                    ]
                )
            ).split([tensor.numel() for tensor in parameters.values()], 1)
            null_space = {
                name: part.unflatten(1, tensor.shape)
                for part, (name, tensor) in zip(null, parameters.items())
            }
            return Measurement(
                P, rank, P - rank, gap, spectrum, residual, batch, config.block_size, null_space
            )
        batch *= 2
    raise NoGapError(
        f"residual={residual:.1e}: fresh sequences still change the log-probabilities along directions that seemed idle"
    )
