"""Identified Attention: how many of an attention layer's parameters its function can see.

A name is imported when it is first asked for, so that a command loads no more than it needs.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import claims, figures
    from .layer.attention import Attention, forward
    from .layer.counting import Count, count
    from .layer.directions import generators
    from .layer.exact import exact_nullity
    from .layer.gauge import act_query_key, act_value_output
    from .layer.independence import independent_directions
    from .layer.measuring import Measurement, NoGapError, measure
    from .layer.metrics import head_metrics
    from .layer.rebalancing import rebalance
    from .models.architectures import Architecture, read_architecture
    from .network import count_network, measure_network, network_generators
    from .network.gpt import GPT, GPTConfig
    from .training.data import Corpus, load_corpus

HOMES = {
    "layer.attention": ("Attention", "forward"),
    "layer.counting": ("Count", "count"),
    "layer.directions": ("generators",),
    "layer.exact": ("exact_nullity",),
    "layer.gauge": ("act_query_key", "act_value_output"),
    "layer.independence": ("independent_directions",),
    "layer.measuring": ("Measurement", "NoGapError", "measure"),
    "layer.metrics": ("head_metrics",),
    "layer.rebalancing": ("rebalance",),
    "models.architectures": ("Architecture", "read_architecture"),
    "network": ("count_network", "measure_network", "network_generators"),
    "network.gpt": ("GPT", "GPTConfig"),
    "training.data": ("Corpus", "load_corpus"),
}
HOME = {name: module for module, names in HOMES.items() for name in names}
ROOMS = ("claims", "figures", "layer", "models", "network", "training")
__all__ = [*HOME, "claims", "figures"]


def __getattr__(name):
    if name in ROOMS:
        return import_module(f"{__name__}.{name}")
    if name not in HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{HOME[name]}"), name)


def __dir__():
    return sorted([*globals(), *HOME, *ROOMS])
