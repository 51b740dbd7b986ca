"""Files that are whole or absent, and checkpoints that are whole, of the same run, or refused by name."""

import os
from dataclasses import replace

import pytest
import torch
from kills import kill_self, killed

from attnid import files
from attnid.files import Checkpoint, write_whole
from attnid.network.gpt import GPT, GPTConfig
from attnid.training.data import load_corpus
from attnid.training.run import Run, TrainingConfig

CORPUS = load_corpus("embedded")
CONFIG = GPTConfig(len(CORPUS.vocabulary), 16, 1, 2, 8, dropout=0.1)
SETTINGS = TrainingConfig(6, batch_size=2, warmup=2)


def a_run(config=CONFIG, settings=SETTINGS, corpus=CORPUS, **options):
    return Run(GPT(config), corpus, settings, **options)


def saved(tmp_path, steps=2, **options):
    """A checkpoint of a run that has made some steps."""
    run, checkpoint = a_run(), Checkpoint(tmp_path / "c", **options)
    history = {"loss": [run.advance() for _ in range(steps)]}
    checkpoint.save(run, history)
    return checkpoint, run, history


# ---- whole or absent


def test_write_replaces_and_leaves_no_draft(tmp_path):
    for content in (b"one", b"", b"another" * 1000):
        write_whole(tmp_path / "f", content)
        assert (tmp_path / "f").read_bytes() == content and os.listdir(tmp_path) == ["f"]


