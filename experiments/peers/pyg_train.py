"""PyG, full batch, one process: GCNConv or SAGEConv on a CSR adjacency, its memory-efficient path."""

from __future__ import annotations

import argparse
import warnings
from itertools import pairwise

import torch
import torch.nn.functional as F
import torch_geometric
from common import Forward, main, widths
from torch_geometric.nn import GCNConv, SAGEConv
from torch_geometric.nn.conv.gcn_conv import gcn_norm


def make(graph: dict[str, torch.Tensor], settings: argparse.Namespace) -> tuple[torch.nn.Module, Forward]:
    """The layers, and a forward pass over the whole graph."""
    warnings.filterwarnings("ignore", message="Sparse")
    x, nodes = graph["x"], len(graph["y"])
    ones = torch.ones(len(graph["indices"]))
    adjacency = torch.sparse_csr_tensor(graph["indptr"], graph["indices"], ones, (nodes, nodes))
    if settings.model == "gcn":
        adjacency = gcn_norm(adjacency, num_nodes=nodes, add_self_loops=True)[0]
    pairs = pairwise(widths(graph, settings))
    convolution = {"gcn": lambda i, o: GCNConv(i, o, normalize=False), "sage": SAGEConv}[settings.model]
    layers = torch.nn.ModuleList(convolution(f_in, f_out) for f_in, f_out in pairs)

    def forward() -> torch.Tensor:
        h = x
        for depth, layer in enumerate(layers):
            h = F.dropout(h, settings.dropout, layers.training)
            h = layer(h, adjacency)
            h = h.relu() if depth < len(layers) - 1 else h
        return h

    return layers, forward


if __name__ == "__main__":
    main(make, {"torch": torch.__version__, "torch_geometric": torch_geometric.__version__})
