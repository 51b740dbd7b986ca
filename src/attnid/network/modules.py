"""The measured count of any PyTorch module: the rank of its outputs' Jacobian in its own
parameters, where it stands.
"""

import copy
import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils._pytree import tree_leaves

from ..checks import require, require_finite, require_size
from ..layer.measuring import (
    CHANGES,
    MAX_RESIDUAL,
    Measurement,
    cut,
    largest_change,
    measure,
    refuse_many,
)
from ..layer.scaling import NoGapError

MARGIN = 1.1  # rows of the Jacobian for each parameter, where the outputs are more
CHUNK = 32  # rows made at a time


@measure.register
def measure_module(module: torch.nn.Module, inputs=None, *, fresh=None, seed=0) -> Measurement:
    """Count the unidentified parameters of any module at the parameters that it has, in float64 on
    the CPU: those directions of all its trained parameters along which the outputs at `inputs` keep
    still to first order.

    inputs: a tensor, or a tuple of what the module takes, samples along the first dimension of
    each; or a list of such batches, for a module that mixes the samples of a batch (batch norm in
    training mode). `fresh`: a batch more, on which the directions found must change nothing either
    (by default the last of the list, or the last quarter of the samples, which are then not among
    those measured). The outputs are all floating-point tensors in what the module returns. The
    module itself is not touched. Where outputs are many more than parameters, random sums of them
    are looked at (`seed`). Parameters that are zero or equal to others, as new ones often are, can
    leave more unidentified than trained ones. `sequences` is the number of samples, `tokens` their
    second dimension.

    ValueError for a module of more than MAX_PARAMETERS parameters, without any, with numbers that
    are not finite, whose outputs are random (dropout in training mode) or not differentiable, and
    for inputs that it cannot take or that are too few; NoGapError where no gap separates kept from
    dropped singular values, or fresh inputs still tell of directions that seemed unidentified.

    >>> import torch
    >>> x = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
    >>> two_maps = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 3, bias=False))
    >>> found = measure_module(two_maps, x)  # W_2 S^-1 S W_1 for any S: 4 of 14
    >>> found.nullity, found.parameters, found.null_space["1.weight"].shape
    (4, 14, torch.Size([4, 3, 2]))
    """
    require_size("seed", seed, 0)
    here = _in_float64(module)
    refuse_many(_Size(here))
    batches, held = _batches(inputs, fresh)
    generator = torch.Generator().manual_seed(int(seed))
    rows = torch.cat([jacobian_of(here, batch, generator) for batch in batches])
    parameters = dict(_trained(here))
    P = sum(p.numel() for p in parameters.values())
    spectrum, Vh = torch.linalg.svd(torch.cat((rows, rows.new_zeros(max(0, P - len(rows)), P))))[1:]
    rank, gap = cut(spectrum)
    residual = largest_change(jacobian_of(here, held, generator), Vh[rank:])
    if not residual < MAX_RESIDUAL:
        raise NoGapError(CHANGES.format(residual) + "; give more inputs")
    parts = Vh[rank:].split([p.numel() for p in parameters.values()], 1)
    null = {
        name: part.unflatten(1, p.shape) * _unit(p)
        for part, (name, p) in zip(parts, parameters.items())
    }
    samples, first = sum(len(batch[0]) for batch in batches), batches[0][0]
    tokens = first.shape[1] if first.dim() > 2 else 1
    return Measurement(P, rank, P - rank, gap, spectrum, residual, samples, tokens, null)


class _Size:
    def __init__(self, module):
        self.parameters = sum(p.numel() for _, p in _trained(module))


def _trained(module):
    return ((name, p) for name, p in module.named_parameters() if p.requires_grad)


def _in_float64(module):
    """A copy of the module, in float64 on the CPU. ValueError where it has nothing to measure."""
    here = copy.deepcopy(module).to("cpu", torch.float64)
    require(any(True for _ in _trained(here)), "module", _name(module), "has no trained parameters")
    for name, tensor in here.state_dict().items():
        if tensor.is_floating_point():
            require_finite(name, tensor)
    return here


