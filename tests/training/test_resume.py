"""The state from which a run goes on: whole, of the same trainer, or refused by name; and the lock on the making of a record."""

import io
import os
import time
from dataclasses import replace
from hashlib import sha256

import pytest
import torch
from kills import FORKSERVER

from attnid.network.gpt import GPT, GPTConfig
from attnid.training.data import load_corpus
from attnid.training.resume import Resume, held
from attnid.training.trainer import Trainer, TrainingConfig

CORPUS = load_corpus("embedded")
CONFIG = GPTConfig(len(CORPUS.vocabulary), 16, 1, 2, 8, dropout=0.1)
SETTINGS = TrainingConfig(6, batch_size=2, warmup=2)


def a_trainer(config=CONFIG, settings=SETTINGS, corpus=CORPUS, **options):
    return Trainer(GPT(config), corpus, settings, **options)


def saved(tmp_path, steps=2, **options):
    """The saved state of a run that has made some steps."""
    trainer, resume = a_trainer(), Resume(tmp_path / "c", **options)
    history = {"loss": [trainer.advance() for _ in range(steps)]}
    resume.save(trainer, history)
    return resume, trainer, history


def test_resume_puts_everything_back(tmp_path):
    resume, trainer, history = saved(tmp_path)
    other, found = a_trainer(), {}
    resume.load(other, found)
    assert found == history and other.step == 2
    torch.testing.assert_close(other.state_dict(), trainer.state_dict(), rtol=0, atol=0)
    assert other.optimizer.param_groups[0]["params"][0] is next(other.model.parameters())


def test_without_a_file_a_trainer_starts_at_the_start(tmp_path):
    trainer, history = a_trainer(), {}
    Resume(tmp_path / "c").load(trainer, history)
    assert trainer.step == 0 and history == {}


def refused(resume, trainer, why):
    before = [p.clone() for p in trainer.model.parameters()]
    history = {}
    with pytest.raises(
        ValueError, match=f"^resume='{resume.path}': {why}.*; delete it to start over$"
    ):
        resume.load(trainer, history)
    assert (
        trainer.step == 0
        and history == {}
        and all(map(torch.equal, before, trainer.model.parameters()))
    )


@pytest.mark.parametrize("left", [0, 1, 31, 32, 1000, -1])
def test_half_written_resume_is_refused(tmp_path, left):
    resume, *_ = saved(tmp_path)
    resume.path.write_bytes(resume.path.read_bytes()[:left])
    refused(resume, a_trainer(), "is damaged")


def test_one_changed_bit_is_refused(tmp_path):
    resume, *_ = saved(tmp_path)
    content = resume.path.read_bytes()
    for place in range(0, len(content), len(content) // 40):
        damaged = bytearray(content)
        damaged[place] ^= 4
        resume.path.write_bytes(damaged)
        refused(resume, a_trainer(), "is damaged")


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
def test_resume_of_another_run_is_refused_by_name(tmp_path, name, other):
    resume, *_ = saved(tmp_path)
    refused(resume, a_trainer(**other), f"is of a run with another {name};?")


@pytest.mark.parametrize("here", [{"case": "cleared"}, {}, {"case": "adamw", "more": 1}])
def test_resume_with_another_setting_of_its_own_is_refused(tmp_path, here):
    resume, *_ = saved(tmp_path, settings={"case": "adamw"})
    refused(replace(resume, settings=here), a_trainer(), "is of a run with another (case|more)")
    replace(resume, settings={"case": "adamw"}).load(a_trainer(), {})


@pytest.mark.parametrize("every", [0, 1.5, None])
def test_impossible_interval_is_named(every):
    with pytest.raises(ValueError, match=f"^every={every}"):
        Resume("c", every)


def hashed(content):
    """A file with the right hash."""
    return sha256(content).digest() + content


def pickled(value):
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


class Foreign:
    """What torch.load does not read as plain data."""


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"PK",
        b"{}",
        pickled([1]),
        pickled({}),
        pickled({"settings": [1]}),
        pickled(torch.zeros(3)),
        pickled(Foreign()),
    ],
)
def test_foreign_content_under_the_right_hash_is_refused_in_our_words(tmp_path, content):
    (tmp_path / "c").write_bytes(hashed(content))
    refused(Resume(tmp_path / "c"), a_trainer(), r"does not hold the state of a run \(\w+\)")


@pytest.mark.parametrize("part", ["trainer", "history", "settings"])
@pytest.mark.parametrize("value", [None, {}, [1]])
def test_state_of_another_shape_is_refused(tmp_path, part, value):
    resume, *_ = saved(tmp_path)
    state = torch.load(io.BytesIO(resume.path.read_bytes()[32:]), weights_only=True)
    resume.path.write_bytes(hashed(pickled(state | {part: value})))
    if (part, value) != ("history", {}):
        with pytest.raises(ValueError, match=f"^resume='{resume.path}': .*; delete it"):
            resume.load(a_trainer(), {})


# ---- one at a time


def hold(path, seconds):
    with held(path):
        (path.parent / "held").touch()
        time.sleep(seconds)


def held_elsewhere(path, seconds):
    """A process that holds the making of a path for so long."""
    process = FORKSERVER.Process(target=hold, args=(path, seconds))
    process.start()
    while not (path.parent / "held").exists():
        time.sleep(0.01)
    return process


def test_lock_goes_when_the_work_is_done_and_stays_when_it_failed(tmp_path):
    with held(tmp_path / "r"):
        assert os.listdir(tmp_path) == [".r.lock"]
    assert os.listdir(tmp_path) == []
    for _ in range(2):  # what stays locks nobody out
        with pytest.raises(ArithmeticError), held(tmp_path / "r"):
            raise ArithmeticError
    assert os.listdir(tmp_path) == [".r.lock"]


def test_second_process_is_refused_and_a_patient_one_waits(tmp_path):
    process = held_elsewhere(tmp_path / "r", 2)
    with pytest.raises(ValueError, match=f"^path='{tmp_path / 'r'}': is being made by another"):
        with held(tmp_path / "r", seconds=0.1):
            pass
    assert process.is_alive()
    with held(tmp_path / "r"):
        process.join(10)
        assert process.exitcode == 0


def test_process_that_is_killed_lets_go(tmp_path):
    process = held_elsewhere(tmp_path / "r", 60)
    process.kill()
    with held(tmp_path / "r", seconds=5):
        pass
