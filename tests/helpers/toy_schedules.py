"""A second schedule and a second layout, which only tests use: they show that the seams of training hold.

`--schedule tests.helpers.toy_schedules:TwoCopies` trains two copies of the graph. Each copy is spread over
half of the ranks and takes every other training node for its loss, so that gradients summed over all replicas
of the model are those of the whole training set: what the law demands of one process.
"""

from __future__ import annotations

from dataclasses import replace

from sancus.comm.layout import Layout
from sancus.errors import UserError
from sancus.training.node_task import NodeTask
from sancus.training.schedule import Work


class TwoCopies:
    """Data parallel over two copies of the graph, each of them graph parallel."""

    def layout(self, ranks: int) -> Layout:
        """Two copies, with half of the ranks as parts of each."""
        if ranks % 2:
            raise UserError(f"--ranks {ranks}: two copies need an even number of ranks")
        return Layout(copies=2, parts=ranks // 2)

    def train_epoch(self, epoch: int, work: Work) -> float:
        """One step; the two copies share the training nodes between them."""
        work.neighbourhood.begin_epoch(epoch, work.step.model)
        task = work.task
        assert isinstance(task, NodeTask)
        mine = task.rows["train"][work.mesh.place.copy :: 2]
        return work.step.update(work.neighbourhood, replace(task, rows={**task.rows, "train": mine}))
