"""One training run: batches, the learning rate, a step, evaluation. Each random thing has a generator of its own."""

import math
import sys
import time
from dataclasses import KW_ONLY, asdict, dataclass
from multiprocessing import parent_process
from typing import NamedTuple

import torch
import torch.nn.functional as F

from ..checks import is_finite, require, require_size

OPTIMIZERS = ("adamw", "sgd")
PRECISIONS = ("float32", "bfloat16", "float16", "float64")


@dataclass(frozen=True)
class TrainingConfig:
    """The settings of a run; the defaults are nanoGPT's for characters, but for the smaller batch.

    steps, batch_size (sequences per step) and warmup (steps) are counts. learning_rate is reached after the warm-up and
    falls along a cosine to min_learning_rate (a tenth of it by default) as the run ends. betas are AdamW's; weight_decay
    acts on matrices and embeddings only. grad_clip is the largest norm of the whole gradient, 0 for none. optimizer is
    "adamw" or "sgd" (no momentum; its decay is added to the gradient). seed decides the batches and the dropout.

    Raises ValueError naming the field and the value.
    """

    steps: int
    _: KW_ONLY
    batch_size: int = 32
    learning_rate: float = 1e-3
    min_learning_rate: float | None = None
    warmup: int = 100
    betas: tuple = (0.9, 0.99)
    weight_decay: float = 0.1
    grad_clip: float = 1.0
    optimizer: str = "adamw"
    seed: int = 0

    def __post_init__(self):
        for field, least in (("steps", 1), ("batch_size", 1), ("warmup", 0), ("seed", 0)):
            require_size(field, getattr(self, field), least)
        require(
            is_finite(self.learning_rate) and self.learning_rate > 0,
            "learning_rate",
            self.learning_rate,
            "must be above 0",
        )
        if self.min_learning_rate is None:
            object.__setattr__(self, "min_learning_rate", self.learning_rate / 10)
        low, high = self.min_learning_rate, self.learning_rate
        require(
            is_finite(low) and 0 <= low <= high,
            "min_learning_rate",
            low,
            f"must be from 0 to learning_rate={high}",
        )
        for field in ("weight_decay", "grad_clip"):
            value = getattr(self, field)
            require(is_finite(value) and value >= 0, field, value, "must be at least 0")
        pair = isinstance(self.betas, (tuple, list)) and len(self.betas) == 2
        require(
            pair and all(is_finite(b) and 0 <= b < 1 for b in self.betas),
            "betas",
            self.betas,
            "must be two numbers in [0, 1)",
        )
        object.__setattr__(self, "betas", tuple(self.betas))
        require(
            self.optimizer in OPTIMIZERS,
            "optimizer",
            self.optimizer,
            f"must be one of {OPTIMIZERS}",
        )


def learning_rate_at(step, settings):
    """The learning rate of step 0, 1, ..., settings.steps: a linear warm-up, then half a cosine down to the minimum."""
    if step < settings.warmup:
        return settings.learning_rate * (step + 1) / (settings.warmup + 1)
    done = min(1.0, (step - settings.warmup) / max(1, settings.steps - settings.warmup))
    falling = 0.5 * (1.0 + math.cos(math.pi * done))  # from 1 to 0
    return settings.min_learning_rate + falling * (
        settings.learning_rate - settings.min_learning_rate
    )


def get_batch(tokens, block_size, batch_size, generator):
    """Random windows of tokens (n,): inputs and next tokens, both (batch_size, block_size). ValueError when n <= block_size."""
    require(
        len(tokens) > block_size,
        "tokens",
        len(tokens),
        f"must be more tokens than block_size={block_size}",
    )
    start = torch.randint(len(tokens) - block_size, (batch_size, 1), generator=generator)
    window = tokens[start + torch.arange(block_size + 1)]  # (batch_size, block_size + 1)
    return window[:, :-1].contiguous(), window[:, 1:].contiguous()


def make_optimizer(model, settings):
    """The optimizer that the settings name; only parameters of two dimensions decay."""
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [
        {"params": matrices, "weight_decay": settings.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    fused = _device(model).type in ("cpu", "cuda")
    if settings.optimizer == "adamw":
        return torch.optim.AdamW(
            groups, lr=settings.learning_rate, betas=settings.betas, fused=fused
        )
    return torch.optim.SGD(groups, lr=settings.learning_rate, fused=fused)


# ---- a run


class Run:
    """A run on its way: the model, its optimizer and loss scaler, the generator of its batches, and the step it has reached.

    precision is one of PRECISIONS: the format of the products in a step, "float64" that of the model as a whole. compiled
    sends the model through torch.compile. `advance` makes one step; `state_dict` is all that a later `load_state_dict`
    needs to go on with the same numbers, the global generators (which draw the dropout) included. ValueError when
    the corpus has more characters than the model has tokens, or is not longer than a block, or for another precision.
    """

    def __init__(self, model, corpus, settings, *, precision="float32", compiled=False):
        needed, size, T = len(corpus.vocabulary), model.config.vocab_size, model.config.block_size
        require(needed <= size, "vocab_size", size, f"{corpus.name} needs {needed}")
        require(
            len(corpus.train) > T,
            "tokens",
            len(corpus.train),
            f"must be more tokens than block_size={T}",
        )
        require(precision in PRECISIONS, "precision", precision, f"must be one of {PRECISIONS}")
        self.model = model.double() if precision == "float64" else model
        self.corpus, self.settings, self.precision = corpus, settings, precision
        self.forward = torch.compile(model) if compiled else model
        self.optimizer = make_optimizer(model, settings)
        self.scaler = torch.amp.GradScaler(_device(model).type, enabled=precision == "float16")
        self.batches = torch.Generator().manual_seed(settings.seed)
        self.step = 0

    def advance(self):
        """One step: the loss of its batch before it, in nats per token. The gradients, clipped, stay in place.

        ArithmeticError for a loss that is not finite, before a weight moves.
        """
        device, settings = _device(self.model), self.settings
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate_at(self.step, settings)
        x, y = get_batch(
            self.corpus.train, self.model.config.block_size, settings.batch_size, self.batches
        )
        self.optimizer.zero_grad(set_to_none=True)
        half = self.precision in ("bfloat16", "float16")
        with torch.autocast(device.type, getattr(torch, self.precision), enabled=half):
            _, loss = self.forward(x.to(device), y.to(device))
        value = loss.item()
        if not math.isfinite(value):
            raise ArithmeticError(
                f"loss={value}: is not finite, at step={self.step}; a smaller learning_rate may help"
            )
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
        where = {
            "data": self.corpus.sha256,
            "precision": self.precision,
            "device": _device(self.model).type,
        }
        return asdict(self.model.config) | asdict(self.settings) | where

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
        self.step = state["step"]
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])
        self.batches.set_state(state["batches"])
        torch.set_rng_state(state["global"])
        if state["device"] is not None:
            getattr(torch, _device(self.model).type).set_rng_state(state["device"])


