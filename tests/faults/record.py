"""What was tried and what was caught: a line of JSON for each case, for the table of `docs/faults.md`."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path


def record(case: str, backend: str, tried: int, caught: int, seconds: Sequence[float] = ()) -> None:
    """Append a line to the file that SANCUS_FAULTS_OUT names; nothing where it names none."""
    name = os.environ.get("SANCUS_FAULTS_OUT")
    if name:
        line = {"case": case, "backend": backend, "tried": tried, "caught": caught, "seconds": list(seconds)}
        with Path(name).open("a") as file:
            file.write(json.dumps(line) + "\n")
