"""A rank that waits for nobody: a step from weights that it was given, and what to say of it (DIGEST-A).

Apart from its first step, in which all ranks deliver fresh rows to each other, nothing here is collective: so
real ranks, a script of events and the replay of a log run the same code.
"""

from __future__ import annotations

import torch
from torch import nn

from sancus.comm.group import Group
from sancus.comm.latest import LatestStore
from sancus.exchange.courier import Courier, Versions
from sancus.exchange.crossing import make_courier
from sancus.training.async_settings import Merge
from sancus.training.merging import Upload
from sancus.training.optimizer import set_learning_rate
from sancus.training.parameter_sync import AverageOfWeights
from sancus.training.schedule import Work
from sancus.training.settings import TrainingSettings
from sancus.training.step import Step


class OwnStep(AverageOfWeights):
    """Each rank takes a step of its own, by `p` times its share; the merge joins the weights."""

    def after_update(self, model: nn.Module) -> None:
        """Nothing: whoever holds the weights hears of the step."""


class FreeRank:
    """One rank's steps."""

    def __init__(self, work: Work, settings: TrainingSettings, merge: Merge) -> None:
        self.step = 0  # the next one of this rank
        self._work = work
        self._settings = settings
        self._merge = merge
        step = work.step
        self._trained = [p for p in step.model.parameters() if p.requires_grad]
        optimizer = step.optimizer if merge == "delta" else _Still(step.optimizer)
        own = OwnStep(work.mesh.group("replicas"), step.health)
        self._step = Step(step.model, optimizer, own, step.group, step.health)
        self.courier: Courier = make_courier(work.neighbourhood.crossing)
        self._told: Versions = {}

    @property
    def group(self) -> Group:
        """The ranks of the run."""
        return self._step.group

    def weights(self) -> torch.Tensor:
        """All that is trained, as one vector `[k]` of its own memory."""
        return torch.cat([p.detach().reshape(-1) for p in self._trained])

    def load(self, weights: torch.Tensor) -> None:
        """Take these weights `[k]`."""
        sizes = [p.numel() for p in self._trained]
        for parameter, part in zip(self._trained, weights.split(sizes), strict=True):
            parameter.detach().copy_(part.view_as(parameter))

    def compute(self, version: int, weights: torch.Tensor, store: LatestStore) -> tuple[Upload, torch.Tensor]:
        """One step from weights `[k]` of that version; what it was, and what it changed `[k]`."""
        work, graph, health = self._work, self._work.neighbourhood, self._step.health
        self.load(weights)
        epoch = min(version // self.group.size, self._settings.epochs - 1)
        set_learning_rate(self._step.optimizer, self._settings.learning_rate(epoch))
        if self.step:
            graph.crossing.courier = self.courier
            self.courier.begin_step(self.step, store)
        else:  # all ranks together: the first use of a stream is fresh
            graph.begin_epoch(0, self._step.model)
        loss = self._step.update(graph, work.task)
        if self._merge == "delta":
            change = self.weights() - weights
        else:
            change = torch.cat([_gradient(p).reshape(-1) for p in self._trained])
        stop = health.bad or bool(work.stop())
        rank = self.group.rank
        return Upload(rank, self.step, version, loss, self._news(), stop), change

    def finish(self) -> None:
        """The step was merged: others may have what it made."""
        if self.step:
            self.courier.publish()
        self.step += 1

    def rest(self) -> None:
        """Back to collectives: others are where this rank is."""
        self._work.neighbourhood.crossing.courier = None
        self._told = {}

    def _news(self) -> list[list[int]]:
        """Versions of histories that were used, where they are others than those of the step before."""
        used = self.courier.used
        news = [[*place, version] for place, version in used.items() if self._told.get(place) != version]
        self._told = dict(used)
        return news


class _Still(torch.optim.Optimizer):
    """Clears gradients, and leaves weights where they are: somebody else takes the step."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        super().__init__([p for group in optimizer.param_groups for p in group["params"]], {"lr": 0.0})

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Nothing."""


def _gradient(parameter: nn.Parameter) -> torch.Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
