"""Runs: each case does what it says, records hold what was measured, a killed run ends as one that was not, sweeps."""

import functools
import json
import lzma
import math
import os
import re
import shutil
import tempfile
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from kills import FORKSERVER, kill_self, killed

from attnid import files
from attnid.layer.metrics import head_metrics
from attnid.network.gpt import GPT, GPTConfig
from attnid.training import experiments, processes, resume
from attnid.training.data import CorpusError, load_corpus
from attnid.training.experiments import CASES, PRESETS, RATES, Job, Recorder, finished, run, sweep
from attnid.training.records import read_record, read_records
from attnid.training.resume import Resume
from attnid.training.trainer import Trainer, train

CORPUS = load_corpus("embedded")
TINY = replace(
    PRESETS["smoke"],
    training=dict(steps=40, batch_size=2, warmup=4),
    measure_every=4,
    evaluate_every=20,
    move_every=15,
)
CONFIG = GPTConfig(len(CORPUS.vocabulary), **TINY.model, bias=True)
L, H, D, E = 2, 2, 8, 16
GOOD, BAD = Job("smoke", "sgd"), Job("smoke", "sgd", learning_rate=1e30)
RESULTS = Path(__file__).parents[2] / experiments.RESULTS


@pytest.fixture
def tiny(monkeypatch):
    """The smoke preset, smaller still."""
    monkeypatch.setitem(PRESETS, "smoke", TINY)


@pytest.fixture
def quick_start(monkeypatch):
    monkeypatch.setattr(processes, "get_context", lambda method: FORKSERVER)


def interrupt(*_):
    raise KeyboardInterrupt


def recorded(case, preset=TINY, precision="float32", look=None, **training):
    """A recorder that has followed a run in this process, and the losses. look(step, model, recorder) is called after each step."""
    settings = replace(Job("smoke", case).training(), **preset.training | training)
    recorder, model = Recorder(CASES[case], preset, CORPUS, settings, {}), GPT(CONFIG)

    def on_step(step, loss, model, optimizer):
        if look is not None:
            look(step, model, recorder)
        recorder.on_step(step, loss, model, optimizer)

    history = train(
        model,
        CORPUS,
        settings,
        before_step=recorder.before_step,
        on_step=on_step,
        precision=precision,
    )
    return recorder, history["loss"]


def content(path):
    """What a record's file holds, but for the time it took and the commit, which may move on while tests run."""
    found = json.loads(lzma.decompress(path.read_bytes()))
    return found | {
        "provenance": {
            key: value
            for key, value in found["provenance"].items()
            if key not in ("seconds", "commit")
        }
    }


# ---- jobs


@pytest.mark.parametrize(
    "field, value",
    [
        ("preset", "huge"),
        ("case", "adam"),
        ("seed", -1),
        ("seed", 0.5),
        ("learning_rate", 0.0),
        ("learning_rate", math.nan),
        ("learning_rate", "0.5"),
        ("precision", "int8"),
    ],
)
def test_impossible_job_is_named(field, value):
    with pytest.raises(ValueError, match=f"^{field}={value!r}: "):
        Job(**dict(preset="smoke", case="sgd") | {field: value})


def test_every_job_has_a_path_of_its_own():
    jobs = [
        Job(preset, case, seed, rate, precision)
        for preset in PRESETS
        for case in CASES
        for seed in (0, 1, 10)
        for rate in (None, *RATES, 0.1, 0.1 + 1e-9)
        for precision in (None, "float32", "float64")
    ]
    assert (
        len({job.path("x") for job in jobs})
        == len(set(jobs))
        == len(PRESETS) * (len(CASES) * 3 * 3 * 7 - 2 * 3 * 3)
    )  # 0.25 is the usual rate of two
    assert (
        Job("smoke", "sgd", np.int64(3), 0.5).path("x").as_posix()
        == "x/smoke/sgd-rate-0.5/seed-3.json.xz"
    )
    assert Job("smoke", "sgd", learning_rate=0.25) == Job("smoke", "sgd")
    assert all(Job.at(job.path("x")) == job for job in jobs)


def test_job_of_numpy_numbers_is_one_of_pythons(tmp_path, tiny):
    job = Job("smoke", "sgd", np.int64(1), np.float32(0.5))
    assert job == Job("smoke", "sgd", 1, 0.5) and (type(job.seed), type(job.learning_rate)) == (
        int,
        float,
    )
    assert run(job, tmp_path).seed == 1


