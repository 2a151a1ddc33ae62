"""PyG's layers inside a model of Sancus. Nothing of PyG is imported here: a layer comes from the user.

    class Net(torch.nn.Module):
        normalisation = "sum"                      # edges as they are; the layer normalises

        def __init__(self, features, hidden, classes):
            super().__init__()
            self.first = PyGLayer(SAGEConv(features, hidden))

        def forward(self, x, exchange):
            h = self.first(x, exchange, layer=0).relu()

A layer sees own rows first, then the rows that others sent, and the edges that end in own rows. So what it
computes for the own rows is what it computes for them in one process, and gradients return to their owners.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

from sancus.errors import UserError
from sancus.kernels.summed import Rowlike
from sancus.models.neighbourhood import Neighbourhood

WEIGHT, SIZE = "edge_weight", "size"  # how PyG's layers name weights of edges, and the number of rows


class PyGLayer(nn.Module):
    """`SAGEConv`, `GATConv`, `GATv2Conv`, `GINConv`, `GraphConv`, `GCNConv(normalize=False)` and their like.

    `GCNConv` takes `Â` from Sancus: it must not normalise, as a rank does not see the degrees of other
    ranks' nodes; leave the model's `normalisation` at `symmetric` for it. A layer that takes edge weights
    gets the entries of the model's `Â`.
    """

    def __init__(self, conv: nn.Module) -> None:
        super().__init__()
        name = type(conv).__name__
        if getattr(conv, "normalize", False) is True and hasattr(conv, "improved"):
            raise UserError(f"{name} normalises over its own edges; make it with normalize=False")
        self.conv = conv
        parameters = inspect.signature(conv.forward).parameters
        self._weighted, self._sized = WEIGHT in parameters, SIZE in parameters
        self._bipartite = name != "GCNConv"  # it alone refuses own rows apart from all rows

    def forward(self, h: Rowlike, exchange: Neighbourhood, layer: int, dropout: float = 0.0) -> torch.Tensor:
        """`[n_i, f_in]` to `[n_i, f_out]`; `layer` is a number of its own, `dropout` falls on `h`."""
        rows = exchange.rows(h, layer, dropout)
        matrix = exchange.local_rows
        own = matrix.shape[0]
        edges = torch.stack([matrix.csr.col.to(torch.int64), matrix.row_of_entries()])
        settings: dict[str, Any] = {WEIGHT: matrix.csr.value} if self._weighted else {}
        if self._bipartite:
            settings |= {SIZE: (len(rows), own)} if self._sized else {}
            out: torch.Tensor = self.conv((rows, rows[:own]), edges, **settings)
            return out
        out = self.conv(rows, edges, **settings)
        return out[:own]
