"""What products and packing cost on the machine at hand; `docs/kernels.md` shows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.engine.measured import Measured, span
from experiments.engine.tables import NOTHING, render

OURS = "native"
Row = Mapping[str, Any]


def table(measured: Measured) -> str:
    """Milliseconds of every product, its gathered GB/s as a share of STREAM, and times native."""
    rows = measured.content["rows"]
    widths = list(dict.fromkeys(row["columns"] for row in rows))
    head = [text for width in widths for text in (f"{width} columns, ms", "of STREAM", "times native")]
    cells = [["graph, product", *head]]
    for shape in dict.fromkeys(row["shape"] for row in rows):
        for product in dict.fromkeys(row["product"] for row in rows if row["shape"] == shape):
            line = [f"{shape}, {f'**{product}**' if product == OURS else product}"]
            for width in widths:
                line += _cells(rows, shape, product, width)
            cells.append(line)
    return render(cells)


def _cells(rows: list[Row], shape: str, product: str, width: int) -> list[str]:
    mine, ours = (_row(rows, shape, one, width) for one in (product, OURS))
    if mine is None or ours is None:
        return [NOTHING] * 3
    share = mine["gathered_gb"] / mine["stream_gb"]
    return [
        f"{mine['milliseconds']:.0f}",
        f"{share:.2f}",
        f"{mine['milliseconds'] / ours['milliseconds']:.1f}",
    ]


def _row(rows: list[Row], shape: str, product: str, width: int) -> Row | None:
    key = (shape, product, width)
    return next((row for row in rows if (row["shape"], row["product"], row["columns"]) == key), None)


def section(measured: Measured) -> str:
    """Command, machine, both tables."""
    first = measured.content["rows"][0]
    packing = measured.content["packing"]
    bits = [
        ["GB/s of float32, one thread", *(f"{row['bits']} bit{'s' * (row['bits'] > 1)}" for row in packing)]
    ]
    bits += [[name, *(f"{row[name]:.1f}" for row in packing)] for name in ("pack", "unpack")]
    return "\n\n".join(
        [
            f"    {measured.content['command']}",
            f"{measured.machine}; library: {measured.content['library']}; {first['threads']} thread"
            f"{'s' * (first['threads'] > 1)}, {first['clock']} time, float32.",
            table(measured),
            render(bits),
        ]
    )


def text(measured: Measured) -> str:
    """How native compares."""
    rows = measured.content["rows"]
    times = [
        float(row["milliseconds"] / ours["milliseconds"])
        for row in rows
        if row["product"] == "torch CSR" and (ours := _row(rows, row["shape"], OURS, row["columns"]))
    ]
    shares = [row["gathered_gb"] / row["stream_gb"] for row in rows if row["product"] == OURS]
    return (
        f"The torch product takes {span(f'{min(times):.1f}', f'{max(times):.1f}')} times as long as ours, which gathers "
        f"{span(f'{min(shares):.2f}', f'{max(shares):.2f}')} of the bytes a second that STREAM adds."
    )


def page(measured: Measured) -> str:
    """The same, for docs/kernels.md."""
    return f"{section(measured)}\n\n{text(measured)}"
