"""Generators for a whole network: for each term of its count a linear family of null directions.

A family maps coefficients (k, dimension) to k directions, name -> (k, *shape), so that a network of
any size can be moved along random members of it.
"""

import torch

from ..layer.directions import generators, independent_at, independent_directions
from .configuration import GPTConfig
from .counting import count_network
from .function import Network, check_parameters, random_parameters
from .heads import HeadFamilies
from .stream import StreamFamilies
from .weights import Met, Weights


class Families(StreamFamilies, HeadFamilies):
    """Every family of null directions at given weights, a method a term."""

    def __init__(self, config, parameters):
        self.c, self.p, self.w = config, parameters, Weights(config, parameters)
        later = [Met(self.w, 1)] * (config.n_layer - 1)  # above the first, layers meet alike
        self.met = [Met(self.w, 0), *later]


class NullSpace:
    """The null directions of a network at generic parameters, term by term, as maps from
    coefficients.
    """

    def __init__(self, config, parameters):
        self.config, self.parameters = config, check_parameters(config, parameters)
        families = Families(config, self.parameters)
        self.families = {
            term: getattr(families, term.replace(" ", "_").replace("-", "_"))()
            for term in count_network(config).terms
        }

    def directions(self, term, coefficients):
        """name -> (k, *shape), for coefficients (k, dimension of the term)."""
        total = {
            name: coefficients.new_zeros(len(coefficients), *shape)
            for name, shape in self.config.shapes.items()
        }
        for part in self.families[term][1](coefficients):
            for name, change in part.items():
                total[name] += change
        return total

    def random(self, term, k, seed=0):
        """k random members of a term's family."""
        generator = torch.Generator().manual_seed(int(seed))
        return self.directions(
            term, torch.randn(k, self.families[term][0], generator=generator, dtype=torch.float64)
        )


@generators.register
def network_generators(config: GPTConfig, parameters):
    """Null directions of a network at generic parameters: term of `count` -> (name -> (dimension,
    *shape)), float64.

    The directions of all terms together are linearly independent. Raises ValueError for what
    `count` refuses and for parameters that do not fit the description.

    >>> from attnid import GPTConfig
    >>> from attnid.network import random_parameters
    >>> small = GPTConfig(7, 5, n_layer=1, n_head=2, n_embd=4, mlp_width=4)
    >>> found = network_generators(small, random_parameters(small))
    >>> found["query-key maps"]["transformer.wte.weight"].shape
    torch.Size([8, 7, 4])
    """
    null = NullSpace(config, parameters)
    return {
        term: null.directions(term, torch.eye(size, dtype=torch.float64))
        for term, (size, _) in null.families.items()
    }


@independent_directions.register
def independent_of_network(config: GPTConfig, seed=0):
    """The same for a network: how many independent directions of `generators` change no
    log-probability.
    """
    p, network = random_parameters(config, seed), Network(config)
    generator = torch.Generator().manual_seed(int(seed))
    tokens = torch.randint(config.vocab_size, (4, config.block_size), generator=generator)
    return independent_at(config, p, lambda q: network(q, tokens), seed)
