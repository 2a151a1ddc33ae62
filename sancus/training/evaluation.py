"""Evaluation: a fresh, exact, full-precision pass, and the best epoch by its scores."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import nn

from sancus.exchange.full_graph import FullGraph
from sancus.exchange.gather import RankZero
from sancus.training.task import Task


@dataclass(frozen=True)
class Evaluation:
    """The graph that scores are taken on, and its labels: with `--inductive` the whole one."""

    exchange: FullGraph
    task: Task

    def logits(self, model: nn.Module) -> torch.Tensor:
        """Logits `[n_i, C]` of the own rows; histories and policies of training are left alone."""
        model.eval()
        with torch.no_grad(), self.exchange.exact():
            logits: torch.Tensor = model(self.exchange.input, self.exchange)
        return logits

    def score(self, logits: torch.Tensor) -> torch.Tensor:
        """This rank's fractions `[3, 2]` of train, val and test, from the logits of the own rows."""
        return self.task.score(logits, RankZero(self.exchange.group))


@dataclass
class Best:
    """The best validation epoch so far, and the weights it had; the last one where no score is defined."""

    epoch: int = -1
    val: float | None = None  # None: undefined, such as ROC-AUC without a positive label
    test: float | None = None
    weights: dict[str, torch.Tensor] = field(default_factory=dict)

    def better(self, epoch: int, val: float | None, test: float | None, model: nn.Module) -> Best:
        """The best one after another epoch was scored; itself where that was not better."""
        if self.epoch >= 0 and self.val is not None and (val is None or val <= self.val):
            return self
        weights = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
        return Best(epoch, val, test, weights)
