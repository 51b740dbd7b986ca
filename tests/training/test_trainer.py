"""One run: its steps, its batches, and a loss that comes down to the entropy rate and not below it."""

import copy
import io
import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from attnid.network.gpt import GPT, GPTConfig
from attnid.training.data import load_corpus
from attnid.training.resume import Resume
from attnid.training.trainer import (
    Trainer,
    TrainingConfig,
    evaluate,
    get_batch,
    learning_rate_at,
    make_optimizer,
    summary,
    train,
    window_losses,
)

CORPUS = load_corpus("embedded")
SMALL = GPTConfig(len(CORPUS.vocabulary), 16, 1, 2, 8)
SETTINGS = TrainingConfig(6, batch_size=4, warmup=2)


def small_run(settings=SETTINGS, config=SMALL, **options):
    model = GPT(config)
    return model, train(model, CORPUS, settings, **options)


def same_weights(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters()))


# ---- learning rate


def test_each_step_uses_its_learning_rate():
    seen = []
    small_run(
        on_step=lambda step, loss, model, optimizer: seen.append(
            {group["lr"] for group in optimizer.param_groups}
        )
    )
    assert seen == [{learning_rate_at(step, SETTINGS)} for step in range(6)]


# ---- the step


def test_only_matrices_decay():
    model = GPT(replace(SMALL, bias=True))
    decay = {
        id(p): group["weight_decay"]
        for group in make_optimizer(model, SETTINGS).param_groups
        for p in group["params"]
    }
    assert {name: decay[id(p)] for name, p in model.named_parameters()} == {
        name: 0.1 if p.dim() == 2 else 0.0 for name, p in model.named_parameters()
    }


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_steps_are_the_formula(momentum):
    settings = TrainingConfig(
        2,
        batch_size=4,
        learning_rate=0.25,
        min_learning_rate=0.25,
        warmup=0,
        weight_decay=0.01,
        grad_clip=0.0,
        optimizer="sgd",
        momentum=momentum,
    )
    model, _ = small_run(settings)
    by_hand, generator = GPT(SMALL), torch.Generator().manual_seed(0)
    speed = [torch.zeros_like(p) for p in by_hand.parameters()]
    for _ in range(2):
        _, loss = by_hand(*get_batch(CORPUS.train, 16, 4, generator))
        gradients = torch.autograd.grad(loss, list(by_hand.parameters()))
        with torch.no_grad():
            for p, g, v in zip(by_hand.parameters(), gradients, speed):
                v.mul_(momentum).add_(g + (0.01 * p if p.dim() == 2 else 0))
                p -= 0.25 * v
    for (name, p), after in zip(by_hand.named_parameters(), model.parameters()):
        torch.testing.assert_close(after, p, rtol=1e-5, atol=1e-7, msg=name)


@pytest.mark.parametrize("clip", [0.01, 0.0])
def test_gradient_is_clipped_as_a_whole(clip):
    norms = []
    small_run(
        replace(SETTINGS, grad_clip=clip),
        on_step=lambda step, loss, model, optimizer: norms.append(
            torch.stack([p.grad.norm() for p in model.parameters()]).norm().item()
        ),
    )
    assert (
        all(norm == pytest.approx(0.01, rel=1e-3) for norm in norms)
        if clip
        else all(norm > 0.1 for norm in norms)
    )


# ---- batches


def test_batch_is_windows_and_their_next_tokens():
    tokens = torch.arange(20)
    x, y = get_batch(tokens, 5, 400, torch.Generator().manual_seed(0))
    assert (
        x.shape == y.shape == (400, 5)
        and torch.equal(y, x + 1)
        and torch.equal(x, x[:, :1] + torch.arange(5))
    )
    assert set(x[:, 0].tolist()) == set(range(15))  # every window, the last one included
    get_batch(tokens, 19, 1, torch.Generator())
    with pytest.raises(ValueError, match="tokens=20.*block_size=20"):
        get_batch(tokens, 20, 1, torch.Generator())


