"""`logs/rank-N.jsonl`: what one rank did, one line an epoch, flushed, so that a killed rank leaves its story.

Each line has the rank's own figures and, for every stream that it owns, `[layer, direction, answer, age,
drift, codec_error]`: the age of what receivers held when the answer was given, and drift and the codec's
error where they were measured.
"""

from __future__ import annotations

from pathlib import Path

from sancus.metrics.writer import EpochLines
from sancus.training.times import PARTS
from sancus.training.trainer import Trainer

FIGURES = ("seconds", "comm_seconds", *PARTS, "loss", "wire_bytes", "saved_bytes", "history_bytes")


class StreamLog:
    """Appends one line an epoch."""

    def __init__(self, folder: Path, rank: int, first_epoch: int = 0) -> None:
        """Begin the file, or go on with that of an earlier process after the epochs before `first_epoch`."""
        folder.mkdir(parents=True, exist_ok=True)
        self._lines = EpochLines(folder / f"rank-{rank}.jsonl", first_epoch)

    def write(self, trainer: Trainer) -> None:
        """Append the line of the epoch that just ended."""
        crossing = trainer.exchange.crossing
        streams = [
            [row.stream.layer, row.stream.direction, row.answer.name, row.age, row.drift, row.codec_error]
            for row in crossing.figures().streams
        ]
        line = {"epoch": crossing.clock.epoch} | {name: trainer.figures[name] for name in FIGURES}
        self._lines.append(line | {"streams": streams})
