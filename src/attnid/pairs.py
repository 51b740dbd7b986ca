"""`python -m attnid.pairs`: pairs of models trained and measured, a record each."""

import argparse
import platform
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch

from .models.interpolation import KINDS, PairRecord, measure_pair
from .models.nanogpt import load_nanogpt
from .training.cases import PRESETS
from .training.children import Person, trained
from .training.data import load_corpus
from .training.records import provenance

RESULTS = Path("notebooks") / "results" / "interpolation"


def persons_of(kind, pair, pairs):
    """The two models of a pair: both children of one parent, or one child each of neighbours in the
    circle of so many parents, so that no model is in two pairs of a kind.

    >>> [p.file for p in persons_of("independent", 9, 10)]
    ['parent-9-child-0.pt', 'parent-0-child-1.pt']
    """
    other = pair if kind == "children" else (pair + 1) % pairs
    return Person(pair, 0), Person(other, 1)


def make_pair(kind, pair, work, results=RESULTS, *, pairs=10, preset="laptop", steps=1000):
    """The path of a pair's record, made where it is not there: models are trained into the folder
    `work`, the losses measured on the start of the validation text.
    """
    persons = persons_of(kind, pair, pairs)
    record = Path(results) / f"{kind}-{pair}.json"
    if not record.exists():
        paths = [trained(person, work, preset=preset, steps=steps) for person in persons]
        corpus = load_corpus(PRESETS[preset].corpus)
        losses, distances = measure_pair(*map(load_nanogpt, paths), corpus.val)
        origin = provenance(corpus, "cpu", "float32") | {
            "date": datetime.now(UTC).date().isoformat(),
            "python": platform.python_version(),
            "numpy": np.__version__,
            "preset": preset,
            "steps": steps,
            "trained": [_origin(path) for path in paths],
        }
        names = [person.file for person in persons]
        record.parent.mkdir(parents=True, exist_ok=True)
        PairRecord(kind, pair, names, losses, distances, origin).write(results)
    return record


def _origin(path):
    saved = torch.load(path, map_location="cpu", weights_only=True)
    return {name: saved["config"][name] for name in ("parent", "child", "seed")} | {
        name: saved["provenance"][name] for name in ("commit", "torch", "threads")
    }


def main(words=None):
    """The command: all pairs of both kinds, those that are done skipped."""
    parser = argparse.ArgumentParser(prog="python -m attnid.pairs", description=main.__doc__)
    parser.add_argument("work", help="a folder for the checkpoints, some 4 MB each")
    parser.add_argument("--results", default=RESULTS, help=f"of the records (default: {RESULTS})")
    parser.add_argument("--pairs", type=int, default=10, help="of each kind (default: 10)")
    parser.add_argument("--preset", default="laptop")
    parser.add_argument("--steps", type=int, default=1000, help="of each model (default: 1000)")
    given = parser.parse_args(words)
    for pair in range(given.pairs):
        for kind in KINDS:
            options = {name: getattr(given, name) for name in ("pairs", "preset", "steps")}
            print(make_pair(kind, pair, given.work, given.results, **options), flush=True)


if __name__ == "__main__":
    main()
