"""The paper's experiments: presets (how large), cases (what is done to the weights), one run, and sweeps over many."""

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from ..checks import is_finite, require, require_size
from ..files import Checkpoint
from ..layer.rebalancing import rebalance
from ..network.gpt import GPT, GPTConfig, head_weights, query_key, set_head_weights
from .data import load_corpus
from .devices import choose_precision, require_device
from .parametrisations import canonical_gpt, factored_gpt
from .processes import for_each
from .recorder import Recorder
from .records import Record, provenance, read_record
from .run import PRECISIONS, TrainingConfig, train

RESULTS = Path("notebooks") / "results"


@dataclass(frozen=True)
class Preset:
    """How large a run is: a corpus by name, the model's sizes, steps, and how often it is measured (None for never), evaluated and moved."""

    corpus: str
    model: dict
    training: dict
    measure_every: int | None = 10
    evaluate_every: int = 500
    move_every: int = 200


LAPTOP = dict(block_size=64, n_layer=4, n_head=4, n_embd=128)
PRESETS = {
    "smoke": Preset(
        "embedded",
        dict(block_size=32, n_layer=2, n_head=2, n_embd=16),
        dict(steps=100, batch_size=8, warmup=10),
        5,
        50,
        20,
    ),
    "laptop": Preset("tiny_shakespeare", LAPTOP, dict(steps=2000, batch_size=12)),
    "comparison": Preset(
        "tiny_shakespeare", LAPTOP, dict(steps=2000, batch_size=12), measure_every=None
    ),  # of losses alone
    "paper": Preset(
        "tiny_shakespeare",
        dict(block_size=256, n_layer=6, n_head=6, n_embd=384, dropout=0.2),
        dict(steps=5000, batch_size=64),
    ),
}


@dataclass(frozen=True)
class Case:
    """What a run does: its optimizer's settings, and what happens to the weights every `move_every` steps.

    move(model, optimizer) is that event. model has other sizes than the preset, or makes them from the preset's, build(config, seed) makes the model, and
    observe(model, part, gradient=) gives the factors whose head metrics are measured, None for none of them: another parametrisation
    of attention is another case.
    """

    title: str
    training: dict
    move: Callable | None = None
    model: dict | Callable = field(default_factory=dict)
    build: Callable = GPT
    observe: Callable | None = query_key

    def sizes(self, preset):
        """The model's sizes that are not the preset's."""
        return self.model(preset.model) if callable(self.model) else self.model


def rebalance_model(model, optimizer, *, moments="cleared"):
    """Rebalance every head of a GPT in place, biases included. The optimizer's moments of the fused maps are then "cleared",
    as in the paper, or "kept", which leaves them pointing along axes that the weights have left."""
    for layer in range(model.config.n_layer):
        names = ("W_Q", "W_K", "b_Q", "b_K") if model.config.bias else ("W_Q", "W_K")
        weights = head_weights(model, layer)
        set_head_weights(
            model, layer, **dict(zip(names, rebalance(*(weights[name] for name in names))))
        )
    if moments == "cleared":
        clear_moments(model, optimizer)


def clear_moments(model, optimizer):
    """Forget what the optimizer remembers of the fused query-key-value maps: its moments and its count of steps."""
    for block in model.transformer.h:
        for parameter in block.attn.c_attn.parameters():
            optimizer.state.pop(parameter, None)