@pytest.mark.parametrize(
    "place",
    [
        "seed-0.json.xz",
        "sgd/seed-0.json.xz",
        "smoke/adam/seed-0.json.xz",
        "huge/sgd/seed-0.json.xz",
        "smoke/sgd-rate-0.25/seed-0.json.xz",
        "smoke/sgd-rate-x/seed-0.json.xz",
        "smoke/sgd-rate-nan/seed-0.json.xz",
        "smoke/sgd-int8/seed-0.json.xz",
        "smoke/sgd/seed-00.json.xz",
        "smoke/sgd/seed-x.json.xz",
        "smoke/sgd/seed-1 (copy).json.xz",
    ],
)
def test_place_that_is_no_jobs_is_named(tmp_path, place):
    path = tmp_path / place
    with pytest.raises(ValueError, match=re.escape(f"path='{path}': is not named as a record")):
        Job.at(path)


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


# ---- what a case does


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


# ---- what is measured


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

    recorder, _ = recorded("moved", look=look)
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

    recorder, _ = recorded("adamw", look=look)
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


# ---- a run and its record


def test_record_holds_every_setting_and_where_it_comes_from(tmp_path, tiny):
    record = run(Job("smoke", "rebalanced", 2, 0.002, "bfloat16"), tmp_path)
    assert (record.preset, record.case, record.seed) == ("smoke", "rebalanced", 2)
    assert record.settings == {
        "title": CASES["rebalanced"].title,
        "measure_every": 4,
        "evaluate_every": 20,
        "move_every": 15,
        "model": asdict(GPTConfig(43, 32, 2, 2, 16, bias=True, dropout=0.0)),
        "training": dict(
            steps=40,
            batch_size=2,
            learning_rate=0.002,
            min_learning_rate=0.0002,
            warmup=4,
            betas=[0.9, 0.99],
            weight_decay=0.1,
            grad_clip=1.0,
            optimizer="adamw",
            seed=2,
        ),
    }
    assert set(record.provenance) == {
        "commit",
        "data",
        "data_sha256",
        "torch",
        "device",
        "precision",
        "threads",
        "seconds",
        "earlier",
    }
    assert (
        record.provenance["precision"] == "bfloat16"
        and record.provenance["seconds"] > 0
        and record.provenance["earlier"] == []
    )
    assert (
        len(record.loss) == 40
        and record.step.tolist() == list(range(0, 40, 4))
        and record.validation["step"].tolist() == [20, 40]
    )
    assert {values.shape for values in record.heads.values()} == {(10, L, H)}
    assert os.listdir(tmp_path / "smoke" / "rebalanced-rate-0.002-bfloat16") == ["seed-2.json.xz"]


def test_job_that_is_done_is_read_and_not_run(tmp_path, tiny, monkeypatch):
    first = run(Job("smoke", "sgd"), tmp_path)
    monkeypatch.setattr(experiments, "train", None)
    again = run(Job("smoke", "sgd"), tmp_path)
    assert np.array_equal(again.loss, first.loss) and again.provenance == first.provenance


@pytest.mark.parametrize(
    "part, change, difference",
    [
        ("training", {"steps": 41}, "steps (40, not 41)"),
        ("model", {"n_embd": 32}, "n_embd (16, not 32), mlp_width (64, not 128)"),
        ("measure_every", 5, "measure_every (4, not 5)"),
    ],
)
def test_record_of_other_settings_is_refused(
    tmp_path, tiny, monkeypatch, quick_start, part, change, difference
):
    run(GOOD, tmp_path)
    value = getattr(TINY, part) | change if isinstance(change, dict) else change
    monkeypatch.setitem(PRESETS, "smoke", replace(TINY, **{part: value}))
    for again in (
        lambda: run(GOOD, tmp_path),
        lambda: sweep([Job("smoke", "adamw"), GOOD], tmp_path, report=lambda line: None),
    ):
        with pytest.raises(
            ValueError,
            match=f"^record='{GOOD.path(tmp_path)}': is of a run with another {re.escape(difference)}; move",
        ):
            again()
    assert not Job("smoke", "adamw").path(tmp_path).exists()  # refused before any run


