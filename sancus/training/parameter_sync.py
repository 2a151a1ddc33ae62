"""How replicas of a model stay equal: what happens to parameters before and after the update.

The loss of a rank is already divided by the global number of training nodes, so the gradient of the whole is
the plain sum over the ranks that hold the same parameters. Either that sum is made before the update, and all
optimisers do the same; or each replica takes a step of its own, and the weights are averaged after it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import torch
from torch import nn

from sancus.comm.group import Group
from sancus.exchange.full_graph import FullGraph
from sancus.exchange.health import ADVICE, Health, finite
from sancus.training.settings import Parameters


class ParameterSync(Protocol):
    """Called by all replicas at the same moments: after backward, and after the optimiser."""

    replicated: bool  # whether the optimisers of all replicas hold the same state

    def before_update(self, model: nn.Module) -> None:
        """Leave in every parameter's `grad` what the optimiser of this replica shall use."""
        ...

    def after_update(self, model: nn.Module) -> None:
        """Leave weights that are the same on all replicas."""
        ...


class SumOfGradients:
    """The gradient of all that is trained, added up over the replicas in one flat all-reduce."""

    replicated = True

    def __init__(self, replicas: Group, health: Health) -> None:
        self._replicas = replicas
        self._health = health

    def before_update(self, model: nn.Module) -> None:
        """Sum; where a number of this epoch is not finite on any rank, all ranks stop with the same error."""
        gradients = _gradients(model, self._replicas, self._health)
        total = _sum(gradients, "gradients", self._replicas, self._health)
        for parameter, part in zip(_trained(model).values(), total, strict=True):
            parameter.grad = part

    def after_update(self, model: nn.Module) -> None:
        """Nothing: equal gradients made equal weights."""


class AverageOfWeights:
    """Each replica takes a step of its own; then all take the mean of their weights (DIGEST, Algorithm 1).

    DIGEST's part `m` descends its local loss, `1/|V_m| Σ_v loss` (eq. 3). A rank's loss here is its share
    of the mean over the whole graph (§2: `1/|V| Σ_v loss`), so its gradient is taken `p` times: that is eq. 3
    for parts with equally many training nodes, and where they have not, the mean of the steps still descends
    the loss of the whole graph. Plain SGD, with momentum or without, then gives the weights of the sum; Adam
    does not, as its steps are not in proportion to the gradient. Its moments differ from rank to rank.
    """

    replicated = False

    def __init__(self, replicas: Group, health: Health) -> None:
        self._replicas = replicas
        self._health = health

    def before_update(self, model: nn.Module) -> None:
        """The gradient of this replica's own loss."""
        gradients = _gradients(model, self._replicas, self._health)
        for parameter, gradient in zip(_trained(model).values(), gradients, strict=True):
            parameter.grad = gradient * self._replicas.size

    def after_update(self, model: nn.Module) -> None:
        """The mean; where a number of this epoch is not finite on any rank, all stop with the same error."""
        weights = [parameter.detach() for parameter in _trained(model).values()]
        total = _sum(weights, "weights", self._replicas, self._health)
        for weight, part in zip(weights, total, strict=True):
            weight.copy_(part / self._replicas.size)


SYNCS: dict[Parameters, Callable[[Group, Health], ParameterSync]] = {
    "sum": SumOfGradients,
    "average": AverageOfWeights,
}


def sum_gradients(model: nn.Module, exchange: FullGraph) -> None:
    """Add up every parameter's gradient over the ranks of an exchange, for a training loop of one's own.

    It comes between `backward()` and the update.
    """
    make_sync(exchange).before_update(model)


def make_sync(exchange: FullGraph, parameters: Parameters = "sum") -> ParameterSync:
    """How the ranks of an exchange keep equal weights, for a training loop of one's own.

    `before_update(model)` comes between `backward()` and the optimiser's step, `after_update(model)` after.
    """
    return SYNCS[parameters](exchange.group, exchange.crossing.health)


def _trained(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that learn, by name; one that is frozen neither crosses nor moves."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def _gradients(model: nn.Module, replicas: Group, health: Health) -> list[torch.Tensor]:
    """Gradients of all that is trained, zeros where there is none; health hears of one that is not finite."""
    trained = _trained(model)
    gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in trained.values()]
    for name, gradient in zip(trained, gradients, strict=True):
        if not finite(gradient):
            where = f"rank {replicas.rank}, backward, epoch {replicas.clock.epoch}"
            health.note(f"{where}: the gradient of {name} holds NaN or infinity; {ADVICE}")
            break
    return gradients


def _sum(tensors: list[torch.Tensor], what: str, replicas: Group, health: Health) -> list[torch.Tensor]:
    """The sums over the replicas, in one flat all-reduce; NaN goes round where this rank met a bad number."""
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    if health.bad:
        flat.fill_(math.nan)
    replicas.all_reduce(flat)
    if not finite(flat):
        epoch = replicas.clock.epoch
        health.stop(f"epoch {epoch}: a sum of {what} is infinite; {ADVICE}", flat.device)
    parts = flat.split([tensor.numel() for tensor in tensors])
    return [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)]
