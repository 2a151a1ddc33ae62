"""Schedule `full`: every epoch is one step over all rows and all layers, and everyone waits for everyone."""

from __future__ import annotations

from sancus.comm.layout import Layout
from sancus.training.schedule import Schedule, Work


class FullBatch(Schedule):
    """The whole graph in one step an epoch: p ranks compute what one process computes."""

    def layout(self, ranks: int) -> Layout:
        """Every rank is a part of the graph, and holds all layers."""
        return Layout(parts=ranks)

    def train_epoch(self, epoch: int, work: Work) -> float:
        """One forward and backward pass, and one update."""
        work.neighbourhood.begin_epoch(epoch, work.step.model)
        return work.step.update(work.neighbourhood, work.task)