@pytest.mark.parametrize(
    "made, place, difference",
    [
        (("adamw", 0), ("rebalanced", 0), "case (adamw, not rebalanced)"),
        (("sgd", 5), ("sgd", 0), "seed (5, not 0)"),
        (("sgd", 0), ("sgd", 0, None, "float64"), "precision (float32, not float64)"),
        (("sgd", 0, None, "float64"), ("sgd", 0), "precision (float64, not float32)"),
        (("sgd", 0, 0.5), ("sgd", 0), "learning_rate (0.5, not 0.25), min_learning_rate (0.05,"),
        (("sgd", 0), ("sgd", 0, 0.5), "learning_rate (0.25, not 0.5), min_learning_rate (0.025,"),
    ],
)
def test_record_of_another_run_is_refused_wherever_it_is_read(
    tmp_path, tiny, made, place, difference
):
    made, job = Job("smoke", *made), Job("smoke", *place)
    run(made, tmp_path / "there")
    path = job.path(tmp_path / "here")
    path.parent.mkdir(parents=True)
    shutil.copy(made.path(tmp_path / "there"), path)
    for read in (
        lambda: finished(job, tmp_path / "here"),
        lambda: run(job, tmp_path / "here"),
        lambda: sweep([job], tmp_path / "here", report=lambda line: None),
        lambda: read_records(tmp_path / "here" / "smoke"),
    ):
        refusal = f"record='{path}': is of a run with another {difference}"
        with pytest.raises(ValueError, match=re.escape(refusal)):
            read()


def test_record_of_another_preset_is_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(PRESETS, "other", TINY)
    monkeypatch.setitem(PRESETS, "smoke", TINY)
    run(Job("other", "sgd"), tmp_path)
    shutil.copytree(tmp_path / "other", tmp_path / "smoke")
    with pytest.raises(ValueError, match=r"another preset \(other, not smoke\); move"):
        read_records(tmp_path)


@pytest.mark.parametrize(
    "device, precision, usual",
    [
        ("cpu", "float32", True),
        ("cpu", "bfloat16", False),
        ("NVIDIA H200", "bfloat16", True),
        ("NVIDIA H200", "float32", False),
        ("Tesla T4", "float16", True),
    ],
)
def test_usual_precision_is_that_of_the_device(tmp_path, tiny, device, precision, usual):
    record = run(GOOD, tmp_path)
    record.provenance.update(device=device, precision=precision)
    record.write(GOOD.path(tmp_path))
    if usual:
        assert finished(GOOD, tmp_path).provenance["device"] == device
    else:
        with pytest.raises(ValueError, match=f"another precision \\({precision}, not "):
            finished(GOOD, tmp_path)


def test_waiting_for_another_process_ends_with_its_record(tmp_path, tiny, monkeypatch):
    @contextmanager
    def held(path):  # another process makes the record meanwhile
        with resume.held(path):
            experiments._made(GOOD, path, "cpu", False)
        with monkeypatch.context() as patch:
            patch.setattr(experiments, "train", None)
            yield

    monkeypatch.setattr(experiments, "held", held)
    assert len(run(GOOD, tmp_path).loss) == 40
    assert os.listdir(tmp_path / "smoke" / "sgd") == ["seed-0.json.xz"]


def test_record_that_another_process_makes_is_not_made_twice(tmp_path, tiny, monkeypatch):
    monkeypatch.setattr(experiments, "held", partial(resume.held, seconds=0.1))
    GOOD.path(tmp_path).parent.mkdir(parents=True)
    with resume.held(GOOD.path(tmp_path)):
        with pytest.raises(ValueError, match="seed-0.json.xz': is being made by another process"):
            run(GOOD, tmp_path)


def test_record_of_another_title_or_without_a_younger_option_is_read(tmp_path, tiny, monkeypatch):
    record = run(GOOD, tmp_path)
    del record.settings["model"]["mlp_width"]
    record.write(GOOD.path(tmp_path))
    monkeypatch.setitem(CASES, "sgd", replace(CASES["sgd"], title="another"))
    assert run(GOOD, tmp_path).provenance == record.provenance


@pytest.mark.parametrize(
    "folder",
    sorted(path.relative_to(RESULTS).as_posix() for path in RESULTS.glob("*/*") if path.is_dir()),
)
def test_records_of_the_book_are_of_the_preset_as_it_is(folder):
    first = read_record(RESULTS / folder / "seed-0.json.xz")
    rate, precision = (
        first.settings["training"]["learning_rate"],
        "float64" if folder.endswith("float64") else None,
    )
    job = Job(first.preset, first.case, 0, rate, precision)
    assert (
        job.path(RESULTS) == RESULTS / folder / "seed-0.json.xz"
        and finished(job, RESULTS).loss[0] == first.loss[0]
    )


def test_seed_decides_weights_and_batches(tmp_path, tiny):
    one, other = (run(Job("smoke", "sgd", seed), tmp_path) for seed in (0, 1))
    assert (
        not np.isclose(one.loss[0], other.loss[0], rtol=1e-5)
        and one.settings["training"]["seed"] == 0
    )


# ---- killed


