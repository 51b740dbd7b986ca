"""One run and its record, and sweeps over many."""

from functools import partial
from pathlib import Path

import numpy as np

from ..checks import is_finite, require, require_size
from ..network.gpt import GPTConfig
from .cases import CASES, PAPER_CASES, PRESETS, RATES, rebalance_model
from .data import load_corpus
from .devices import choose_precision, require_device
from .jobs import EVERY, Job
from .processes import for_each
from .recorder import Recorder
from .records import Record, ending, provenance, read_record, read_record_of
from .resume import Resume, held
from .trainer import train

__all__ = [
    "CASES",
    "PAPER_CASES",
    "PRESETS",
    "RATES",
    "Job",
    "finished",
    "rebalance_model",
    "run",
    "sweep",
]
RESULTS = Path("notebooks") / "results"


def finished(job, folder=RESULTS):
    """The record of a job that is done, None where it has none. ValueError for a record of another
    run, naming what differs.
    """
    path = job.path(folder)
    return read_record_of(job, path) if path.exists() else None


def run(job, folder=RESULTS, *, device="cpu", compiled=False):
    """Run a job and write its record below a folder; returns the record. A job that is done is read
    and not run again.

    One that was killed goes on from the file beside its record: with as many threads, to the same
    numbers as if it had never stopped; with another number of threads, to the same up to rounding,
    and the record's provenance tells it. ValueError for a device that this machine lacks, a record
    that another process is making, and what `finished` and `train` raise.
    """
    record, path = finished(job, folder), job.path(folder)
    if record is None:
        require_device(device, job.precision or "float32")
        path.parent.mkdir(parents=True, exist_ok=True)
        with held(path):  # who waited for another process finds the record
            record = finished(job, folder) or _made(job, path, device, compiled)
    return record


def _made(job, path, device, compiled):
    preset, case, training = PRESETS[job.preset], CASES[job.case], job.training()
    precision, corpus = job.precision or choose_precision(device), load_corpus(preset.corpus)
    settings = job.settings(len(corpus.vocabulary))
    recorder = Recorder(case, preset, corpus, training, provenance(corpus, device, precision))
    same = {"case": job.case} | {name: settings[name] for name in EVERY}
    resume = Resume(path.with_name(f"seed-{job.seed}.resume"), carried=recorder, settings=same)
    model = case.build(GPTConfig(**settings["model"]), job.seed).to(device)
    history = train(
        model,
        corpus,
        training,
        prepare=case.prepare,
        before_step=recorder.before_step,
        on_step=recorder.on_step,
        resume=resume,
        precision=precision,
        compiled=compiled,
    )
    heads = {name: np.array(values) for name, values in recorder.heads.items()}
    step, loss = np.array(recorder.step), np.array(history["loss"])
    name, origin = (job.preset, job.case, job.seed), recorder.provenance | ending(model)
    windows = np.array(recorder.windows)
    Record(*name, settings, origin, step, loss, recorder.validation, heads, windows).write(path)
    for leftover in (resume.path, *path.parent.glob(f".seed-{job.seed}.*.tmp")):
        leftover.unlink(missing_ok=True)
    return read_record(path)


def sweep(jobs, folder=RESULTS, *, workers=1, minutes=None, report=print, **options):
    """Run jobs in order, each in a process of its own, `workers` at a time; those that are done are
    skipped. Returns the failed jobs.

    After `minutes` no further job starts. report is called with a line for each that ends; a failed
    one is reported and the others go on. After an interrupt a later sweep goes on from the saved
    states. options are those of `run`. Before any job starts: ValueError for an impossible number
    of workers, impossible minutes, a device that this machine lacks, or what `finished` raises, and
    CorpusError for a corpus that cannot be had.
    """
    require_size("workers", workers)
    positive = minutes is None or is_finite(minutes) and minutes > 0
    require(positive, "minutes", minutes, "must be above 0")
    for precision in {job.precision for job in jobs}:
        require_device(options.get("device", "cpu"), precision or "float32")
    jobs, failed = list(dict.fromkeys(jobs)), []
    records = {job: finished(job, folder) for job in jobs}
    waiting = [job for job in jobs if records[job] is None]
    for corpus in {PRESETS[job.preset].corpus for job in waiting}:
        load_corpus(corpus)  # fetched once, or told once that it cannot be
    devices = sorted({record.provenance["device"] for record in records.values() if record})
    where = f" (on {', '.join(devices)}) and are not run again" if devices else ""
    report(f"{len(jobs) - len(waiting)} of {len(jobs)} runs are done{where}")

    def ended(job, error):
        if error:
            failed.append(job)
        report(f"{job.path('')}: {error or read_record(job.path(folder)).summary}")

    work, seconds = partial(run, folder=folder, **options), minutes and 60 * minutes
    for_each(work, waiting, ended, workers=workers, seconds=seconds)
    return failed
