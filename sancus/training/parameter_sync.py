"""How replicas of a model stay equal: what happens to parameters between backward and the update.

The loss of a rank is already divided by the global number of training nodes, so the gradient of the whole is
the plain sum over the ranks that hold the same parameters. Averaging weights every few steps, or a codec on
the sum, would be other ways behind the same call.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import nn

from sancus.comm.group import Group
from sancus.exchange.full_graph import FullGraph
from sancus.exchange.health import ADVICE, Health, finite


class ParameterSync(Protocol):
    """Called by all replicas at the same moment, after backward and before the optimiser."""

    def synchronise(self, model: nn.Module) -> None:
        """Leave in every parameter's `grad` what the optimiser shall use, the same on all replicas."""
        ...


class SumOfGradients:
    """Every parameter's gradient, added up over the replicas in one flat all-reduce."""

    def __init__(self, replicas: Group, health: Health) -> None:
        self._replicas = replicas
        self._health = health

    def synchronise(self, model: nn.Module) -> None:
        """Sum; where a number of this epoch is not finite on any rank, all ranks stop with the same error."""
        parameters = list(model.parameters())
        gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in parameters]
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        epoch = self._replicas.clock.epoch
        if not finite(flat):
            where = f"rank {self._replicas.rank}, backward, epoch {epoch}"
            name = _first_not_finite(model)
            self._health.note(f"{where}: the gradient of {name} holds NaN or infinity; {ADVICE}")
        if self._health.bad:
            flat.fill_(math.nan)
        self._replicas.all_reduce(flat)
        if not finite(flat):
            self._health.stop(f"epoch {epoch}: a sum of gradients is infinite; {ADVICE}", flat.device)
        for parameter, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
            parameter.grad = part.view_as(parameter)


def sum_gradients(model: nn.Module, exchange: FullGraph) -> None:
    """Add up every parameter's gradient over the ranks of an exchange, for a training loop of one's own.

    It comes between `backward()` and the update.
    """
    SumOfGradients(exchange.group, exchange.crossing.health).synchronise(model)


def _first_not_finite(model: nn.Module) -> str:
    """The first parameter whose gradient is not finite."""
    return next(name for name, p in model.named_parameters() if p.grad is not None and not finite(p.grad))
