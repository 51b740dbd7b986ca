"""One training run: batches, a step, evaluation. Each random thing has a generator of its own."""

import math
import sys
import time
from dataclasses import asdict
from multiprocessing import parent_process
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from ..checks import require, require_size
from .settings import TrainingConfig as TrainingConfig
from .settings import learning_rate_at

PRECISIONS = ("float32", "bfloat16", "float16", "float64")


def get_batch(
    tokens: Int[Tensor, "n"], block_size, batch_size, generator
) -> tuple[Int[Tensor, "B T"], Int[Tensor, "B T"]]:
    """Random windows of tokens (n,): inputs and next tokens, both (batch_size, block_size).
    ValueError when n <= block_size.

    >>> x, y = get_batch(torch.arange(100), 8, 4, torch.Generator().manual_seed(0))
    >>> x.shape, bool((y == x + 1).all())
    (torch.Size([4, 8]), True)
    """
    why = f"must be more tokens than block_size={block_size}"
    require(len(tokens) > block_size, "tokens", len(tokens), why)
    start = torch.randint(len(tokens) - block_size, (batch_size, 1), generator=generator)
    window = tokens[start + torch.arange(block_size + 1)]  # (B, T + 1)
    return window[:, :-1].contiguous(), window[:, 1:].contiguous()


def make_optimizer(model, settings):
    """The optimizer that the settings name; only parameters of two dimensions decay."""
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [
        {"params": matrices, "weight_decay": settings.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    options = {"lr": settings.learning_rate, "fused": _device(model).type in ("cpu", "cuda")}
    if settings.optimizer == "adamw":
        return torch.optim.AdamW(groups, betas=settings.betas, **options)
    return torch.optim.SGD(groups, momentum=settings.momentum, **options)


# ---- a run


class Trainer:
    """A model in training, with its optimizer and loss scaler, the generator of its batches, and
    the step it has reached.

    precision is one of PRECISIONS: the format of the products in a step, "float64" that of the
    model as a whole. compiled sends the model through torch.compile. `advance` makes one step;
    `state_dict` is all that a later `load_state_dict` needs to go on with the same numbers, the
    global generators (which draw the dropout) included. ValueError when the corpus has more
    characters than the model has tokens, or for another precision.
    """

    def __init__(self, model, corpus, settings, *, precision="float32", compiled=False):
        needed, size = len(corpus.vocabulary), model.config.vocab_size
        require(needed <= size, "vocab_size", size, f"{corpus.name} needs {needed}")
        require(precision in PRECISIONS, "precision", precision, f"must be one of {PRECISIONS}")
        self.model = model.double() if precision == "float64" else model
        self.corpus, self.settings, self.precision = corpus, settings, precision
        self.forward = torch.compile(model) if compiled else model
        self.optimizer = make_optimizer(model, settings)
        self.scaler = torch.amp.GradScaler(_device(model).type, enabled=precision == "float16")
        self.batches = torch.Generator().manual_seed(settings.seed)
        self.step = 0

    def advance(self):
        """One step: the loss of its batch before it, in nats per token. The gradients, clipped,
        stay in place.

        ArithmeticError for a loss that is not finite, before a weight moves; ValueError for a
        corpus that is not longer than a block.
        """
        settings, device, T = self.settings, _device(self.model), self.model.config.block_size
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate_at(self.step, settings)
        x, y = get_batch(self.corpus.train, T, settings.batch_size, self.batches)
        self.optimizer.zero_grad(set_to_none=True)
        half = self.precision in ("bfloat16", "float16")
        with torch.autocast(device.type, getattr(torch, self.precision), enabled=half):
            _, loss = self.forward(x.to(device), y.to(device))
        value = loss.item()
        if not math.isfinite(value):
            why = f"is not finite, at step={self.step}; a smaller learning_rate may help"
            raise ArithmeticError(f"loss={value}: {why}")
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        if settings.grad_clip:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), settings.grad_clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.step += 1
        return value

    @property
    def description(self):
        """What must be the same, by name, for a run to go on from the state of another."""
        return (
            asdict(self.model.config)
            | asdict(self.settings)
            | {
                "data": self.corpus.sha256,
                "precision": self.precision,
                "device": _device(self.model).type,
            }
        )

    def state_dict(self):
        device = _device(self.model).type
        return {
            "step": self.step,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "batches": self.batches.get_state(),
            "global": torch.get_rng_state(),
            "device": getattr(torch, device).get_rng_state() if device in ("cuda", "mps") else None,
        }

    def load_state_dict(self, state):
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])
        self.batches.set_state(state["batches"])
        torch.set_rng_state(state["global"])
        if state["device"] is not None:
            getattr(torch, _device(self.model).type).set_rng_state(state["device"])
        self.step = state["step"]


