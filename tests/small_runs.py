"""Runs of a few steps, and what their records hold."""

import json
import lzma
from dataclasses import replace

from attnid.network.gpt import GPT, GPTConfig
from attnid.training.cases import CASES, PRESETS
from attnid.training.data import load_corpus
from attnid.training.jobs import Job
from attnid.training.recorder import Recorder
from attnid.training.trainer import train

CORPUS = load_corpus("embedded")
TINY = replace(
    PRESETS["smoke"],
    training=dict(steps=40, batch_size=2, warmup=4),
    measure_every=4,
    evaluate_every=20,
    move_every=15,
)
CONFIG = GPTConfig(len(CORPUS.vocabulary), **TINY.model, bias=True)
L, H, D, E = 2, 2, 8, 16
GOOD, BAD = Job("smoke", "sgd"), Job("smoke", "sgd", learning_rate=1e30)


MADE = {}  # what recorded has returned, by what it was asked


def recorded(case, preset=TINY, precision="float32"):
    """A recorder that has followed a run in this process, and the losses; made once in a process, and not to be changed."""
    asked = repr((CASES[case], preset, precision))
    if asked not in MADE:
        MADE[asked] = watched(case, preset, precision)
    return MADE[asked]


def watched(case, preset=TINY, precision="float32", look=None):
    """The same, made anew. look(step, model, recorder) is called after each step."""
    settings = replace(Job("smoke", case).training(), **preset.training)
    recorder, model = Recorder(CASES[case], preset, CORPUS, settings, {}), GPT(CONFIG)

    def on_step(step, loss, model, optimizer):
        if look is not None:
            look(step, model, recorder)
        recorder.on_step(step, loss, model, optimizer)

    history = train(
        model,
        CORPUS,
        settings,
        before_step=recorder.before_step,
        on_step=on_step,
        precision=precision,
    )
    return recorder, history["loss"]


def content(path):
    """What a record's file holds, but for its times and the commit, which may move on while tests run."""
    found = json.loads(lzma.decompress(path.read_bytes()))
    return found | {
        "provenance": {
            key: value
            for key, value in found["provenance"].items()
            if key not in ("seconds", "date", "commit")
        }
    }
