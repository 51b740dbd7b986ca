"""Rebalancing within one's own training loop: heads of a model in memory, by its layout."""

import math
from dataclasses import dataclass, replace

import torch

from ..checks import require, require_size
from ..layer.attention import Attention
from ..layer.canonical import balance_layer
from ..layer.latents import LatentAttention
from .architectures import read_architecture
from .layouts import LAYOUTS, check_tensors, read_layer, write_layer
from .reduction import TOLERANCES, output_change
from .stacks import Stack

MOMENTS = ("cleared", "kept")
QUERY_KEY = ("W_Q", "W_K", "b_Q", "b_K")
WRAPPERS = ("_orig_mod", "module")  # of torch.compile and DistributedDataParallel


@dataclass(frozen=True)
class Moved:
    """What one rebalancing did to a layer: the condition number of each group's S; how far queries'
    and keys' parameters went, and how far the layer's outputs did at random tokens, which is
    rounding, both relative; and the groups left as they were, whose products have rank below the
    head's width.
    """

    layer: int
    condition: tuple
    moved: float
    change: float
    left: tuple


class Rebalancer:
    """Rebalances the heads of a model while it is trained: call it between steps.

    model: a transformers model of one of the layouts that `audit` reads (Llama, GPT-2, BERT and
    others; grouped and rotary heads included), or nanoGPT's GPT; wrapped by torch.compile or
    DistributedDataParallel or not. Its weights are changed in place, its outputs are not, but for
    rounding. optimizer: what holds the moments of these weights, which point along axes that the
    weights leave: "cleared" forgets them (of all that shares a tensor with queries and keys),
    "kept" keeps them.

    Each call returns a list of `Moved`, one for each layer that has something to balance. Layers
    whose queries and keys are normalised have nothing. ValueError naming what is not so: a model of
    another kind, without any such layer, quantised, adapted, or with numbers that are not finite;
    an optimizer that holds none of its parameters; a layer whose outputs would move by more than
    rounding. Source: section 5.2.2 of the paper.

    >>> import torch
    >>> from attnid import GPT, GPTConfig, Rebalancer
    >>> model = GPT(GPTConfig(65, 16, n_layer=2, n_head=2, n_embd=8))
    >>> optimizer = torch.optim.AdamW(model.parameters())
    >>> rebalance = Rebalancer(model, optimizer)
    >>> [(each.layer, each.change < 1e-5) for each in rebalance()]
    [(0, True), (1, True)]
    """

    def __init__(self, model, optimizer=None, *, moments="cleared"):
        require(moments in MOMENTS, "moments", moments, f"must be one of {MOMENTS}")
        while any(hasattr(model, name) for name in WRAPPERS):
            model = next(getattr(model, name) for name in WRAPPERS if hasattr(model, name))
        self.optimizer, self.moments = optimizer, moments
        self.layout, layers = _described(model)
        self.parameters = dict(model.named_parameters())
        prefix = self.layout.prefix_in(self.parameters)
        self.layers = [
            (number, attention, f"{prefix}{self.layout.layer.format(number)}.")
            for number, attention in enumerate(layers)
            if isinstance(attention, Attention) and attention.qk_norm is None
        ]
        require(self.layers, "model", type(model).__name__, "normalises all queries and keys")
        for number, attention, stem in self.layers:
            try:
                check_tensors(self.layout, attention, self._tensors(stem))
            except ValueError as error:
                raise ValueError(f"layer {number} ({stem}): {error}") from None
        if optimizer is not None:
            held = {id(p) for group in optimizer.param_groups for p in group["params"]}
            ours = any(id(p) in held for p in self._maps())
            why = "holds none of the model's query and key maps"
            require(ours, "optimizer", type(optimizer).__name__, why)

    @torch.no_grad()
    def __call__(self):
        """Rebalance every layer, in place. Returns a list of Moved."""
        found = [self._balance(*layer) for layer in self.layers]
        if self.optimizer is not None and self.moments == "cleared":
            for parameter in self._maps():
                self.optimizer.state.pop(parameter, None)
        return found

    def _tensors(self, stem):
        ours = (name for name in self.parameters if name.startswith(stem))
        return {name.removeprefix(stem): self.parameters[name].data for name in ours}

    def _maps(self):
        """The parameters that hold queries and keys."""
        for _, _, stem in self.layers:
            for name in self.layout.maps[:2]:  # of one map for all there is no second
                for part in ("weight", "bias"):
                    if f"{stem}{name}.{part}" in self.parameters:
                        yield self.parameters[f"{stem}{name}.{part}"]

    def _balance(self, number, attention, stem):
        tensors = self._tensors(stem)
        old = {name: t.cpu() for name, t in read_layer(self.layout, attention, tensors).items()}
        try:
            balanced = balance_layer(attention, old)
            new = {name: balanced.parameters[name].to(old[name]) for name in old}
            change = output_change(replace(attention, inputs="free"), old, new)
            bound = max(TOLERANCES[tensor.dtype] for tensor in old.values())
            why = f"its outputs would move by {change:.2g}, more than rounding ({bound})"
            require(change <= bound, "weights", "queries and keys", why)
        except ValueError as error:
            raise ValueError(f"layer {number} ({stem}): {error}") from None
        write_layer(self.layout, attention, tensors, new)
        size = lambda p: math.hypot(*(float(p[n].double().norm()) for n in QUERY_KEY if n in p))
        moved = size({n: new[n].double() - old[n].double() for n in old}) / size(old)
        left = tuple(balanced.left["query-key"].nonzero().flatten().tolist())
        condition = tuple(balanced.condition["query-key"].tolist())
        return Moved(number, condition, moved, change, left)


def _described(model):
    """The layout of a model in memory, and the descriptions of its attention layers."""
    config = getattr(model, "config", None)
    if hasattr(config, "to_dict"):
        architecture = read_architecture(config.to_dict())
        known, name = LAYOUTS, architecture.model_type
        latent = any(isinstance(layer, LatentAttention) for _, layer in architecture.kinds)
        why = "its latents are not rebalanced" if latent else f"is not one of {', '.join(known)}"
        require(name in known, "model_type", name, why)
        return known[name], [layer for _, layer in architecture.layers]
    sizes = [getattr(config, name, None) for name in ("n_embd", "n_head", "n_layer")]
    nano = all(isinstance(size, int) for size in sizes)
    require(nano, "model", type(model).__name__, "is neither of transformers nor nanoGPT's")
    turns = "rotary" in str(getattr(config, "positions", "learned"))  # one word, or one a layer
    why = "turns pairs of neighbours, which no layout describes: use attnid.rebalance(rotary=...)"
    require(not turns, "positions", "rotary", why)
    layer = Attention(config.n_embd, config.n_head, bias="qkvo" if config.bias else "")
    return LAYOUTS["nanogpt"], Stack(((layer, config.n_layer),))


def trainer_callback(every, *, moments="cleared", report=None):
    """A callback for transformers' Trainer that rebalances after each `every` steps.

    report(step, list of Moved) is called each time. Errors as for Rebalancer, at the first
    rebalancing, and ValueError where `every` is no positive integer.
    """
    from transformers import TrainerCallback

    require_size("every", every)

    class Rebalance(TrainerCallback):
        def on_step_end(self, args, state, control, model=None, optimizer=None, **_):
            if state.global_step % every == 0:
                found = Rebalancer(model, optimizer, moments=moments)()
                if report is not None:
                    report(state.global_step, found)

    return Rebalance()
