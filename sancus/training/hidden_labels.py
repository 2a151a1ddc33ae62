"""A task whose model sees some of the labels: the loss is taken of the training nodes that hide theirs.

With label propagation (SuperGCN §3) a share of the training nodes, drawn once or anew every epoch
(`--label-draw`), shows its label as input; a loss or a score of these nodes would only say that the model can
copy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from sancus.errors import UserError
from sancus.training.node_task import NodeTask
from sancus.training.task import Gatherer, Split

if TYPE_CHECKING:
    from sancus.training.asker import Ask, Asker

Shown = Callable[[torch.Tensor], torch.Tensor]  # own rows [k] -> whether each shows its label now, [k] bool


class HiddenLabels:
    """A node task in which training nodes that show their label do not count.

    Their number is taken as expected, `1 - rate` of all, so that no rank need ask the others. In evaluation
    every training node shows its label, so the training score is that of the last training pass.
    """

    def __init__(self, task: NodeTask, rate: float, shown: Shown, scored: NodeTask | None = None) -> None:
        """`rate` is the share of the training nodes that `shown` picks.

        `scored` is the task of the graph that scores are taken on, where that is not the training's.
        """
        self._task = task
        self._scored = scored or task
        self._rate = rate
        self._shown = shown
        self._train_fraction: torch.Tensor | None = None  # [2] of the last training pass

    @property
    def metric(self) -> str:
        """That of the task without labels as input."""
        return self._task.metric

    def rows_needed(self, split: Split) -> torch.Tensor:
        """As if no label were shown: which ones are may be drawn in every epoch."""
        return self._task.rows_needed(split)

    def predictions(self, logits: torch.Tensor) -> torch.Tensor:
        """Classes, or one truth a label."""
        return self._task.predictions(logits)

    def loss(self, logits: torch.Tensor) -> torch.Tensor:
        """This rank's share of the mean over the training nodes that hide their label in this epoch."""
        hiding = self._of_now()
        loss = hiding.loss(logits)
        self._train_fraction = hiding.score(logits.detach())[0]
        return loss

    def score(self, logits: torch.Tensor, gatherer: Gatherer | None = None) -> torch.Tensor:
        """Fractions `[3, 2]`; that of the training nodes is the training pass's."""
        score = self._scored.score(logits, gatherer)
        if self._train_fraction is not None:
            score[0] = self._train_fraction
        return score

    def restricted(
        self, rows: torch.Tensor, share: float = 1.0, weight: torch.Tensor | None = None
    ) -> HiddenLabels:
        """Refused: the training score is that of a pass of all rows, and shown labels are drawn for it."""
        raise UserError("--label-rate needs all rows in one step; leave it out, or choose --schedule full")

    def in_batches(self, ask: Ask) -> Asker:
        """Refused likewise."""
        raise UserError("--label-rate needs all rows in one step; leave it out, or --batch-size")

    def _of_now(self) -> NodeTask:
        rows = self._task.rows["train"]
        hiding = rows[~self._shown(rows)]
        count = self._task.train_count * (1.0 - self._rate)
        return replace(self._task, rows={**self._task.rows, "train": hiding}, train_count=count)
