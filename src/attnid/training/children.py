"""Parents and children: models that go on from one model's weights, each on batches of its own."""

import io
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from ..checks import require, require_size
from ..files import write_whole
from ..network.gpt import GPT, GPTConfig
from .cases import ADAMW, PRESETS
from .data import load_corpus
from .records import provenance
from .resume import Resume, held
from .settings import TrainingConfig
from .trainer import train

APART = 100  # of the seeds of batches: as many parents have batches of their own
SIZES = ("vocab_size", "block_size", "n_layer", "n_head", "n_embd", "bias", "dropout")


@dataclass(frozen=True)
class Person:
    """A model by name: parent number `parent`, or its child number `child` (0, 1, ...).

    A parent has weights and batches of seed `parent`. A child starts from its parent's weights with
    a new optimizer and a new schedule; the seed of its batches is `batches`. ValueError names what
    is impossible.

    >>> Person(3, 1).batches, Person(3, 1).file
    (203, 'parent-3-child-1.pt')
    """

    parent: int
    child: int | None = None

    def __post_init__(self):
        require_size("parent", self.parent, 0)
        require(self.parent < APART, "parent", self.parent, f"must be below {APART}")
        if self.child is not None:
            require_size("child", self.child, 0)

    @property
    def batches(self):
        """The seed of its batches, no two alike."""
        return self.parent + (0 if self.child is None else APART * (self.child + 1))

    @property
    def file(self):
        """The name of its checkpoint."""
        end = "" if self.child is None else f"-child-{self.child}"
        return f"parent-{self.parent}{end}.pt"


def trained(person, folder, *, preset="laptop", steps=1000):
    """The path of a person's checkpoint in a folder, trained first where it is not there, and its
    parent before it.

    Sizes, corpus and batch are those of the preset, the optimizer is AdamW with the settings of the
    cases, and each trains for so many steps. A checkpoint is as nanoGPT's: `model`, `model_args`,
    and of ours `config` (the settings) and `provenance`. One that was killed goes on from a file
    beside it. ValueError for an unknown preset, and what `train` and `load_corpus` raise.
    """
    require(preset in PRESETS, "preset", preset, f"must be one of {[*PRESETS]}")
    path = Path(folder) / person.file
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        start = None
        if person.child is not None:
            start = trained(Person(person.parent), folder, preset=preset, steps=steps)
        with held(path):
            if not path.exists():  # who waited for another process finds it
                _train(person, path, start, PRESETS[preset], steps)
    return path


def _train(person, path, start, preset, steps):
    corpus = load_corpus(preset.corpus)
    config = GPTConfig(len(corpus.vocabulary), **preset.model, bias=True)
    options = preset.training | ADAMW | {"steps": steps}
    settings = TrainingConfig(**options, seed=person.batches)
    model = GPT(config, person.parent)
    if start is not None:
        saved = torch.load(start, map_location="cpu", weights_only=True)
        model.load_state_dict(saved["model"])
    resume = Resume(path.with_suffix(".resume"), settings=asdict(person))
    history = train(model, corpus, settings, resume=resume)
    content = {
        "model": model.state_dict(),
        "model_args": {name: getattr(config, name) for name in SIZES},
        "config": asdict(settings) | asdict(person),
        "provenance": provenance(corpus, "cpu", "float32"),
        "history": history["loss"],
    }
    buffer = io.BytesIO()
    torch.save(content, buffer)
    write_whole(path, buffer.getvalue())
    Path(resume.path).unlink(missing_ok=True)
