"""A run by name: what it is to be, where its record lies, and whether a record is its own."""

import os
import re
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from ..checks import require, require_size
from ..network.gpt import GPTConfig
from .cases import CASES, PRESETS
from .devices import possible_choices
from .settings import TrainingConfig
from .trainer import PRECISIONS

NAMES = ("preset", "case", "seed")
EVERY = ("measure_every", "evaluate_every", "move_every")
JUDGED = {"half": None, "context": 0}  # settings younger than some records, and what these did
PLACE = re.compile(  # of a record
    rf"([^/]+)/([^/]+?)(?:-rate-([^/]+?))?(?:-({'|'.join(PRECISIONS)}))?/seed-(\d+)\.json\.xz"
)


def by_name(settings):
    """The settings of a record, one by one; an option younger than the record counts as at its
    default.
    """
    model, training = GPTConfig(**settings["model"]), TrainingConfig(**settings["training"])
    rest = {name: settings[name] for name in EVERY}
    return asdict(model) | asdict(training) | rest | {n: settings.get(n, JUDGED[n]) for n in JUDGED}


@dataclass(frozen=True)
class Job:
    """One run by name: a preset, a case, a seed; and a learning rate or a precision where they are
    not the usual ones.

    The usual rate is the case's own, the usual precision the best that the device has natively.
    ValueError names what is impossible.

    >>> Job("laptop", "sgd", 3, learning_rate=0.125).path("results").as_posix()
    'results/laptop/sgd-rate-0.125/seed-3.json.xz'
    """

    preset: str
    case: str
    seed: int = 0
    learning_rate: float | None = None
    precision: str | None = None

    def __post_init__(self):
        known = {"preset": [*PRESETS], "case": [*CASES], "precision": [None, *PRECISIONS]}
        for field, names in known.items():
            value = getattr(self, field)
            require(value in names, field, value, f"must be one of {names}")
        require_size("seed", self.seed, 0)
        self.training()  # an impossible rate is named before any work
        object.__setattr__(self, "seed", int(self.seed))
        usual = self.learning_rate in (None, CASES[self.case].training["learning_rate"])
        object.__setattr__(self, "learning_rate", None if usual else float(self.learning_rate))

    def training(self):
        """The settings of its training."""
        rate = {} if self.learning_rate is None else {"learning_rate": self.learning_rate}
        usual = CASES[self.case].training | PRESETS[self.preset].training
        return TrainingConfig(**usual | rate, seed=self.seed)

    def settings(self, vocab_size):
        """All that its record says of how it is done, on a corpus of that many characters."""
        preset, case = PRESETS[self.preset], CASES[self.case]
        config = GPTConfig(vocab_size, **preset.model | case.sizes(preset), bias=True)
        return {
            "title": case.title,
            "model": asdict(config),
            "training": asdict(self.training()),
            **{name: getattr(preset, name) for name in (*EVERY, *JUDGED)},
        }

    def path(self, folder):
        """Where its record lies: preset/case/seed-0.json.xz, with what is not usual named after the
        case.
        """
        rate = "" if self.learning_rate is None else f"-rate-{self.learning_rate}"
        precision = "" if self.precision is None else f"-{self.precision}"
        place = Path(folder) / self.preset / f"{self.case}{rate}{precision}"
        return place / f"seed-{self.seed}.json.xz"

    @classmethod
    def at(cls, path):
        """The job whose record lies at a path, below any folder. ValueError for a path that is no
        job's.
        """
        whole = Path(path).absolute()
        found = PLACE.fullmatch("/".join(whole.parts[-3:]))
        with suppress(ValueError):
            if found:
                preset, case, rate, precision, seed = found.groups()
                job = cls(preset, case, int(seed), rate and float(rate), precision)
                if job.path(whole.parents[2]) == whole:
                    return job
        why = "is not named as a record, PRESET/CASE/seed-0.json.xz"
        raise ValueError(f"path={os.fspath(path)!r}: {why}")

    def require_own(self, record, path):
        """Raise ValueError, naming what differs, unless the record at the path is of this job.

        A title may change. On which device and at which commit it was made is not compared.
        """
        then, now = ({name: getattr(run, name) for name in NAMES} for run in (record, self))
        origin, settings = record.provenance, by_name(record.settings)
        usual = [self.precision] if self.precision else possible_choices(origin["device"])
        precision = origin["precision"] if origin["precision"] in usual else usual[0]
        then |= settings | {"data": origin["data"], "precision": origin["precision"]}
        now |= by_name(self.settings(settings["vocab_size"]))
        now |= {"data": PRESETS[self.preset].corpus, "precision": precision}
        differs = lambda name: f"{name} ({then[name]}, not {now[name]})"
        other = ", ".join(differs(name) for name in now if then[name] != now[name])
        why = f"is of a run with another {other}; move it away, or name another folder"
        require(not other, "record", os.fspath(path), why)
