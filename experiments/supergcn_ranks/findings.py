"""What the plans say of volume against ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.engine.measured import Measured, span
from experiments.engine.tables import render

COLUMNS = 256  # of the paper's hidden layers
INT2_BYTES = COLUMNS * 2 // 8 + 4  # a row: levels, and zero point and scale in bfloat16 (tail=short)
FP32_BYTES = 4 * COLUMNS


def table(measured: Measured) -> str:
    """Megabytes that one aggregation sends, a row for every graph and number of ranks."""
    head = ["graph", "ranks", "edges cut", "post, MB", "pre-post, MB", "pre-post, int2, MB"]
    rows = [[*head, "post / pre-post", "pre-post / int2"]]
    for row in measured.content["rows"]:
        post, both, low = volumes(row)
        share = f"{100 * row['cut_share']:.0f} %"
        cells = [f"{volume / 1e6:.3g}" for volume in (post, both, low)]
        rows.append(
            [row["data"], str(row["ranks"]), share, *cells, f"{post / both:.2f}", f"{both / low:.1f}"]
        )
    return render(rows)


def volumes(row: Mapping[str, Any]) -> tuple[float, float, float]:
    """Bytes of one aggregation under post, pre-post, and pre-post with int2."""
    halo, cover = row["payload_rows"]["halo"], row["payload_rows"]["prepost"]
    return FP32_BYTES * halo, FP32_BYTES * cover, INT2_BYTES * cover


def section(measured: Measured) -> str:
    """Command, machine, table."""
    return f"    {measured.content['command']}\n\n{measured.machine}.\n\n{table(measured)}"


def text(measured: Measured) -> str:
    """What the table shows."""
    rows = measured.content["rows"]
    first, last = min(row["ranks"] for row in rows), max(row["ranks"] for row in rows)
    gains = {
        ranks: [volumes(row)[0] / volumes(row)[1] for row in rows if row["ranks"] == ranks]
        for ranks in (first, last)
    }
    growth = [
        volumes(end)[0] / volumes(begin)[0]
        for begin in rows
        for end in rows
        if begin["data"] == end["data"] and (begin["ranks"], end["ranks"]) == (first, last)
    ]
    return (
        f"**What it shows.** From {first} to {last} ranks the volume of post grows {_span(growth)} times, while "
        f"the ranks grow {last // first} times: a rank sends less and less, all together more and more. Pre-post "
        f"takes {_span(gains[first])} times fewer bytes than post on {first} ranks and {_span(gains[last])} times "
        f"fewer on {last} (paper: about 1.5 times, on 2048 processes): the cover gains most where parts meet in few "
        f"rows with many edges. Int2 takes {FP32_BYTES / INT2_BYTES:.1f} times fewer again, at any number of ranks: "
        f"{COLUMNS} columns are {FP32_BYTES} bytes in fp32 and {INT2_BYTES} in two bits, zero point and scale "
        "included."
    )


def _span(values: list[float]) -> str:
    return span(f"{min(values):.1f}", f"{max(values):.1f}")
