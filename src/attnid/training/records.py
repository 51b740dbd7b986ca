"""Records of training runs: one small file each, written whole, with all that it takes to know where it comes from."""

import json
import lzma
import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from ..checks import require
from ..files import write_whole

DIGITS = {
    "beta": 7,
    "joint_beta": 7,
    "loss": 6,
    "error": 3,
}  # significant digits that are kept; 4 of other metrics


@dataclass(frozen=True, eq=False)
class Record:
    """One run. `heads` maps a metric to an array (measured steps, layers, H), `step` (measured steps,) says when.

    loss (steps,): the loss of each step's batch, in nats per token. validation: {"step", "loss", "error"}, each an array.
    settings: every setting of the model, the training and the case. provenance: commit, data, versions, machine, seconds.
    """

    preset: str
    case: str
    seed: int
    settings: dict
    provenance: dict
    step: np.ndarray = field(repr=False)
    loss: np.ndarray = field(repr=False)
    validation: dict = field(repr=False)
    heads: dict = field(repr=False)

    @property
    def final_loss(self):
        """Loss on the validation windows at the end of the run."""
        return float(self.validation["loss"][-1])

    @property
    def summary(self):
        """Loss and time in a few words."""
        return f"validation loss {self.final_loss:.4f}, {self.provenance['seconds']:.0f} s"

    def write(self, path):
        """Write the record as compressed JSON, its measured numbers to a few significant digits."""
        content = {
            name: getattr(self, name)
            for name in ("preset", "case", "seed", "settings", "provenance")
        }
        content |= {"step": self.step.tolist(), "loss": _rounded("loss", self.loss)}
        content |= {
            part: {name: _rounded(name, values) for name, values in getattr(self, part).items()}
            for part in ("validation", "heads")
        }
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, lzma.compress(json.dumps(content, separators=(",", ":")).encode()))


def read_record(path):
    """The record in a file. FileNotFoundError without one, ValueError naming the path where it is no record."""
    try:
        with lzma.open(path, "rt") as file:
            content = json.load(file)
        arrays = lambda values: {name: np.array(value) for name, value in values.items()}
        return Record(
            **content
            | {
                "step": np.array(content["step"]),
                "loss": np.array(content["loss"]),
                "validation": arrays(content["validation"]),
                "heads": arrays(content["heads"]),
            }
        )
    except FileNotFoundError:
        raise
    except (
        OSError,
        EOFError,
        lzma.LZMAError,
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
    ) as error:
        raise ValueError(
            f"path={os.fspath(path)!r}: is not a record of a run ({type(error).__name__})"
        ) from None


def record_paths(folder):
    """The files of all records at or below a folder, in the order of their runs and seeds."""
    return sorted(
        Path(folder).rglob("seed-*.json.xz"), key=lambda path: (path.parent, _seed_of(path))
    )


def read_records(folder):
    """Every record below a folder, by where it lies: {"sgd": {seed: Record}} below a preset's folder, seeds in order. ValueError without any."""
    paths, found = record_paths(folder), {}
    require(paths, "folder", os.fspath(folder), "holds no records")
    for path in paths:
        found.setdefault(path.parent.relative_to(folder).as_posix(), {})[_seed_of(path)] = (
            read_record(path)
        )
    return found


def _seed_of(path):
    seed = path.name.removeprefix("seed-").removesuffix(".json.xz")
    require(seed.isdecimal(), "path", os.fspath(path), "is not named as a record, seed-0.json.xz")
    return int(seed)


def _rounded(name, values):
    if isinstance(values, (list, np.ndarray)):
        return [_rounded(name, value) for value in values]
    return (
        float(f"{values:.{DIGITS.get(name, 4)}g}")
        if isinstance(values, (float, np.floating))
        else int(values)
    )


def provenance(corpus, device, precision):
    """Where a record comes from."""
    name = (
        torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else str(device)
    )
    return {
        "commit": commit(),
        "data": corpus.name,
        "data_sha256": corpus.sha256,
        "torch": str(torch.__version__),
        "device": name,
        "precision": precision,
        "threads": torch.get_num_threads(),
    }


def commit():
    """The commit of the package's own source, with "+" where it has changed since; None outside a checkout."""
    here = Path(__file__).resolve().parents[1]  # the package
    git = lambda *words: subprocess.run(["git", "-C", here, *words], capture_output=True, text=True)
    try:
        tracked = git("ls-files", "--error-unmatch", __file__).returncode == 0
        return (
            git("rev-parse", "HEAD").stdout.strip()
            + ("+" if git("status", "--porcelain", ".").stdout else "")
            if tracked
            else None
        )
    except OSError:  # no git
        return None
