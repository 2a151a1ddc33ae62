"""Models that hang or eat memory, as users write them."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch

from sancus.models.gcn import GCN

MARK = "SANCUS_TEST_MARK"  # a file that tells the test how far it came


class Hangs(GCN):
    """Computes nothing any more after its first passes."""

    def forward(self, x: torch.Tensor, exchange: Any) -> torch.Tensor:
        calls = self.calls = getattr(self, "calls", 0) + 1
        if calls > 4:
            Path(os.environ[MARK]).write_text("I hang")
            time.sleep(1000)
        return super().forward(x, exchange)


class Eats(GCN):
    """Takes memory on rank 1 until there is none."""

    def forward(self, x: torch.Tensor, exchange: Any) -> torch.Tensor:
        if exchange.group.rank == 1:
            Path(os.environ[MARK]).write_text(str(os.getpid()))
            taken = [torch.ones(1 << 22) for _ in range(1 << 12)]
            assert len(taken) < 0, "there was memory for all of it"
        return super().forward(x, exchange)
