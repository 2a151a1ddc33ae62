"""Explore everything, write the table: `python -m tests.protocol docs/protocol.md`.

The counts are the same every time. `--record FILE` keeps the lines that are done, and goes on with the
others; `--plays N` leaves a line after so many plays, and the table then says that it is only begun.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path

from tests.protocol.explorer import Count
from tests.protocol.settings import Explored, everything, explore_place, key_of

BEGIN, END = "<!-- begin: make protocol -->", "<!-- end: make protocol -->"
Task = tuple[int, bool]  # a place in `everything`, and whether waits end early
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
    name = f"{setting.name} (begun)" if count.left else setting.name
    return f"| {name} | {setting.ranks} | {setting.epochs} | {when} | {cells} |"


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
    done = sum(not one.count.left for one in rows)
    begun = f" to their end, {len(rows) - done} begun" if done < len(rows) else ""
    today = time.strftime("%Y-%m-%d")
    when = f"`make protocol`, {today}: {done} of {tasks} lines explored{begun}, no violation."
    table = "\n".join([BEGIN, "", when, "", *HEAD, *map(row, rows), total(rows), "", END])
    document.write_text(f"{before}{table}{after}")


def main() -> None:
    """Explore; a violation ends it with the moves that lead there."""
    parser = argparse.ArgumentParser(prog="python -m tests.protocol")
    parser.add_argument("document", type=Path)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--record", type=Path, help="lines that are done, as JSON")
    parser.add_argument("--plays", type=int, default=0, help="at most so many a line; 0: all")
    options = parser.parse_args()
    tasks = [(place, eager) for place, (_, setting) in enumerate(everything()) for eager in setting.waits]
    known = recorded(options.record)
    left = [task for task in tasks if not _known(task, known, options.plays)]
    write_table(_rows(tasks, known), len(tasks), options.document)
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        for begun in [pool.submit(explore_place, *task, options.plays) for task in left]:
            explored = begun.result()
            print(row(explored), flush=True)
            known[explored.key] = explored.count
            if options.record is not None:
                with options.record.open("a") as file:
                    file.write(json.dumps([explored.key, asdict(explored.count)]) + "\n")
            write_table(_rows(tasks, known), len(tasks), options.document)


def _rows(tasks: list[Task], known: dict[str, Count]) -> list[Explored]:
    """Lines whose counts are known, in the order of all."""
    lines = [(everything()[place][1], eager) for place, eager in tasks]
    return [Explored(*line, known[key_of(*line)]) for line in lines if key_of(*line) in known]


def recorded(record: Path | None) -> dict[str, Count]:
    """The counts of lines that were explored before, by their keys."""
    if record is None or not record.exists():
        return {}
    return {key: Count(**count) for key, count in map(json.loads, record.read_text().splitlines())}


def _known(task: Task, known: dict[str, Count], plays: int) -> bool:
    """Whether a line was explored before, to its end or for as many plays."""
    place, eager = task
    count = known.get(key_of(everything()[place][1], eager))
    return count is not None and (not count.left or 0 < plays <= count.plays)


if __name__ == "__main__":
    main()
