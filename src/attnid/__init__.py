"""Identified Attention: how many of an attention layer's parameters its function can see."""

from .architectures import Architecture, read_architecture
from .attention import Attention, forward
from .conservation import head_metrics
from .counting import Count, count
from .data import Corpus, load_corpus
from .gauge import act_query_key, act_value_output
from .generators import generators
from .gpt import GPT, GPTConfig
from .jacobian import Measurement, NoGapError, measure
from .network import count_network, measure_network, network_generators
from .rebalancing import rebalance
