"""A comparison as text: one line a preset, mean ± deviation over seeds, bytes against the first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sancus.report.seconds import PARTS
from sancus.report.units import bytes_text, number_text, seconds_text
from sancus.report.volume import times_text

HEAD = [
    "preset",
    "test",
    "all bytes/epoch",
    "fewer",
    "payload alone",
    "fewer",
    "time/epoch",
    *PARTS.values(),
    "codec error",
    "max age",
    "history",
]


def comparison_rows(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Head and lines, ready to print; epochs and seconds to the target only where one was set."""
    head = list(HEAD)
    targeted = any(row["epochs_to_target"] is not None for row in rows)
    if targeted:
        head += ["epochs to target", "seconds to target"]
    return [head, *(_line(row, targeted=targeted) for row in rows)]


def _line(row: Mapping[str, Any], *, targeted: bool) -> list[str]:
    several = len(row["directories"]) > 1
    seconds = row["seconds"]
    line = [
        str(row["preset"]),
        _score(row["test"], several),
        bytes_text(row["all_bytes"]["mean"]),
        _fewer(row["all_ratio"]),
        bytes_text(row["wire_bytes"]["mean"]),
        _fewer(row["wire_ratio"]),
        seconds_text(seconds["mean"]) + (f" ± {seconds_text(seconds['deviation'])}" if several else ""),
        *(seconds_text(row[part]["mean"]) for part in PARTS),
        "–" if row["codec_error"] is None else number_text(row["codec_error"]),
        f"{row['max_age']['mean']:g}",
        bytes_text(row["history_bytes"]["mean"]),
    ]
    if targeted:
        epochs, until = row["epochs_to_target"], row["seconds_to_target"]
        line += ["–", "–"] if epochs is None else [f"{epochs:g}", seconds_text(until)]
    return line


def _score(spread: Mapping[str, float | None], several: bool) -> str:
    """Mean, ± deviation of several seeds; what no seed has (ROC-AUC without positives) is undefined."""
    mean, deviation = spread["mean"], spread["deviation"]
    if mean is None or deviation is None:
        return "undefined"
    return f"{mean:.4f} ± {deviation:.4f}" if several else f"{mean:.4f}"


def _fewer(share: float | None) -> str:
    """How many times fewer, from the share of the first preset's bytes."""
    return times_text(1 / share if share else None)
