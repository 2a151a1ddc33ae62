"""GCNII (Chen, Wei, Huang, Ding and Li 2020)."""

from __future__ import annotations

import math

import torch
from torch import nn

from sancus.models.deep import DeepStack, Rows
from sancus.models.neighbourhood import Neighbourhood
from sancus.models.stack import glorot


class GCNIILayer(nn.Module):
    """`W^ℓ`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = glorot(width, width)


class GCNII(DeepStack):
    """GCNII: initial residual and identity mapping, for many layers (Chen et al. 2020, eq. 5).

    `H^ℓ = σ(((1 − α) Â H^(ℓ-1) + α H^0) ((1 − β_ℓ) I + β_ℓ W^ℓ))` with `β_ℓ = log(λ/ℓ + 1)`.
    """

    carries = 2

    def make_layer(self) -> GCNIILayer:
        """One square weight."""
        return GCNIILayer(self.settings.hidden)

    def begin(self, first: torch.Tensor) -> Rows:
        """Every layer also sees the rows of the dense layer."""
        first = torch.relu(first)
        return first, first

    def step(self, depth: int, rows: Rows, exchange: Neighbourhood, dropout: float) -> Rows:
        """Eq. 5, of `H^(ℓ-1)` and `H^0`."""
        h, carried = rows
        layer, alpha = self.layers[depth], self.settings.gcnii_alpha
        assert isinstance(layer, GCNIILayer)
        beta = math.log(self.settings.gcnii_lambda / (depth + 1) + 1.0)
        summed = exchange.propagate(h, depth, dropout=dropout)
        carried = exchange.targets(carried)
        support = (1.0 - alpha) * summed + alpha * carried
        z = (1.0 - beta) * support + beta * (support @ layer.weight)
        z = torch.relu(self.normed(z, exchange, depth))
        return (z + exchange.targets(h) if self.settings.residual else z), carried
