"""The measured count of a whole network: the rank of the Jacobian of its log-probabilities in all
its parameters.

Nothing here knows of symmetries.
"""

import itertools
from functools import partial

import torch
from jaxtyping import Int
from torch import Tensor

from ..layer.measuring import measure, measure_function, refuse_many
from .configuration import GPTConfig
from .counting import context_rank
from .function import Network, check_parameters, random_parameters


def draw(config, number, seed) -> Int[Tensor, "B T"]:
    """Random token sequences (B, T) of full length, or every one there is where these are not many
    more.
    """
    V, T = config.vocab_size, config.block_size
    if V**T <= 2 * number:
        return torch.tensor(list(itertools.product(range(V), repeat=T)))
    return torch.randint(V, (number, T), generator=torch.Generator().manual_seed(seed))


@measure.register
def measure_network(config: GPTConfig, *, seed=0, parameters=None):
    """Count the unidentified parameters of a whole network by the rank of its Jacobian, in float64
    on the CPU.

    The Jacobian is that of the log-probabilities after every token of random sequences, at
    `parameters` (random ones by default). That the sequences are enough is shown on fresh ones, on
    which the log-probabilities may not change along the null directions of the first; if they do,
    more are drawn.

    Raises ValueError for a network too large to measure, and where a parameter is missing, of
    another shape or not finite; NoGapError where the singular values have no gap to cut at.

    >>> from attnid import GPTConfig, count
    >>> small = GPTConfig(7, 5, n_layer=1, n_head=2, n_embd=4, mlp_width=4)
    >>> measure_network(small).nullity == count(small).unidentified
    True
    """
    refuse_many(config)
    parameters = random_parameters(config, seed) if parameters is None else parameters
    parameters = check_parameters(config, parameters)
    seen = config.block_size * max(context_rank(config), 1)
    return measure_function(Network(config), parameters, partial(draw, config), seen, seed)
