"""What depth does to the bytes of an epoch."""

from __future__ import annotations

from experiments.engine.measured import Measured
from experiments.engine.tables import render

PROMISED = 4.0  # times fewer than `exact`, at 32 layers


def table(measured: Measured) -> str:
    """Megabytes of an epoch, a row for every graph and depth."""
    head = ["graph", "layers", "rows over ranks, as published, MB", "`exact`, MB", "`gnnpipe`, MB"]
    rows = [[*head, "fewer than as published", "fewer than `exact`"]]
    for row in measured.content["rows"]:
        published, exact, staged = (row["all_bytes"][name] for name in ("published", "exact", "gnnpipe"))
        sizes = [f"{size / 1e6:.3g}" for size in (published, exact, staged)]
        times = [f"{size / staged:.1f} ×" for size in (published, exact)]
        rows.append([row["data"], str(row["layers"]), *sizes, *times])
    return render(rows)


def section(measured: Measured) -> str:
    """Command, machine, table, and what of it keeps the promise."""
    kept, missed = [], []
    for row in measured.content["rows"]:
        times = row["all_bytes"]["exact"] / row["all_bytes"]["gnnpipe"]
        name = f"{row['data']}, {row['layers']} layers: {times:.1f} ×"
        (kept if times >= PROMISED else missed).append(name)
    told = (
        f"At least {PROMISED:g} × fewer bytes than `exact`: {'; '.join(kept) or 'nowhere'}. Less: {'; '.join(missed) or 'nowhere'}. "
        "What stages hand on does not grow with depth; what ranks send each other does."
    )
    return f"    {measured.content['command']}\n\n{measured.machine}.\n\n{table(measured)}\n\n{told}"
