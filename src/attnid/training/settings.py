"""The settings of a training run, and the learning rate of each of its steps."""

import math
from dataclasses import KW_ONLY, dataclass

from ..checks import is_finite, require, require_size

OPTIMIZERS = ("adamw", "sgd")


@dataclass(frozen=True)
class TrainingConfig:
    """The settings of a run; the defaults are nanoGPT's for characters, but for the smaller batch.

    steps, batch_size (sequences per step) and warmup (steps) are counts. learning_rate is reached
    after the warm-up and falls along a cosine to min_learning_rate (a tenth of it by default) as
    the run ends. betas are AdamW's; weight_decay acts on matrices and embeddings only. grad_clip is
    the largest norm of the whole gradient, 0 for none. optimizer is "adamw" or "sgd" (with
    momentum, 0 for none; its decay is added to the gradient). seed decides the batches and the
    dropout.

    Raises ValueError naming the field and the value.

    >>> settings = TrainingConfig(400, batch_size=8, warmup=30, seed=0)
    >>> settings.steps, settings.learning_rate
    (400, 0.001)
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
    momentum: float = 0.0

    def __post_init__(self):
        for field, least in (("steps", 1), ("batch_size", 1), ("warmup", 0), ("seed", 0)):
            require_size(field, getattr(self, field), least)
        high = self.learning_rate
        require(is_finite(high) and high > 0, "learning_rate", high, "must be above 0")
        low = high / 10 if self.min_learning_rate is None else self.min_learning_rate
        why = f"must be from 0 to learning_rate={high}"
        require(is_finite(low) and 0 <= low <= high, "min_learning_rate", low, why)
        for field in ("weight_decay", "grad_clip"):
            value = getattr(self, field)
            require(is_finite(value) and value >= 0, field, value, "must be at least 0")
        betas, why = self.betas, "must be two numbers in [0, 1)"
        require(isinstance(betas, (tuple, list)) and len(betas) == 2, "betas", betas, why)
        require(all(is_finite(b) and 0 <= b < 1 for b in betas), "betas", betas, why)
        momentum = self.momentum
        require(
            is_finite(momentum) and 0 <= momentum < 1, "momentum", momentum, "must be in [0, 1)"
        )
        why = f"must be one of {OPTIMIZERS}"
        require(self.optimizer in OPTIMIZERS, "optimizer", self.optimizer, why)
        object.__setattr__(self, "min_learning_rate", low)
        object.__setattr__(self, "betas", tuple(betas))


def learning_rate_at(step, settings):
    """The learning rate of step 0, 1, ..., settings.steps: a linear warm-up, then half a cosine
    down to the minimum.

    >>> settings = TrainingConfig(400, learning_rate=0.1, min_learning_rate=0.0, warmup=100)
    >>> [round(learning_rate_at(step, settings), 3) for step in (0, 99, 250, 399)]
    [0.001, 0.099, 0.05, 0.0]
    """
    low, high = settings.min_learning_rate, settings.learning_rate
    if step < settings.warmup:
        return high * (step + 1) / (settings.warmup + 1)
    done = min(1.0, (step - settings.warmup) / max(1, settings.steps - settings.warmup))
    falling = 0.5 * (1.0 + math.cos(math.pi * done))  # from 1 to 0
    return low + falling * (high - low)
