"""How much of a case is tried: a sample in `make test`, all of it in `make faults` (SANCUS_FAULTS is set)."""

from __future__ import annotations

import os


def everything() -> bool:
    """Whether all combinations are asked for."""
    return "SANCUS_FAULTS" in os.environ


def at_most(sample: int, full: int) -> int:
    """How often to try."""
    return full if everything() else sample
