"""Which broadcast is faster here: the library's, or the ring."""

from __future__ import annotations

import time
from typing import Literal

import torch

from sancus.comm.group import AGREEMENT, Group
from sancus.comm.ledger import Entry

Broadcast = Literal["auto", "ring", "library"]
PROBE_BYTES = 1 << 20
REPEATS = 3


def choose_broadcast(transport: Group, asked: Broadcast, device: torch.device) -> None:
    """Set the transport's method; `auto` takes what a short probe finds faster for the slowest rank.

    The measured times are gathered, so all ranks choose the same. The choice changes no number.
    """
    transport.ring = asked == "ring"
    if asked != "auto" or transport.size == 1:
        return
    best = torch.full((2,), float("inf"), dtype=torch.float64, device=device)
    tensor = torch.zeros(PROBE_BYTES, dtype=torch.uint8, device=device)
    for _ in range(REPEATS):
        for place, ring in enumerate((False, True)):
            transport.ring = ring
            transport.all_gather(best, AGREEMENT)
            started = time.perf_counter()
            for owner in range(transport.size):
                transport.broadcast(tensor, owner, Entry("probe")).wait()
            best[place] = min(best[place].item(), time.perf_counter() - started)
    slowest = transport.all_gather(best, AGREEMENT).amax(dim=0)
    transport.ring = bool(slowest[1] < slowest[0])