def test_written_file_is_as_readable_as_any(tmp_path):
    (tmp_path / "plain").write_bytes(b"")
    write_whole(tmp_path / "f", b"")
    assert (tmp_path / "f").stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.parametrize("where", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_interrupted_write_leaves_what_was_there(tmp_path, monkeypatch, where, error):
    write_whole(tmp_path / "f", b"old")

    def stop(*_):
        raise error

    monkeypatch.setattr(files.os, where, stop)
    with pytest.raises(error):
        write_whole(tmp_path / "f", b"new")
    assert (tmp_path / "f").read_bytes() == b"old" and os.listdir(tmp_path) == ["f"]


def killed_write(path, where):
    setattr(files.os, where, kill_self)
    write_whole(path, b"new")


@pytest.mark.parametrize("where", ["fsync", "replace"])
def test_killed_write_leaves_what_was_there(tmp_path, where):
    write_whole(tmp_path / "f", b"old")
    assert killed(killed_write, tmp_path / "f", where)
    assert (tmp_path / "f").read_bytes() == b"old"
    assert all(
        name == "f" or name[0] == "." and name.endswith(".tmp") for name in os.listdir(tmp_path)
    )
    write_whole(tmp_path / "f", b"new")
    assert (tmp_path / "f").read_bytes() == b"new"


@pytest.mark.parametrize("name", ["x" * 255, "é" * 127, "x" * 250 + ".json"])
def test_a_name_may_be_as_long_as_the_system_allows(tmp_path, name):
    write_whole(tmp_path / name, b"whole")
    assert os.listdir(tmp_path) == [name] and (tmp_path / name).read_bytes() == b"whole"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
def test_a_full_disk_is_named_with_the_path_that_was_asked_for(tmp_path, monkeypatch):
    path = tmp_path / "f"
    monkeypatch.setattr(files.os, "fsync", lambda _: os.write(os.open("/dev/full", 1), b"x"))
    with pytest.raises(OSError, match=f"^path='{path}': is not written: .*No space left") as full:
        write_whole(path, b"new")
    assert ".tmp" not in str(full.value) and os.listdir(tmp_path) == []


def test_a_folder_is_drafted_and_named_as_a_file_is(tmp_path):
    with pytest.raises(
        OSError, match=f"^path='{tmp_path / 'f'}': .*: '{tmp_path / 'f' / 'part'}'$"
    ):
        with files.draft_of(tmp_path / "f") as draft:
            (draft / "part").mkdir(parents=True)
            (draft / "part").write_bytes(b"")
    assert os.listdir(tmp_path) == []
    with files.draft_of(tmp_path / "f") as draft:
        (draft / "part").mkdir(parents=True)
    assert os.listdir(tmp_path) == ["f"]


@pytest.mark.parametrize(
    "content, why",
    [
        ("[" * 200_000, "is nested too deeply"),
        ('{"a":' * 200_000 + "1" + "}" * 200_000, "is nested too deeply"),
        ("{", "is not JSON"),
        ("9" * 5000, "is not JSON"),
        ("\xff", "is not JSON"),
        ("3", "does not hold an object"),
    ],
)
def test_what_is_no_object_in_json_is_named(tmp_path, content, why):
    (tmp_path / "f").write_bytes(content.encode("latin1"))
    with pytest.raises(ValueError, match=f"^path='{tmp_path / 'f'}': {why}"):
        files.read_json(tmp_path / "f")


# ---- checkpoints


def test_checkpoint_puts_everything_back(tmp_path):
    checkpoint, run, history = saved(tmp_path)
    other, found = a_run(), {}
    checkpoint.resume(other, found)
    assert found == history and other.step == 2
    torch.testing.assert_close(other.state_dict(), run.state_dict(), rtol=0, atol=0)
    assert other.optimizer.param_groups[0]["params"][0] is next(other.model.parameters())


def test_without_a_file_a_run_starts_at_the_start(tmp_path):
    run, history = a_run(), {}
    Checkpoint(tmp_path / "c").resume(run, history)
    assert run.step == 0 and history == {}


def refused(checkpoint, run, why):
    before = [p.clone() for p in run.model.parameters()]
    history = {}
    with pytest.raises(
        ValueError, match=f"^checkpoint='{checkpoint.path}': {why}.*; delete it to start over$"
    ):
        checkpoint.resume(run, history)
    assert run.step == 0 and history == {} and all(map(torch.equal, before, run.model.parameters()))


@pytest.mark.parametrize("left", [0, 1, 31, 32, 1000, -1])
def test_half_written_checkpoint_is_refused(tmp_path, left):
    checkpoint, *_ = saved(tmp_path)
    checkpoint.path.write_bytes(checkpoint.path.read_bytes()[:left])
    refused(checkpoint, a_run(), "is damaged")


def test_one_changed_bit_is_refused(tmp_path):
    checkpoint, *_ = saved(tmp_path)
    content = checkpoint.path.read_bytes()
    for place in range(0, len(content), len(content) // 40):
        damaged = bytearray(content)
        damaged[place] ^= 4
        checkpoint.path.write_bytes(damaged)
        refused(checkpoint, a_run(), "is damaged")


@pytest.mark.parametrize(
    "name, other",
    [
        (
            "learning_rate, min_learning_rate",
            dict(settings=replace(SETTINGS, learning_rate=1e-2, min_learning_rate=None)),
        ),
        ("seed", dict(settings=replace(SETTINGS, seed=1))),
        ("optimizer", dict(settings=replace(SETTINGS, optimizer="sgd"))),
        ("steps", dict(settings=replace(SETTINGS, steps=7))),
        ("n_embd", dict(config=replace(CONFIG, n_embd=16))),
        ("dropout", dict(config=replace(CONFIG, dropout=0.0))),
        ("precision", dict(precision="bfloat16")),
        ("data", dict(corpus=replace(CORPUS, sha256="0" * 64))),
    ],
)
def test_checkpoint_of_another_run_is_refused_by_name(tmp_path, name, other):
    checkpoint, *_ = saved(tmp_path)
    refused(checkpoint, a_run(**other), f"is of a run with another {name};?")


@pytest.mark.parametrize("here", [{"case": "cleared"}, {}, {"case": "adamw", "more": 1}])
def test_checkpoint_with_another_setting_of_its_own_is_refused(tmp_path, here):
    checkpoint, *_ = saved(tmp_path, settings={"case": "adamw"})
    refused(replace(checkpoint, settings=here), a_run(), "is of a run with another (case|more)")
    replace(checkpoint, settings={"case": "adamw"}).resume(a_run(), {})


@pytest.mark.parametrize("every", [0, 1.5, None])
def test_impossible_interval_is_named(every):
    with pytest.raises(ValueError, match=f"^every={every}"):
        Checkpoint("c", every)
