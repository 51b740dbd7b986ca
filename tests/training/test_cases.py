"""Presets are the paper's, and each case does what it says."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from small_runs import CONFIG, CORPUS, TINY, D, E, H, L, recorded

from attnid.network.gpt import GPT
from attnid.training.cases import CASES, PRESETS, RATES
from attnid.training.jobs import Job
from attnid.training.trainer import Trainer


def test_presets_and_cases_are_the_papers():
    adamw, sgd, decay = (Job("paper", case).training() for case in ("adamw", "sgd", "sgd-decay"))
    assert (adamw.optimizer, adamw.learning_rate, adamw.weight_decay, adamw.betas) == (
        "adamw",
        1e-3,
        0.1,
        (0.9, 0.99),
    )
    assert (sgd.optimizer, sgd.learning_rate, sgd.weight_decay) == (
        "sgd",
        0.25,
        0.0,
    ) and decay == replace(sgd, weight_decay=4e-4)
    assert {
        (t.steps, t.batch_size, t.warmup, t.grad_clip, t.min_learning_rate / t.learning_rate)
        for t in (adamw, sgd)
    } == {(5000, 64, 100, 1.0, 0.1)}
    assert PRESETS["paper"].model == dict(
        block_size=256, n_layer=6, n_head=6, n_embd=384, dropout=0.2
    )
    assert PRESETS["laptop"].model == dict(block_size=64, n_layer=4, n_head=4, n_embd=128)
    assert PRESETS["comparison"] == replace(PRESETS["laptop"], measure_every=None)
    assert {(p.measure_every, p.move_every) for p in (PRESETS["paper"], PRESETS["laptop"])} == {
        (10, 200)
    } and RATES == (0.5, 0.25, 0.125, 0.0625)


def test_the_pilots_presets_are_one_small_model():
    pilots = {name: preset for name, preset in PRESETS.items() if name.startswith("pilot")}
    trainings = {name: Job(name, "adamw").training() for name in pilots}
    assert {(p.half, p.measure_every, str(p.model)) for p in pilots.values()} == {
        (0, None, str(dict(block_size=64, n_layer=2, n_head=1, n_embd=32, mlp_width=64)))
    }
    assert {(t.steps, t.batch_size) for t in trainings.values()} == {(4000, 16)}
    decays = {name: t.weight_decay for name, t in trainings.items()}
    assert decays.pop("pilot-decay") == 0.1 and set(decays.values()) == {0.0}
    momenta = {name: (t.optimizer, t.momentum) for name, t in trainings.items()}
    assert momenta.pop("pilot-momentum") == ("sgd", 0.9) and set(momenta.values()) == {
        ("adamw", 0.0)
    }
    contexts = {name: preset.context for name, preset in pilots.items()}
    assert contexts.pop("pilot-recall") == 35 and set(contexts.values()) == {0}


def test_the_halves_of_the_text_have_nothing_in_common():
    tokens = torch.arange(101)
    first, second = (replace(TINY, half=half).judged(tokens) for half in (0, 1))
    assert torch.equal(torch.cat((first, second)), tokens) and len(first) - len(second) == 1
    assert torch.equal(TINY.judged(tokens), tokens)


ARMS = "unheld canonical horizontal factored-1 factored factored-4 product".split()


@pytest.mark.parametrize("arm", ARMS)
def test_an_arm_starts_as_the_plain_function_and_goes_elsewhere(arm):
    settings = replace(Job("smoke", arm).training(), learning_rate=1e-2, warmup=0)
    runs = []
    for case in (CASES["adamw"], CASES[arm]):
        trainer = Trainer(case.build(CONFIG, 0), CORPUS, settings)
        if case.prepare:
            case.prepare(trainer.model, trainer.optimizer)
        runs.append([trainer.advance() for _ in range(10)])
    plain, other = runs
    assert abs(other[0] - plain[0]) < 1e-6 and abs(other[-1] - plain[-1]) > 1e-4


def test_spent_gives_the_mlp_what_canonical_saves():
    for sizes, width in ((PRESETS["pilot"].model, 96), (PRESETS["comparison"].model, 544)):
        assert CASES["spent"].sizes(replace(TINY, model=sizes)) == {"mlp_width": width}


def on_its_way(case="adamw", steps=5):
    """A run in float64 whose optimizer has a past, and copies of its weights and of its optimizer's state."""
    trainer = Trainer(GPT(CONFIG), CORPUS, Job("smoke", case).training(), precision="float64")
    for _ in range(steps):
        trainer.advance()
    state = {
        name: {key: value.clone() for key, value in trainer.optimizer.state[p].items()}
        for name, p in trainer.model.named_parameters()
    }
    return (
        trainer,
        {name: p.detach().clone() for name, p in trainer.model.named_parameters()},
        state,
    )


