"""GraphSAGE with mean aggregation (Hamilton, Ying and Leskovec 2017)."""

from __future__ import annotations

import torch
from torch import nn

from sancus.kernels.summed import Rowlike
from sancus.models.neighbourhood import Neighbourhood
from sancus.models.stack import LayerStack, glorot


class SAGELayer(nn.Module):
    """`Z = D⁻¹A H W_neighbours + H W_self + b`: the parameters."""

    def __init__(self, f_in: int, f_out: int) -> None:
        super().__init__()
        self.neighbours = glorot(f_in, f_out)
        self.own = glorot(f_in, f_out)
        self.bias = nn.Parameter(torch.zeros(f_out))


class GraphSAGE(LayerStack):
    """GraphSAGE: mean of the neighbours and the node itself, each with its own weight."""

    normalisation = "mean"

    def make_layer(self, f_in: int, f_out: int, *, last: bool) -> SAGELayer:
        """Two weights and a bias."""
        return SAGELayer(f_in, f_out)

    def apply_layer(
        self, layer: nn.Module, h: Rowlike, exchange: Neighbourhood, depth: int, dropout: float
    ) -> torch.Tensor:
        """`Â dropout(H) W_neighbours + dropout(H) W_self + b`, the same mask in both."""
        assert isinstance(layer, SAGELayer)
        aggregated = exchange.propagate(h, depth, layer.neighbours, dropout)
        own = exchange.transform(exchange.targets(h), depth, layer.own, dropout)
        return aggregated.add_(own).add_(layer.bias)
