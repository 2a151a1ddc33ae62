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
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from sancus.errors import UserError
from sancus.kernels.summed import Rowlike
from sancus.models.neighbourhood import Neighbourhood

NEEDS_EDGES = ("GINEConv", "NNConv", "CGConv", "ECConv", "GMMConv", "SplineConv", "PDNConv")
WEIGHT, SIZE = "edge_weight", "size"  # how PyG's layers name weights of edges, and the number of rows


class PyGLayer(nn.Module):
    """`SAGEConv`, `GATConv`, `GATv2Conv`, `GINConv`, `GraphConv`, `GCNConv(normalize=False)` and their like.

    `GCNConv` takes `Â` from Sancus: it must not normalise, as a rank does not see the degrees of other
    ranks' nodes; leave the model's `normalisation` at `symmetric` for it. A layer that takes edge weights
    gets the entries of the model's `Â`. Edges have no features: a layer that needs them is refused.
    """

    def __init__(self, conv: nn.Module, call: Callable[..., torch.Tensor] | None = None) -> None:
        """`call` computes what `conv` does, where that is not to be called itself."""
        super().__init__()
        name = type(conv).__name__
        if getattr(conv, "normalize", False) is True and hasattr(conv, "improved"):
            raise UserError(f"{name} normalises over its own edges; make it with normalize=False")
        self.conv = conv
        self._call = [call or conv]  # a list: `conv` is a module of this one already
        parameters = inspect.signature(type(conv).forward).parameters
        self._weighted, self._sized = WEIGHT in parameters, SIZE in parameters
        self._bipartite = not hasattr(conv, "improved")  # GCNConv alone refuses own rows apart from all rows
        if self._bipartite and "Tuple" not in str(parameters["x"].annotation):
            raise UserError(
                f"{name} wants one set of rows, as it looks several hops far or at degrees; a rank has its "
                "own rows and those of their neighbours: take SAGEConv, GATConv, GINConv or GraphConv"
            )
        if getattr(conv, "edge_dim", None) is not None:
            raise UserError(
                f"{name} was made for features of edges (edge_dim={conv.edge_dim}), which are not used here; "
                "make it without"
            )
        if name in NEEDS_EDGES:
            raise UserError(
                f"{name} needs features of edges (edge_attr), which are not used here; take GINConv"
            )

    def forward(self, h: Rowlike, exchange: Neighbourhood, layer: int, dropout: float = 0.0) -> torch.Tensor:
        """`[n_i, f_in]` to `[n_i, f_out]`; `layer` is a number of its own, `dropout` falls on `h`."""
        rows = exchange.rows(h, layer, dropout)
        matrix = exchange.local_rows
        own = matrix.shape[0]
        edges = torch.stack([matrix.csr.col.to(torch.int64), matrix.row_of_entries()])
        settings: dict[str, Any] = {WEIGHT: matrix.csr.value} if self._weighted else {}
        if self._bipartite:
            settings |= {SIZE: (len(rows), own)} if self._sized else {}
            out: torch.Tensor = self._call[0]((rows, rows[:own]), edges, **settings)
            return out
        out = self._call[0](rows, edges, **settings)
        return out[:own]
