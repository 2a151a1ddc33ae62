"""GCN (Kipf and Welling 2017)."""

from __future__ import annotations

import torch
from torch import nn

from sancus.kernels.summed import Rowlike
from sancus.models.neighbourhood import Neighbourhood
from sancus.models.stack import LayerStack, glorot


class GCNLayer(nn.Module):
    """`Z = Â H W + b`: the parameters."""

    def __init__(self, f_in: int, f_out: int) -> None:
        super().__init__()
        self.weight = glorot(f_in, f_out)
        self.bias = nn.Parameter(torch.zeros(f_out))


class GCN(LayerStack):
    """GCN: `Z^(ℓ) = Â H^(ℓ-1) W^(ℓ-1)` with symmetric normalisation (SANCUS eq. 2-3)."""

    normalisation = "symmetric"

    def make_layer(self, f_in: int, f_out: int, *, last: bool) -> GCNLayer:
        """Weight and bias."""
        return GCNLayer(f_in, f_out)

    def apply_layer(
        self, layer: nn.Module, h: Rowlike, exchange: Neighbourhood, depth: int, dropout: float
    ) -> torch.Tensor:
        """`Â dropout(H) W + b`."""
        assert isinstance(layer, GCNLayer)
        return exchange.propagate(h, depth, layer.weight, dropout).add_(layer.bias)