def _name(module):
    return type(module).__name__


def _batches(inputs, fresh):
    """The batches to measure, and the one held back, each a tuple of tensors."""
    require(inputs is not None, "inputs", inputs, "give inputs that the module takes")
    batches = [_batch(x) for x in (inputs if isinstance(inputs, list) else [inputs])]
    if fresh is not None:
        return batches, _batch(fresh)
    if len(batches) > 1:
        return batches[:-1], batches[-1]
    require(bool(batches), "inputs", inputs, "is an empty list")
    samples = len(batches[0][0])
    require(samples >= 4, "inputs", samples, "samples are fewer than four: give more, or fresh")
    kept = samples - samples // 4
    return [tuple(x[:kept] for x in batches[0])], tuple(x[kept:] for x in batches[0])


def _batch(x):
    tensors = x if isinstance(x, tuple) else (x,)
    for each in tensors:
        sampled = isinstance(each, Tensor) and each.dim() > 0
        require(sampled, "inputs", type(each).__name__, "must be tensors of samples")
        alike = len(each) == len(tensors[0])
        require(alike, "inputs", tuple(each.shape), f"is not of {len(tensors[0])} samples")
    require(len(tensors) > 0, "inputs", x, "is an empty tuple")
    return tuple(_wide(each) for each in tensors)


def _wide(x):
    return x.detach().cpu().double() if x.is_floating_point() else x.detach().cpu()


def _outputs(module, inputs) -> Float[Tensor, "outputs"]:
    """All floating-point numbers that the module returns, as one vector."""
    try:
        found = module(*inputs)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        shapes = [tuple(x.shape) for x in inputs]
        raise ValueError(f"inputs={shapes}: {_name(module)} cannot take them ({error})") from error
    found = found if isinstance(found, (Tensor, tuple, list, dict)) else vars(found)
    leaves = [x for x in tree_leaves(found) if isinstance(x, Tensor) and x.is_floating_point()]
    return torch.cat([x.flatten() for x in leaves]) if leaves else torch.zeros(0)


def jacobian_of(module, inputs, generator) -> Float[Tensor, "rows P"]:
    """Rows (all outputs, or random sums of them where they are many) by columns (trained
    parameters in order, each relative to its tensor's root mean square).
    """
    with torch.random.fork_rng(devices=[]):  # what is drawn here is not drawn elsewhere
        again, outputs = (
            _outputs(copy.deepcopy(module), inputs).detach(),
            _outputs(module, inputs),
        )
    require_finite("outputs", outputs.detach())
    random = "its outputs are random (dropout in training mode?); module.eval() may help"
    require(torch.equal(outputs.detach(), again), "module", _name(module), random)
    still = "its outputs do not depend differentiably on its parameters"
    require(outputs.requires_grad, "module", _name(module), still)
    parameters = [p for _, p in _trained(module)]
    P, n = sum(p.numel() for p in parameters), len(outputs)
    sums = math.ceil(MARGIN * P) + 8
    weights = lambda k: torch.randn(k, n, generator=generator, dtype=torch.float64) / math.sqrt(n)
    cotangents = (
        (weights(min(CHUNK, sums - i)) for i in range(0, sums, CHUNK))
        if n > sums
        else torch.eye(n, dtype=torch.float64).split(CHUNK)
    )
    return torch.cat([_pulled_back(outputs, parameters, c) for c in cotangents])


def _pulled_back(outputs, parameters, cotangents):
    """(k, P) from cotangents (k, outputs)."""
    options = {"is_grads_batched": True, "retain_graph": True, "allow_unused": True}
    found = torch.autograd.grad(outputs, parameters, cotangents, **options)
    k = len(cotangents)
    return torch.cat(
        [
            p.new_zeros(k, p.numel()) if g is None else g.flatten(1) * _unit(p)
            for g, p in zip(found, parameters)
        ],
        1,
    )


def _unit(parameter):
    """The size in which a tensor's directions are measured; 1 for zeros."""
    size = parameter.detach().square().mean().sqrt()
    return size.where(size > 0, 1.0)
