"""The settings of a training loop."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from sancus.errors import UserError


@dataclass(frozen=True)
class TrainingSettings:
    """How weights are fitted."""

    epochs: int = 100
    """Number of epochs."""
    optimizer: Literal["adam", "sgd"] = "adam"
    """Update rule."""
    lr: float = 0.01
    """Learning rate."""
    momentum: float = 0.0
    """Momentum of sgd."""
    weight_decay: float = 5e-4
    """L2 penalty, added to the gradient."""
    schedule: Literal["constant", "cosine", "linear"] = "constant"
    """How the learning rate falls from --lr to 0 over the epochs; constant: not at all."""
    warmup: int = 0
    """Epochs in which the learning rate rises linearly to --lr."""
    patience: int = 0
    """Stop at an evaluation when validation has not improved for so many epochs; 0: never."""
    eval_every: int = 1
    """Evaluate, fresh and exact, every so many epochs, and after the last."""
    dtype: Literal["float32", "float64"] = "float32"
    """Precision of features, weights and payloads."""
    seed: int = 0
    """Seed of weights and dropout."""

    def __post_init__(self) -> None:
        for name in ("epochs", "eval_every"):
            if getattr(self, name) < 1:
                flag = name.replace("_", "-")
                raise UserError(f"--{flag} {getattr(self, name)}: must be at least 1")
        for name in ("warmup", "patience", "seed"):
            if getattr(self, name) < 0:
                raise UserError(f"--{name} {getattr(self, name)}: must not be negative")
        for name in ("lr", "momentum", "weight_decay"):
            value = getattr(self, name)
            if not math.isfinite(value) or value < 0:
                flag = name.replace("_", "-")
                raise UserError(f"--{flag} {value}: must be a number that is not negative")

    def learning_rate(self, epoch: int) -> float:
        """The rate of an epoch: a pure function, so that a resumed run needs no scheduler state."""
        if epoch < self.warmup:
            return self.lr * (epoch + 1) / self.warmup
        done = (epoch - self.warmup) / max(1, self.epochs - self.warmup)
        if self.schedule == "cosine":
            return self.lr * 0.5 * (1.0 + math.cos(math.pi * done))
        if self.schedule == "linear":
            return self.lr * (1.0 - done)
        return self.lr
