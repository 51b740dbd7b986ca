import math

import pytest
import torch

from attnid import Attention
from attnid.layer.attention import rotate
from attnid.layer.rotation import isotypes


def sizes(*rotary, head_dim=8):
    return [
        (round(i.angle, 6), i.size, i.complex)
        for i in isotypes(Attention(8, 1, head_dim=head_dim, rotary=rotary))
    ]


@pytest.mark.parametrize(
    "rotary, expected",
    [
        ((), [(0.0, 8, False)]),
        ((1.0, 0.37), [(0.0, 4, False), (0.37, 1, True), (1.0, 1, True)]),
        ((1.0, 1.0, -1.0, 1.0 + 2 * math.pi), [(1.0, 4, True)]),
        ((0.0, 2 * math.pi, math.pi, -math.pi), [(0.0, 4, False), (round(math.pi, 6), 4, False)]),
        (
            (3 * math.pi, 2 * math.pi - 0.5, 0.5),
            [(0.0, 2, False), (0.5, 2, True), (round(math.pi, 6), 2, False)],
        ),
    ],
)
def test_planes_that_turn_alike_are_together(rotary, expected):
    assert sorted(sizes(*rotary)) == sorted(expected)


def test_an_isotype_is_complex_multiplication():
    a = Attention(8, 1, rotary=(0.8, -0.8, math.pi, 0.0))
    vectors = torch.randn(
        8, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    ).expand(6, 8)
    turned, position = rotate(a, vectors), torch.arange(6, dtype=torch.float64)
    for isotype in isotypes(a):
        before, after = vectors[:, list(isotype.coordinates)], turned[:, list(isotype.coordinates)]
        if isotype.complex:
            sign = torch.tensor(isotype.signs)
            number = lambda v: torch.complex(v[:, 0::2], sign * v[:, 1::2])
            expected = number(before) * torch.exp(1j * isotype.angle * position)[:, None]
            assert torch.allclose(number(after), expected, rtol=0, atol=1e-12)
        else:
            assert torch.allclose(
                after, before * torch.cos(isotype.angle * position)[:, None], rtol=0, atol=1e-12
            )
