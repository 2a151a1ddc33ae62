"""A model in stages: `sancus train cora --ranks 2 --preset gnnpipe --model examples/staged_model.py:Net`."""

from functools import partial

import torch
from torch import nn


class Net(nn.Module):
    """`H ← H + tanh(Â H W)`, between two dense layers."""

    linear = True  # it only sums neighbours

    def __init__(self, features, hidden, classes, layers=2, **settings):
        super().__init__()
        self.first = nn.Parameter(nn.init.xavier_uniform_(torch.empty(features, hidden)))
        self.last = nn.Linear(hidden, classes)
        self.weights = nn.ParameterList(torch.eye(hidden) for _ in range(layers))

    def segments(self):
        """Each takes what the one before it gave, as a tuple, and what it may call of its neighbours."""
        layers = [partial(self.layer, ell) for ell in range(len(self.weights))]
        return [
            lambda state, graph: (graph.transform(state[0], 0, self.first),),
            *layers,
            lambda state, graph: (self.last(state[0]),),
        ]

    def layer(self, ell, state, graph):
        """One graph layer."""
        (h,) = state
        return (h + torch.tanh(graph.propagate(h, ell, self.weights[ell])),)

    def forward(self, x, graph):
        """All segments, one after another."""
        state = (x,)
        for segment in self.segments():
            state = segment(state, graph)
        return state[0]
