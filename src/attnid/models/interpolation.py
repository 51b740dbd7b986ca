"""The loss on the straight line between two models, and records of it, a small file a pair."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..checks import is_finite, require, require_size
from ..files import read_json, write_whole
from ..network.gpt import GPT
from .versions import distance, versions

KINDS = ("children", "independent")
POINTS = tuple(n / 10 for n in range(11))  # of the line, 0 ours and 1 theirs
DIGITS = 6  # of a loss in a record


@torch.no_grad()
def loss_at(model, tokens: Int[Tensor, "n"], windows=256, batch=64):
    """The mean loss of a GPT, in nats per token, on the first `windows` windows of tokens (n,),
    which follow one another; the model's own precision, the mean in float64. ValueError for too few
    tokens.
    """
    T = model.config.block_size
    require_size("windows", windows)
    why = f"must be more tokens than {windows} windows of block_size={T} have"
    require(len(tokens) > windows * T, "tokens", len(tokens), why)
    x, y = (tokens[i : i + windows * T].view(windows, T) for i in (0, 1))
    parts = zip(x.split(batch), y.split(batch))
    return sum(model(a, b)[1].double().item() * len(a) for a, b in parts) / windows


@torch.no_grad()
def between(ours, theirs, t):
    """The GPT at (1 - t) ours + t theirs, two GPTs of one shape, in their dtype."""
    same = theirs.config == ours.config
    require(same, "config", theirs.config, f"the first has {ours.config}")
    require(is_finite(t), "t", t, "must be a finite number")
    middle = GPT(ours.config).to(next(ours.parameters()).dtype)
    for p, a, b in zip(middle.parameters(), ours.parameters(), theirs.parameters()):
        p.copy_((1 - t) * a + t * b)
    return middle.eval()


def losses_between(ours, theirs, tokens, *, points=POINTS, windows=256) -> Float[Tensor, "points"]:
    """The loss at each of the points of the line, in float32. Errors as for loss_at and between."""
    at = lambda t: loss_at(between(ours, theirs, t).float(), tokens, windows)
    return torch.tensor([at(t) for t in points], dtype=torch.float64)


def barrier(losses, points=POINTS):
    """How far the losses rise above the chord between the ends, at most: at least 0.

    >>> round(barrier([1.0, 3.0, 2.0], [0.0, 0.5, 1.0]), 6)
    1.5
    """
    first, last = losses[0], losses[-1]
    return max(float(x - (first + t * (last - first))) for x, t in zip(losses, points))


@dataclass(frozen=True)
class PairRecord:
    """One pair. kind: one of KINDS. pair: its number. models: the names of their files. losses:
    version -> the loss at each of POINTS. distances: version -> the distance of the weights.
    provenance: of the measurement and, under "trained", of the two models.
    """

    kind: str
    pair: int
    models: tuple
    losses: dict
    distances: dict
    provenance: dict

    @property
    def barriers(self):
        """Version -> barrier of its losses, in nats per token."""
        return {version: barrier(losses) for version, losses in self.losses.items()}

    @property
    def file(self):
        return f"{self.kind}-{self.pair}.json"

    def write(self, folder):
        """Write it whole, as JSON, into a folder."""
        text = json.dumps(vars(self) | {"points": POINTS}, indent=1)
        write_whole(Path(folder) / self.file, (text + "\n").encode())


def measure_pair(ours, theirs, tokens, *, windows=256):
    """The losses and the distances of all versions of a pair of GPTs, as PairRecord has them."""
    losses, distances = {}, {}
    for version, (a, b) in versions(ours, theirs).items():
        found = losses_between(a, b, tokens, windows=windows)
        losses[version] = [round(loss, DIGITS) for loss in found.tolist()]
        distances[version] = round(distance(a, b), DIGITS)
    return losses, distances


def read_pairs(folder):
    """The records in a folder, kind -> list in the order of their numbers. ValueError naming a file
    that holds no such record; FileNotFoundError for a folder without any.
    """
    paths = sorted(Path(folder).glob("*.json"))
    if not paths:
        raise FileNotFoundError(f"{folder}: has no records of pairs")
    found = {kind: {} for kind in KINDS}
    for path in paths:
        record = _read(path)
        found[record.kind][record.pair] = record
    return {kind: [records[n] for n in sorted(records)] for kind, records in found.items()}


def _read(path):
    content = read_json(path)
    fail = lambda why: require(False, "path", str(path), why)
    if content.pop("points", None) != list(POINTS):
        fail(f"must have the points {list(POINTS)}")
    try:
        record = PairRecord(**content)
    except TypeError:
        fail("does not hold the fields of a pair's record")
    known = record.kind in KINDS and isinstance(record.losses, dict) and record.losses
    if not known or record.file != Path(path).name:
        fail("is not the record that its name says")
    for version, losses in record.losses.items():
        whole = isinstance(losses, list) and len(losses) == len(POINTS)
        if not whole or not all(map(is_finite, losses)):
            fail(f"{version}: must be {len(POINTS)} finite losses")
    return record
