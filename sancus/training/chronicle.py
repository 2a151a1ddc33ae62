"""The chronicle of merges, at the rank that holds the weights: a log, figures of epochs, snapshots.

An *epoch* of asynchronous training is as many merges as there are ranks. At the end of each the chronicle
closes its figures, and keeps a snapshot of the weights where they are to be evaluated: on disk, so that
memory does not grow. All ranks evaluate the snapshots together once nobody trains any more.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import torch

from sancus.metrics.writer import EpochLines
from sancus.training.merging import Books, Row

LOG = "merges.jsonl"


class Chronicle:
    """What happened, merge by merge."""

    def __init__(self, ranks: int, wanted: Callable[[int], bool]) -> None:
        """`wanted(epoch)`: whether the weights after that epoch will be evaluated."""
        self._ranks = ranks
        self._wanted = wanted
        self._lines: EpochLines | None = None
        self._snapshots: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the run
        self._places: dict[int, int] = {}
        self._delays: list[int] = []
        self._age = 0
        self.facts: dict[int, dict[str, Any]] = {}  # of epochs that were not told yet

    def open(self, folder: Path, first_epoch: int, source: Path | None) -> None:
        """Write the log into a folder; lines of a run before, until `first_epoch`, stay."""
        before = None if source is None else source / LOG
        self._lines = EpochLines(folder / LOG, first_epoch, before)

    def note(self, row: Row, weights: torch.Tensor, books: Books, ages: list[int]) -> None:
        """A merge has been made; `ages` are those of the histories that its step used."""
        if self._lines is not None:
            self._lines.append(row)
        self._delays.append(row["merge"] - 1 - row["base"])
        self._age = max([self._age, *ages])
        if row["merge"] % self._ranks == 0:
            self._close(int(row["epoch"]), weights, books)

    def snapshot(self, epoch: int, like: torch.Tensor) -> torch.Tensor:
        """The weights `[k]` after an epoch, once."""
        self._snapshots.seek(self._places.pop(epoch))
        content = bytearray(self._snapshots.read(like.nbytes))
        if not self._places:  # all have been taken
            self._snapshots.seek(0)
            self._snapshots.truncate()
        return torch.frombuffer(content, dtype=like.dtype).clone()

    def end(self, weights: torch.Tensor) -> None:
        """Nobody trains any more: these are the weights after the last epoch."""
        last = max(self.facts)
        if last not in self._places:
            self._keep(last, weights)
            self.facts[last]["snapshot"] = True

    def _keep(self, epoch: int, weights: torch.Tensor) -> None:
        self._places[epoch] = self._snapshots.seek(0, 2)
        self._snapshots.write(weights.contiguous().view(torch.uint8).numpy().tobytes())

    def _close(self, epoch: int, weights: torch.Tensor, books: Books) -> None:
        self.facts[epoch] = {
            "loss": sum(books.losses),
            "trained_seconds": books.seconds,
            "weight_delay": sum(self._delays) / len(self._delays),
            "largest_delay": max(self._delays),
            "max_age": self._age,
            "snapshot": self._wanted(epoch),
        }
        self._delays, self._age = [], 0
        if self._wanted(epoch):
            self._keep(epoch, weights)