def train(
    model,
    corpus,
    settings,
    *,
    before_step=None,
    on_step=None,
    checkpoint=None,
    precision="float32",
    compiled=False,
):
    """Train the model in place on corpus.train. Returns the history: {"step": [...], "loss": [...]}.

    loss[i] is the loss in nats per token of the batch of step[i], before that step. before_step(step, model) is called before
    each step, and on_step(step, loss, model, optimizer) after it, its (clipped) gradients still in place; both may evaluate,
    and on_step may move weights, without changing the batches. checkpoint is a Checkpoint: a run that was killed goes on
    where its file left it, and says so on stderr. precision and compiled are as in Run.

    The same seed gives the same run, bit for bit on one machine with one number of threads, stopped in between or not, and to
    rounding elsewhere. The global generator and the model's mode are left as they were, also by an error or an interrupt.
    Raises what Run and Checkpoint raise.
    """
    run, history, was_training = (
        Run(model, corpus, settings, precision=precision, compiled=compiled),
        {"step": [], "loss": []},
        model.training,
    )
    try:
        with torch.random.fork_rng(devices=_cuda_devices(model)):
            torch.manual_seed(settings.seed)  # dropout has no generator of its own
            model.train()
            if checkpoint is not None:
                checkpoint.resume(run, history)
                if run.step:
                    print(
                        f"{checkpoint.path}: the run goes on from step {run.step} of {settings.steps}",
                        file=sys.stderr,
                    )
            progress = Progress(settings.steps, run.step)
            while run.step < settings.steps:
                step = run.step
                if before_step is not None:
                    before_step(step, model)
                loss = run.advance()
                history["step"].append(step)
                history["loss"].append(loss)
                if on_step is not None:
                    on_step(step, loss, model, run.optimizer)
                if (
                    checkpoint is not None
                    and run.step % checkpoint.every == 0
                    and run.step < settings.steps
                ):
                    checkpoint.save(run, history)
                progress.show(run.step, loss)
    finally:
        model.train(was_training)
    return history


class Progress:
    """Steps done, loss and time left, on a terminal only: nothing of this gets into a stored output."""

    def __init__(self, steps, done=0):
        self.steps, self.first, self.start = steps, done, time.monotonic()

    def show(self, done, loss):
        alone = parent_process() is None  # lines of several processes would run into each other
        if alone and sys.stderr.isatty() and (done % 10 == 0 or done == self.steps):
            left = (time.monotonic() - self.start) / (done - self.first) * (self.steps - done)
            end = "\n" if done == self.steps else ""
            print(
                f"\rstep {done} of {self.steps}, loss {loss:.3f}, {left:.0f} s left   ",
                end=end,
                file=sys.stderr,
                flush=True,
            )


# ---- evaluation


class Evaluation(NamedTuple):
    """loss: the mean in nats per token; error: its standard error, from the spread between windows."""

    loss: float
    error: float


@torch.no_grad()
def evaluate(model, tokens, *, batches=20, batch_size=64, context=0, seed=0):
    """Loss of the model, without dropout, on `batches` batches of random windows of tokens (n,). Returns an Evaluation.

    Only positions with at least `context` earlier tokens in their window count, so that a model which needs the past is not
    judged on a place where it has none. The windows come from a generator of their own, seeded with `seed`, and the
    model is left in the mode it was in. ValueError for a context that is not below block_size, or too few tokens.
    """
    T = model.config.block_size
    require(
        type(context) is int and 0 <= context < T,
        "context",
        context,
        f"must be an integer from 0 to {T - 1}",
    )
    for field, value in (("batches", batches), ("batch_size", batch_size)):
        require(type(value) is int and value >= 1, field, value, "must be an integer of at least 1")
    generator, was_training = torch.Generator().manual_seed(seed), model.training
    try:
        model.eval()
        windows = torch.cat(
            [
                _window_losses(model, get_batch(tokens, T, batch_size, generator), context)
                for _ in range(batches)
            ]
        )
    finally:
        model.train(was_training)
    error = windows.std().item() / math.sqrt(len(windows)) if len(windows) > 1 else math.nan
    return Evaluation(windows.mean().item(), error)


def _window_losses(model, batch, context):
    x, y = (part.to(_device(model)) for part in batch)
    logits, _ = model(x)
    losses = F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none").view(
        y.shape
    )  # (B, T)
    return losses[:, context:].double().mean(1)  # (B,)


def _device(model):
    return next(model.parameters()).device


def _cuda_devices(model):
    return [_device(model)] if _device(model).type == "cuda" else []
