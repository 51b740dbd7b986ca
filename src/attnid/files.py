"""Files, written whole or not at all, and the file from which a run goes on."""

import io
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import torch

from .checks import require


def write_whole(path, content):
    """Write bytes to a path by way of a draft beside it: whoever reads the path finds all of them or what was there before."""
    path = Path(path)
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        os.unlink(draft)
        raise


@dataclass
class Checkpoint:
    """A file that lets a run go on: written whole every `every` steps, read when a run of the same settings starts again.

    carried is whatever else must go on with it: an object with state_dict and load_state_dict, of plain numbers and tensors.
    settings is a dict of plain values that names the run. ValueError for a file that is damaged, or of a run with
    other settings: delete it to start over.
    """

    path: str | os.PathLike
    every: int = 200
    carried: object = None
    settings: dict = field(default_factory=dict)

    def save(self, run, history):
        state = {"run": run.state_dict(), "history": history, "settings": self.settings}
        if self.carried is not None:
            state["carried"] = self.carried.state_dict()
        buffer = io.BytesIO()
        torch.save(state, buffer)
        write_whole(self.path, buffer.getvalue())

    def resume(self, run, history):
        """Put the run, its history and what is carried where the file left them; without a file leave them at the start."""
        if not os.path.exists(self.path):
            return
        try:
            state = torch.load(self.path, map_location="cpu", weights_only=True)
            settings = state["settings"]
        except Exception as error:  # a damaged file can raise nearly anything
            raise ValueError(f"checkpoint={os.fspath(self.path)!r}: cannot be read ({type(error).__name__}); delete it to start over") from None
        other = [key for key in {**settings, **self.settings} if settings.get(key) != self.settings.get(key)]
        require(not other, "checkpoint", os.fspath(self.path), f"is of a run with another {', '.join(other)}; delete it to start over")
        run.load_state_dict(state["run"])
        history.update(state["history"])
        if self.carried is not None:
            self.carried.load_state_dict(state["carried"])
