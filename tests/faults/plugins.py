"""Plug-ins that go wrong on one rank, in one epoch: by name, `--model tests.faults.plugins:Raises`.

Where and when is in the environment: `FAULT_RANK` and `FAULT_EPOCH`; when it happened goes to `FAULT_MARK`.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch

from sancus.codecs.base import Moment
from sancus.codecs.full import FullPrecision
from sancus.exchange.full_graph import FullGraph
from sancus.kernels.summed import Rowlike
from sancus.models.gcn import GCN
from sancus.staleness.base import Replicated, View

PATIENCE = 600.0  # for what hangs; the test ends it long before


def on_that_rank() -> bool:
    """Whether this process is the one that goes wrong."""
    return os.environ.get("RANK", os.environ.get("PMI_RANK")) == os.environ["FAULT_RANK"]


def mark() -> None:
    """Leave the time of the fault in `FAULT_MARK`, if that is asked for."""
    if "FAULT_MARK" in os.environ:
        Path(os.environ["FAULT_MARK"]).write_text(str(time.time()))


class _Faulty(GCN):
    """A GCN that does something else in one pass of one rank."""

    def forward(self, x: Rowlike, exchange: FullGraph) -> torch.Tensor:
        now = self.strikes() and exchange.group.clock.epoch == int(os.environ["FAULT_EPOCH"])
        if now and exchange.group.rank == int(os.environ["FAULT_RANK"]):
            mark()
            return self.fault(x, exchange)
        return super().forward(x, exchange)

    def strikes(self) -> bool:
        return self.training

    def fault(self, x: Rowlike, exchange: FullGraph) -> torch.Tensor:
        raise NotImplementedError


class Raises(_Faulty):
    """Has a bug."""

    def fault(self, x: Rowlike, exchange: FullGraph) -> torch.Tensor:
        raise ZeroDivisionError("I cannot stand this epoch")


class Waits(_Faulty):
    """Waits until a file is there: `FAULT_FILE`."""

    def fault(self, x: Rowlike, exchange: FullGraph) -> torch.Tensor:
        deadline = time.monotonic() + PATIENCE
        while not Path(os.environ["FAULT_FILE"]).exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        return GCN.forward(self, x, exchange)


class NotFinite(_Faulty):
    """NaN in a payload, a gradient, the loss, or in the evaluation: `FAULT_WHERE`."""

    spoils = False

    def strikes(self) -> bool:
        return self.training == (os.environ["FAULT_WHERE"] != "evaluation")

    def fault(self, x: Rowlike, exchange: FullGraph) -> torch.Tensor:
        where = os.environ["FAULT_WHERE"]
        if where == "gradient":
            last = list(self.parameters())[-1]
            handle = last.register_hook(lambda gradient: (handle.remove(), gradient * torch.nan)[1])
        self.spoils = where in ("payload", "evaluation")
        logits = GCN.forward(self, x, exchange)
        self.spoils = False
        return logits * torch.nan if where == "loss" else logits

    def activate(self, z: torch.Tensor) -> torch.Tensor:
        return super().activate(z) * (torch.nan if self.spoils else 1.0)


class Diverges(_Faulty):
    """One weight changes on one rank alone."""

    def fault(self, x: Rowlike, exchange: FullGraph) -> torch.Tensor:
        with torch.no_grad():
            next(iter(self.parameters())).view(-1)[0] += 1e-3
        return GCN.forward(self, x, exchange)


class BadPolicy(Replicated):
    """A policy with a bug on one rank."""

    max_age = 2

    def decide(self, view: View) -> bool:
        if on_that_rank() and view.epoch == int(os.environ["FAULT_EPOCH"]):
            mark()
            raise ZeroDivisionError("I cannot decide")
        return False


class BadCodec(FullPrecision):
    """A codec with a bug on one rank."""

    def encode(self, payload: torch.Tensor, moment: Moment, weight: torch.Tensor) -> torch.Tensor:
        if on_that_rank() and moment.stage > 0:
            mark()
            raise ZeroDivisionError("I cannot encode")
        return super().encode(payload, moment, weight)
