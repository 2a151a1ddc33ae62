"""The table of docs/choosing.md."""

from __future__ import annotations

from experiments.engine.measured import Measured
from experiments.engine.tables import cell, render


def page(measured: Measured) -> str:
    """All bytes, payload and accuracy of five presets."""
    rows = [
        [
            "preset",
            "test",
            "all bytes an epoch",
            "of cagnet",
            "payload an epoch",
            "of cagnet",
            "oldest history",
            "history a rank",
        ]
    ]
    for preset in measured.labels("preset"):
        cells = [cell(measured.cases(preset=preset), "test")]
        for size, share in (("all_mb", "all_share"), ("wire_mb", "wire_share")):
            cells += [f"{measured.show(size, preset=preset)} MB", measured.show(share, preset=preset)]
        cells += [measured.show("max_age", preset=preset), f"{measured.show('history_mb', preset=preset)} MB"]
        rows.append([f"`{preset}`", *cells])
    return f"({measured.machine}; mean of {measured.seeds} seeds)\n\n{render(rows)}"
