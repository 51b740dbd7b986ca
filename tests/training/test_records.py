"""Records: what is read is what was written, what is no record is named, and each says where it comes from."""

import doctest
import inspect
import json
import lzma
import os
import platform
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from attnid.training import records
from attnid.training.data import load_corpus
from attnid.training.jobs import Job
from attnid.training.records import (
    Record,
    commit,
    ending,
    processor,
    provenance,
    read_record,
    read_records,
    stack_seeds,
)

SEED = np.random.default_rng(0)


SGD = Job("smoke", "sgd")
SETTINGS = SGD.settings(43)
ORIGIN = provenance(load_corpus("embedded"), "cpu", "float32") | {"seconds": 1.5}


def a_record(job=SGD):
    heads = {
        name: SEED.normal(size=(3, 2, 2)) * 10.0 ** SEED.integers(-30, 10, (3, 2, 2))
        for name in ("rho", "beta", "drift", "joint_beta")
    }
    validation = {
        "step": np.array([10, 20]),
        "loss": np.array([2.3456789, 1.23456789]),
        "error": np.array([0.0123456, 0.01]),
    }
    return Record(
        job.preset,
        job.case,
        job.seed,
        json.loads(json.dumps(job.settings(43))),
        ORIGIN,
        np.array([0, 5, 10]),
        SEED.normal(size=job.training().steps) + 3,
        validation,
        heads,
        np.array([1.2345678, 1.2]),
    )


def written(tmp_path, record, name="seed-0.json.xz"):
    record.write(tmp_path / name)
    return tmp_path / name


# ---- there and back


def test_record_comes_back(tmp_path):
    record = a_record()
    found = read_record(written(tmp_path, record))
    np.testing.assert_allclose(found.windows, record.windows, rtol=1e-4)
    for name in ("preset", "case", "seed", "settings", "provenance"):
        assert getattr(found, name) == getattr(record, name)
    assert np.array_equal(found.step, record.step) and np.array_equal(
        found.validation["step"], record.validation["step"]
    )
    np.testing.assert_allclose(found.loss, record.loss, rtol=1e-5)
    for part in ("heads", "validation"):
        assert list(getattr(found, part)) == list(getattr(record, part))
    for name, values in record.heads.items():
        np.testing.assert_allclose(
            found.heads[name], values, rtol=1e-6 if "beta" in name else 1e-3, atol=0
        )
    assert (
        found.final_loss == pytest.approx(1.23457, rel=1e-5)
        and found.summary == "validation loss 1.2346, 2 s"
    )


def test_a_record_older_than_its_windows_has_none(tmp_path):
    path = written(tmp_path, a_record())
    content = json.loads(lzma.decompress(path.read_bytes()))
    del content["windows"]
    path.write_bytes(lzma.compress(json.dumps(content).encode()))
    assert read_record(path).windows.shape == (0,)


def test_writing_what_was_read_changes_no_byte(tmp_path):
    first = written(tmp_path, a_record())
    assert (
        written(tmp_path, read_record(first), "seed-1.json.xz").read_bytes() == first.read_bytes()
    )


def test_numbers_that_are_not_finite_come_back(tmp_path):
    values = np.zeros((3, 2, 2))
    values[0] = [[np.nan, np.inf], [-np.inf, 0.0]]
    assert np.array_equal(
        read_record(written(tmp_path, replace(a_record(), heads={"rho": values}))).heads["rho"],
        values,
        equal_nan=True,
    )


# ---- what is no record


def changed(content, **changes):
    return lzma.compress(
        json.dumps(
            {key: value for key, value in (content | changes).items() if value is not None}
        ).encode()
    )


