"""Writes `metrics.jsonl`: one line an epoch, at once, so that a killed run keeps what it had."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any

from sancus.metrics.declared import METRICS, Metric


class EpochLines:
    """A file with a line of JSON an epoch, written at once; also `logs/rank-N.jsonl`."""

    def __init__(self, path: Path, first_epoch: int = 0, source: Path | None = None) -> None:
        """Start a new file; of `source`, else of an existing one, the lines before `first_epoch` stay.

        The old file is replaced in one step, so that a crash cannot leave half of it.
        """
        self.left_out = 0  # lines of the old file that cannot be read
        partial = path.with_name(f".{path.name}.partial")
        with partial.open("wb") as file:
            source = source or path
            if first_epoch and source.exists():
                self.left_out = copy_before(source, file, first_epoch)
        os.replace(partial, path)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND)
        self._backlog = b""
        self.trouble: str | None = None  # why the last lines could not be written yet

    def append(self, content: Mapping[str, Any]) -> None:
        """One more line. What a full disk refuses is kept, and written as soon as there is room."""
        self._backlog += json.dumps(content).encode() + b"\n"
        try:
            self._flush()
            self.trouble = None
        except OSError as error:
            self.trouble = error.strerror or str(error)

    def sync(self) -> None:
        """Return when all lines are on the disk, as far as it takes them: a checkpoint counts on them."""
        with contextlib.suppress(OSError):
            self._flush()
            os.fsync(self._file)

    def unwritten(self) -> bytes:
        """What still finds no room, behind what is in the file; the end of a line may be first."""
        with contextlib.suppress(OSError):
            self._flush()
        return self._backlog

    def close(self) -> None:
        """Write what is left, and close the file."""
        try:
            self._flush()
        finally:
            os.close(self._file)

    def _flush(self) -> None:
        while self._backlog:
            self._backlog = self._backlog[os.write(self._file, self._backlog) :]


class MetricsWriter(EpochLines):
    """Appends declared metrics to a file."""

    def __init__(self, path: Path, first_epoch: int = 0, measures: Iterable[Metric] = ()) -> None:
        """`measures` are the metrics that a run has beside those of every run."""
        super().__init__(path, first_epoch)
        self._names = {*METRICS, *(metric.name for metric in measures)}

    def write(self, record: Mapping[str, float | int | None]) -> None:
        """One epoch; a name that is not declared is a bug. JSON has no infinity: it becomes null."""
        assert set(record) == self._names, set(record) ^ self._names
        self.append(
            {name: value if value is None or math.isfinite(value) else None for name, value in record.items()}
        )


def copy_before(source: Path, target: IO[bytes], first_epoch: int) -> int:
    """Copy the lines of epochs before `first_epoch`; how many of those in between cannot be read.

    Not counted is a last line that its process, which was killed, left half-written.
    """
    bad = last_bad = 0
    with source.open("rb") as lines:
        for line in lines:
            bad, last_bad = bad + last_bad, 0
            epoch = epoch_of(line)
            if epoch is None:
                last_bad = 1
            elif epoch < first_epoch:
                target.write(line if line.endswith(b"\n") else line + b"\n")
    return bad


def epoch_of(line: bytes) -> int | None:
    """The epoch of a line; None where it is no record of an epoch."""
    try:
        return int(json.loads(line)["epoch"])
    except (ValueError, TypeError, LookupError, OverflowError, RecursionError):
        return None
