"""What is measured along a run is what weights and gradients saved by hand say, and looking changes nothing."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from small_runs import CONFIG, TINY, D, E, H, L, recorded, watched

from attnid.layer.metrics import head_metrics
from attnid.network.gpt import GPT


def test_head_metrics_are_those_of_weights_saved_by_hand():
    saved = {}

    def by_hand(model):
        fused = torch.stack(
            [
                torch.cat((block.attn.c_attn.weight, block.attn.c_attn.bias[:, None]), 1)
                for block in model.transformer.h
            ]
        )
        return [
            fused.detach()[:, part * E : (part + 1) * E].reshape(L, H, D, E + 1).double()
            for part in (0, 1)
        ]

    def look(step, model, recorder):
        saved[step] = by_hand(model)

    recorder, _ = watched("moved", look=look)
    saved[-1] = by_hand(GPT(CONFIG))
    assert recorder.step == list(range(0, 40, 4))
    for i, step in enumerate(recorder.step):
        joint = saved[step - 1] + saved[step]
        plain = [W[..., :E] for W in joint]
        expected = head_metrics(*plain) | {
            f"joint_{name}": value for name, value in head_metrics(*joint).items()
        }
        for name in ("rho", "beta", "tau", "mu", "drift", "joint_rho", "joint_beta", "joint_drift"):
            found = torch.tensor(recorder.heads[name][i], dtype=torch.float64)
            # two computations, batched and single: equal to rounding on any processor
            torch.testing.assert_close(
                found, expected[name], rtol=1e-9, atol=1e-14, msg=f"{name} {step}"
            )
        length = [(plain[part + 2] - plain[part]).flatten(2).norm(dim=2) for part in (0, 1)]
        torch.testing.assert_close(
            torch.tensor(recorder.heads["step_length"][i], dtype=torch.float64),
            torch.hypot(*length),
        )


def test_gradients_are_those_of_each_head():
    found = []

    def look(step, model, recorder):
        if step % 4 == 0:
            c_attn = model.transformer.h[1].attn.c_attn
            rows = slice(E + D, 2 * E)  # the keys of the second head of the second layer
            found.append(
                (c_attn.weight.grad[rows].norm().item(), c_attn.bias.grad[rows].norm().item())
            )

    recorder, _ = watched("adamw", look=look)
    for part, name in enumerate(("gradient_W_K", "gradient_b_K")):
        assert np.array(recorder.heads[name])[:, 1, 1] == pytest.approx(
            [pair[part] for pair in found], rel=1e-5
        )


@pytest.mark.parametrize("case", ["sgd", "rebalanced"])
def test_looking_changes_no_loss(case):
    _, usual = recorded(case)
    for preset in (
        replace(TINY, measure_every=1),
        replace(TINY, measure_every=7, evaluate_every=3),
    ):
        assert recorded(case, preset)[1] == usual


def test_sgd_drifts_exactly_as_its_gradients_say():
    recorder, _ = recorded("sgd", precision="float64")
    drift, predicted = (
        np.array(recorder.heads[name]) for name in ("joint_drift", "drift_predicted")
    )
    rounding = 1e-17  # of P and K, whose entries are near 0.01: 2^-53 of that, a few times
    np.testing.assert_allclose(drift, predicted, rtol=1e-9, atol=rounding)
    assert drift.min() > 1e4 * rounding
    plain = np.array(recorder.heads["drift"])
    assert np.abs(plain / predicted - 1).max() > 1e-3  # weights alone are not the whole of it


@pytest.mark.parametrize("case", ["sgd-decay", "adamw"])
def test_other_optimizers_do_not(case):
    recorder, _ = recorded(case, precision="float64")
    assert (
        np.median(
            np.array(recorder.heads["joint_drift"]) / np.array(recorder.heads["drift_predicted"])
        )
        > 1.5
    )


@pytest.mark.parametrize("case", ["sgd", "adamw"])
def test_key_bias_gradients_are_zero_to_rounding(case):
    recorder, _ = recorded(case, precision="float64")
    queries, keys = (np.array(recorder.heads[f"gradient_b_{name}"]) for name in "QK")
    assert keys.max() < 1e-15 and queries.min() > 1e-8
