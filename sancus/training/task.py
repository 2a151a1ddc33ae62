"""What a model is trained for: the contract between training and a kind of question about a graph.

A schedule asks a task for the rows it needs, a step for the loss, an evaluation for the score. Node
classification (`sancus.training.node_task`) is one, links (`sancus.training.link_task`) are another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

import torch

if TYPE_CHECKING:
    from sancus.training.asker import Ask, Asker

Split = Literal["train", "val", "test"]
SPLITS: tuple[Split, Split, Split] = ("train", "val", "test")


class Gatherer(Protocol):
    """What a score that compares all rows with each other (ROC-AUC) needs of the other ranks."""

    def join(self, rows: torch.Tensor) -> torch.Tensor | None:
        """Every rank's rows, joined on rank 0; None elsewhere."""
        ...


class Task(Protocol):
    """Loss and score of a rank's own rows, as shares that add up over ranks."""

    @property
    def metric(self) -> str:
        """What a score is: `accuracy`, `micro-F1` …; one name for all ranks."""
        ...

    def rows_needed(self, split: Split) -> torch.Tensor:
        """The own rows `[k]` whose logits a split looks at, ascending: seeds, where rows are sampled."""
        ...

    def loss(self, logits: torch.Tensor) -> torch.Tensor:
        """This rank's share of the global mean loss, from the logits `[n_i, C]` of its own rows."""
        ...

    def score(self, logits: torch.Tensor, gatherer: Gatherer | None = None) -> torch.Tensor:
        """`[3, 2]` numerator and denominator of train, val and test, float64; they add up over ranks.

        A score whose denominator is 0 on all ranks is undefined.
        """
        ...

    def restricted(self, rows: torch.Tensor, share: float = 1.0, weight: torch.Tensor | None = None) -> Task:
        """The same question about some of the own rows `[k]`, which are then all there are.

        Its loss is their share of the same global mean, so that the shares of disjoint rows add up; or of the
        mean over a batch that is a `share` of the training nodes. `weight [k]` multiplies the loss of each.
        """
        ...

    def in_batches(self, ask: Ask) -> Asker:
        """The same question in batches; all ranks call it together."""
        ...

    def predictions(self, logits: torch.Tensor) -> torch.Tensor:
        """What `logits [n, C]` say of each row: its class `[n]`, or which labels hold `[n, C]`."""
        ...
