"""Makes nanogpt_20_steps.json: what nanoGPT's own train.py does in 20 steps from given weights on given batches.

    python tests/cases/nanogpt_20_steps.py path/to/nanoGPT      (a checkout, unchanged; needs attnid, runs on the CPU in seconds)

train.py runs as it is, through runpy, on the embedded corpus. Three things are put in its way: its model starts from the weights
of attnid.network.gpt.GPT(config, seed), torch.randint draws the places that attnid.training.trainer.get_batch draws, and for "sgd" torch.optim.SGD
takes over the parameter groups that its configure_optimizers made.
"""

import json
import os
import pickle
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

import torch

from attnid.network.gpt import GPT, GPTConfig
from attnid.training.data import load_corpus

SIZES = dict(block_size=32, n_layer=2, n_head=2, n_embd=32)
SHARED = dict(steps=20, batch_size=8, warmup=5, betas=(0.9, 0.99), grad_clip=1.0)
RATES = {
    "adamw": dict(learning_rate=1e-3, min_learning_rate=1e-4, weight_decay=0.1),
    "sgd": dict(learning_rate=0.25, min_learning_rate=0.025, weight_decay=4e-4),
}
SEEDS = dict(weights=3, batches=4)


def write_data(folder, corpus):
    """The files that train.py reads."""
    for split in ("train", "val"):
        (folder / f"{split}.bin").write_bytes(
            getattr(corpus, split).numpy().astype("uint16").tobytes()
        )
    (folder / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": len(corpus.vocabulary)}))


def arguments(name, folder):
    """The settings as train.py takes them on its command line."""
    rates = RATES[name]
    given = SIZES | dict(
        dataset=os.fspath(folder),
        out_dir=os.fspath(folder),
        device="cpu",
        dtype="float32",
        compile=False,
        bias=True,
        dropout=0.0,
        eval_iters=0,
        always_save_checkpoint=False,
        gradient_accumulation_steps=1,
        batch_size=SHARED["batch_size"],
        max_iters=SHARED["steps"] - 1,
        lr_decay_iters=SHARED["steps"],
        warmup_iters=SHARED["warmup"],
        beta1=SHARED["betas"][0],
        beta2=SHARED["betas"][1],
        grad_clip=SHARED["grad_clip"],
        learning_rate=rates["learning_rate"],
        min_lr=rates["min_learning_rate"],
        weight_decay=rates["weight_decay"],
    )
    return ["train.py", *(f"--{key}={value}" for key, value in given.items())]


def recorded(stock, name, start, found):
    """The stock class, started from given weights, writing down its losses and, after each step, the norm of each parameter."""

    class Recorded(stock):
        def __init__(self, config):
            super().__init__(config)
            self.load_state_dict(start)

        def forward(self, idx, targets=None):
            logits, loss = super().forward(idx, targets)
            found["loss"].append(digits(loss))
            return logits, loss

        def configure_optimizers(self, weight_decay, learning_rate, betas, device_type):
            optimizer = super().configure_optimizers(
                weight_decay, learning_rate, betas, device_type
            )
            if name == "sgd":
                groups = [
                    {key: group[key] for key in ("params", "weight_decay")}
                    for group in optimizer.param_groups
                ]
                optimizer = torch.optim.SGD(groups, lr=learning_rate)
            optimizer.register_step_post_hook(lambda *_: self.note())
            return optimizer

        def note(self):
            for key, p in self.named_parameters():
                found["norm"].setdefault(key, []).append(digits(p.detach().double().norm()))

    return Recorded


def digits(value):
    """The nine digits that float32 has."""
    return float(f"{value.item():.9g}")


def stock_run(name, corpus):
    """Losses and norms of train.py, from the current folder."""
    import model

    found, generator = {"loss": [], "norm": {}}, torch.Generator().manual_seed(SEEDS["batches"])
    start = GPT(
        GPTConfig(len(corpus.vocabulary), **SIZES, bias=True), SEEDS["weights"]
    ).state_dict()
    randint = torch.randint
    with tempfile.TemporaryDirectory() as folder:
        write_data(Path(folder), corpus)
        with (
            mock.patch.object(model, "GPT", recorded(model.GPT, name, start, found)),
            mock.patch.object(sys, "argv", arguments(name, folder)),
            mock.patch.object(
                torch, "randint", lambda high, size: randint(high, size, generator=generator)
            ),
        ):
            runpy.run_path("train.py")
    return found


def main(checkout):
    os.chdir(checkout)
    sys.path.insert(0, os.getcwd())
    torch.set_num_threads(1)
    git = lambda *words: subprocess.run(
        ["git", *words], capture_output=True, text=True
    ).stdout.strip()
    corpus = load_corpus("embedded")
    content = {
        "about": "losses and norms of nanoGPT's train.py, unchanged, in 20 steps in float32 on a CPU; made by nanogpt_20_steps.py",
        "nanogpt": git("rev-parse", "HEAD"),
        "torch": torch.__version__,
        "corpus": corpus.name,
        "data_sha256": corpus.sha256,
        "sizes": SIZES | {"bias": True, "dropout": 0.0},
        "shared": SHARED,
        "rates": RATES,
        "seeds": SEEDS,
        "stock": {name: stock_run(name, corpus) for name in RATES},
    }
    lines = (f"{json.dumps(name)}: {json.dumps(value)}" for name, value in content.items())
    Path(__file__).with_suffix(".json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main(sys.argv[1])
