"""Reading one configuration file as people really have them: fields that are missing, null, or
nested in others.
"""

import math

from ..checks import is_finite, require, require_size
from ..layer.rotation import turns

ROPE_TYPES = ("default", "linear", "dynamic", "yarn", "llama3", "longrope")
OLD_NAMES = {"su": "longrope"}


class Fields:
    """The fields of a configuration, read by name and kind; every error names the field.

    `defaults` are what transformers takes for fields that published files leave out. Each default
    that is used is written down in `notes`. A field that is null counts as absent, but has no
    default of its own.
    """

    def __init__(self, config, defaults=()):
        self.config, self.defaults, self.notes = config, dict(defaults), []

    def get(self, name, default=None):
        """The field's value, or what stands for it: its own default where it is left out, `default`
        where it is null or unknown.
        """
        if name in self.config:
            value = self.config[name]
            return default if value is None else value
        if name in self.defaults:
            note = f"{name} is not in the file: {self.defaults[name]}, as in transformers"
            self.notes += [note] * (note not in self.notes)
            return self.defaults[name]
        return default

    def size(self, name, default=None, least=1):
        """A whole number of at least `least`."""
        value = self.get(name, default)
        require(value is not None, name, value, "is missing")
        require_size(name, value, least)
        return value

    def number(self, name, default=None):
        """A positive finite number."""
        value = self.get(name, default)
        require(value is not None, name, value, "is missing")
        require(is_finite(value) and value > 0, name, value, "must be a positive number")
        return float(value)

    def flag(self, name, default=False):
        """True or false."""
        value = self.get(name, default)
        require(isinstance(value, bool), name, value, "must be true or false")
        return value

    def refuse(self, name, why):
        """An error where the field is set to anything but false."""
        value = self.get(name, False)
        require(value is False, name, value, why)

    def within(self, name):
        """The fields of the field `name`, or None where it is absent."""
        value = self.get(name)
        require(
            value is None or isinstance(value, dict),
            name,
            value,
            "must be an object with fields of its own",
        )
        return None if value is None else Fields(value)


def rope(fields, kind=None, *, name="rope_theta"):
    """How positions turn heads: the base, and the fields of the scaling or None.

    Old files have the base, by its `name`, and rope_scaling; new ones put both in rope_parameters,
    where layers differ one for each kind.
    """
    new = fields.within("rope_parameters")
    if new is not None:
        new = new.within(kind) if kind in new.config else new
        return new.number("rope_theta"), new
    return fields.number(name, 10000.0), fields.within("rope_scaling")


def rotary_angles(fields, width, base, scaling=None):
    """The angle in radians per position of each plane of `width` turned coordinates, as
    transformers has it for short texts.

    `scaling` holds the fields of rope_scaling: rope_type (or type) default, linear, dynamic (which
    changes nothing until a text is longer than max_position_embeddings), yarn, llama3 or longrope
    (of which the short factors count). ValueError for any other, and where two planes turn so
    nearly alike that a count cannot tell them apart.
    """
    require(
        width % 2 == 0, "head_dim", width, "coordinates turn in pairs: their number must be even"
    )
    require(base != 1 or width <= 2, "rope_theta", base, "makes all planes turn alike")
    kind = (
        "default" if scaling is None else scaling.get("rope_type", scaling.get("type", "default"))
    )
    kind = OLD_NAMES.get(str(kind), kind)
    require(kind in ROPE_TYPES, "rope_type", kind, f"is not one of {ROPE_TYPES}")
    try:
        angles = [base ** (-2 * i / width) for i in range(width // 2)]
        angles = SCALED[kind](fields, scaling, angles, base)
    except ArithmeticError as error:  # equal bounds of a ramp, a base of 1, a number out of range
        why = f"with rope_type={kind!r} and its fields it gives no angles ({error})"
        raise ValueError(f"rope_theta={base!r}: {why}") from None
    found = turns(angles)
    apart = not found.still and all(len(planes) == 1 for planes in found.turning.values())
    require(apart, "rope_theta", base, "makes planes keep still or turn alike, to rounding")
    return tuple(angles)


def _linear(fields, scaling, angles, base):
    return [angle / scaling.number("factor") for angle in angles]


def _llama3(fields, scaling, angles, base):
    """Slow planes are slowed by the factor, fast ones are not, and those between in part."""
    factor, low, high = (
        scaling.number(name) for name in ("factor", "low_freq_factor", "high_freq_factor")
    )
    length = scaling.number(
        "original_max_position_embeddings", fields.get("max_position_embeddings")
    )
    turns = [angle * length / (2 * math.pi) for angle in angles]
    kept = [min(1.0, max(0.0, (t - low) / (high - low))) for t in turns]
    return [(1 - k) * angle / factor + k * angle for angle, k in zip(angles, kept)]


def _yarn(fields, scaling, angles, base):
    """The same idea, with a ramp over the planes' numbers instead of their turns."""
    factor, planes = scaling.number("factor"), len(angles)
    length = scaling.number(
        "original_max_position_embeddings", fields.get("max_position_embeddings")
    )
    plane = lambda turns: planes * math.log(length / (turns * 2 * math.pi)) / math.log(base)
    low, high = plane(scaling.number("beta_fast", 32)), plane(scaling.number("beta_slow", 1))
    if scaling.flag("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * planes - 1)
    high += 0.001 * (low == high)
    slowed = [min(1.0, max(0.0, (i - low) / (high - low))) for i in range(planes)]
    return [s * angle / factor + (1 - s) * angle for angle, s in zip(angles, slowed)]


def _longrope(fields, scaling, angles, base):
    factors = scaling.get("short_factor")
    good = (
        isinstance(factors, list)
        and len(factors) == len(angles)
        and all(is_finite(f) and f > 0 for f in factors)
    )
    require(
        good,
        "short_factor",
        factors,
        f"must list {len(angles)} positive numbers, one for each plane",
    )
    return [angle / factor for angle, factor in zip(angles, factors)]


def _same(fields, scaling, angles, base):
    return angles


SCALED = dict(zip(ROPE_TYPES, (_same, _linear, _same, _yarn, _llama3, _longrope)))
