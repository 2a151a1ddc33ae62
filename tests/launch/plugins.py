"""Plug-ins of a careless user, by name: `--model tests.launch.plugins:RaisesOnOne`."""

from __future__ import annotations

import atexit
import os
import signal
import traceback
from typing import Any

import torch

from sancus.exchange.full_graph import FullGraph
from sancus.kernels.matrix import SparseMatrix
from sancus.models.gcn import GCN


class RaisesOnOne(GCN):
    """A GCN that cannot stand rank 1."""

    def forward(self, x: torch.Tensor | SparseMatrix, exchange: FullGraph) -> torch.Tensor:
        if exchange.group.rank == 1:
            raise ZeroDivisionError("I cannot stand this rank")
        return super().forward(x, exchange)


class RaisesEverywhere(GCN):
    """A GCN with a bug."""

    def forward(self, x: torch.Tensor | SparseMatrix, exchange: FullGraph) -> torch.Tensor:
        raise ZeroDivisionError("I have a bug")


class SeesTheEnd(GCN):
    """A GCN that tells when Python takes its process apart."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        atexit.register(print, "taken apart", flush=True)


class NamesItsCallers(GCN):
    """A GCN that prints, at its first layer, the modules that stand between the command and itself."""

    def forward(self, x: torch.Tensor | SparseMatrix, exchange: FullGraph) -> torch.Tensor:
        if exchange.group.rank == 0 and exchange.group.clock.epoch == 0 and self.training:
            modules = [frame.f_globals["__name__"] for frame, _ in traceback.walk_stack(None)]
            print("callers", *reversed(modules), flush=True)
        return super().forward(x, exchange)


class LeavesThenHangs(GCN):
    """A GCN that ends its rank in the first attempt, and waits for ever in the next, before it trains."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        if os.environ["SANCUS_ATTEMPT"] == "0":
            os._exit(1)
        signal.pause()
