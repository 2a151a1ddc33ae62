"""ResGCN+ (Li, Xiong, Thabet and Ghanem 2020; GNNPipe §5.1)."""

from __future__ import annotations

import torch

from sancus.exchange.exchange import Exchange
from sancus.models.deep import DeepStack
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

    def steps(self, first: torch.Tensor, exchange: Exchange, dropout: float) -> list[torch.Tensor]:
        """`ReLU(norm(H^ℓ))` of every layer: what the next one, or the classifier, sees."""
        h = first
        active, made = torch.relu(self.normed(h, exchange, 0)), []
        for depth, layer in enumerate(self.layers):
            assert isinstance(layer, Dense)
            h = h + exchange.propagate(active, depth, layer.weight, dropout) + layer.bias
            active = torch.relu(self.normed(h, exchange, depth + 1))
            made.append(active)
        return made
