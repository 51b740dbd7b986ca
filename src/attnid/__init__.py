"""Identified Attention: how many of an attention layer's parameters its function can see."""

from .models.architectures import Architecture, read_architecture
from .layer.attention import Attention, forward
from .layer.metrics import head_metrics
from .layer.counting import Count, count
from .training.data import Corpus, load_corpus
from .layer.gauge import act_query_key, act_value_output
from .layer.directions import generators
from .network.gpt import GPT, GPTConfig
from .layer.measuring import Measurement, NoGapError, measure
from .network import count_network, measure_network, network_generators
from .layer.rebalancing import rebalance
