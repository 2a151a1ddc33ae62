"""How often a fault is tried, and what came of it.

`SANCUS_FAULTS=N` (make faults) tries every case N times; without it each test tries its small sample.
`SANCUS_FAULTS_OUT=FILE` collects one JSON line a case: tried, caught, seconds to detect.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest


def tries(sample: int = 1) -> int:
    """How often to try; a case that is not in the sample is skipped."""
    asked = int(os.environ.get("SANCUS_FAULTS", sample))
    if not asked:
        pytest.skip("not in the sample of make test; make faults runs it")
    return asked


def record(case: str, backend: str, tried: int, caught: int, seconds: Sequence[float] = ()) -> None:
    """One line of the fault matrix."""
    out = os.environ.get("SANCUS_FAULTS_OUT")
    if out is not None:
        line = {"case": case, "backend": backend, "tried": tried, "caught": caught, "seconds": list(seconds)}
        with Path(out).open("a") as file:
            file.write(json.dumps(line) + "\n")
