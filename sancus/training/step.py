"""One update of the weights: forward, loss, backward, the optimiser moves them, replicas agree on them."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn

from sancus.comm.group import Group
from sancus.exchange.health import ADVICE, Health
from sancus.models.neighbourhood import Neighbourhood
from sancus.training.parameter_sync import ParameterSync
from sancus.training.task import Task


class Step:
    """Model, optimiser, and the way in which replicas of the model stay equal."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        sync: ParameterSync,
        group: Group,
        health: Health,
    ) -> None:
        """`group` are the ranks that share the rows; `health` hears of a loss that is not finite."""
        self.model = model
        self.optimizer = optimizer
        self.sync = sync
        self.group = group
        self.health = health

    def update(self, neighbourhood: Neighbourhood, task: Task) -> float:
        """Move the weights once, by the task's loss on a neighbourhood's rows; this rank's share of it."""
        return self.descend(neighbourhood, task.loss)

    def descend(self, neighbourhood: Neighbourhood, loss_of: Callable[[torch.Tensor], torch.Tensor]) -> float:
        """The same by this rank's share of any loss, of the logits `[n_i, C]` that the model returns.

        A loss that is not finite is noted, not raised: the other ranks would wait for this one. All ranks
        stop together where parameters agree: where gradients are summed, before any weight has moved.
        """
        stopwatch = self.group.stopwatch
        self.model.train()
        self.optimizer.zero_grad()
        with stopwatch.at("dense"):
            logits: torch.Tensor = self.model(neighbourhood.input, neighbourhood)  # [n_i, C]
            loss = loss_of(logits)
            value = loss.item()
        self.check_loss(value)
        with stopwatch.at("dense"):
            loss.backward()
        self.move()
        return value

    def check_loss(self, value: float) -> None:
        """Note a loss that is not finite."""
        if not math.isfinite(value):
            rank, epoch = self.group.members[self.group.rank], self.group.clock.epoch
            self.health.note(f"the loss of rank {rank} is {value} in epoch {epoch}; {ADVICE}")

    def move(self) -> None:
        """The optimiser moves the weights by the gradients that are there; replicas agree before or after."""
        self.sync.before_update(self.model)
        self.optimizer.step()
        self.sync.after_update(self.model)
