"""GIN (Xu, Hu, Leskovec and Jegelka 2019)."""

from __future__ import annotations

import torch
from torch import nn

from sancus.kernels.summed import Rowlike
from sancus.models.neighbourhood import Neighbourhood
from sancus.models.stack import Dense, LayerStack, glorot


class GINLayer(nn.Module):
    """`Z = MLP((1 + ε) H + A H)` with an MLP of two layers: the parameters."""

    def __init__(self, f_in: int, f_hidden: int, f_out: int) -> None:
        super().__init__()
        self.eps = nn.Parameter(torch.zeros(()))
        self.weight = glorot(f_in, f_hidden)
        self.bias = nn.Parameter(torch.zeros(f_hidden))
        self.second = Dense(f_hidden, f_out)


class GIN(LayerStack):
    """GIN: sum of the neighbours and (1 + ε) times the node itself, through an MLP (eq. 4.1).

    The first layer of the MLP is linear, so it is applied before the sum where that is narrower:
    `((1 + ε) H + A H) W = (1 + ε) H W + A (H W)`.
    """

    normalisation = "sum"
    one_weight = False  # the weight that crosses is the first of the MLP's two

    def make_layer(self, f_in: int, f_out: int, *, last: bool) -> GINLayer:
        """ε and an MLP `f_in → hidden → f_out`."""
        return GINLayer(f_in, self.settings.hidden, f_out)

    def apply_layer(
        self, layer: nn.Module, h: Rowlike, exchange: Neighbourhood, depth: int, dropout: float
    ) -> torch.Tensor:
        """`MLP((1 + ε) dropout(H) + A dropout(H))`, the same mask in both."""
        assert isinstance(layer, GINLayer)
        summed = exchange.propagate(h, depth, layer.weight, dropout)
        own = exchange.transform(exchange.targets(h), depth, layer.weight, dropout)
        z: torch.Tensor = layer.second(torch.relu(summed + (1.0 + layer.eps) * own + layer.bias))
        return z
