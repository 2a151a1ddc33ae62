"""Which broadcast is faster here: the library's, or the ring."""

from __future__ import annotations

import time
from typing import Literal

import torch

from sancus.comm.group import Group
from sancus.comm.ledger import AGREEMENT, Entry

Broadcast = Literal["auto", "ring", "library"]
PROBE_BYTES = 1 << 20
REPEATS = 3


def choose_broadcast(group: Group, method: Broadcast, device: torch.device) -> None:
    """Set how the group broadcasts; `auto` takes what a short probe finds faster for the slowest rank.

    The measured times are gathered, so all ranks choose the same. The choice changes no number.
    """
    group.ring = method == "ring"
    if method != "auto" or group.size == 1:
        return
    best = torch.full((2,), float("inf"), dtype=torch.float64, device=device)
    tensor = torch.zeros(PROBE_BYTES, dtype=torch.uint8, device=group.transport.device)
    for _ in range(REPEATS):
        for place, ring in enumerate((False, True)):
            group.ring = ring
            group.all_gather(best, AGREEMENT)
            started = time.perf_counter()
            for owner in range(group.size):
                group.broadcast(tensor, owner, Entry("probe")).wait()
            best[place] = min(best[place].item(), time.perf_counter() - started)
    slowest = group.all_gather(best, AGREEMENT).amax(dim=0)
    group.ring = bool(slowest[1] < slowest[0])
