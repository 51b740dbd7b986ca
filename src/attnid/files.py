"""Files, written whole or not at all, and the file from which a run goes on."""

import io
import json
import os
import shutil
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from .checks import require, require_size


@contextmanager
def draft_of(path):
    """A hidden path beside `path` for a file or a folder, which becomes `path` at the end; on an error nothing is left of it.

    Its name is no longer than a file system allows, whatever that of `path` is. OSError naming `path` where it cannot be written.
    """
    path = Path(path)
    start = os.fsencode(path.name)[:100].decode(errors="ignore")
    draft = path.with_name(f".{start}.{os.getpid()}.tmp")
    try:
        yield draft
        os.replace(draft, path)
    except BaseException as error:
        if draft.is_dir():
            shutil.rmtree(draft, ignore_errors=True)
        else:
            draft.unlink(missing_ok=True)
        if isinstance(error, OSError):
            why = str(error).replace(str(draft), str(path))
            raise type(error)(f"path={str(path)!r}: is not written: {why}") from None
        raise


def write_whole(path, content):
    """Write bytes to a path: whoever reads it finds all of them or what was there before. Errors as for draft_of."""
    with draft_of(path) as draft, open(draft, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def read_json(path):
    """The object, a dict, in a JSON file. ValueError naming the path where it holds anything else."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError(f"path={os.fspath(path)!r}: is nested too deeply to be read") from None
    except ValueError as error:  # of the JSON, or of its characters
        raise ValueError(f"path={os.fspath(path)!r}: is not JSON ({error})") from None
    require(
        isinstance(content, dict), "path", os.fspath(path), "does not hold an object with fields"
    )
    return content


@dataclass
class Checkpoint:
    """A file that lets a run go on: written whole every `every` steps, read when the same run starts again.

    carried is whatever else must go on with it: an object with state_dict and load_state_dict, of plain numbers and tensors.
    settings are more plain values, by name, that must be the same, besides those in Run.description. ValueError for a file that
    is damaged, or of another run, naming what differs: delete it to start over.
    """

    path: str | os.PathLike
    every: int = 200
    carried: object = None
    settings: dict = field(default_factory=dict)

    def __post_init__(self):
        require_size("every", self.every)

    def save(self, run, history):
        state = {"run": run.state_dict(), "history": history, "settings": self._described(run)}
        if self.carried is not None:
            state["carried"] = self.carried.state_dict()
        import torch

        buffer = io.BytesIO()
        torch.save(state, buffer)
        write_whole(self.path, sha256(buffer.getvalue()).digest() + buffer.getvalue())

    def resume(self, run, history):
        """Put the run, its history and what is carried where the file left them; without a file leave them at the start."""
        if not os.path.exists(self.path):
            return
        state, here = self._read(), self._described(run)
        other = [
            name
            for name in here | state["settings"]
            if state["settings"].get(name) != here.get(name)
        ]
        require(
            not other,
            "checkpoint",
            os.fspath(self.path),
            f"is of a run with another {', '.join(other)}; delete it to start over",
        )
        run.load_state_dict(state["run"])
        history.update(state["history"])
        if self.carried is not None:
            self.carried.load_state_dict(state["carried"])

    def _described(self, run):
        return {name: str(value) for name, value in (run.description | self.settings).items()}

    def _read(self):
        import torch

        # torch.load alone does not see a changed number
        content = Path(self.path).read_bytes()
        whole = sha256(content[32:]).digest() == content[:32]
        require(
            whole,
            "checkpoint",
            os.fspath(self.path),
            "is damaged or half-written; delete it to start over",
        )
        return torch.load(io.BytesIO(content[32:]), map_location="cpu", weights_only=True)
