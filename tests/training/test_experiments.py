"""Runs: records hold what was measured, a killed run ends as one that was not, sweeps."""

import functools
import math
import os
import tempfile
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from kills import kill_self, killed
from small_runs import BAD, CONFIG, CORPUS, GOOD, TINY, H, L, content

from attnid import files
from attnid.network.gpt import GPT, GPTConfig
from attnid.training import experiments, resume
from attnid.training.data import CorpusError
from attnid.training.experiments import CASES, PRESETS, Job, Recorder, finished, run, sweep
from attnid.training.records import ending, read_record, record_paths
from attnid.training.resume import Resume
from attnid.training.trainer import train, window_losses

RESULTS = Path(__file__).parents[2] / experiments.RESULTS


def interrupt(*_):
    raise KeyboardInterrupt


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
            momentum=0.0,
        ),
        "half": None,
        "context": 0,
    }
    here = set(experiments.provenance(CORPUS, "cpu", "bfloat16"))
    assert set(record.provenance) == here | {"seconds", "earlier", "date", "weights_sha256"}
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


# ---- a run that is judged on all windows


def test_a_run_on_half_the_text_keeps_the_losses_of_its_windows_and_stays_small(
    tmp_path, monkeypatch
):
    for half in (0, 1):
        other = replace(TINY, half=half, measure_every=None, context=5)
        monkeypatch.setitem(PRESETS, "smoke", other)
        record = run(GOOD, tmp_path / str(half))
        tokens, model = CORPUS.val.chunk(2)[half], GPT(CONFIG, 0)
        train(model, CORPUS, GOOD.training())
        found = window_losses(model, tokens, context=5)
        assert len(found) == (len(tokens) - 1) // 32
        np.testing.assert_allclose(record.windows, found.numpy(), rtol=1e-4)
        assert record.final_loss == pytest.approx(found.mean().item(), rel=1e-5)
        assert record.provenance["weights_sha256"] == ending(model)["weights_sha256"]
        assert (record.settings["half"], record.settings["context"]) == (half, 5)
    with pytest.raises(ValueError, match=r"another half \(0, not 1\)"):
        finished(GOOD, tmp_path / "0")


def test_records_of_the_pilot_are_small():
    pilot = [path for path in record_paths(RESULTS) if path.parts[-3].startswith("pilot")]
    assert pilot and max(path.stat().st_size for path in pilot) < 20_000
