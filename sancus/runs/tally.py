"""The tally of a run: sums and maxima of its epochs, which a checkpoint carries along."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sancus.metrics.declared import METRICS
from sancus.training.consensus import Record
from sancus.training.times import PARTS

SECONDS = ("seconds", "compute_seconds", "comm_seconds", "hidden_seconds", *PARTS)


@dataclass
class Tally:
    """Sums and maxima of the epochs so far, earlier processes of a resumed run included."""

    seconds: dict[str, float | None] = field(default_factory=lambda: dict.fromkeys(SECONDS, 0.0))
    max_age: int = 0
    max_drift: float | None = None
    measures: dict[str, float] = field(default_factory=dict)  # of the schedule, over `measured` epochs
    measured: int = 0

    def add(self, record: Record) -> None:
        """Add the figures of one more epoch."""
        for name, total in self.seconds.items():
            self.seconds[name] = None if total is None else total + (record[name] or 0.0)
        self.max_age = max(self.max_age, int(record["max_age"] or 0))
        if record["max_drift"] is not None:
            self.max_drift = max(self.max_drift or 0.0, record["max_drift"])
        self.measured += 1
        for name in record.keys() - METRICS.keys():
            self.measures[name] = self.measures.get(name, 0.0) + (record[name] or 0.0)

    def per_epoch(self, epochs: int) -> dict[str, float | None]:
        """Means for `run.json`; None where an earlier process did not measure."""
        return {
            f"{name}_per_epoch": None if total is None else total / max(1, epochs)
            for name, total in self.seconds.items()
        }

    def measures_per_epoch(self) -> dict[str, float]:
        """Means of what the schedule measured."""
        return {name: total / max(1, self.measured) for name, total in sorted(self.measures.items())}

    def to_dict(self) -> dict[str, Any]:
        """One table, for a checkpoint."""
        maxima = {"max_age": self.max_age, "max_drift": self.max_drift}
        return {**self.seconds, **maxima, "measures": self.measures, "measured": self.measured}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Tally:
        """The tally of a checkpoint; in one of a version that did not split seconds, no part is known."""
        seconds = {name: plain.get(name) for name in SECONDS}
        if not plain.keys() >= set(PARTS):
            seconds |= dict.fromkeys(PARTS)
        measures = dict(plain.get("measures", {}))
        return cls(seconds, plain["max_age"], plain["max_drift"], measures, plain.get("measured", 0))