@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize("every", [1, 3])
def test_evaluation_changes_nothing(every, dropout):
    config = replace(SMALL, dropout=dropout)

    def look(step, loss, model, optimizer):
        if step % every == 0:
            evaluate(model, CORPUS.val, batches=2, batch_size=4, seed=step)

    plain, history = small_run(config=config)
    watched, watched_history = small_run(config=config, on_step=look)
    assert watched_history == history and same_weights(plain, watched)


def test_same_seed_same_run_and_the_global_generator_stays():
    torch.manual_seed(1)
    one, history = small_run(config=replace(SMALL, dropout=0.2))
    torch.manual_seed(2)
    before = torch.get_rng_state()
    same, same_history = small_run(config=replace(SMALL, dropout=0.2))
    assert torch.equal(torch.get_rng_state(), before)
    assert same_history == history and same_weights(one, same)
    assert small_run(replace(SETTINGS, seed=1))[1]["loss"] != small_run()[1]["loss"]


def test_history_and_modes():
    model = GPT(SMALL).eval()
    seen = []
    history = train(
        model,
        CORPUS,
        SETTINGS,
        on_step=lambda step, loss, model, optimizer: seen.append((step, loss, model.training)),
    )
    assert history["step"] == list(range(6)) and seen == [
        (step, loss, True) for step, loss in zip(history["step"], history["loss"])
    ]
    assert not model.training
    assert history["loss"][0] == pytest.approx(
        math.log(SMALL.vocab_size), abs=0.05
    )  # knows nothing yet
    model.train()
    evaluate(model, CORPUS.val, batches=1)
    assert model.training


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("mode", [True, False])
def test_interrupted_run_leaves_the_mode(mode, error):
    def stop(step, loss, model, optimizer):
        raise error

    model = GPT(SMALL).train(mode)
    with pytest.raises(error):
        train(model, CORPUS, SETTINGS, on_step=stop)
    assert model.training == mode


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_loss_that_is_not_finite_stops_the_run(value):
    def spoil(step, loss, model, optimizer):
        seen.append(step)
        if step == 2:
            with torch.no_grad():
                model.transformer.ln_f.weight.fill_(value)
            kept.append(model.transformer.wpe.weight.clone())

    model, seen, kept = GPT(SMALL).eval(), [], []
    with pytest.raises(ArithmeticError, match="loss=(nan|inf): .*step=3"):
        train(model, CORPUS, SETTINGS, on_step=spoil)
    assert (
        seen == [0, 1, 2]
        and not model.training
        and torch.equal(model.transformer.wpe.weight, kept[0])
    )


def test_model_too_small_for_the_corpus_is_named():
    with pytest.raises(ValueError, match="vocab_size=5"):
        train(GPT(GPTConfig(5, 16, 1, 2, 8)), CORPUS, SETTINGS)


# ---- evaluation


def test_evaluation_is_the_mean_loss_of_its_windows():
    model = GPT(SMALL).double()
    found = evaluate(model, CORPUS.val, batches=3, batch_size=4, seed=9)
    generator = torch.Generator().manual_seed(9)
    losses = torch.stack([model(*get_batch(CORPUS.val, 16, 4, generator))[1] for _ in range(3)])
    assert found.loss == pytest.approx(losses.mean().item(), rel=1e-9)
    assert found == evaluate(model, CORPUS.val, batches=3, batch_size=4, seed=9)
    assert found != evaluate(model, CORPUS.val, batches=3, batch_size=4, seed=8)
    assert 0 < found.error < 0.1


def test_evaluation_counts_positions_with_context_only():
    model = GPT(SMALL).double()
    x, y = get_batch(CORPUS.val, 16, 8, torch.Generator().manual_seed(0))
    y = y.clone()
    y[:, :12] = -1
    found = evaluate(model, CORPUS.val, batches=1, batch_size=8, context=12)
    assert found.loss == pytest.approx(model(x, y)[1].item(), rel=1e-9)


