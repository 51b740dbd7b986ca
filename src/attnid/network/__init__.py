"""A whole network: what of all its parameters its log-probabilities identify. `count`, `measure` and `generators` take a GPTConfig."""

from .counting import contexts, count_network
from .generators import NullSpace, network_generators
from .jacobian import measure_network
from .model import Network, check_parameters, random_parameters
