"""A whole network: what of all its parameters its log-probabilities identify. `count`, `measure` and `generators` take a GPTConfig."""

from .counting import contexts, count_network
from .directions import NullSpace, network_generators
from .function import Network, check_parameters, random_parameters
from .measuring import measure_network
