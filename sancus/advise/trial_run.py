"""A tiny run of `sancus train` in processes of its own, as any user starts one, and what came of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Trial:
    """What a run left; `failure` is its last line where it failed."""

    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)  # of every epoch
    failure: str = ""


def trial(data: str, flags: Sequence[str], timeout: float) -> Trial:
    """Train on `data` with these flags, in a throw-away folder."""
    with tempfile.TemporaryDirectory(prefix="sancus-doctor-") as folder:
        command = [sys.executable, "-m", "sancus", "train", data, *flags, "--quiet", "--out", f"{folder}/run"]
        try:
            done = subprocess.run(
                command,
                env=dict(os.environ) | {"SANCUS_HOME": folder},
                capture_output=True,
                text=True,
                timeout=timeout,
                check=False,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired:
            return Trial(failure=f"did not end within {timeout:.0f} s")
        report = Path(folder, "run", "report.html")
        if done.returncode or not report.exists():
            return Trial(failure=(done.stderr.strip().splitlines() or ["no message"])[-1])
        lines = Path(folder, "run", "metrics.jsonl").read_text().splitlines()
        records = [json.loads(line) for line in lines]
    return Trial([one["loss"] for one in records], [one["seconds"] for one in records])
