"""The settings of a training loop."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from sancus.errors import UserError
from sancus.parameters import EXACT

Parameters = Literal["sum", "average"]
AVERAGE_IN_FULL = (
    "--parameter-codec codes gradients, but --parameters average sends weights, which need full precision; "
    "choose --parameter-codec fp32 or --parameters sum"
)
LARGEST = 1e30  # of a rate: Adam divides its first step by 0.1, and float32 ends at 3.4e38
SEEDS = 2**64  # torch takes so many
FREE = {"may_change": True}  # a resumed run may set it anew (see `sancus.config.settings`)


@dataclass(frozen=True)
class TrainingSettings:
    """How weights are fitted."""

    epochs: int = field(default=100, metadata=FREE)
    """Number of epochs."""
    optimizer: Literal["adam", "sgd"] = "adam"
    """Update rule."""
    lr: float = field(default=0.01, metadata=FREE)
    """Learning rate."""
    momentum: float = 0.0
    """Momentum of sgd."""
    weight_decay: float = 5e-4
    """L2 penalty, added to the gradient."""
    layer_weight_decay: float | None = None
    """L2 penalty of the graph layers' parameters, where it is not that of all others (GCNII)."""
    class_weights: str = "none"
    """Weight of every class in the loss: none, balanced (rare classes count more), or numbers: 1,0.5,2."""
    label_smoothing: float = 0.0
    """Share of every label that is spread over all classes."""
    task: Literal["nodes", "link"] = "nodes"
    """What is learned: the classes of nodes, or which pairs of nodes have an edge (link)."""
    metric: Literal["auto", "accuracy", "micro-f1", "roc-auc", "mrr"] = "auto"
    """Reported: accuracy; with several labels a node micro-f1 (auto), mean roc-auc; link: roc-auc, mrr."""
    normalise_features: bool = False
    """Scale every node's features to a sum of 1, as GCN's and GAT's papers do on citation graphs."""
    inductive: bool = False
    """Train on the subgraph of the training nodes alone; evaluate on the whole graph."""
    parameters: Parameters = "sum"
    """How ranks keep equal weights: sum of the gradients, or average after a step of each rank's own."""
    parameter_codec: str = EXACT
    """Bits of the sum of gradients: fp32, int8, int4, int2, int1, or low-rank:rank=4,bits=8 (PowerSGD)."""
    schedule: str = "full"
    """Which rows and layers run when: full, the whole graph in one step; minibatch (--batch-size)."""
    lr_schedule: Literal["constant", "cosine", "linear"] = "constant"
    """How the learning rate falls from --lr to 0 over the epochs; constant: not at all."""
    warmup: int = 0
    """Epochs in which the learning rate rises linearly to --lr."""
    patience: int = field(default=0, metadata=FREE)
    """Stop at an evaluation when validation has not improved for so many epochs; 0: never."""
    eval_every: int = field(default=1, metadata=FREE)
    """Evaluate, fresh and exact, every so many epochs, and after the last."""
    check: int = 0
    """Compare checksums of all weights between ranks every so many epochs; 0: never."""
    label_rate: float = 0.0
    """Share of the training nodes whose labels are input; the others carry the loss."""
    label_draw: Literal["epoch", "once"] = "epoch"
    """When the nodes of --label-rate are drawn: anew every epoch, or once, before training (SuperGCN)."""
    dtype: Literal["float32", "float64"] = "float32"
    """Precision of features, weights and payloads."""
    seed: int = 0
    """Seed of weights and dropout."""

    def __post_init__(self) -> None:
        for name in ("epochs", "eval_every"):
            if getattr(self, name) < 1:
                flag = name.replace("_", "-")
                raise UserError(f"--{flag} {getattr(self, name)}: must be at least 1")
        for name in ("warmup", "patience", "check", "seed"):
            if getattr(self, name) < 0:
                raise UserError(f"--{name} {getattr(self, name)}: must not be negative")
        if self.seed >= SEEDS:
            raise UserError(f"--seed {self.seed}: must be at most {SEEDS - 1}")
        if not 0.0 <= self.label_smoothing < 1.0:
            raise UserError(f"--label-smoothing {self.label_smoothing}: must be at least 0 and below 1")
        self.weights_of_classes()
        for name in ("lr", "momentum", "weight_decay", "layer_weight_decay"):
            value = getattr(self, name) if getattr(self, name) is not None else 0.0
            flag = name.replace("_", "-")
            if not math.isfinite(value) or value < 0:
                raise UserError(f"--{flag} {value}: must be a number that is not negative")
            if value > LARGEST:
                raise UserError(f"--{flag} {value:g}: must be at most {LARGEST:g}; steps would not be finite")
        if self.parameters == "average" and self.parameter_codec != EXACT:
            raise UserError(AVERAGE_IN_FULL)
        if not 0.0 <= self.label_rate < 1.0:
            raise UserError(f"--label-rate {self.label_rate}: must be at least 0 and below 1")

    def weights_of_classes(self) -> list[float] | None:
        """The numbers of `--class-weights`; None where it is none or balanced."""
        if self.class_weights in ("none", "balanced"):
            return None
        try:
            weights = [float(part) for part in self.class_weights.split(",")]
        except ValueError:
            weights = []
        if not weights or not all(math.isfinite(weight) and weight >= 0 for weight in weights):
            raise UserError(
                f"--class-weights {self.class_weights}: give none, balanced, "
                "or one number that is not negative for each class: 1,0.5,2"
            )
        return weights

    def learning_rate(self, epoch: int) -> float:
        """The rate of an epoch: a pure function, so that a resumed run needs no scheduler state."""
        if epoch < self.warmup:
            return self.lr * (epoch + 1) / self.warmup
        done = (epoch - self.warmup) / max(1, self.epochs - self.warmup)
        if self.lr_schedule == "cosine":
            return self.lr * 0.5 * (1.0 + math.cos(math.pi * done))
        if self.lr_schedule == "linear":
            return self.lr * (1.0 - done)
        return self.lr
