"""Parameters that fit a description: drawn at random, or checked as a caller hands them in."""

import math

import torch

from ..checks import require, require_finite


def random_parameters(shapes, fan_in, seed=0, scale=1.0):
    """Random float64 parameters, name -> tensor: normal over the root of their `fan_in`, gains in
    [0.5, 1.5].

    `scale` multiplies all but the gains.
    """
    generator = torch.Generator().manual_seed(int(seed))

    def draw(name, shape):
        kind = torch.rand if name.startswith("gain") else torch.randn
        number = kind(shape, generator=generator, dtype=torch.float64)
        return (
            0.5 + number if kind is torch.rand else scale * number / math.sqrt(fan_in.get(name, 1))
        )

    return {name: draw(name, shape) for name, shape in shapes.items()}


def check_parameters(shapes, parameters):
    """The parameters as detached float64 tensors on the CPU, in the order of the shapes.

    Raises ValueError naming the parameter that is missing, unknown, not a real tensor, of another
    shape, or not finite.
    """
    require(
        isinstance(parameters, dict),
        "parameters",
        type(parameters).__name__,
        "must be a dict, name -> tensor",
    )
    for name in parameters.keys() ^ shapes.keys():
        require(False, "parameters", name, f"this description has {list(shapes)}")
    for name, shape in shapes.items():
        require_real(name, parameters[name])
        given = tuple(parameters[name].shape)
        require(given == shape, name, given, f"shape must be {shape}")
        require_finite(name, parameters[name])
    return {name: parameters[name].detach().to("cpu", torch.float64) for name in shapes}


def require_real(name, tensor):
    """ValueError naming it unless it is a dense tensor of floating-point numbers that PyTorch
    calculates with.
    """
    real = (
        isinstance(tensor, torch.Tensor)
        and tensor.is_floating_point()
        and tensor.dtype.itemsize > 1  # float8 is a way to keep numbers, not to calculate
        and tensor.layout == torch.strided
        and not tensor.is_meta
    )
    why = "must be a dense tensor of real numbers, of 16 bits or more"
    require(real, name, getattr(tensor, "dtype", type(tensor)), why)


def check_heads(**weights):
    """ValueError naming the first of these weights (..., D, E) that is not real, not finite, or of
    another shape than the first.
    """
    first, expected = next(iter(weights.items()))
    for name, W in weights.items():
        require_real(name, W)
        shape = tuple(W.shape)
        require(len(shape) >= 2 and min(shape[-2:]) >= 1, name, shape, "shape must be (..., D, E)")
        same = shape == tuple(expected.shape)
        require(same, name, shape, f"shape must be that of {first}, {tuple(expected.shape)}")
        if not W.sum().isfinite():  # one quick pass in the usual case
            require_finite(name, W)
