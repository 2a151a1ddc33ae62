"""Loss and score, as sums that do not depend on how rows were split.

The loss is the sum over the training nodes of all ranks divided by their *global* count, so parameter
gradients are simply summed. A score is a fraction whose numerator and denominator are summed over ranks:
accuracy is correct / counted; micro-F1 is 2 TP / (2 TP + FP + FN).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class Task:
    """Labels and split of the own rows, with the global size of the training set."""

    labels: torch.Tensor  # [n_i] int64, or [n_i, C] of the run's dtype
    rows: dict[str, torch.Tensor]  # own rows of each split, ascending
    train_count: int  # over all ranks

    @property
    def metric(self) -> str:
        """What a score of this task is."""
        return "micro-F1" if self.labels.dim() == 2 else "accuracy"

    def loss(self, logits: torch.Tensor) -> torch.Tensor:
        """This rank's share of the global mean: cross entropy, or binary cross entropy a label."""
        rows = self.rows["train"]
        scores, labels = logits[rows], self.labels[rows]
        if self.labels.dim() == 2:
            total = F.binary_cross_entropy_with_logits(scores, labels, reduction="sum")
            return total / (self.train_count * labels.shape[1])
        return F.cross_entropy(scores, labels, reduction="sum") / self.train_count

    def score(self, logits: torch.Tensor) -> torch.Tensor:
        """`[3, 2]` numerator and denominator of train, val and test, float64."""
        return torch.stack([self._fraction(logits, self.rows[split]) for split in SPLITS])

    def _fraction(self, logits: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        scores, labels = logits[rows], self.labels[rows]
        if self.labels.dim() == 2:
            predicted, actual = scores > 0, labels > 0.5
            twice = 2 * (predicted & actual).sum()
            return torch.stack([twice, twice + (predicted ^ actual).sum()]).double().cpu()
        correct = (scores.argmax(dim=1) == labels).sum() if len(rows) else torch.tensor(0)
        return torch.tensor([float(correct), float(len(rows))], dtype=torch.float64)
