"""ResGCN+ (Li, Xiong, Thabet and Ghanem 2020; GNNPipe §5.1)."""

from __future__ import annotations

import torch

from sancus.models.deep import DeepStack
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

    def begin(self, first: torch.Tensor, exchange: Neighbourhood) -> tuple[torch.Tensor, torch.Tensor]:
        """A graph layer sees `ReLU(norm(H))`; `H` itself is carried along."""
        return torch.relu(self.normed(first, exchange, 0)), first

    def step(
        self, depth: int, h: torch.Tensor, carried: torch.Tensor, exchange: Neighbourhood, dropout: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`carried` is `H^(ℓ-1)`, `h` is `ReLU(norm(H^(ℓ-1)))`."""
        layer = self.layers[depth]
        assert isinstance(layer, Dense)
        carried = carried + exchange.propagate(h, depth, layer.weight, dropout) + layer.bias
        return torch.relu(self.normed(carried, exchange, depth + 1)), carried
