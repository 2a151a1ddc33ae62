"""PyG's layers on many ranks (extra `pyg`): `sancus train cora --model examples/pyg_model.py:Net`."""

import torch
from torch import nn
from torch_geometric.nn import GATConv, SAGEConv

from sancus.models.pyg import PyGLayer


class Net(nn.Module):
    """SAGE, then attention."""

    normalisation = "sum"  # edges as they are: these layers normalise themselves

    def __init__(self, features: int, hidden: int, classes: int, dropout: float = 0.5) -> None:
        super().__init__()
        self.first = PyGLayer(SAGEConv(features, hidden))
        self.second = PyGLayer(GATConv(hidden, classes, heads=2, concat=False))
        self.dropout = dropout

    def forward(self, x, exchange):
        """Features of the own rows to their logits."""
        dropout = self.dropout if self.training else 0.0
        h = torch.relu(self.first(x, exchange, layer=0, dropout=dropout))
        return self.second(h, exchange, layer=1, dropout=dropout)
