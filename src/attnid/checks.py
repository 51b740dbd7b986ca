"""Checks of what callers hand in: every error names the field and the value."""

import math


def require(condition, field, value, why):
    """Raise ValueError("field=value: why") unless the condition holds."""
    if not condition:
        raise ValueError(f"{field}={value!r}: {why}")


def require_size(field, value, least=1):
    """Raise ValueError unless the value is a whole number of at least `least`."""
    require(type(value) is int and value >= least, field, value, f"must be an integer of at least {least}")


def is_finite(value):
    """Whether the value is a finite real number, and not a bool."""
    return type(value) in (int, float) and math.isfinite(value)