def test_all_windows_are_looked_at_one_after_the_other():
    model, tokens = GPT(SMALL).double(), CORPUS.val[: 16 * 7 + 5]
    found = window_losses(model, tokens, batch_size=3)
    losses = [
        model(tokens[None, i : i + 16], tokens[None, i + 1 : i + 17])[1] for i in range(0, 112, 16)
    ]
    torch.testing.assert_close(found, torch.stack(losses).detach())
    assert len(window_losses(model, tokens[: 16 * 7 + 1])) == 7  # the last token is a target
    assert len(window_losses(model, tokens[: 16 * 7])) == 6
    late = window_losses(model, tokens, context=12)
    targets = tokens[1:17].clone()
    targets[:12] = -1
    assert late[0].item() == pytest.approx(model(tokens[None, :16], targets[None])[1].item())
    mean, error = summary(found)
    assert mean == pytest.approx(found.mean().item())
    assert error == pytest.approx(found.std().item() / 7**0.5)


def test_too_few_tokens_for_a_window_are_named():
    with pytest.raises(ValueError, match="^tokens=16: .*block_size=16"):
        window_losses(GPT(SMALL), CORPUS.val[:16])


@pytest.mark.parametrize(
    "field, value", [("context", 16), ("context", -1), ("batches", 0), ("batch_size", 0)]
)
def test_impossible_evaluation_is_named(field, value):
    with pytest.raises(ValueError, match=f"^{field}={value}"):
        evaluate(GPT(SMALL), CORPUS.val, **{field: value})


# ---- what a run prints, and what it learns


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_goes_to_a_terminal_only(capsys, monkeypatch, terminal):
    screen = io.StringIO()
    screen.isatty = lambda: terminal
    monkeypatch.setattr(sys, "stderr", screen)
    small_run()
    assert ("step 6 of 6" in screen.getvalue()) == terminal and capsys.readouterr().out == ""


def test_training_comes_down_towards_the_entropy_rate():
    model = GPT(GPTConfig(len(CORPUS.vocabulary), 64, 2, 4, 64))
    train(model, CORPUS, TrainingConfig(400, batch_size=16, learning_rate=8e-3, warmup=50))
    # 50 earlier characters hold the whole of the sentence so far
    found = evaluate(model, CORPUS.val, context=50)
    assert CORPUS.entropy_rate - 4 * found.error < found.loss < 1.4 * CORPUS.entropy_rate


# ---- stopped and resumed, other formats, compiled

DROPPING = replace(SMALL, dropout=0.2, bias=True)


@pytest.mark.parametrize("last", range(6))
@pytest.mark.parametrize(
    "options",
    [{}, {"precision": "bfloat16"}, {"precision": "float64"}, {"precision": "float16"}],
    ids=str,
)
def test_stopped_run_goes_on_to_the_same_numbers(tmp_path, last, options):
    def stop(step, loss, model, optimizer):
        if step == last:
            raise KeyboardInterrupt

    whole, history = small_run(config=DROPPING, **options)
    resume = Resume(tmp_path / "c", 2)
    with pytest.raises(KeyboardInterrupt):
        small_run(config=DROPPING, resume=resume, on_step=stop, **options)
    torch.rand(3)  # the global generator is somewhere else
    resumed, found = small_run(config=DROPPING, resume=resume, **options)
    assert found == history and same_weights(resumed, whole)


def test_loss_scaler_goes_on_too():
    trainer = Trainer(GPT(SMALL), CORPUS, SETTINGS, precision="float16")
    trainer.advance()
    trainer.scaler.update(1024.0)
    other = Trainer(GPT(SMALL), CORPUS, SETTINGS, precision="float16")
    assert other.scaler.get_scale() == 65536.0
    other.load_state_dict(copy.deepcopy(trainer.state_dict()))
    assert other.scaler.get_scale() == 1024.0
    assert other.advance() == trainer.advance() and same_weights(other.model, trainer.model)


