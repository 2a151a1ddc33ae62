"""What headers, checks, finite tests and the watch cost; `docs/watch.md` shows it."""

from __future__ import annotations

from experiments.engine.measured import Measured, span
from experiments.engine.tables import render

PARTS = {
    "payload checksums": ("payload headers", "checks"),
    "finite?": ("finite",),
    "plain headers": ("plain headers",),
    "watch": ("watch",),
}
NAMES = {"mpi": "MPI"}


def table(measured: Measured) -> str:
    """Processor time of an epoch, and the share of every guard."""
    rows = [["transport, setting", "CPU ms an epoch", *PARTS]]
    for row in measured.content["rows"]:
        seconds = row["seconds"]
        shares = [
            sum(seconds.get(part, 0.0) for part in parts) / seconds["epoch"] for parts in PARTS.values()
        ]
        place = f"{NAMES.get(row['backend'], row['backend'])}, {row['case']}"
        rows.append([place, f"{1e3 * seconds['epoch']:.0f}", *(f"{100 * share:.1f} %" for share in shares)])
    return render(rows)


def section(measured: Measured) -> str:
    """Command, machine, table."""
    return f"    {measured.content['command']}\n\n{measured.machine}; {measured.content['graph']}, {measured.content['ranks']} ranks.\n\n{table(measured)}"


def text(measured: Measured) -> str:
    """The sum of them."""
    totals = []
    for row in measured.content["rows"]:
        seconds = row["seconds"]
        spent = sum(seconds.get(part, 0.0) for parts in PARTS.values() for part in parts)
        totals.append(100 * spent / seconds["epoch"])
    return f"All guards together take {span(f'{min(totals):.1f}', f'{max(totals):.1f} %')} of a rank's own processor time in an epoch."


def page(measured: Measured) -> str:
    """The same, for docs/watch.md."""
    return f"{section(measured)}\n\n{text(measured)}"
