"""The settings of a run, and its learning rate."""

import math

import pytest

from attnid.training.settings import TrainingConfig, learning_rate_at


@pytest.mark.parametrize(
    "field, value",
    [
        ("steps", 0),
        ("steps", 1.0),
        ("batch_size", 0),
        ("warmup", -1),
        ("seed", -1),
        ("learning_rate", 0.0),
        ("learning_rate", math.inf),
        ("learning_rate", "1e-3"),
        ("min_learning_rate", -1.0),
        ("min_learning_rate", 1.0),
        ("weight_decay", -0.1),
        ("grad_clip", math.nan),
        ("betas", (0.9,)),
        ("betas", (0.9, 1.0)),
        ("optimizer", "adam"),
        ("momentum", 1.0),
        ("momentum", -0.1),
    ],
)
def test_impossible_setting_is_named(field, value):
    with pytest.raises(ValueError, match=f"^{field}="):
        TrainingConfig(**({"steps": 10} | {field: value}))


def test_learning_rate_warms_up_and_falls_to_a_tenth():
    settings = TrainingConfig(5000, learning_rate=1e-3, warmup=100)
    rate = [learning_rate_at(step, settings) for step in range(5001)]
    assert (
        rate[0] == pytest.approx(1e-3 / 101)
        and rate[50] == pytest.approx(51e-3 / 101)
        and rate[100] == 1e-3
    )
    assert rate[2550] == pytest.approx(0.55e-3)  # half-way down: the mean of the two ends
    assert rate[5000] == pytest.approx(1e-4) == pytest.approx(learning_rate_at(9999, settings))
    assert all(a < b for a, b in zip(rate[:100], rate[1:101])) and all(
        a > b for a, b in zip(rate[100:], rate[101:])
    )


def test_learning_rate_without_warmup_or_decay():
    flat = TrainingConfig(10, learning_rate=0.25, min_learning_rate=0.25, warmup=0)
    assert {learning_rate_at(step, flat) for step in range(11)} == {0.25}
    short = TrainingConfig(3, warmup=10)  # a warm-up longer than the run
    assert learning_rate_at(2, short) == pytest.approx(3e-3 / 11)
