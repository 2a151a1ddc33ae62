"""A model that takes training labels as input (label propagation, SuperGCN §3)."""

from __future__ import annotations

import torch
from torch import nn

from sancus.kernels.summed import Rowlike
from sancus.models.neighbourhood import Neighbourhood


class WithLabels(nn.Module):
    """Any model, on `X + M Y E`: embedded labels of a share of the training nodes are added to the input.

    In training a share `rate` of the training nodes shows its labels, and the loss is taken of the others.
    In evaluation all of them do.
    """

    widths: list[int] | None = None

    def __init__(self, model: nn.Module, *, classes: int, features: int, rate: float) -> None:
        super().__init__()
        self.model = model
        self.rate = rate
        self.embedding = nn.Parameter(nn.init.xavier_uniform_(torch.empty(classes, features)))

    def forward(self, x: Rowlike, exchange: Neighbourhood) -> torch.Tensor:
        """Features `[n_i, F]` to logits `[n_i, C]`; `x` is `exchange.input`."""
        assert x is exchange.input
        logits: torch.Tensor = self.model(
            exchange.labelled(self.embedding, self.rate if self.training else 1.0), exchange
        )
        return logits
