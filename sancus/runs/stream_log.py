"""`logs/rank-N.jsonl`: what one rank did, one line an epoch, flushed, so that a killed rank leaves its story.

Each line has the rank's own figures and, for every stream that it owns, `[layer, direction, answer, age,
drift, codec_error, codec_noise]`: the age of what receivers held when the answer was given, and drift and the
codec's errors where they were measured. What is written here is forgotten by the exchange, so that neither
memory nor checkpoints grow with the epochs; at its end a run reads `decisions.npz` out of these files.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from sancus.exchange.crossing import Crossing
from sancus.exchange.decisions import UNUSED
from sancus.exchange.figures import run_log
from sancus.metrics.writer import EpochLines, epoch_of
from sancus.report.ages import DIRECTIONS
from sancus.report.rank_logs import ANSWERS, Rows, read_rows, rows_from
from sancus.training.times import PARTS
from sancus.training.trainer import Trainer

FIGURES = ("seconds", "comm_seconds", *PARTS, "loss", "wire_bytes", "saved_bytes", "history_bytes")
NAMES = {number: name for name, number in ANSWERS.items()}


class StreamLog:
    """Appends one line an epoch."""

    def __init__(self, folder: Path, rank: int, trainer: Trainer, source: Path | None = None) -> None:
        """Begin the file; or go on with that of an earlier process, which is in the folder `source`."""
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"rank-{rank}.jsonl"
        self._crossing, self._owner = trainer.exchange.crossing, trainer.exchange.group.rank
        before = None if source is None else source / self._path.name
        self._lines = EpochLines(self._path, trainer.next_epoch, before)
        older = rows_in_memory(self._crossing, self._owner)
        if len(older):
            self._lines.close()
            _add_rows(self._path, older)
            self._lines = EpochLines(self._path, trainer.next_epoch)
            self._crossing.forget()

    def write(self, trainer: Trainer) -> None:
        """Append the line of the epoch that just ended."""
        streams = [
            [
                row.stream.layer,
                row.stream.direction,
                row.answer.name,
                row.age,
                row.drift,
                row.codec_error,
                row.codec_noise,
            ]
            for row in self._crossing.figures().streams
        ]
        line = {"epoch": self._crossing.clock.epoch} | {name: trainer.figures[name] for name in FIGURES}
        self._lines.append(line | {"streams": streams})
        self._crossing.forget()

    def sync(self) -> None:
        """Return when all lines are on the disk."""
        self._lines.sync()

    def rows(self) -> Rows:
        """What all lines say of the streams of this rank, also those that a full disk has refused."""
        return read_rows(self._path, self._owner, self._lines.unwritten())


def rows_in_memory(crossing: Crossing, owner: int) -> Rows:
    """What an exchange has not forgotten of an owner: all where there is no log, or an older checkpoint's."""
    log = run_log(crossing)
    drifts = {tuple(place): drift for *place, drift in log.measured}
    looks = {tuple(place): (error, noise) for *place, error, noise in log.errors}
    own = log.decisions[..., owner] if log.decisions.size else np.zeros((0, 0, 0), np.int8)

    def value(measured: float | None) -> float:
        return float("nan") if measured is None else measured

    def row(epoch: int, layer: int, side: int) -> tuple[float, ...]:
        place = (epoch, layer, side, owner)
        measured = (drifts.get(place), *looks.get(place, (None, None)))
        return (*place, int(own[epoch, layer, side]), *map(value, measured))

    return rows_from(row(*place) for place in np.argwhere(own != UNUSED).tolist())


def _add_rows(path: Path, rows: Rows) -> None:
    """Put the rows of an older checkpoint into the lines of their epochs, or into lines of their own."""
    lines: dict[int, dict[str, Any]] = {}
    for line in path.read_bytes().splitlines():
        epoch = epoch_of(line)
        if epoch is not None:
            lines[epoch] = json.loads(line)
    sent: dict[tuple[int, int], int] = {}  # the last epoch in which each stream was
    fresh: set[int] = set()
    for epoch, layer, side, _, answer, *measured in rows.tolist():
        if epoch not in fresh:
            fresh.add(epoch)
            lines[epoch] = lines.get(epoch, {"epoch": epoch}) | {"streams": []}
        age = epoch - sent[layer, side] if (layer, side) in sent else None
        values = [None if value != value else value for value in measured]
        lines[epoch]["streams"].append([layer, DIRECTIONS[side], NAMES[answer], age, *values])
        if NAMES[answer] != "SKIP":
            sent[layer, side] = epoch
    with path.open("w") as file:
        file.writelines(json.dumps(lines[epoch]) + "\n" for epoch in sorted(lines))
