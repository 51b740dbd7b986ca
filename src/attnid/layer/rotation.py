"""How the coordinates of a rotary head turn, and which of them turn alike."""

import math
import sys
from collections import Counter
from dataclasses import dataclass

ROUNDING = 16 * sys.float_info.epsilon  # relative; frequencies that differ by less are equal


@dataclass(frozen=True)
class Isotype:
    """Coordinates of a head that turn alike. Planes that turn make complex numbers, mirrored where
    their sign is -1; coordinates that keep still (angle 0) or change sign at each step (angle pi)
    stay real."""

    angle: float
    coordinates: tuple
    signs: tuple = ()

    @property
    def complex(self):
        return bool(self.signs)

    @property
    def size(self):
        return len(self.signs) or len(self.coordinates)


@dataclass(frozen=True)
class Turns:
    """The planes of a head by how they turn: those that keep still, those of half turns, and angle
    -> planes for each angle in (0, pi); `signs` has -1 for a plane that turns the other way.
    """

    still: tuple
    half: tuple
    turning: dict
    signs: tuple


def turns(frequencies):
    """How planes of these angular frequencies turn, as Turns.

    Positions are whole numbers, so an angle counts modulo 2 pi, and a plane that turns the other
    way is the same, mirrored. Frequencies are numbers in float64: angles that differ by no more
    than the rounding of these are equal, and a plane is still only if it is so to rounding, however
    slow it is.
    """
    angles = [math.remainder(f, 2 * math.pi) for f in frequencies]
    error = [ROUNDING * abs(f) for f in frequencies]
    still = tuple(i for i, t in enumerate(angles) if abs(t) <= error[i] * (abs(frequencies[i]) > 1))
    half = tuple(i for i, t in enumerate(angles) if math.pi - abs(t) <= max(error[i], ROUNDING))
    rest = set(range(len(angles))) - {*still, *half}
    turning, first = {}, None
    for i in sorted(rest, key=lambda i: (abs(angles[i]), i)):
        if first is None or abs(angles[i]) - abs(angles[first]) > max(error[i], error[first]):
            first = i
        turning.setdefault(abs(angles[first]), []).append(i)
    return Turns(still, half, turning, tuple(math.copysign(1.0, t) for t in angles))


def isotypes(attention):
    """A head's coordinates by how they turn, as a list of Isotype: what keeps still first, then
    half turns, then each angle in (0, pi).

    >>> from attnid import Attention
    >>> parts = isotypes(Attention(8, 1, head_dim=6, rotary=(0.5, 0.5)))
    >>> [(part.angle, len(part.coordinates)) for part in parts]
    [(0.0, 2), (0.5, 4)]
    """
    found = turns(attention.rotary)
    pairs = lambda planes: tuple(c for i in sorted(planes) for c in (2 * i, 2 * i + 1))
    rest = tuple(range(2 * len(attention.rotary), attention.D))
    every = [Isotype(0.0, pairs(found.still) + rest), Isotype(math.pi, pairs(found.half))]
    for angle, planes in found.turning.items():
        signs = tuple(found.signs[i] for i in sorted(planes))
        every.append(Isotype(angle, pairs(planes), signs))
    return [isotype for isotype in every if isotype.coordinates]


def isotype_kinds(attention):
    """(whether still, size, whether complex) -> how many isotypes are so, without a list of
    coordinates.
    """
    found = turns(attention.rotary)
    still = 2 * len(found.still) + attention.D - 2 * len(attention.rotary)
    kinds = Counter((False, len(planes), True) for planes in found.turning.values())
    kinds |= {(True, still, False): 1, (False, 2 * len(found.half), False): 1}
    return {kind: number for kind, number in kinds.items() if kind[1]}
