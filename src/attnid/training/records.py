"""Records of training runs: one small file each, written whole, with all that it takes to know
where it comes from.
"""

import hashlib
import json
import lzma
import os
import platform
import re
import subprocess
from contextlib import suppress
from dataclasses import dataclass, field, is_dataclass
from datetime import UTC, datetime
from pathlib import Path
from reprlib import repr as shortened
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int

from ..checks import require
from ..files import write_whole
from ..network.gpt import GPTConfig
from .jobs import EVERY, Job, by_name
from .settings import TrainingConfig

# significant digits that are kept; 4 of other metrics
DIGITS = {"beta": 7, "joint_beta": 7, "loss": 6, "error": 3, "windows": 5}

# what a file must hold, and of which kind
FIELDS: dict[str, Any] = {
    "preset": str,
    "case": str,
    "seed": int,
    "step": list,
    "loss": list,
    "heads": dict,
    "windows": list,
}
FIELDS["settings"] = {"title": str, "model": GPTConfig, "training": TrainingConfig}
FIELDS["settings"] |= dict.fromkeys(EVERY, int | None)
FIELDS["provenance"] = {"commit": str | None, "threads": int, "seconds": int | float}
FIELDS["provenance"] |= dict.fromkeys(("data", "data_sha256", "torch", "device", "precision"), str)
FIELDS["validation"] = dict.fromkeys(("step", "loss", "error"), list)


@dataclass(frozen=True, eq=False)
class Record:
    """One run. `heads` maps a metric to an array (measured steps, layers, H), `step` (measured
    steps,) says when.

    loss (steps,): the loss of each step's batch, in nats per token. validation: {"step", "loss",
    "error"}, each an array. settings: every setting of the model, the training and the case.
    provenance: commit, data, versions, machine, seconds. windows (n,): the loss of each of the
    windows of the last evaluation, where it was of all windows, else (0,).
    """

    preset: str
    case: str
    seed: int
    settings: dict
    provenance: dict
    step: Int[np.ndarray, "measured"] = field(repr=False)
    loss: Float[np.ndarray, "steps"] = field(repr=False)
    validation: dict = field(repr=False)
    heads: dict = field(repr=False)
    windows: Float[np.ndarray, "windows"] = field(default_factory=lambda: np.zeros(0), repr=False)

    @property
    def final_loss(self):
        """Loss on the validation windows at the end of the run."""
        return float(self.validation["loss"][-1])

    @property
    def summary(self):
        """Loss and time in a few words."""
        return f"validation loss {self.final_loss:.4f}, {self.provenance['seconds']:.0f} s"

    def dataset(self):
        """The numbers as an xarray.Dataset with named axes, and the settings by name as its
        attributes.

        The metrics of heads have axes (step, layer, head); loss has (training_step,);
        validation_loss and validation_error, in nats per token, have (validation_step,). The seed
        is a coordinate.
        """
        import xarray

        heads = {name: (("step", "layer", "head"), values) for name, values in self.heads.items()}
        losses = {
            "loss": ("training_step", self.loss),
            "validation_loss": ("validation_step", self.validation["loss"]),
            "validation_error": ("validation_step", self.validation["error"]),
        }
        measured = {"step": self.step} if heads else {}
        steps = {"training_step": range(len(self.loss)), "validation_step": self.validation["step"]}
        settings = by_name(self.settings) | {"title": self.settings["title"]}
        return xarray.Dataset(
            heads | losses,
            coords=measured | steps | {"seed": self.seed},
            attrs={"preset": self.preset, "case": self.case} | settings,
        )

    def write(self, path):
        """Write the record as compressed JSON, its measured numbers to a few significant digits."""
        content = vars(self) | {"step": self.step.tolist(), "loss": _rounded("loss", self.loss)}
        content["windows"] = _rounded("windows", self.windows)
        for part in ("validation", "heads"):
            content[part] = {name: _rounded(name, values) for name, values in content[part].items()}
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, lzma.compress(json.dumps(content, separators=(",", ":")).encode()))


def _rounded(name, values):
    if isinstance(values, (list, np.ndarray)):
        return [_rounded(name, value) for value in values]
    if isinstance(values, (float, np.floating)):
        return float(f"{values:.{DIGITS.get(name, 4)}g}")
    return int(values)


def stack_seeds(records):
    """The seeds of one run, {seed: Record}, as one xarray.Dataset: as Record.dataset, with the axis
    seed before the others.

    Settings that differ between the seeds are no attributes. ValueError without a record, or where
    their steps or sizes differ.

    >>> runs = read_records("notebooks/results/laptop")
    >>> sgd = stack_seeds(runs["sgd"])
    >>> dict(sgd.rho.sizes)
    {'seed': 10, 'step': 200, 'layer': 4, 'head': 4}
    >>> late = sgd.sel(step=slice(sgd.warmup, None))  # after the warm-up
    >>> late.rho.mean(("step", "layer", "head")).dims  # one number a seed
    ('seed',)
    """
    import xarray

    exactly = {"data_vars": "all", "join": "exact", "combine_attrs": "drop_conflicts"}
    return xarray.concat([record.dataset() for record in records.values()], "seed", **exactly)


