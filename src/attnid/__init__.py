"""Identified Attention: how many of an attention layer's parameters its function can see.

A name is imported when it is first asked for, so that a command loads no more than it needs.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import claims, figures
    from .layer.attention import forward
    from .layer.counting import Count
    from .layer.description import Attention
    from .layer.differences import DifferentialAttention
    from .layer.exact import exact_nullity
    from .layer.gauge import act_query_key, act_value_output
    from .layer.latents import LatentAttention
    from .layer.measuring import Measurement, NoGapError
    from .layer.metrics import head_metrics
    from .layer.rebalancing import rebalance
    from .models.alignment import align
    from .models.architectures import Architecture, read_architecture
    from .models.comparison import Comparison, compare
    from .models.fingerprints import Fingerprint, fingerprint
    from .models.rebalancer import Rebalancer
    from .network import (
        count,
        count_network,
        generators,
        independent_directions,
        measure,
        measure_module,
        measure_network,
        network_generators,
    )
    from .network.configuration import GPTConfig
    from .network.gpt import GPT
    from .training.data import Corpus, load_corpus

HOMES = {
    "layer.attention": ("forward",),
    "layer.counting": ("Count",),
    "layer.description": ("Attention",),
    "layer.differences": ("DifferentialAttention",),
    "layer.exact": ("exact_nullity",),
    "layer.gauge": ("act_query_key", "act_value_output"),
    "layer.latents": ("LatentAttention",),
    "layer.measuring": ("Measurement", "NoGapError"),
    "layer.metrics": ("head_metrics",),
    "layer.rebalancing": ("rebalance",),
    "models.alignment": ("align",),
    "models.architectures": ("Architecture", "read_architecture"),
    "models.comparison": ("Comparison", "compare"),
    "models.fingerprints": ("Fingerprint", "fingerprint"),
    "models.rebalancer": ("Rebalancer",),
    "network": (
        "count",
        "count_network",
        "generators",
        "independent_directions",
        "measure",
        "measure_module",
        "measure_network",
        "network_generators",
    ),
    "network.configuration": ("GPTConfig",),
    "network.gpt": ("GPT",),
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
