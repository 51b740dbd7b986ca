"""Any module measured: counts that theory gives, points that are not generic, and what is refused."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn

from attnid import Attention, NoGapError, count, measure
from attnid.tensors import normal, relative_change


def attention(width, heads, *, source=None, bias=False):
    """A module of PyTorch with generic biases, and what it attends to: tokens of width `source`."""
    module = nn.MultiheadAttention(
        width, heads, bias=bias, kdim=source, vdim=source, batch_first=True
    ).double()
    generator = torch.Generator().manual_seed(1)
    for parameter in module.parameters():
        shape = parameter.shape
        parameter.data = torch.randn(shape, generator=generator, dtype=torch.float64) / 2
    return module


class SelfAttention(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.attention = module

    def forward(self, x):
        return self.attention(x, x, x, need_weights=False)[0]


class LowRank(nn.Module):
    """A map that is kept, and a change of rank 2 that is trained."""

    def __init__(self, start):
        super().__init__()
        self.kept = nn.Linear(5, 4)
        self.kept.requires_grad_(False)
        self.down = nn.Parameter(normal(2, 5, seed=1))
        self.up = nn.Parameter(start)

    def forward(self, x):
        return self.kept(x) + x @ self.down.T @ self.up.T


def test_attention_to_other_tokens_loses_what_its_products_lose():
    # one head of width 6 over 6 and over 12 inputs: 36 in each circuit
    module, x = attention(6, 1, source=12), normal(40, 5, 6, seed=2)
    y = normal(40, 7, 12, seed=3)
    found = measure(module, (x, y, y))
    assert (found.nullity, found.parameters) == (72, 216) and found.gap > 1e9
    assert (found.sequences, found.tokens) == (30, 5)


@pytest.mark.parametrize("bias, letters", [(False, ""), (True, "qkvo")])
def test_attention_of_pytorch_is_counted_as_ours(bias, letters):
    module = SelfAttention(attention(6, 2, bias=bias))
    expected = count(Attention(6, 2, bias=letters, causal=False))
    found = measure(module, normal(40, 7, 6, seed=2))
    assert (found.nullity, found.parameters) == (expected.unidentified, expected.parameters)


def test_null_space_moves_nothing_to_first_order():
    module, x = SelfAttention(attention(6, 2)), normal(40, 7, 6, seed=2)
    found = measure(module, x)
    before, step = module(x).detach(), 1e-5
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter += step * found.null_space[name][3]
    assert relative_change(module(x).detach(), before) < 100 * step**2


def test_a_low_rank_change_loses_the_square_of_its_rank():
    x = normal(40, 5, seed=3)
    found = measure(LowRank(normal(4, 2, seed=4)).double(), x)
    assert (found.nullity, found.parameters) == (4, 18)
    assert set(found.null_space) == {"down", "up"}


def test_a_low_rank_change_that_starts_at_zero_sees_one_factor_only():
    found = measure(LowRank(torch.zeros(4, 2, dtype=torch.float64)).double(), normal(40, 5, seed=3))
    assert found.nullity == 10  # the other factor's numbers, all of them


@pytest.mark.parametrize("eps, nullity", [(1e-5, 3), (1e-300, 6)])
def test_batch_norm_takes_out_shifts_and_but_for_eps_scales(eps, nullity):
    layers = nn.Linear(4, 3), nn.BatchNorm1d(3, eps=eps), nn.Tanh(), nn.Linear(3, 2)
    module = nn.Sequential(*layers).double()
    for parameter in module.parameters():
        parameter.data += normal(*parameter.shape, seed=5) / 2
    before = module[1].running_mean.clone()
    assert measure(module, [normal(30, 4, seed=s) for s in range(4)]).nullity == nullity
    assert torch.equal(module[1].running_mean, before)  # the module is not touched


def test_one_batch_does_not_tell_an_eps_and_the_fresh_one_says_so():
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Tanh(), nn.Linear(3, 2))
    with pytest.raises(NoGapError, match="fresh sequences still change .* give more inputs"):
        measure(module, normal(40, 4, seed=0))


def test_outputs_of_every_form_are_seen():
    @dataclass
    class Found:
        y: torch.Tensor
        number: int = 3

    class Wrapped(nn.Linear):
        def forward(self, x):
            return wrap(super().forward(x))

    for wrap in (Found, lambda y: {"y": y, "argmax": y.argmax(-1)}, lambda y: [y, (y, y)]):
        assert measure(Wrapped(3, 2), normal(12, 3, seed=0)).nullity == 0


def test_random_sums_of_many_outputs_count_alike():
    module, few, many = nn.Linear(3, 2), normal(8, 3, seed=0), normal(400, 3, seed=0)
    assert measure(module, few).rank == measure(module, many).rank == 8


NAN = nn.Linear(3, 3)
NAN.weight.data[1, 2] = torch.nan
GOOD = torch.zeros(8, 3)


@pytest.mark.parametrize(
    "module, inputs, message",
    [
        (nn.Linear(100, 100), torch.zeros(8, 100), "^parameters=10100: .* too many"),
        (nn.Sequential(nn.Linear(3, 3), nn.Dropout()), GOOD + 1, "^module='Sequential': .* random"),
        (nn.ReLU(), GOOD, "^module='ReLU': has no trained parameters"),
        (nn.Linear(3, 3), None, "^inputs=None: "),
        (nn.Linear(3, 3), [], r"^inputs=\[\]: "),
        (nn.Linear(3, 3), GOOD[:3], "^inputs=3: "),
        (nn.Linear(3, 3), (GOOD, GOOD[:5]), r"^inputs=\(5, 3\): is not of 8 samples"),
        (nn.Linear(3, 3), torch.zeros(8, 4), r"^inputs=\[\(6, 4\)\]: Linear cannot take them"),
        (nn.Linear(3, 3), [GOOD, 1], "^inputs='int': "),
        (NAN, GOOD, "^weight=.*finite"),
        (nn.Linear(3, 3), GOOD + torch.nan, "^outputs=.*finite"),
    ],
)
def test_what_cannot_be_measured_is_named(module, inputs, message):
    with pytest.raises(ValueError, match=message):
        measure(module, inputs)


def test_outputs_without_a_derivative_are_refused():
    class Chosen(nn.Linear):
        def forward(self, x):
            return super().forward(x).argmax(-1).double()

    with pytest.raises(ValueError, match="^module='Chosen': .* differentiably"):
        measure(Chosen(3, 3), GOOD)


def test_the_common_generator_is_not_advanced():
    module, state = nn.Linear(3, 2), torch.get_rng_state()
    measure(module, normal(12, 3, seed=0))
    assert torch.equal(torch.get_rng_state(), state)
