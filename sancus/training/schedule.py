"""Schedules: which rows and layers run when, and who waits for whom.

A schedule is a plug-in like a plan or a policy (`--schedule`). It lays the ranks out (how many parts of the
graph, copies of it, stages of the model) and trains an epoch with what a rank has: a `Work`. The full batch
is the first; mini-batches, a pipeline of layers and asynchronous training are others of the same shape.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from sancus.comm.layout import Layout
from sancus.comm.mesh import Mesh
from sancus.exchange.full_graph import FullGraph
from sancus.training.step import Step
from sancus.training.task import Task


@dataclass(frozen=True)
class Work:
    """What a schedule works with on one rank."""

    neighbourhood: FullGraph  # the rank's rows, and what it needs of others
    task: Task  # what is asked about the own rows
    step: Step  # one update of the model's weights
    mesh: Mesh  # who takes part in what


class Schedule(Protocol):
    """Lays out the ranks, and trains epoch after epoch."""

    def layout(self, ranks: int) -> Layout:
        """How so many ranks share parts, copies and stages; a number that cannot be laid out is refused."""
        ...

    def train_epoch(self, epoch: int, work: Work) -> float:
        """All steps of one epoch; this rank's share of the training loss. All ranks call it together."""
        ...