def wider_mlp(sizes):
    """D more hidden units in each MLP: nearly as many numbers as a canonical form takes from an attention layer, 2 E (D + 1) with biases."""
    return {"mlp_width": 4 * sizes["n_embd"] + sizes["n_embd"] // sizes["n_head"]}


ADAMW = dict(optimizer="adamw", learning_rate=1e-3, weight_decay=0.1)
PAPER_CASES = {
    "sgd": Case("SGD", dict(optimizer="sgd", learning_rate=0.25, weight_decay=0.0)),
    "sgd-decay": Case(
        "SGD with decay", dict(optimizer="sgd", learning_rate=0.25, weight_decay=4e-4)
    ),
    "adamw": Case("AdamW", ADAMW),
    "rebalanced": Case("AdamW, rebalanced", ADAMW, rebalance_model),
    "cleared": Case("AdamW, state cleared", ADAMW, clear_moments),
    "moved": Case("AdamW, rebalanced, state kept", ADAMW, partial(rebalance_model, moments="kept")),
}
CASES = PAPER_CASES | {
    "canonical": Case("AdamW, canonical layers", ADAMW, build=canonical_gpt, observe=None),
    "spent": Case(
        "AdamW, canonical layers, wider MLP",
        ADAMW,
        model=wider_mlp,
        build=canonical_gpt,
        observe=None,
    ),
    "factored": Case("AdamW, factored maps", ADAMW, build=factored_gpt, observe=None),
    **{
        f"heads-{heads}": Case(
            f"AdamW, {heads} heads", ADAMW, model={"n_head": heads}, observe=None
        )
        for heads in (1, 2, 8, 16, 32)
    },
}
EVERY = ("measure_every", "evaluate_every", "move_every")
RATES = (0.5, 0.25, 0.125, 0.0625)  # the paper's sweep, of case "sgd"


@dataclass(frozen=True)
class Job:
    """One run by name: a preset, a case, a seed; and a learning rate or a precision where they are not the usual ones.

    The usual rate is the case's own, the usual precision the best that the device has natively. ValueError names what is impossible.
    """

    preset: str
    case: str
    seed: int = 0
    learning_rate: float | None = None
    precision: str | None = None

    def __post_init__(self):
        require(self.preset in PRESETS, "preset", self.preset, f"must be one of {list(PRESETS)}")
        require(self.case in CASES, "case", self.case, f"must be one of {list(CASES)}")
        require_size("seed", self.seed, 0)
        require(
            self.precision in (None, *PRECISIONS),
            "precision",
            self.precision,
            f"must be one of {PRECISIONS}",
        )
        object.__setattr__(self, "seed", int(self.seed))
        if self.learning_rate == CASES[self.case].training["learning_rate"]:
            object.__setattr__(self, "learning_rate", None)
        self.training()  # an impossible rate is named before any work

    def training(self):
        """The settings of its training."""
        rate = {} if self.learning_rate is None else {"learning_rate": self.learning_rate}
        return TrainingConfig(
            **PRESETS[self.preset].training | CASES[self.case].training | rate, seed=self.seed
        )

    def settings(self, vocab_size):
        """All that its record says of how it is done, on a corpus of that many characters."""
        preset, case = PRESETS[self.preset], CASES[self.case]
        config = GPTConfig(vocab_size, **preset.model | case.sizes(preset), bias=True)
        return {
            "title": case.title,
            "model": asdict(config),
            "training": asdict(self.training()),
            **{name: getattr(preset, name) for name in EVERY},
        }

    def path(self, folder):
        """Where its record lies: preset/case/seed-0.json.xz, with what is not usual named after the case."""
        rate = "" if self.learning_rate is None else f"-rate-{float(self.learning_rate)}"
        precision = "" if self.precision is None else f"-{self.precision}"
        return (
            Path(folder)
            / self.preset
            / f"{self.case}{rate}{precision}"
            / f"seed-{self.seed}.json.xz"
        )


def finished(job, folder=RESULTS):
    """The record of a job that is done, None where it has none. ValueError for a record of other settings than the job would have
    now, naming what differs; a title may change. On which device and at which commit it was made is not compared."""
    path = job.path(folder)
    if not path.exists():
        return None
    record = read_record(path)

    def by_name(settings):  # an option younger than the record counts as at its default
        model, training = GPTConfig(**settings["model"]), TrainingConfig(**settings["training"])
        return asdict(model) | asdict(training) | {name: settings[name] for name in EVERY}

    now, then = (
        by_name(job.settings(record.settings["model"]["vocab_size"])),
        by_name(record.settings),
    )
    other = [f"{name} ({then[name]}, now {now[name]})" for name in now if then[name] != now[name]]
    require(
        not other,
        "record",
        os.fspath(path),
        f"is of a run with another {', '.join(other)}; move it away, or name another folder",
    )
    return record


def run(job, folder=RESULTS, *, device="cpu", compiled=False):
    """Run a job and write its record below a folder; returns the record. A job that is done is read and not run again, one that
    was killed goes on from the checkpoint beside its record, to the same numbers as if it had never stopped.

    ValueError for a device that this machine lacks, and what `finished` and `train` raise."""
    path, record = job.path(folder), finished(job, folder)
    if record is not None:
        return record
    require_device(device, job.precision or "float32")
    preset, case, training, precision = (
        PRESETS[job.preset],
        CASES[job.case],
        job.training(),
        job.precision or choose_precision(device),
    )
    corpus = load_corpus(preset.corpus)
    settings = job.settings(len(corpus.vocabulary))
    recorder = Recorder(case, preset, corpus, training, provenance(corpus, device, precision))
    path.parent.mkdir(parents=True, exist_ok=True)
    checkpoint = Checkpoint(
        path.with_name(f"seed-{job.seed}.checkpoint"),
        carried=recorder,
        settings={"case": job.case} | {name: settings[name] for name in EVERY},
    )
    model = case.build(GPTConfig(**settings["model"]), job.seed).to(device)
    history = train(
        model,
        corpus,
        training,
        before_step=recorder.before_step,
        on_step=recorder.on_step,
        checkpoint=checkpoint,
        precision=precision,
        compiled=compiled,
    )
    Record(
        job.preset,
        job.case,
        job.seed,
        settings,
        recorder.provenance,
        np.array(recorder.step),
        np.array(history["loss"]),
        recorder.validation,
        {name: np.array(values) for name, values in recorder.heads.items()},
    ).write(path)
    for leftover in (checkpoint.path, *path.parent.glob(f".seed-{job.seed}.*.tmp")):
        leftover.unlink(missing_ok=True)
    return read_record(path)


def sweep(jobs, folder=RESULTS, *, workers=1, minutes=None, report=print, **options):
    """Run jobs in order, each in a process of its own, `workers` at a time; those that are done are skipped. Returns the failed jobs.

    After `minutes` no further job starts. report is called with a line for each that ends; a failed one is reported and the others
    go on. After an interrupt a later sweep goes on from the checkpoints. options are those of `run`.
    Before any job starts: ValueError for an impossible number of workers, impossible minutes, a device that this machine lacks, or
    what `finished` raises, and CorpusError for a corpus that cannot be had.
    """
    require_size("workers", workers)
    require(
        minutes is None or is_finite(minutes) and minutes > 0, "minutes", minutes, "must be above 0"
    )
    for precision in {job.precision for job in jobs}:
        require_device(options.get("device", "cpu"), precision or "float32")
    jobs, failed = list(dict.fromkeys(jobs)), []
    records = {job: finished(job, folder) for job in jobs}
    waiting = [job for job in jobs if records[job] is None]
    for corpus in {PRESETS[job.preset].corpus for job in waiting}:
        load_corpus(corpus)  # fetched once, or told once that it cannot be
    devices = sorted({record.provenance["device"] for record in records.values() if record})
    report(
        f"{len(jobs) - len(waiting)} of {len(jobs)} runs are done"
        + f" (on {', '.join(devices)}) and are not run again" * bool(devices)
    )

    def ended(job, error):
        if error:
            failed.append(job)
        report(f"{job.path('')}: {error or read_record(job.path(folder)).summary}")

    for_each(
        partial(run, folder=folder, **options),
        waiting,
        ended,
        workers=workers,
        seconds=minutes and 60 * minutes,
    )
    return failed
