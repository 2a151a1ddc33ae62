"""How often a fault is tried: a few times in `make test`, as often as the table says in `make faults`."""

from __future__ import annotations

import os

FULL = "full"


def tries(sample: int, full: int) -> int:
    """`sample` times SANCUS_FAULTS (default 1), at most `full`; SANCUS_FAULTS=full: `full`."""
    asked = os.environ.get("SANCUS_FAULTS", "1")
    return full if asked == FULL else min(full, sample * int(asked))


def everything() -> bool:
    """Whether all combinations are asked for."""
    return os.environ.get("SANCUS_FAULTS") == FULL
