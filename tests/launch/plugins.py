"""Plug-ins of a careless user, by name: `--model tests.launch.plugins:RaisesOnOne`."""

from __future__ import annotations

import torch

from sancus.exchange.exchange import Exchange
from sancus.kernels.matrix import SparseMatrix
from sancus.models.gcn import GCN


class RaisesOnOne(GCN):
    """A GCN that cannot stand rank 1."""

    def forward(self, x: torch.Tensor | SparseMatrix, exchange: Exchange) -> torch.Tensor:
        if exchange.transport.rank == 1:
            raise ZeroDivisionError("I cannot stand this rank")
        return super().forward(x, exchange)


class RaisesEverywhere(GCN):
    """A GCN with a bug."""

    def forward(self, x: torch.Tensor | SparseMatrix, exchange: Exchange) -> torch.Tensor:
        raise ZeroDivisionError("I have a bug")