@pytest.mark.parametrize(
    "spoil",
    [
        lambda raw: b"",
        lambda raw: raw[:-1],
        lambda raw: raw[: len(raw) // 2],
        lambda raw: b"not a record",
        lambda raw: lzma.compress(b"{"),
        lambda raw: lzma.compress(b"\xff"),
        lambda raw: lzma.compress(200_000 * b"[" + 200_000 * b"]"),
        lambda raw: lzma.compress(200_000 * b'{"a":' + b"1" + 200_000 * b"}"),
        lambda raw: raw[:200] + bytes([raw[200] ^ 1]) + raw[201:],
    ],
)
def test_what_is_no_record_is_named(tmp_path, spoil):
    path = a_place(tmp_path)
    path.write_bytes(spoil(path.read_bytes()))
    refused(path, r"\w+\)$")


@pytest.mark.parametrize(
    "field, value, complaint",
    [
        ("loss", None, "loss: is missing"),
        ("preset", None, "preset: is missing"),
        ("other", 1, ".*'other'"),
        ("preset", 1, "preset=1: must be of type str"),
        ("seed", "0", "seed='0': must be of type int"),
        ("seed", 1, "seed=1: is not its settings'"),
        ("settings", {}, "settings.title: is missing"),
        ("settings", [1], r"settings=\[1\]: must be of type dict"),
        ("settings", SETTINGS | {"model": {}}, "settings.model={}: .*vocab_size"),
        ("settings", SETTINGS | {"model": [1]}, r"settings.model=\[1\]: "),
        ("settings", SETTINGS | {"training": {"steps": 0}}, "settings.training=.*: steps=0: must"),
        ("settings", SETTINGS | {"training": {"stepz": 1}}, "settings.training=.*'stepz'"),
        ("settings", SETTINGS | {"move_every": "x"}, "settings.move_every='x': must be of type"),
        ("provenance", {}, "provenance.commit: is missing"),
        ("provenance", [1], r"provenance=\[1\]: must be of type dict"),
        ("provenance", ORIGIN | {"seconds": "1"}, "provenance.seconds='1': must be of type"),
        ("provenance", ORIGIN | {"device": None}, "provenance.device=None: must be of type str"),
        ("validation", {"loss": []}, "validation.step: is missing"),
        ("validation", dict(step=[], loss=[], error=[]), r"validation.step=\[\]: must have an"),
        (
            "validation",
            dict(step=[1], loss=[], error=[1]),
            r"validation.loss=\[\]: .* shape \(1,\)",
        ),
        ("step", 1, "step=1: must be of type list"),
        ("step", [1, None, 2], r"step=\[1, None, 2\]: must be numbers"),
        ("loss", [1.0], r"loss=\[1.0\]: must be numbers of shape \(100,\)"),
        ("loss", 100 * ["x"], r"loss=\['x', .*: must be numbers of shape \(100,\)"),
        ("heads", [1], r"heads=\[1\]: must be of type dict"),
        ("heads", {"rho": [[1], [1, 2]]}, r"heads.rho=.*: must be numbers of shape \(3, 2, 2\)"),
        ("heads", {"rho": [[[1, 2]]]}, r"heads.rho=.*: must be numbers of shape \(3, 2, 2\)"),
    ],
)
def test_field_of_another_shape_is_named(tmp_path, field, value, complaint):
    path = a_place(tmp_path)
    content = json.loads(lzma.decompress(path.read_bytes())) | {field: value}
    kept = {key: value for key, value in content.items() if value is not None}
    path.write_bytes(lzma.compress(json.dumps(kept).encode()))
    refused(path, complaint)


@pytest.mark.parametrize("content", ["[]", "1", "null", '"x"'])
def test_json_of_another_kind_is_no_record(tmp_path, content):
    path = a_place(tmp_path)
    path.write_bytes(lzma.compress(content.encode()))
    refused(path, "content=.*: must be of type dict")


def a_place(folder):
    """Where a record lies."""
    return written(folder, a_record(), "smoke/sgd/seed-0.json.xz")


def refused(path, complaint):
    whole = rf"^path='{path}': is not a record of a run \({complaint}"
    for read in (read_record, lambda path: read_records(path.parent)):
        with pytest.raises(ValueError, match=whole) as refusal:
            read(path)
        assert len(str(refusal.value)) < 600 + len(str(path))


def test_missing_record_and_empty_folder(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_record(tmp_path / "seed-0.json.xz")
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ValueError, match=f"^folder='{folder}': holds no records"):
            read_records(folder)


# ---- many


def test_records_come_by_folder_then_by_seed(tmp_path):
    runs = [("sgd", 10), ("sgd", 2), ("adamw", 3), ("sgd", 1, 0.5), ("sgd", 1, 1e-05), ("sgd", 1)]
    for job in (Job("smoke", *run) for run in runs):
        a_record(job).write(job.path(tmp_path))
    (tmp_path / "smoke/sgd/seed-7.resume").write_bytes(b"")
    (tmp_path / "smoke/sgd/.seed-8.json.xz.123.tmp").write_bytes(b"")
    (tmp_path / "smoke/sgd/.seed-9.json.xz.lock").write_bytes(b"")
    expected = {
        "smoke/adamw": [3],
        "smoke/sgd": [1, 2, 10],
        "smoke/sgd-rate-0.5": [1],
        "smoke/sgd-rate-1e-05": [1],
    }
    found = read_records(tmp_path)
    assert {place: list(seeds) for place, seeds in found.items()} == expected
    assert list(found) == list(expected)
    assert all(
        (place.startswith(f"smoke/{record.case}"), record.seed) == (True, seed)
        for place, seeds in found.items()
        for seed, record in seeds.items()
    )
    inside = read_records(tmp_path / "smoke")
    assert list(inside) == ["adamw", "sgd", "sgd-rate-0.5", "sgd-rate-1e-05"]


@pytest.mark.parametrize("name", ["seed-x.json.xz", "seed-1 (copy).json.xz", "seed-.json.xz"])
def test_file_that_is_not_named_as_a_record_is_named(tmp_path, name):
    path = written(tmp_path, a_record(), f"smoke/sgd/{name}")
    with pytest.raises(ValueError, match=re.escape(f"path='{path}': is not named as a record")):
        read_records(tmp_path)


# ---- named axes


def test_dataset_names_the_axes_and_holds_the_settings():
    record = a_record(Job("smoke", "adamw", 3))
    found = record.dataset()
    assert found.rho.dims == ("step", "layer", "head") and found.rho.shape == (3, 2, 2)
    assert np.array_equal(found.rho.sel(step=5, head=1), record.heads["rho"][1, :, 1])
    assert found.validation_loss.sel(validation_step=20) == record.final_loss
    assert found.loss.dims == ("training_step",) and found.seed == 3
    assert (found.preset, found.case, found.warmup, found.n_head) == ("smoke", "adamw", 10, 2)


def test_record_without_heads_has_a_dataset():
    found = replace(a_record(), heads={}, step=np.array([])).dataset()
    assert set(found.sizes) == {"training_step", "validation_step"}


def test_seeds_are_stacked_in_order():
    seeds = {seed: a_record(Job("smoke", "sgd", seed)) for seed in (1, 2, 10)}
    found = stack_seeds(seeds)
    assert found.beta.dims == ("seed", "step", "layer", "head") and "seed" not in found.attrs
    assert found.seed.values.tolist() == [1, 2, 10] and found.warmup == 10
    for seed, record in seeds.items():
        assert np.array_equal(found.beta.sel(seed=seed), record.heads["beta"])
        assert found.validation_loss.sel(seed=seed)[-1] == record.final_loss


def test_seeds_that_do_not_fit_are_refused():
    one, other = a_record(), replace(a_record(Job("smoke", "sgd", 1)), step=np.array([0, 5, 15]))
    with pytest.raises(ValueError, match="step"):
        stack_seeds({0: one, 1: other})
    with pytest.raises(ValueError):
        stack_seeds({})


def test_example_of_stacked_seeds_is_true(monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[2])
    names = {"read_records": read_records, "stack_seeds": stack_seeds}
    (example,) = doctest.DocTestFinder().find(inspect.unwrap(stack_seeds), globs=names)
    found = doctest.DocTestRunner().run(example)
    assert found.attempted == 5 and found.failed == 0


def test_reading_records_does_not_load_xarray():
    code = "import sys, attnid.training.records; assert 'xarray' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


# ---- provenance


def test_provenance_says_all():
    corpus = load_corpus("embedded")
    found = provenance(corpus, "cpu", "float32")
    assert found == {
        "commit": commit(),
        "data": "embedded",
        "data_sha256": corpus.sha256,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "system": f"{platform.system()} {platform.release()}",
        "processor": processor(),
        "device": "cpu",
        "precision": "float32",
        "threads": torch.get_num_threads(),
    }


def test_the_processor_has_a_name_everywhere(monkeypatch):
    assert processor() and processor().strip() == processor()
    monkeypatch.setattr(records, "Path", lambda name: Path("/absent"))
    assert processor() == (platform.processor() or platform.machine())


def test_the_hash_of_the_weights_is_that_of_every_number():
    model, same = (torch.nn.Linear(2, 3) for _ in range(2))
    same.load_state_dict(model.state_dict())
    found = ending(model)["weights_sha256"]
    assert found == ending(same)["weights_sha256"] and len(found) == 64
    with torch.no_grad():
        same.bias[2] += 1e-6
    assert found != ending(same)["weights_sha256"]


def checkout(folder):
    """A git checkout with a copy of records.py under src/attnid/training."""
    source = folder / "src" / "attnid" / "training" / "records.py"
    source.parent.mkdir(parents=True)
    source.write_text("one")
    git = lambda *words: subprocess.run(
        ["git", "-C", folder, "-c", "user.name=n", "-c", "user.email=e", *words],
        check=True,
        capture_output=True,
        text=True,
    )
    git("init")
    git("add", ".")
    git("commit", "-m", "first")
    return source, git("rev-parse", "HEAD").stdout.strip()


def test_commit_is_that_of_the_package(tmp_path, monkeypatch):
    source, head = checkout(tmp_path / "here")
    monkeypatch.setattr(records, "__file__", os.fspath(source))
    assert commit() == head
    (tmp_path / "here" / "notes").write_text("a change elsewhere does not count")
    assert commit() == head
    source.write_text("two")
    assert commit() == head + "+"


def test_outside_a_checkout_there_is_no_commit(tmp_path, monkeypatch):
    monkeypatch.setattr(
        records, "__file__", os.fspath(tmp_path / "attnid" / "training" / "records.py")
    )
    assert commit() is None
    source, _ = checkout(tmp_path / "here")
    (
        source.parent / "untracked.py"
    ).touch()  # as a package installed inside somebody else's checkout
    monkeypatch.setattr(records, "__file__", os.fspath(source.parent / "untracked.py"))
    assert commit() is None
    monkeypatch.setattr(records, "__file__", os.fspath(source))
    monkeypatch.setenv("PATH", "")
    assert commit() is None