@pytest.fixture(params=[1, 2])
def threads(request):
    """So many threads in this process, and the number."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def with_dropout(threads):
    """The tiny preset with dropout, in whichever process this is called, so many threads, and its state saved every 10 steps."""
    torch.set_num_threads(threads)
    PRESETS["smoke"] = replace(TINY, model=TINY.model | {"dropout": 0.2})
    experiments.Resume = partial(Resume, every=10)


def killed_at_step(job, folder, threads, last):
    with_dropout(threads)
    on_step = Recorder.on_step

    def on_step_or_die(self, step, *rest):
        on_step(self, step, *rest)
        if step == last:
            kill_self()

    Recorder.on_step = on_step_or_die
    run(job, folder)


def killed_at_rename(job, folder, threads, last, half):
    with_dropout(threads)
    calls, replace_ = [], os.replace

    def rename_or_die(draft, path):
        calls.append(path)
        if len(calls) == last:
            os.truncate(draft, os.path.getsize(draft) // 2 if half else os.path.getsize(draft))
            kill_self()
        replace_(draft, path)

    files.os.replace = rename_or_die
    run(job, folder)


@pytest.fixture
def dropping(monkeypatch, threads):
    """What with_dropout does, put back in the end."""
    monkeypatch.setitem(PRESETS, "smoke", PRESETS["smoke"])
    monkeypatch.setattr(experiments, "Resume", Resume)
    with_dropout(threads)


@functools.cache
def never_stopped(job, threads):
    """What the record of an uninterrupted run with so many threads holds."""
    with tempfile.TemporaryDirectory() as folder:
        run(job, folder)
        return content(job.path(folder))


@pytest.mark.parametrize(
    "kill, moment, left",
    [
        (killed_at_step, (4,), []),
        (killed_at_step, (9,), []),
        (killed_at_step, (10,), ["resume"]),
        (killed_at_step, (37,), ["resume"]),
        (killed_at_rename, (1, True), []),
        (killed_at_rename, (2, True), ["resume"]),
        (killed_at_rename, (3, False), ["resume"]),
        (killed_at_rename, (4, True), ["resume"]),
    ],
)  # the fourth is that of the record
def test_killed_run_ends_as_one_that_was_not(tmp_path, dropping, threads, kill, moment, left):
    # every number, as long as all sittings have as many threads, be it one or several
    job = Job("smoke", "rebalanced", 5)
    path, expected = job.path(tmp_path), never_stopped(job, threads)
    assert expected["provenance"]["threads"] == threads
    assert killed(kill, job, tmp_path, threads, *moment)
    assert sorted(name for name in os.listdir(path.parent) if name[0] != ".") == [
        f"seed-5.{name}" for name in left
    ]
    run(job, tmp_path)
    assert content(path) == expected and os.listdir(path.parent) == [path.name]


def test_run_that_goes_on_with_other_threads_ends_near_and_says_so(tmp_path, dropping, threads):
    # sums of floats are taken in another order: equal to rounding, and no closer
    job = Job("smoke", "rebalanced", 5)
    path, expected = job.path(tmp_path), never_stopped(job, threads)
    assert killed(killed_at_step, job, tmp_path, 3 - threads, 25)
    run(job, tmp_path)
    found = content(path)
    assert [origin["threads"] for origin in found["provenance"]["earlier"]] == [3 - threads]
    assert found["provenance"]["threads"] == threads
    np.testing.assert_allclose(found["loss"], expected["loss"], rtol=1e-4)
    for name in ("beta", "tau", "mu", "gradient_W_K"):
        np.testing.assert_allclose(
            found["heads"][name], expected["heads"][name], rtol=1e-2, atol=1e-5
        )


def test_sitting_under_other_circumstances_is_told(tmp_path, monkeypatch, tiny):
    job, move = Job("smoke", "moved"), CASES["moved"].move
    monkeypatch.setattr(experiments, "Resume", partial(Resume, every=10))
    origin = experiments.provenance(CORPUS, "cpu", "float32")
    for commit, act in (("one", interrupt), ("one", interrupt), ("two", move)):
        monkeypatch.setattr(experiments, "provenance", lambda *_: origin | {"commit": commit})
        monkeypatch.setitem(CASES, "moved", replace(CASES["moved"], move=act))
        if act is interrupt:
            with pytest.raises(KeyboardInterrupt):
                run(job, tmp_path)
    found = run(job, tmp_path).provenance
    assert found["commit"] == "two" and found["earlier"] == [origin | {"commit": "one"}]


def test_damaged_state_stops_the_run(tmp_path, tiny):
    job = Job("smoke", "sgd")
    job.path(tmp_path).parent.mkdir(parents=True)
    job.path(tmp_path).with_name("seed-0.resume").write_bytes(b"PK")
    with pytest.raises(ValueError, match="^resume=.*seed-0.resume': is damaged"):
        run(job, tmp_path)


def test_state_of_another_case_is_refused(tmp_path, tiny, monkeypatch):
    monkeypatch.setattr(experiments, "Resume", partial(Resume, every=10))
    monkeypatch.setitem(CASES, "cleared", replace(CASES["cleared"], move=interrupt))
    adamw, cleared = Job("smoke", "adamw"), Job("smoke", "cleared")
    with pytest.raises(KeyboardInterrupt):
        run(cleared, tmp_path)
    adamw.path(tmp_path).parent.mkdir(parents=True)
    os.replace(
        cleared.path(tmp_path).with_name("seed-0.resume"),
        adamw.path(tmp_path).with_name("seed-0.resume"),
    )
    with pytest.raises(ValueError, match="another case; delete it"):
        run(adamw, tmp_path)


# ---- many runs


def test_sweep_runs_in_order_skips_and_reports(tmp_path, quick_start):
    lines, jobs = [], [Job("smoke", "adamw"), BAD, GOOD, Job("smoke", "sgd", learning_rate=0.25)]
    assert sweep(jobs, tmp_path, report=lines.append) == [BAD]
    assert lines[0] == "0 of 3 runs are done" and [line.split(":")[0] for line in lines[1:]] == [
        str(job.path("")) for job in jobs[:3]
    ]
    assert lines[2].endswith(
        "ArithmeticError: loss=nan: is not finite, at step=1; a smaller learning_rate may help"
    )
    assert lines[3] == f"{GOOD.path('')}: {read_record(GOOD.path(tmp_path)).summary}"
    before, lines = GOOD.path(tmp_path).stat().st_mtime_ns, []
    assert sweep([GOOD, jobs[0]], tmp_path, report=lines.append) == [] and lines == [
        "2 of 2 runs are done (on cpu) and are not run again"
    ]
    assert GOOD.path(tmp_path).stat().st_mtime_ns == before


def test_several_workers_make_the_same_records(tmp_path, quick_start):
    jobs = [Job("smoke", "sgd", seed) for seed in (0, 1)]
    sweep(jobs, tmp_path / "two", workers=2, report=lambda line: None)
    for job in jobs:
        run(job, tmp_path / "here")
        assert content(job.path(tmp_path / "two")) == content(job.path(tmp_path / "here"))


def test_sweep_says_once_that_its_corpus_cannot_be_had(tmp_path, monkeypatch):
    monkeypatch.setenv("ATTNID_DATA", str(tmp_path / "nowhere"))
    monkeypatch.setattr(experiments, "for_each", None)
    with pytest.raises(CorpusError, match="^ATTNID_DATA=.*is not a folder"):
        sweep([Job("laptop", "sgd"), Job("laptop", "adamw")], tmp_path, report=lambda line: None)
    assert os.listdir(tmp_path) == []


def test_worker_that_goes_on_from_a_saved_state_says_so(tmp_path, tiny, monkeypatch, capfd):
    monkeypatch.setattr(experiments, "Resume", partial(Resume, every=10))
    monkeypatch.setattr(
        experiments,
        "for_each",
        lambda function, items, ended, **options: [function(item) for item in items],
    )
    monkeypatch.setitem(CASES, "moved", replace(CASES["moved"], move=interrupt))
    job = Job("smoke", "moved")
    with pytest.raises(KeyboardInterrupt):
        run(job, tmp_path)
    assert capfd.readouterr().err == ""
    monkeypatch.setitem(CASES, "moved", replace(CASES["moved"], move=CASES["cleared"].move))
    sweep([job], tmp_path, report=lambda line: None)
    assert (
        capfd.readouterr().err
        == f"{job.path(tmp_path).with_name('seed-0.resume')}: the run goes on from step 10 of 40\n"
    )


def test_impossible_sweep_is_named(tmp_path):
    for field, value in (
        ("workers", 0),
        ("minutes", 0),
        ("minutes", math.nan),
        ("device", "nowhere"),
    ):
        with pytest.raises(ValueError, match=f"^{field}={value!r}: "):
            sweep([GOOD], tmp_path, report=lambda line: None, **{field: value})
    assert os.listdir(tmp_path) == []


def test_time_is_up_in_minutes(tmp_path, quick_start):
    lines = []
    assert sweep([GOOD], tmp_path, minutes=1e-9, report=lines.append) == [] and lines == [
        "0 of 1 runs are done"
    ]
    assert not GOOD.path(tmp_path).exists()
