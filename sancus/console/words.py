"""An epoch in words, and how long the others will take."""

from __future__ import annotations

import time
from collections.abc import Mapping

from sancus.report.units import bytes_text, seconds_text

Record = Mapping[str, float | int | None]


class Pace:
    """Estimates how long the remaining epochs take, from the time of the ones before."""

    def __init__(self) -> None:
        self._first: tuple[int, float] | None = None

    def remaining(self, record: Record, epochs: int) -> str:
        """Time left in words; empty before two epochs have ended."""
        epoch, now = int(record["epoch"] or 0), time.monotonic()
        if self._first is None:
            self._first = epoch, now
        first, start = self._first
        if epoch == first or epoch + 1 == epochs:
            return ""
        return seconds_text((now - start) / (epoch - first) * (epochs - 1 - epoch))


def _score(value: float | None) -> str:
    """A score of an epoch that was evaluated; ROC-AUC without a positive label is undefined."""
    return "undefined" if value is None else f"{value:.4f}"


def figures(record: Record) -> list[str]:
    """An epoch in a few words: loss, scores, all bytes, share skipped, age, and where the seconds went."""

    def value(name: str) -> float:
        return record.get(name) or 0.0

    words = [f"loss {value('loss'):.4f}"]
    if any(record.get(split) is not None for split in ("train", "val", "test")):
        words += [f"{split} {_score(record[split])}" for split in ("val", "test") if split in record]
    purposes = ("wire_bytes", "boundary_bytes", "topology_bytes", "agreement_bytes", "parameter_bytes")
    words.append(bytes_text(sum(map(value, purposes))))
    decisions = value("sends") + value("skips")
    if value("skips"):
        words.append(f"skipped {100 * value('skips') / decisions:.0f} %")
    if value("max_age"):
        words.append(f"age {value('max_age'):.0f}")
    waiting = value("waiting_seconds")
    parts = (value("compute_seconds"), value("comm_seconds") - waiting, waiting)
    compute, comm, wait = map(seconds_text, parts)
    return [*words, f"{seconds_text(value('seconds'))}: compute {compute} | comm {comm} | wait {wait}"]