# ---- reading


def read_record(path):
    """The record in a file. FileNotFoundError without one, ValueError naming the path, and the
    field, where it is no record.
    """
    try:
        with lzma.open(path, "rt") as file:
            content = json.load(file)
    except FileNotFoundError:
        raise
    except (OSError, EOFError, lzma.LZMAError, ValueError, RecursionError) as error:
        raise _no_record(path, type(error).__name__) from None
    try:
        return _record(content)
    except (ValueError, TypeError) as error:
        raise _no_record(path, error) from None


def read_record_of(job, path):
    """The record at a path, of that job. ValueError as read_record and Job.require_own."""
    record = read_record(path)
    job.require_own(record, path)
    return record


def record_paths(folder):
    """The files of all records at or below a folder, in the order of their runs and seeds.
    ValueError for one of another name.
    """
    paths = Path(folder).rglob("seed-*.json.xz")
    return sorted(paths, key=lambda path: (path.parent, Job.at(path).seed))


def read_records(folder):
    """Every record below a folder, by where it lies: {"sgd": {seed: Record}} below a preset's
    folder, seeds in order.

    ValueError without any, for a file that is no record, and for one that is not of the run that
    its place names.
    """
    paths, found = record_paths(folder), {}
    require(paths, "folder", os.fspath(folder), "holds no records")
    for path in paths:
        job, place = Job.at(path), path.parent.relative_to(folder).as_posix()
        found.setdefault(place, {})[job.seed] = read_record_of(job, path)
    return found


def _no_record(path, why):
    return ValueError(f"path={os.fspath(path)!r}: is not a record of a run ({why})")


def _record(content):
    _require_fields("content", content, dict)
    content.setdefault("windows", [])  # younger than some records
    _require_fields("content", content, FIELDS)
    training, model = content["settings"]["training"], content["settings"]["model"]
    require(training["seed"] == content["seed"], "seed", content["seed"], "is not its settings'")
    evaluations, measured = len(content["validation"]["step"]), len(content["step"])
    require(evaluations > 0, "validation.step", [], "must have an evaluation")
    shapes = {"step": (measured,), "loss": (training["steps"],), "validation": (evaluations,)}
    shapes["windows"] = (len(content["windows"]),)
    shapes["heads"] = (measured, model["n_layer"], model["n_head"])
    arrays = {name: _numbers(name, content[name], shape) for name, shape in shapes.items()}
    return Record(**content | arrays)


def _require(condition, name, value, why):
    if not condition:  # a value may be long
        raise ValueError(f"{name}={shortened(value)}: {why}")


def _require_fields(name, value, kind):
    # kind: a type, a class that takes the value's fields, or the kinds of the fields
    if is_dataclass(kind):
        try:
            kind(**value)
        except (ValueError, TypeError) as error:
            _require(False, name, value, error)
    elif isinstance(kind, dict):
        _require_fields(name, value, dict)
        for part in kind:
            field = f"{name}.{part}".removeprefix("content.")
            if part not in value:
                raise ValueError(f"{field}: is missing")
            _require_fields(field, value[part], kind[part])
    else:
        why = f"must be of type {getattr(kind, '__name__', kind)}"
        _require(isinstance(value, kind), name, value, why)


def _numbers(name, values, shape):
    """Nested lists as an array of numbers of a shape; a dict of them as a dict of arrays."""
    if isinstance(values, dict):
        return {part: _numbers(f"{name}.{part}", values[part], shape) for part in values}
    try:
        array = np.array(values)
    except ValueError:  # lists of several lengths
        array = np.array(None)
    numbers = array.dtype.kind in "if" and array.shape == shape
    _require(numbers, name, values, f"must be numbers of shape {shape}")
    return array


# ---- where a record comes from


def provenance(corpus, device, precision):
    """Where a record comes from: commit, data, versions, the machine, its device and threads."""
    gpu = torch.device(device).type == "cuda"
    return {
        "commit": commit(),
        "data": corpus.name,
        "data_sha256": corpus.sha256,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "system": f"{platform.system()} {platform.release()}",
        "processor": processor(),
        "device": torch.cuda.get_device_name(device) if gpu else str(device),
        "precision": precision,
        "threads": torch.get_num_threads(),
    }


def processor():
    """The name of the processor as the system tells it, its architecture where it does not."""
    with suppress(OSError):
        found = re.search(r"^model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text(), re.M)
        if found:
            return found[1]
    return platform.processor() or platform.machine()


def ending(model):
    """When a run ended, in UTC, and the sha256 of its final weights, in the order of the model."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(name.encode() + tensor.detach().cpu().contiguous().numpy().tobytes())
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return {"date": now, "weights_sha256": digest.hexdigest()}


def commit():
    """The commit of the package's own source, with "+" where it has changed since; None outside a
    checkout.
    """
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