def gram_gap(model):
    """Largest entry of P - K over the heads, from the fused weights."""
    fused = torch.stack([block.attn.c_attn.weight.detach() for block in model.transformer.h])
    W_Q, W_K = (fused[:, part * E : (part + 1) * E].reshape(L * H, D, E) for part in (0, 1))
    return (W_Q @ W_Q.mT - W_K @ W_K.mT).abs().max().item()


@pytest.mark.parametrize(
    "case, weights_move, state_cleared",
    [("rebalanced", True, True), ("cleared", False, True), ("moved", True, False)],
)
def test_a_move_does_what_it_says(case, weights_move, state_cleared):
    trainer, weights, state = on_its_way(case)
    tokens = CORPUS.val[:64].view(2, 32)
    before, parameters = trainer.model(tokens)[0], dict(trainer.model.named_parameters())
    assert gram_gap(trainer.model) > 1e-3
    CASES[case].move(trainer.model, trainer.optimizer)
    assert all(p is parameters[name] for name, p in trainer.model.named_parameters())  # in place
    torch.testing.assert_close(trainer.model(tokens)[0], before, rtol=0, atol=1e-12)
    assert (gram_gap(trainer.model) < 1e-13) == weights_move
    for name, p in parameters.items():
        queries_keys = slice(0, 2 * E) if "c_attn" in name else slice(0, 0)
        moved = ~torch.isclose(p, weights[name], rtol=1e-9, atol=0)
        assert moved[queries_keys].any() == (weights_move and "c_attn" in name), name
        moved[queries_keys] = False
        assert not moved.any(), name  # values and all else stay
        assert (p not in trainer.optimizer.state) == (state_cleared and "c_attn" in name), name
        if p in trainer.optimizer.state:
            torch.testing.assert_close(
                dict(trainer.optimizer.state[p]), state[name], rtol=0, atol=0
            )
    moved_to = {name: p.detach().clone() for name, p in parameters.items()}
    trainer.advance()
    assert all(
        not torch.equal(p, moved_to[name]) for name, p in parameters.items()
    )  # and goes on being trained


@pytest.mark.parametrize("case", [name for name, case in CASES.items() if case.observe])
def test_beta_is_a_sawtooth_where_weights_move_and_nowhere_else(case):
    recorder, _ = recorded(case, replace(TINY, measure_every=1))
    balanced = [step for step, beta in enumerate(recorder.heads["beta"]) if np.max(beta) < 1e-6]
    assert balanced == ([15, 30] if CASES[case].move is not None and case != "cleared" else [])


def test_clearing_the_state_changes_what_follows():
    losses = {case: recorded(case)[1] for case in ("adamw", "rebalanced", "cleared", "moved")}
    for case in ("rebalanced", "cleared", "moved"):
        assert (
            losses[case][:15] == losses["adamw"][:15] and losses[case][20:] != losses["adamw"][20:]
        )
    assert losses["cleared"] != losses["rebalanced"] != losses["moved"]
