"""Checks of what callers hand in: every error names the field and the value."""

import math
from numbers import Integral, Real


def require(condition, field, value, why):
    """Raise ValueError("field=value: why") unless the condition holds."""
    if not condition:
        raise ValueError(f"{field}={value!r}: {why}")


def require_size(field, value, least=1):
    """Raise ValueError unless the value is a whole number, Python's or NumPy's, of at least
    `least`.
    """
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    require(
        whole and least <= value < 2**63, field, value, f"must be an integer of at least {least}"
    )


def is_finite(value):
    """Whether the value is a finite real number, Python's or NumPy's, and not a bool."""
    try:
        return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # an integer beyond every float
        return False


def require_finite(field, tensor):
    """ValueError unless every number of the tensor is finite, naming the first that is not."""
    finite = tensor.isfinite()
    if not finite.all():
        require(False, field, tensor[~finite][0].item(), "every number must be finite")
