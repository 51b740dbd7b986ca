"""Records: what is read is what was written, what is no record is named, and each says where it comes from."""

import json
import lzma
import os
import re
import subprocess
from dataclasses import replace

import numpy as np
import pytest
import torch

from attnid.training import records
from attnid.training.data import load_corpus
from attnid.training.records import Record, commit, provenance, read_record, read_records

SEED = np.random.default_rng(0)


def a_record(seed=0, case="sgd"):
    heads = {
        name: SEED.normal(size=(3, 2, 4)) * 10.0 ** SEED.integers(-30, 10, (3, 2, 4))
        for name in ("rho", "beta", "drift", "joint_beta")
    }
    validation = {
        "step": np.array([10, 20]),
        "loss": np.array([2.3456789, 1.23456789]),
        "error": np.array([0.0123456, 0.01]),
    }
    return Record(
        "smoke",
        case,
        seed,
        {"training": {"betas": [0.9, 0.99]}, "measure_every": 10},
        {"commit": None, "seconds": 1.5},
        np.array([0, 10, 20]),
        SEED.normal(size=30) + 3,
        validation,
        heads,
    )


def written(tmp_path, record, name="seed-0.json.xz"):
    record.write(tmp_path / name)
    return tmp_path / name


# ---- there and back


def test_record_comes_back(tmp_path):
    record = a_record()
    found = read_record(written(tmp_path, record))
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


def test_writing_what_was_read_changes_no_byte(tmp_path):
    first = written(tmp_path, a_record())
    assert (
        written(tmp_path, read_record(first), "seed-1.json.xz").read_bytes() == first.read_bytes()
    )


def test_numbers_that_are_not_finite_come_back(tmp_path):
    values = np.array([[[np.nan, np.inf, -np.inf, 0.0]]])
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
        lambda raw, content: b"",
        lambda raw, content: raw[:-1],
        lambda raw, content: raw[: len(raw) // 2],
        lambda raw, content: b"not a record",
        lambda raw, content: lzma.compress(b"[]"),
        lambda raw, content: lzma.compress(b"{"),
        lambda raw, content: lzma.compress(b"\xff"),
        lambda raw, content: changed(content, loss=None),
        lambda raw, content: changed(content, preset=None),
        lambda raw, content: changed(content, other=1),
        lambda raw, content: changed(content, heads=[1]),
        lambda raw, content: changed(content, heads={"rho": [[1], [1, 2]]}),
        lambda raw, content: raw[:200] + bytes([raw[200] ^ 1]) + raw[201:],
    ],
)
def test_what_is_no_record_is_named(tmp_path, spoil):
    path = written(tmp_path, a_record())
    raw = path.read_bytes()
    path.write_bytes(spoil(raw, json.loads(lzma.decompress(raw))))
    for read in (read_record, lambda path: read_records(path.parent)):
        with pytest.raises(ValueError, match=f"^path='{path}': is not a record of a run"):
            read(path)


def test_missing_record_and_empty_folder(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_record(tmp_path / "seed-0.json.xz")
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ValueError, match=f"^folder='{folder}': holds no records"):
            read_records(folder)


# ---- many


def test_records_come_by_folder_then_by_seed(tmp_path):
    runs = [
        ("smoke/sgd", 10),
        ("smoke/sgd", 2),
        ("smoke/adamw", 3),
        ("laptop/sgd", 0),
        ("smoke/sgd-rate-0.5", 1),
        ("smoke/sgd", 1),
    ]
    for folder, seed in runs:
        a_record(seed, folder).write(tmp_path / folder / f"seed-{seed}.json.xz")
    (tmp_path / "smoke/sgd/seed-7.checkpoint").write_bytes(b"")
    (tmp_path / "smoke/sgd/.seed-8.json.xz.123.tmp").write_bytes(b"")
    expected = {
        "laptop/sgd": [0],
        "smoke/adamw": [3],
        "smoke/sgd": [1, 2, 10],
        "smoke/sgd-rate-0.5": [1],
    }
    found = read_records(tmp_path)
    assert {place: list(seeds) for place, seeds in found.items()} == expected and list(
        found
    ) == list(expected)
    assert all(
        (record.case, record.seed) == (place, seed)
        for place, seeds in found.items()
        for seed, record in seeds.items()
    )
    assert list(read_records(tmp_path / "smoke")) == ["adamw", "sgd", "sgd-rate-0.5"]


@pytest.mark.parametrize("name", ["seed-x.json.xz", "seed-1 (copy).json.xz", "seed-.json.xz"])
def test_file_that_is_not_named_as_a_record_is_named(tmp_path, name):
    path = written(tmp_path, a_record(), name)
    with pytest.raises(ValueError, match=re.escape(f"path='{path}': is not named as a record")):
        read_records(tmp_path)


# ---- provenance


def test_provenance_says_all():
    corpus = load_corpus("embedded")
    found = provenance(corpus, "cpu", "float32")
    assert found == {
        "commit": commit(),
        "data": "embedded",
        "data_sha256": corpus.sha256,
        "torch": str(torch.__version__),
        "device": "cpu",
        "precision": "float32",
        "threads": torch.get_num_threads(),
    }


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
