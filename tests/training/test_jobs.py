"""A run by name: a place of its own for its record, and another run's record refused there."""

import math
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
from small_runs import GOOD, TINY

from attnid.training.cases import CASES, PRESETS, RATES
from attnid.training.experiments import finished, run, sweep
from attnid.training.jobs import Job
from attnid.training.records import read_records


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


def test_record_of_another_title_or_without_a_younger_option_is_read(tmp_path, tiny, monkeypatch):
    record = run(GOOD, tmp_path)
    del record.settings["model"]["mlp_width"]
    record.write(GOOD.path(tmp_path))
    monkeypatch.setitem(CASES, "sgd", replace(CASES["sgd"], title="another"))
    assert run(GOOD, tmp_path).provenance == record.provenance