def train(
    model,
    corpus,
    settings,
    *,
    prepare=None,
    before_step=None,
    on_step=None,
    resume=None,
    precision="float32",
    compiled=False,
):
    """Train the model in place on corpus.train. Returns the history: {"step": [...], "loss":
    [...]}.

    loss[i] is the loss in nats per token of the batch of step[i], before that step.
    prepare(model, optimizer) is called once, before the first step: it may hook onto the
    optimizer's steps. before_step(step, model) is called before each step, and on_step(step, loss,
    model, optimizer) after it, its (clipped) gradients still in place; both may evaluate, and
    on_step may move weights, without changing the batches. resume is a Resume: a run that was
    killed goes on where its file left it, and says so on stderr. precision and compiled are as in
    Trainer.

    The same seed gives the same run, bit for bit on one machine with one number of threads, stopped
    in between or not, and to rounding with another number of threads or elsewhere. The global
    generator and the model's mode are left as they were, also by an error or an interrupt. Raises
    what Trainer and Resume raise.

    >>> from attnid import GPT, GPTConfig, load_corpus
    >>> from attnid.training.settings import TrainingConfig
    >>> corpus = load_corpus("embedded")
    >>> model = GPT(GPTConfig(43, 16, n_layer=1, n_head=2, n_embd=16), seed=0)
    >>> history = train(model, corpus, TrainingConfig(20, batch_size=8, warmup=2, seed=0))
    >>> len(history["loss"]), history["loss"][-1] < history["loss"][0]
    (20, True)
    """
    trainer = Trainer(model, corpus, settings, precision=precision, compiled=compiled)
    if prepare is not None:
        prepare(model, trainer.optimizer)
    history, was_training = {"step": [], "loss": []}, model.training
    try:
        with torch.random.fork_rng(devices=_cuda_devices(model)):
            torch.manual_seed(settings.seed)  # dropout has no generator of its own
            model.train()
            if resume is not None:
                resume.load(trainer, history)
            progress = Progress(settings.steps, trainer.step)
            for step in range(trainer.step, settings.steps):
                if before_step is not None:
                    before_step(step, model)
                loss = trainer.advance()
                history["step"].append(step)
                history["loss"].append(loss)
                if on_step is not None:
                    on_step(step, loss, model, trainer.optimizer)
                if resume is not None and trainer.step < settings.steps:
                    resume.after_step(trainer, history)
                progress.show(trainer.step, loss)
    finally:
        model.train(was_training)
    return history


class Progress:
    """Steps done, loss and time left, on a terminal only: nothing of this gets into a stored
    output.
    """

    def __init__(self, steps, done=0):
        self.steps, self.first, self.start = steps, done, time.monotonic()

    def show(self, done, loss):
        alone = parent_process() is None  # lines of several processes would run into each other
        if alone and sys.stderr.isatty() and (done % 10 == 0 or done == self.steps):
            left = (time.monotonic() - self.start) / (done - self.first) * (self.steps - done)
            line = f"\rstep {done} of {self.steps}, loss {loss:.3f}, {left:.0f} s left   "
            print(line, end="\n" * (done == self.steps), file=sys.stderr, flush=True)


# ---- evaluation


class Evaluation(NamedTuple):
    """loss: the mean, nats per token; error: its standard error, by the spread of windows."""

    loss: float
    error: float


def evaluate(
    model, tokens: Int[Tensor, "n"], *, batches=20, batch_size=64, context=0, seed=0
) -> Evaluation:
    """Loss of the model, without dropout, on `batches` batches of random windows of tokens (n,).
    Returns an Evaluation.

    Only positions with at least `context` earlier tokens in their window count, so that a model
    which needs the past is not judged on a place where it has none. The windows come from a
    generator of their own, seeded with `seed`, and the model is left in the mode it was in.
    ValueError for a context that is not below block_size, or too few tokens.

    >>> from attnid import GPT, GPTConfig, load_corpus
    >>> model = GPT(GPTConfig(43, 16, n_layer=1, n_head=2, n_embd=16), seed=0)
    >>> found = evaluate(model, load_corpus("embedded").val, batches=2)
    >>> 3.6 < found.loss < 3.9 and found.error < 0.01  # ln 43 is 3.76
    True
    """
    T, generator = model.config.block_size, torch.Generator().manual_seed(seed)
    require_size("batches", batches)
    require_size("batch_size", batch_size)
    drawn = (get_batch(tokens, T, batch_size, generator) for _ in range(batches))
    return summary(_losses(model, drawn, context))


def window_losses(
    model, tokens: Int[Tensor, "n"], *, context=0, batch_size=64
) -> Float[Tensor, "windows"]:
    """Loss of the model, without dropout, on each of all windows of tokens (n,), one after the
    other: float64 (windows,), nats per token. What is left over at the end counts nowhere. context
    and ValueError as in `evaluate`.

    >>> from attnid import GPT, GPTConfig, load_corpus
    >>> model = GPT(GPTConfig(43, 16, n_layer=1, n_head=2, n_embd=16), seed=0)
    >>> len(window_losses(model, load_corpus("embedded").val[:1601]))
    100
    """
    T = model.config.block_size
    require_size("batch_size", batch_size)
    whole = (len(tokens) - 1) // T * T
    require(whole > 0, "tokens", len(tokens), f"must be more tokens than block_size={T}")
    windows = (tokens[start : whole + start].view(-1, T).split(batch_size) for start in (0, 1))
    return _losses(model, zip(*windows), context)


def summary(windows: Float[Tensor, "windows"]) -> Evaluation:
    """The mean of the losses of windows, and its standard error by their spread."""
    error = windows.std().item() / math.sqrt(len(windows)) if len(windows) > 1 else math.nan
    return Evaluation(windows.mean().item(), error)


@torch.no_grad()
def _losses(model, batches, context):
    T, was_training = model.config.block_size, model.training
    require_size("context", context, 0)
    require(context < T, "context", context, f"must be an integer from 0 to {T - 1}")
    try:
        model.eval()
        return torch.cat([_window_losses(model, x, y, context) for x, y in batches])
    finally:
        model.train(was_training)


def _window_losses(
    model, x: Int[Tensor, "B T"], y: Int[Tensor, "B T"], context
) -> Float[Tensor, "B"]:
    (logits, _), y = model(x.to(_device(model))), y.to(_device(model))  # logits (B, T, V)
    losses = F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none").view(y.shape)
    return losses[:, context:].double().mean(1)


def _device(model):
    return next(model.parameters()).device


def _cuda_devices(model):
    return [_device(model)] if _device(model).type == "cuda" else []
