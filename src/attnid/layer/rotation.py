"""How the coordinates of a rotary head turn, and which of them turn alike."""

import math
from dataclasses import dataclass

SAME_ANGLE = 1e-9  # radians per position; closer frequencies are taken as equal


@dataclass(frozen=True)
class Isotype:
    """Coordinates of a head that turn alike. Planes that turn make complex numbers, mirrored where their sign is -1;
    coordinates that keep still (angle 0) or change sign at each step (angle pi) stay real."""

    angle: float
    coordinates: tuple
    signs: tuple = ()

    @property
    def complex(self):
        return bool(self.signs)

    @property
    def size(self):
        return len(self.signs) or len(self.coordinates)


def isotypes(attention):
    """A head's coordinates by how they turn: what keeps still first, then half turns, then each angle in (0, pi).

    Positions are whole numbers, so an angle counts modulo 2 pi, and a plane that turns the other way is the same, mirrored.
    """
    turns = [math.remainder(f, 2 * math.pi) for f in attention.rotary]
    pairs = lambda planes: tuple(c for i in planes for c in (2 * i, 2 * i + 1))
    still = [i for i, t in enumerate(turns) if abs(t) < SAME_ANGLE]
    half = [i for i, t in enumerate(turns) if math.pi - abs(t) < SAME_ANGLE]
    rest = tuple(range(2 * len(turns), attention.D))
    found = [Isotype(0.0, pairs(still) + rest), Isotype(math.pi, pairs(half))]
    turning = [i for i in range(len(turns)) if i not in still + half]
    while turning:
        angle = min(abs(turns[i]) for i in turning)
        alike = [i for i in turning if abs(turns[i]) - angle < SAME_ANGLE]
        found.append(
            Isotype(angle, pairs(alike), tuple(1.0 if turns[i] > 0 else -1.0 for i in alike))
        )
        turning = [i for i in turning if i not in alike]
    return [isotype for isotype in found if isotype.coordinates]
