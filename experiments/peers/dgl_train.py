"""DGL, full batch, one process: GraphConv or SAGEConv (mean), whose unweighted sums are its fastest path."""

from __future__ import annotations

import argparse
from itertools import pairwise

import dgl
import torch
import torch.nn.functional as F
from common import Forward, main, widths
from dgl.nn import GraphConv, SAGEConv


def make(graph: dict[str, torch.Tensor], settings: argparse.Namespace) -> tuple[torch.nn.Module, Forward]:
    """The layers, and a forward pass over the whole graph."""
    x = graph["x"]
    none = torch.empty(0, dtype=torch.int64)
    adjacency = dgl.graph(("csc", (graph["indptr"].long(), graph["indices"].long(), none)))
    if settings.model == "gcn":
        adjacency = dgl.add_self_loop(adjacency)
    adjacency = adjacency.formats(["csc", "csr"])
    adjacency.create_formats_()
    pairs = pairwise(widths(graph, settings))
    convolution = {"gcn": GraphConv, "sage": lambda i, o: SAGEConv(i, o, "mean")}[settings.model]
    layers = torch.nn.ModuleList(convolution(f_in, f_out) for f_in, f_out in pairs)

    def forward() -> torch.Tensor:
        h = x
        for depth, layer in enumerate(layers):
            h = F.dropout(h, settings.dropout, layers.training)
            h = layer(adjacency, h)
            h = h.relu() if depth < len(layers) - 1 else h
        return h

    return layers, forward


if __name__ == "__main__":
    main(make, {"torch": torch.__version__, "dgl": dgl.__version__})
