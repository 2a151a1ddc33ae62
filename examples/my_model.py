"""A model of one's own: `sancus train cora --ranks 4 --model examples/my_model.py:Net`."""

import torch
from torch import nn


class Net(nn.Module):
    """Two layers of `Â H W`, with a skip from the features."""

    normalisation = "symmetric"  # which Â: symmetric, mean or sum

    def __init__(self, features: int, hidden: int, classes: int, dropout: float = 0.5, **settings) -> None:
        super().__init__()
        self.first = nn.Parameter(nn.init.xavier_uniform_(torch.empty(features, hidden)))
        self.second = nn.Parameter(nn.init.xavier_uniform_(torch.empty(hidden, classes)))
        self.skip = nn.Parameter(nn.init.xavier_uniform_(torch.empty(features, classes)))
        self.dropout = dropout

    def forward(self, x, exchange):
        """Features of the own rows to their logits."""
        dropout = self.dropout if self.training else 0.0
        h = torch.relu(exchange.propagate(x, layer=0, weight=self.first, dropout=dropout))
        return exchange.propagate(h, 1, self.second, dropout) + exchange.transform(x, 0, self.skip, dropout)
