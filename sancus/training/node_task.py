"""Node classification: loss and score, as sums that do not depend on how rows were split.

The loss is the sum over the training nodes of all ranks divided by their *global* count (weighted, where
classes have weights), so parameter gradients are simply summed. Accuracy and micro-F1 are fractions whose
numerator and denominator are summed over ranks: correct / counted; 2 TP / (2 TP + FP + FN). ROC-AUC compares
every positive node with every negative one, so scores and labels are joined on rank 0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from sancus.errors import UserError
from sancus.training.auc import mean_roc_auc
from sancus.training.settings import TrainingSettings
from sancus.training.task import SPLITS, Gatherer, Split

if TYPE_CHECKING:
    from sancus.training.asker import Ask, Asker

METRICS = {"accuracy": "accuracy", "micro-f1": "micro-F1", "roc-auc": "ROC-AUC"}


@dataclass(frozen=True)
class NodeTask:
    """Classify nodes: labels and split of the own rows, with the global size of the training set."""

    labels: torch.Tensor  # [n_i] int64, or [n_i, C] of the run's dtype
    rows: dict[Split, torch.Tensor]  # own rows of each split, ascending
    train_count: float  # over all ranks; with class weights, the sum of the training nodes' weights
    class_weights: torch.Tensor | None = None  # [C]; with several labels a node, of the positive ones
    label_smoothing: float = 0.0
    auc: bool = False  # score by mean ROC-AUC
    classes: int | None = None  # columns of the logits; None: whatever the model gives
    row_weights: torch.Tensor | None = None  # [n_i] of the loss of each row; None: all 1

    @property
    def multilabel(self) -> bool:
        """Whether a node may have several labels at once."""
        return self.labels.dim() == 2

    @property
    def metric(self) -> str:
        """What a score of this task is."""
        return METRICS["roc-auc" if self.auc else "micro-f1" if self.multilabel else "accuracy"]

    def rows_needed(self, split: Split) -> torch.Tensor:
        """The own rows of a split, ascending."""
        return self.rows[split]

    def loss(self, logits: torch.Tensor) -> torch.Tensor:
        """This rank's share of the global mean: cross entropy, or binary cross entropy a label."""
        if logits.dim() != 2 or len(logits) != len(self.labels):
            raise UserError(
                f"the model returned {list(logits.shape)} for {len(self.labels)} rows; "
                "forward must return the logits [rows, classes] of the own rows"
            )
        if self.classes is not None and logits.shape[1] != self.classes:
            raise UserError(
                f"the model's output has {logits.shape[1]} columns for {self.classes} classes; "
                f"make its last layer {self.classes} wide, the third argument of its constructor"
            )
        rows, smoothing = self.rows["train"], self.label_smoothing
        scores, labels = logits[rows], self.labels[rows]
        reduction = "sum" if self.row_weights is None else "none"
        if self.multilabel:
            soft = labels * (1.0 - smoothing) + 0.5 * smoothing if smoothing else labels
            losses = F.binary_cross_entropy_with_logits(
                scores, soft, reduction=reduction, pos_weight=self.class_weights
            )
            return self._weighed(losses, scores) / (self.train_count * labels.shape[1])
        losses = F.cross_entropy(
            scores, labels, weight=self.class_weights, reduction=reduction, label_smoothing=smoothing
        )
        return self._weighed(losses, scores) / self.train_count

    def restricted(
        self, rows: torch.Tensor, share: float = 1.0, weight: torch.Tensor | None = None
    ) -> NodeTask:
        """The task of some own rows `[k]`; their loss is a share of the mean over `share` of all training."""
        place = torch.full((len(self.labels),), -1, dtype=torch.int64, device=rows.device)
        place[rows] = torch.arange(len(rows), device=rows.device)
        kept = {split: place[own][place[own] >= 0] for split, own in self.rows.items()}
        return replace(
            self,
            labels=self.labels[rows],
            rows=kept,
            train_count=self.train_count * share,
            row_weights=weight,
        )

    def in_batches(self, ask: Ask) -> Asker:
        """Batches of training nodes."""
        from sancus.training.node_asker import NodeAsker

        return NodeAsker(self, ask)

    def score(self, logits: torch.Tensor, gatherer: Gatherer | None = None) -> torch.Tensor:
        """`[3, 2]` numerator and denominator of train, val and test, float64; they add up over ranks."""
        if self.auc:
            return torch.stack([self._auc(logits, self.rows[split], gatherer) for split in SPLITS])
        return torch.stack([self._fraction(logits, self.rows[split]) for split in SPLITS]).cpu()

    def predictions(self, logits: torch.Tensor) -> torch.Tensor:
        """The class of each row `[n]`, or with several labels a node which of them hold `[n, C]`."""
        return logits > 0 if self.multilabel else logits.argmax(dim=1)

    def _weighed(self, losses: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """The sum of `losses`, each times the weight of its row; without weights they are summed already."""
        if self.row_weights is None:
            return losses
        weight = self.row_weights[self.rows["train"]].to(scores.dtype)
        return (losses * (weight if losses.dim() == 1 else weight[:, None])).sum()

    def _fraction(self, logits: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        scores, labels = logits[rows], self.labels[rows]
        if self.multilabel:
            predicted, actual = scores > 0, labels > 0.5
            twice = 2 * (predicted & actual).sum()
            return torch.stack([twice, twice + (predicted ^ actual).sum()]).double()
        correct = (scores.argmax(dim=1) == labels).sum()
        return torch.stack([correct, torch.full_like(correct, len(rows))]).double()

    def _auc(self, logits: torch.Tensor, rows: torch.Tensor, gatherer: Gatherer | None) -> torch.Tensor:
        joined: torch.Tensor | None = torch.cat([logits[rows], self.labels[rows]], dim=1)
        if gatherer is not None and joined is not None:
            joined = gatherer.join(joined)
        if joined is None:
            return torch.zeros(2, dtype=torch.float64)
        scores, labels = joined.double().cpu().chunk(2, dim=1)
        auc = mean_roc_auc(scores, labels > 0.5)
        return torch.tensor([0.0, 0.0] if auc is None else [auc, 1.0], dtype=torch.float64)


def class_weights(
    settings: TrainingSettings, counts: torch.Tensor, *, multilabel: bool
) -> torch.Tensor | None:
    """The weight of every class `[C]` in float64, from the global counts `[C + 1]` of the training set.

    `counts` are the training nodes of each class, then all training nodes. `balanced` weighs a class by
    `N / (C n_c)`; with several labels a node, its positives by `(N − n_c) / n_c`. A class without a training
    node weighs 1.
    """
    per_class, total = counts[:-1].double(), counts[-1].double()
    weights = settings.weights_of_classes()
    if weights is not None:
        if len(weights) != len(per_class):
            sizes = f"{len(weights)} numbers for {len(per_class)} classes"
            raise UserError(f"--class-weights {settings.class_weights}: {sizes}")
        return torch.tensor(weights, dtype=torch.float64, device=counts.device)
    if settings.class_weights == "none":
        return None
    share = (total - per_class) if multilabel else total / len(per_class)
    return torch.where(per_class > 0, share / per_class.clamp(min=1), 1.0)


def check_metric(metric: str, *, multilabel: bool) -> bool:
    """Whether the score is ROC-AUC; a metric that does not fit the labels is refused."""
    fitting = ("auto", "micro-f1", "roc-auc") if multilabel else ("auto", "accuracy")
    if metric not in fitting:
        kind = "several labels a node" if multilabel else "one label a node"
        raise UserError(f"--metric {metric}: the graph has {kind}; choose from {', '.join(fitting)}")
    return metric == "roc-auc"
