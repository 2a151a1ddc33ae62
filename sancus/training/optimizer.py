"""The optimiser of a run, from its settings."""

from __future__ import annotations

import torch
from torch import nn

from sancus.training.settings import TrainingSettings


def make_optimizer(model: nn.Module, settings: TrainingSettings) -> torch.optim.Optimizer:
    """Adam or SGD over all parameters; those of the graph layers may have a weight decay of their own."""
    decay, layer_decay = settings.weight_decay, settings.layer_weight_decay
    named = list(model.named_parameters())
    apart = {name for name, _ in named if layer_decay is not None and ".layers." in f".{name}"}
    groups = [
        {"params": [p for name, p in named if name not in apart], "weight_decay": decay},
        {"params": [p for name, p in named if name in apart], "weight_decay": layer_decay or 0.0},
    ]
    parameters = [group for group in groups if group["params"]]
    if settings.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=settings.lr, momentum=settings.momentum, weight_decay=decay)
    return torch.optim.Adam(parameters, lr=settings.lr, weight_decay=decay)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """The rate of the next update, for all parameters."""
    for group in optimizer.param_groups:
        group["lr"] = rate
