"""Steps whose part along the orbits is taken away, of every optimizer."""

import pytest
import torch

from attnid.layer.metrics import head_metrics
from attnid.network.gpt import GPT, GPTConfig, head_weights
from attnid.tensors import relative_change
from attnid.training.data import load_corpus
from attnid.training.steps import horizontal_steps
from attnid.training.trainer import Trainer, TrainingConfig

CORPUS = load_corpus("embedded")
OPTIMIZERS = {
    "adamw": dict(optimizer="adamw", learning_rate=1e-2),
    "sgd": dict(optimizer="sgd", learning_rate=0.5, weight_decay=0.0),
    "momentum": dict(optimizer="sgd", learning_rate=0.5, momentum=0.9, weight_decay=0.0),
}


def rhos(old, new):
    """rho of both circuits of a layer, (circuits, H)."""
    joint = lambda w: torch.cat((w["W_Q"], w["b_Q"].unsqueeze(-1)), -1)
    wide = lambda W: torch.nn.functional.pad(W, (0, 1))  # keys, whose biases stay
    outer = lambda w: (w["W_V"], w["W_O"].mT)
    pairs = (
        (joint(old), wide(old["W_K"]), joint(new), wide(new["W_K"])),
        (*outer(old), *outer(new)),
    )
    return torch.stack([head_metrics(*pair)["rho"] for pair in pairs])


def two_steps(optimizer, prepare, bias=True):
    """Weights of every layer before and after the third step of a run in float64."""
    config = GPTConfig(len(CORPUS.vocabulary), 16, 2, 2, 16, bias=bias)
    settings = TrainingConfig(10, batch_size=4, warmup=0, **OPTIMIZERS[optimizer])
    trainer = Trainer(GPT(config, 3), CORPUS, settings, precision="float64")
    if prepare:
        prepare(trainer.model, trainer.optimizer)
    seen = []
    for _ in range(3):
        seen.append([head_weights(trainer.model, layer) for layer in range(2)])
        trainer.advance()
    seen.append([head_weights(trainer.model, layer) for layer in range(2)])
    return seen


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_no_step_moves_along_an_orbit(optimizer):
    usual, across = (two_steps(optimizer, prepare) for prepare in (None, horizontal_steps))
    for layer in range(2):
        found = rhos(usual[2][layer], usual[3][layer])
        if optimizer == "sgd":  # a gradient of scores is across the orbits already
            assert found[0].max() < 1e-20
        else:
            assert found.min() > 1e-9
        for old, new in zip(across, across[1:]):
            assert rhos(old[layer], new[layer]).max() < 1e-20
            assert all(torch.equal(new[layer][name], old[layer][name]) for name in ("b_K", "b_V"))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_products_move_as_they_would(optimizer):
    """By the first step, which both make from the same weights, to first order: off by the square of the step."""
    usual, across = (two_steps(optimizer, prepare) for prepare in (None, horizontal_steps))
    for layer in range(2):
        old, plain, moved = usual[0][layer], usual[1][layer], across[1][layer]
        for a, b in (("W_K", "W_Q"), ("W_K", "b_Q"), ("W_V", "W_O")):
            column = lambda w, name: w[name].unsqueeze(-1) if name[0] == "b" else w[name]
            left = lambda w: w[a].mT if b != "W_O" else column(w, "W_O")
            right = lambda w: column(w, b) if b != "W_O" else w["W_V"]
            change = lambda new: (
                (left(new) - left(old)) @ right(old) + left(old) @ (right(new) - right(old))
            )
            assert relative_change(change(moved), change(plain)) < 1e-10, (a, b)


def test_all_else_moves_as_it_would_and_the_run_goes_elsewhere():
    usual, across = (two_steps("adamw", prepare) for prepare in (None, horizontal_steps))
    assert torch.equal(usual[1][0]["b_O"], across[1][0]["b_O"])
    assert not torch.equal(usual[3][0]["b_O"], across[3][0]["b_O"])


def test_a_model_without_biases():
    across = two_steps("adamw", horizontal_steps, bias=False)
    rho = head_metrics(*(weights[0][name] for weights in across[:2] for name in ("W_Q", "W_K")))
    assert rho["rho"].max() < 1e-20