def test_step_that_overflows_moves_nothing():
    trainer = Trainer(GPT(SMALL), CORPUS, SETTINGS, precision="float16")
    trainer.advance()
    trainer.scaler.update(2.0**100)
    before = [p.detach().clone() for p in trainer.model.parameters()]
    trainer.advance()
    assert (
        all(map(torch.equal, before, trainer.model.parameters()))
        and trainer.scaler.get_scale() == 2.0**99
        and trainer.step == 2
    )


@pytest.mark.parametrize(
    "precision, products, weights",
    [
        ("float32", torch.float32, torch.float32),
        ("bfloat16", torch.bfloat16, torch.float32),
        ("float16", torch.float16, torch.float32),
        ("float64", torch.float64, torch.float64),
    ],
)
def test_precision_is_that_of_the_products(precision, products, weights):
    trainer, seen = Trainer(GPT(SMALL), CORPUS, SETTINGS, precision=precision), set()
    trainer.model.transformer.h[0].mlp.c_fc.register_forward_hook(
        lambda module, inputs, output: seen.add(output.dtype)
    )
    losses = [trainer.advance() for _ in range(3)]
    assert seen == {products} and {p.dtype for p in trainer.model.parameters()} == {weights}
    assert losses == pytest.approx(small_run()[1]["loss"][:3], rel=1e-2)
    assert (losses == small_run()[1]["loss"][:3]) == (precision == "float32")


def test_impossible_precision_is_named():
    with pytest.raises(ValueError, match="^precision='half': must be one of"):
        small_run(precision="half")


def test_compiled_run_has_the_same_names_and_losses(monkeypatch):
    seen, compiler = [], torch.compile

    def compile_quickly(model):  # without the code generator, which takes a minute
        seen.append(model)
        return compiler(model, backend="eager")

    monkeypatch.setattr(torch, "compile", compile_quickly)
    try:
        compiler(lambda x: x + 1, backend="eager")(torch.zeros(1))
    except Exception as error:
        pytest.skip(f"torch.compile does not work here: {type(error).__name__}")
    trainer, plain = (
        Trainer(GPT(SMALL), CORPUS, SETTINGS, compiled=compiled) for compiled in (True, False)
    )
    assert [trainer.advance() for _ in range(3)] == pytest.approx(
        [plain.advance() for _ in range(3)], rel=1e-6
    )
    assert seen == [trainer.model] and trainer.forward is not trainer.model
    assert (
        list(trainer.state_dict()["model"])
        == list(plain.state_dict()["model"])
        == list(GPT(SMALL).state_dict())
    )
    plain.load_state_dict(trainer.state_dict())
    assert same_weights(plain.model, trainer.model)


# ---- stock nanoGPT


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_twenty_steps_are_those_of_stock_nanogpt(optimizer):
    case = json.loads((Path(__file__).parents[1] / "cases" / "nanogpt_20_steps.json").read_text())
    assert case["data_sha256"] == CORPUS.sha256
    model, norms = (
        GPT(GPTConfig(len(CORPUS.vocabulary), **case["sizes"]), case["seeds"]["weights"]),
        {},
    )

    def note(step, loss, model, optimizer):
        for name, p in model.named_parameters():
            norms.setdefault(name, []).append(p.detach().double().norm().item())

    settings = TrainingConfig(
        **case["shared"],
        **case["rates"][optimizer],
        optimizer=optimizer,
        seed=case["seeds"]["batches"],
    )
    history, stock = train(model, CORPUS, settings, on_step=note), case["stock"][optimizer]
    assert len(stock["loss"]) == 20 and stock["loss"][-1] < stock["loss"][0] - 0.2
    assert history["loss"] == pytest.approx(stock["loss"], rel=1e-5)
    assert set(norms) == set(stock["norm"])
    for name in norms:
        assert norms[name] == pytest.approx(stock["norm"][name], rel=1e-5, abs=0), name
