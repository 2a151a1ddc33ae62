"""Schedules that only tests use: they show that the seams of training hold.

`--schedule tests.helpers.toy_schedules:TwoCopies` trains two copies of the graph. Each copy is spread over
half of the ranks and takes every other training node for its loss, so that gradients summed over all replicas
of the model are those of the whole training set: what the law demands of one process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from sancus.comm.layout import Layout
from sancus.errors import UserError
from sancus.metrics.declared import Metric
from sancus.training.evaluation import Evaluation
from sancus.training.node_task import NodeTask
from sancus.training.schedule import Schedule, Work
from sancus.training.settings import TrainingSettings


class TwoCopies(Schedule):
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


class Thirds(Schedule):
    """The full batch, whose loss is put together from shares of rows; it uses every hook that there is."""

    measures = (Metric("toy_shares", "", "shares of the loss in this epoch; all ranks", "sum"),)

    def __init__(self, training: TrainingSettings, shares: int = 3) -> None:
        self._training = training
        self._shares = shares
        self._epochs = 0  # so far, earlier processes of a resumed run included
        self.logged: list[str] = []

    def layout(self, ranks: int) -> Layout:
        """Every rank is a part."""
        return Layout(parts=ranks)

    def prepare(self, work: Work) -> Evaluation:
        """Look at the site: its rows are those of the neighbourhood."""
        assert work.site is not None
        plan = work.site.make_plan(operator=work.site.operator)
        assert plan.forward.diagonal.rows_out == len(work.site.shard.nodes)
        self.logged.append("prepare")
        return work.evaluation

    def train_epoch(self, epoch: int, work: Work) -> float:
        """One forward pass, a loss of every share of the rows, one update."""
        graph, step = work.neighbourhood, work.step
        graph.begin_epoch(epoch, step.model)
        step.model.train()
        step.optimizer.zero_grad()
        logits = step.model(graph.input, graph)
        rows = torch.arange(len(logits))
        losses = [
            work.task.restricted(rows[share :: self._shares]).loss(logits[share :: self._shares])
            for share in range(self._shares)
        ]
        loss = torch.stack(losses).sum()
        step.check_loss(loss.item())
        loss.backward()
        step.move()
        self._epochs += 1
        return loss.item()

    def state(self) -> dict[str, torch.Tensor]:
        """How many epochs there were."""
        return {"epochs": torch.tensor(self._epochs)}

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        """Go on counting."""
        self._epochs = int(state["epochs"])
        self.logged.append("restore")

    def figures(self) -> dict[str, float]:
        """The shares of the last epoch."""
        return {"toy_shares": float(self._shares)}

    def describe(self) -> dict[str, Any]:
        """Epochs of all processes, and a setting of a section."""
        return {"epochs": self._epochs, "lr": self._training.lr}


class NoSchedule:
    """Has some methods of a schedule, and not all."""

    def layout(self, ranks: int) -> Layout:
        """Every rank is a part."""
        return Layout(parts=ranks)
