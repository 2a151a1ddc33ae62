"""ResGCN+ (Li, Xiong, Thabet and Ghanem 2020; GNNPipe §5.1)."""

from __future__ import annotations

import torch

from sancus.models.deep import DeepStack, Rows
from sancus.models.neighbourhood import Neighbourhood
from sancus.models.stack import Dense


class ResGCNPlus(DeepStack):
    """ResGCN+: norm, ReLU and dropout before each GCN layer, and the sum with its input, for many layers.

    `H^ℓ = H^(ℓ-1) + Â dropout(ReLU(norm(H^(ℓ-1)))) W^ℓ + b^ℓ`: the residual path is never cut. The logits
    see `ReLU(norm(H^L))`.
    """

    default_norm = "layer"
    last_norm = True

    def make_layer(self) -> Dense:
        """Weight and bias of a GCN layer."""
        return Dense(self.settings.hidden, self.settings.hidden)

    @property
    def carries(self) -> int:  # type: ignore[override]
        """`H` alone, so that a pipeline hands on one tensor; with jumping knowledge also what is joined."""
        return 1 if self.settings.jumping == "none" else 2

    def begin(self, first: torch.Tensor) -> Rows:
        """`H^0`."""
        return (first,)

    def step(self, depth: int, rows: Rows, exchange: Neighbourhood, dropout: float) -> Rows:
        """`H^ℓ`, with `ReLU(norm(H^ℓ))` before it where it is joined or classified."""
        layer, carried = self.layers[depth], rows[-1]
        assert isinstance(layer, Dense)
        h = rows[0] if len(rows) > 1 else torch.relu(self.normed(carried, exchange, depth))
        summed = exchange.propagate(h, depth, layer.weight, dropout)
        carried = exchange.targets(carried) + summed + layer.bias
        if self.carries == 1 and depth + 1 < len(self.layers):
            return (carried,)
        return torch.relu(self.normed(carried, exchange, depth + 1)), carried
