"""A whole network: what of all its parameters its log-probabilities identify. `count`, `measure`
and `generators` take a GPTConfig.

A description and its count need no PyTorch; what does is imported when one of its names is first
asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from .configuration import GPTConfig as GPTConfig
from .counting import contexts as contexts
from .counting import count as count
from .counting import count_network as count_network

if TYPE_CHECKING:
    from .directions import NullSpace, generators, independent_directions, network_generators
    from .function import Network, check_parameters, random_parameters
    from .measuring import measure, measure_network
    from .modules import measure_module

HOMES = {
    "directions": ("NullSpace", "generators", "independent_directions", "network_generators"),
    "function": ("Network", "check_parameters", "random_parameters"),
    "measuring": ("measure", "measure_network"),
    "modules": ("measure_module",),
}


def __getattr__(name):
    if not any(name in names for names in HOMES.values()):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    for home, names in HOMES.items():  # all of them, so that each question knows of a GPTConfig
        module = import_module(f"{__name__}.{home}")
        globals().update({name: getattr(module, name) for name in names})
    return globals()[name]
