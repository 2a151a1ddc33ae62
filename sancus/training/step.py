"""One update of the weights: forward, loss, backward, the optimiser moves them, replicas agree on them."""

from __future__ import annotations

import math

import torch
from torch import nn

from sancus.exchange.full_graph import FullGraph
from sancus.exchange.health import ADVICE
from sancus.training.parameter_sync import ParameterSync
from sancus.training.task import Task


class Step:
    """Model, optimiser, and the way in which replicas of the model stay equal."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, sync: ParameterSync) -> None:
        self.model = model
        self.optimizer = optimizer
        self.sync = sync

    def update(self, neighbourhood: FullGraph, task: Task) -> float:
        """Move the weights once, by the task's loss on the rows of a neighbourhood; this rank's share of it.

        A loss that is not finite is noted, not raised: the other ranks would wait for this one. All ranks
        stop together where parameters agree: where gradients are summed, before any weight has moved.
        """
        stopwatch = neighbourhood.group.stopwatch
        self.model.train()
        self.optimizer.zero_grad()
        with stopwatch.at("dense"):
            logits: torch.Tensor = self.model(neighbourhood.input, neighbourhood)  # [n_i, C]
            loss = task.loss(logits)
            value = loss.item()
        if not math.isfinite(value):
            rank, epoch = neighbourhood.group.rank, neighbourhood.group.clock.epoch
            neighbourhood.crossing.health.note(
                f"the loss of rank {rank} is {value} in epoch {epoch}; {ADVICE}"
            )
        with stopwatch.at("dense"):
            loss.backward()
        self.sync.before_update(self.model)
        self.optimizer.step()
        self.sync.after_update(self.model)
        return value
