"""Writes `metrics.jsonl`: one line an epoch, at once, so that a killed run keeps what it had."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sancus.metrics.declared import METRICS


class EpochLines:
    """A file with a line of JSON an epoch, written at once; also `logs/rank-N.jsonl`."""

    def __init__(self, path: Path, first_epoch: int = 0) -> None:
        """Start a new file; of an existing one the lines of epochs before `first_epoch` stay.

        The old file is replaced in one step, so that a crash cannot leave half of it.
        """
        partial = path.with_name(f".{path.name}.partial")
        partial.write_text(lines_before(path, first_epoch))
        os.replace(partial, path)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND)
        self._backlog = b""
        self.trouble: str | None = None  # why the last lines could not be written yet

    def append(self, content: Mapping[str, Any]) -> None:
        """One more line. What a full disk refuses is kept, and written as soon as there is room."""
        self._backlog += json.dumps(content).encode() + b"\n"
        try:
            while self._backlog:
                self._backlog = self._backlog[os.write(self._file, self._backlog) :]
            self.trouble = None
        except OSError as error:
            self.trouble = error.strerror or str(error)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


class MetricsWriter(EpochLines):
    """Appends declared metrics to a file."""

    def write(self, record: Mapping[str, float | int | None]) -> None:
        """One epoch; a name that is not declared is a bug. JSON has no infinity: it becomes null."""
        assert set(record) == set(METRICS), set(record) ^ set(METRICS)
        self.append(
            {name: value if value is None or math.isfinite(value) else None for name, value in record.items()}
        )


def lines_before(path: Path, first_epoch: int) -> str:
    """The lines of epochs before `first_epoch`, from a file with a line of JSON an epoch."""
    if not first_epoch or not path.exists():
        return ""
    lines = [line for line in path.read_text().splitlines() if _epoch_of(line) < first_epoch]
    return "".join(f"{line}\n" for line in lines)


def _epoch_of(line: str) -> float:
    """The epoch of a line; infinite for one that a killed process left half-written."""
    try:
        return int(json.loads(line)["epoch"])
    except ValueError:
        return math.inf
