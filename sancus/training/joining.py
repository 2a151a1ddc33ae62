"""How what a step changed becomes part of the weights: two ways, by `--merge`."""

from __future__ import annotations

import copy
from typing import Protocol

import torch
from torch import nn

from sancus.training.async_settings import Merge
from sancus.training.optimizer import make_optimizer, set_learning_rate
from sancus.training.schedule import Work
from sancus.training.settings import TrainingSettings


class Join(Protocol):
    """Makes the next weights."""

    def __call__(self, weights: torch.Tensor, change: torch.Tensor, base: int) -> torch.Tensor:
        """The weights `[k]` with the `change [k]` of a step that began with those of version `base`."""
        ...

    def keep(self, optimizer: torch.optim.Optimizer) -> None:
        """Leave what must be remembered in the optimiser of this rank, whose state checkpoints have."""
        ...


class JoinDelta:
    """`W + (W_new − W_base) / p`: the mean of the weights, where all bases agree."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks

    def __call__(self, weights: torch.Tensor, change: torch.Tensor, base: int) -> torch.Tensor:
        return weights + change / self._ranks

    def keep(self, optimizer: torch.optim.Optimizer) -> None:
        """Every rank's optimiser is its own already."""


class JoinGradient:
    """One optimiser beside the weights; a rank's gradient is one of `p` to a step of the run's rate."""

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, settings: TrainingSettings, ranks: int
    ) -> None:
        """`model` and `optimizer` are those of the rank: their state is copied, not shared."""
        self._model = copy.deepcopy(model)
        self._optimizer = make_optimizer(self._model, settings)
        self._optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        self._trained = [p for p in self._model.parameters() if p.requires_grad]
        self._settings = settings
        self._ranks = ranks

    def __call__(self, weights: torch.Tensor, change: torch.Tensor, base: int) -> torch.Tensor:
        epoch = min(base // self._ranks, self._settings.epochs - 1)
        set_learning_rate(self._optimizer, self._settings.learning_rate(epoch) / self._ranks)
        sizes = [p.numel() for p in self._trained]
        for parameter, weight, part in zip(
            self._trained, weights.split(sizes), change.split(sizes), strict=True
        ):
            parameter.detach().copy_(weight.view_as(parameter))
            parameter.grad = part.view_as(parameter).clone()
        self._optimizer.step()
        return torch.cat([p.detach().reshape(-1) for p in self._trained])

    def keep(self, optimizer: torch.optim.Optimizer) -> None:
        """Moments of the weights are those of rank 0's optimiser in a checkpoint."""
        optimizer.load_state_dict(copy.deepcopy(self._optimizer.state_dict()))


def make_join(work: Work, settings: TrainingSettings, merge: Merge) -> Join:
    """By the name of `--merge`."""
    ranks = work.step.group.size
    if merge == "delta":
        return JoinDelta(ranks)
    return JoinGradient(work.step.model, work.step.optimizer, settings, ranks)
