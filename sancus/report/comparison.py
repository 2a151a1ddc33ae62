"""A comparison as text: one line a preset, mean ± deviation over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sancus.report.units import bytes_text, seconds_text

HEAD = [
    "preset",
    "test",
    "wire/epoch",
    "of first",
    "forward",
    "time/epoch",
    "compute",
    "communicate",
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
    line = [
        str(row["preset"]),
        f"{row['test']['mean']:.4f} ± {row['test']['deviation']:.4f}",
        bytes_text(row["wire_bytes"]["mean"]),
        _ratio(row["wire_ratio"]),
        _ratio(row["forward_ratio"]),
        f"{seconds_text(row['seconds']['mean'])} ± {seconds_text(row['seconds']['deviation'])}",
        seconds_text(row["compute_seconds"]["mean"]),
        seconds_text(row["comm_seconds"]["mean"]),
        f"{row['max_age']['mean']:g}",
        bytes_text(row["history_bytes"]["mean"]),
    ]
    if targeted:
        epochs, seconds = row["epochs_to_target"], row["seconds_to_target"]
        line += ["–", "–"] if epochs is None else [f"{epochs:g}", seconds_text(seconds)]
    return line


def _ratio(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"
