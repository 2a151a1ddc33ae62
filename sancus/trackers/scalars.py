"""The figures of an epoch under the names by which trackers show them: in groups, `bytes/wire_bytes`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sancus.metrics.declared import METRICS
from sancus.trackers.base import Record


def _in_unit(unit: str) -> tuple[str, ...]:
    return tuple(name for name, metric in METRICS.items() if metric.unit == unit)


GROUPS = {
    "score": ("train", "val", "test"),
    "bytes": _in_unit("B"),
    "seconds": _in_unit("s"),
    "staleness": ("sends", "skips", "max_age", "max_drift"),
    "codec": ("codec_error", "codec_noise"),
}
FINAL = ("test", "val", "best_epoch", "seconds_per_epoch")  # of a run's result
_GROUP_OF = {name: group for group, names in GROUPS.items() for name in names}


def epoch_of(record: Record) -> int:
    """The epoch of these figures."""
    return int(record["epoch"] or 0)


def scalars(record: Record) -> dict[str, float]:
    """Every figure that has a value, by its grouped name."""
    return {
        f"{_GROUP_OF[name]}/{name}" if name in _GROUP_OF else name: float(value)
        for name, value in record.items()
        if name != "epoch" and value is not None
    }


def flat(config: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Settings without sections, `training.epochs`; those that were not given are left out."""
    out: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            out |= flat(value, f"{before}{name}.")
        elif value is not None:
            out[f"{before}{name}"] = value
    return out
