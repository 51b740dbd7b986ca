"""A model's layers in their order, kept as what repeats and how often: depth costs nothing."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from ..checks import require


@dataclass(frozen=True)
class Stack(Sequence):
    """A sequence of layers, of any hashable kind: each of `parts` is (a layer, or a Stack of some,
    how many times in a row).

    ValueError where there are more than a sequence can number.
    """

    parts: tuple

    def __post_init__(self):
        object.__setattr__(self, "parts", tuple(part for part in self.parts if part[1]))
        total = sum(self.numbers.values())
        require(total <= sys.maxsize, "layers", total, "are more than can be numbered")

    @classmethod
    def of(cls, layers):
        """The Stack of layers that are listed one by one."""
        return cls(tuple((layer, len(list(run))) for layer, run in groupby(layers)))

    @cached_property
    def numbers(self):
        """Layer -> how many are so, in the order in which they first occur."""
        found = {}
        for part, times in self.parts:
            within = part.numbers if isinstance(part, Stack) else {part: 1}
            for layer, number in within.items():
                found[layer] = found.get(layer, 0) + times * number
        return found

    def __len__(self):
        return sum(self.numbers.values())

    def __iter__(self):
        for part, times in self.parts:
            for _ in range(times):
                yield from part if isinstance(part, Stack) else (part,)

    def __getitem__(self, index):
        places = range(len(self))[index]
        return tuple(map(self._at, places)) if isinstance(index, slice) else self._at(places)

    def _at(self, place):
        for part, times in self.parts:
            size = len(part) if isinstance(part, Stack) else 1
            if place < times * size:
                return part[place % size] if isinstance(part, Stack) else part
            place -= times * size

    def count(self, layer):
        """How many layers are equal to this one."""
        return self.numbers.get(layer, 0)
