"""What lets a run go on where it was stopped: the file of its state, and the lock that lets one
process at a time make a record.
"""

import io
import os
import sqlite3
import sys
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import torch

from ..checks import require, require_size
from ..files import write_whole


@dataclass
class Resume:
    """A file that lets a run go on: written whole every `every` steps, read when the same run
    starts again.

    carried is whatever else must go on with it: an object with state_dict and load_state_dict, of
    plain numbers and tensors. settings are more plain values, by name, that must be the same,
    besides those in Trainer.description. ValueError for a file that is damaged, or holds something
    else or another run, naming what differs: delete it to start over.
    """

    path: str | os.PathLike
    every: int = 200
    carried: object = None
    settings: dict = field(default_factory=dict)

    def __post_init__(self):
        require_size("every", self.every)

    def after_step(self, trainer, history):
        """Save the state if the step is one of every `every`."""
        if trainer.step % self.every == 0:
            self.save(trainer, history)

    def save(self, trainer, history):
        """Write the state of the trainer, the history and what is carried."""
        state = {
            "settings": self._described(trainer),
            "trainer": trainer.state_dict(),
            "history": history,
            "carried": self.carried and self.carried.state_dict(),
        }
        buffer = io.BytesIO()
        torch.save(state, buffer)
        write_whole(self.path, sha256(buffer.getvalue()).digest() + buffer.getvalue())

    def load(self, trainer, history):
        """Put the trainer, the history and what is carried where the file left them; without a file
        leave them at the start.
        """
        if not os.path.exists(self.path):
            return
        content, here = Path(self.path).read_bytes(), self._described(trainer)
        # torch.load alone does not see a changed number
        self._require(sha256(content[32:]).digest() == content[:32], "is damaged or half-written")
        try:
            state = torch.load(io.BytesIO(content[32:]), map_location="cpu", weights_only=True)
            there = state["settings"]
            other = [name for name in here | there if there.get(name) != here.get(name)]
            if not other:
                self._put_back(state, trainer, history)
        except Exception as error:  # whatever foreign content leads to
            self._require(False, f"does not hold the state of a run ({type(error).__name__})")
        self._require(not other, f"is of a run with another {', '.join(other)}")
        step, steps = trainer.step, trainer.settings.steps
        print(f"{self.path}: the run goes on from step {step} of {steps}", file=sys.stderr)

    def _put_back(self, state, trainer, history):
        trainer.load_state_dict(state["trainer"])
        if self.carried is not None:
            self.carried.load_state_dict(state["carried"])
        history.update(state["history"])

    def _described(self, trainer):
        return {name: str(value) for name, value in (trainer.description | self.settings).items()}

    def _require(self, condition, why):
        require(condition, "resume", os.fspath(self.path), f"{why}; delete it to start over")


@contextmanager
def held(path, seconds=10):
    """Hold the making of a file, so that nobody else makes it meanwhile. A process that dies lets
    go.

    Who finds another process at it waits until the file is made, ValueError where that takes more
    than so many seconds. The lock is a hidden file beside the path, which goes once the file is
    made.
    """
    lock = Path(path).with_name(f".{Path(path).name}.lock")
    lock.touch()
    with closing(sqlite3.connect(lock, timeout=seconds)) as connection:
        try:
            # SQLite's lock is one on every system; without a journal there is no other file
            connection.executescript("PRAGMA journal_mode = OFF; BEGIN EXCLUSIVE")
        except sqlite3.OperationalError:
            made = not lock.exists()
            require(made, "path", os.fspath(path), "is being made by another process")
        yield
    lock.unlink(missing_ok=True)
