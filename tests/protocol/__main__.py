"""Explore everything, write the table: `python -m tests.protocol docs/protocol.md [JOBS]`.

The counts are the same every time.
"""

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from tests.protocol.settings import Explored, everything, explore_place

BEGIN, END = "<!-- begin: make protocol -->", "<!-- end: make protocol -->"
HEAD = [
    "| what | ranks | epochs | a wait ends | states | moves | crashes | plays | ends | all done |",
    "|---|---|---|---|---|---|---|---|---|---|",
]


def row(explored: Explored) -> str:
    """One line of the table."""
    setting, count = explored.setting, explored.count
    when = "early" if explored.eager else "late"
    done = count.outcomes.get(" ".join(["done"] * setting.ranks), 0)
    figures = (count.states, count.moves, count.crashes, count.plays, count.ends, done)
    cells = " | ".join(f"{figure:,}".replace(",", " ") for figure in figures)
    return f"| {setting.name} | {setting.ranks} | {setting.epochs} | {when} | {cells} |"


def total(rows: list[Explored]) -> str:
    """The sum of all lines."""
    counts = [one.count for one in rows]
    figures = [
        sum(getattr(count, name) for count in counts)
        for name in ("states", "moves", "crashes", "plays", "ends")
    ]
    cells = " | ".join(f"{figure:,}".replace(",", " ") for figure in figures)
    return f"| **all** | | | | {cells} | |"


def write_table(rows: list[Explored], tasks: int, document: Path) -> None:
    """Put the table between its marks: of what is explored so far, which may be told apart from the whole."""
    before, _, rest = document.read_text().partition(BEGIN)
    _, mark, after = rest.partition(END)
    assert mark, f"{document} has no place for the table: {BEGIN} … {END}"
    when = (
        f"`make protocol`, {time.strftime('%Y-%m-%d')}: {len(rows)} of {tasks} lines explored, no violation."
    )
    table = "\n".join([BEGIN, "", when, "", *HEAD, *map(row, rows), total(rows), "", END])
    document.write_text(f"{before}{table}{after}")


def main(document: Path, jobs: int) -> None:
    """Explore; a violation ends it with the moves that lead there."""
    tasks = [(place, eager) for place, (_, setting) in enumerate(everything()) for eager in setting.waits]
    rows: list[Explored] = []
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        for explored in pool.map(explore_place, *zip(*tasks, strict=True)):
            rows.append(explored)
            print(row(explored), flush=True)
            write_table(rows, len(tasks), document)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else os.cpu_count() or 1)
