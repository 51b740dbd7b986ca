"""Parameters: drawn as a description says, and checked as they are handed in."""

import numpy as np
import pytest
import torch
from descriptions import descriptions
from hypothesis import given, settings

from attnid import Attention, forward
from attnid.layer.attention import random_inputs
from attnid.layer.parameters import check_heads, check_parameters, random_parameters


@given(descriptions())
@settings(max_examples=60, deadline=None)
def test_parameters_have_the_shapes_and_the_number_that_the_description_says(a):
    parameters = a.random_parameters(3)
    assert {name: tuple(p.shape) for name, p in parameters.items()} == a.shapes
    assert sum(p.numel() for p in parameters.values()) == a.parameters
    assert all(torch.equal(p, a.random_parameters(3)[name]) for name, p in parameters.items())
    assert forward(a, parameters, random_inputs(a, 2, 5)).shape == (2, 5, a.E)


@pytest.mark.parametrize(
    "break_it, named",
    [
        (lambda p: p.pop("W_K"), "W_K"),
        (lambda p: p.update(extra=p["W_Q"]), "extra"),
        (lambda p: p.update(W_Q=p["W_Q"][:1]), "W_Q"),
        (lambda p: p["W_V"].fill_(float("inf")), "W_V"),
        (lambda p: p.update(W_Q=p["W_Q"].long()), "W_Q"),
        (lambda p: p.update(W_Q=p["W_Q"].to("meta")), "W_Q"),
        (lambda p: p.update(W_Q=[1.0]), "W_Q"),
        (lambda p: p.update(W_Q=p["W_Q"].to(torch.float8_e5m2)), "W_Q=torch.float8_e5m2"),
    ],
)
def test_parameters_that_do_not_fit_are_named(break_it, named):
    a = Attention(4, 2)
    p = a.random_parameters(0)
    break_it(p)
    with pytest.raises(ValueError, match=named):
        a.check_parameters(p)


def test_drawn_numbers_have_the_width_that_their_inputs_ask_for():
    shapes = {"W": (400, 25), "gain": (9999,), "b": (9999,)}
    drawn = random_parameters(shapes, {"W": 25}, seed=np.int64(1), scale=3.0)
    assert list(drawn) == list(shapes) and all(p.dtype == torch.float64 for p in drawn.values())
    assert drawn["W"].std() == pytest.approx(3 / 5, rel=0.03)
    assert drawn["b"].std() == pytest.approx(3, rel=0.03)
    assert 0.5 <= drawn["gain"].min() < 0.51 and 1.49 < drawn["gain"].max() <= 1.5  # not scaled
    other = random_parameters(shapes, {"W": 25}, seed=2, scale=3.0)
    assert not torch.equal(other["W"], drawn["W"])


def test_checked_parameters_are_in_order_in_float64_and_without_a_gradient():
    given_ = {"b": torch.ones(2, requires_grad=True), "W": torch.ones(2, 3, dtype=torch.bfloat16)}
    found = check_parameters({"W": (2, 3), "b": (2,)}, given_)
    assert list(found) == ["W", "b"] and {p.dtype for p in found.values()} == {torch.float64}
    assert not any(p.requires_grad for p in found.values())


def test_heads_of_one_shape_pass_and_the_first_other_one_is_named():
    W = torch.ones(2, 3, 5)
    check_heads(W_Q=W, W_K=W)
    for other, words in (
        (torch.ones(2, 3, 4), r"^W_K=\(2, 3, 4\): shape must be that of W_Q, \(2, 3, 5\)$"),
        (W.to(torch.int64), "^W_K=torch.int64: must be a dense tensor"),
        (W * torch.inf, "^W_K=inf: every number must be finite$"),
        (torch.ones(5), r"^W_K=\(5,\): shape must be \(..., D, E\)$"),
    ):
        with pytest.raises(ValueError, match=words):
            check_heads(W_Q=W, W_K=other)
