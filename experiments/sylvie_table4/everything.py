"""Models whose every hidden embedding and gradient is in one bit, own rows included (Sylvie §4.3).

What crosses is quantised by the codec; here the rows themselves are ("Quant All"): nothing is computed on
full values. Evaluation stays exact, as everywhere.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from sancus.kernels.bits import pack, unpack
from sancus.kernels.summed import Rowlike
from sancus.models import gat, gcn, sage
from sancus.models.neighbourhood import Neighbourhood
from sancus.models.stack import LayerStack

BITS = 1


class InOneBit(torch.autograd.Function):
    """Rows `[n, f]` as their one-bit code decodes, forward and backward."""

    @staticmethod
    def forward(context: Any, h: torch.Tensor) -> torch.Tensor:
        """The embeddings, encoded and decoded (eq. 3-5)."""
        return _coded(h)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> torch.Tensor:
        """The gradients of the embeddings, encoded and decoded."""
        return _coded(gradients[0])


def _coded(rows: torch.Tensor) -> torch.Tensor:
    seed = int(torch.randint(1 << 31, ()).item())
    code = pack(rows, BITS, seed, torch.arange(len(rows)))
    return unpack(code.data, code.zero, code.scale, BITS, rows.shape[1])


class Everything(LayerStack):
    """Quantises what every hidden layer takes in."""

    def apply_layer(
        self, layer: nn.Module, h: Rowlike, exchange: Neighbourhood, depth: int, dropout: float
    ) -> torch.Tensor:
        """The layer, on rows in one bit; the features stay as they are."""
        if self.training and depth and isinstance(h, torch.Tensor):
            coded: torch.Tensor = InOneBit.apply(h)
            h = coded
        return super().apply_layer(layer, h, exchange, depth, dropout)  # type: ignore[safe-super]


class GCN(Everything, gcn.GCN):
    """GCN in one bit."""


class GraphSAGE(Everything, sage.GraphSAGE):
    """GraphSAGE in one bit."""


class GAT(Everything, gat.GAT):
    """GAT in one bit."""
