"""The table of `docs/faults.md`, from what the tests recorded: `python -m tests.faults.table LINES DOC`.

Lines of one case and backend are added up; the document keeps everything outside its two marks.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from pathlib import Path

from sancus.runs.directory import cpu_name

BEGIN, END = "<!-- begin: make faults -->", "<!-- end: make faults -->"
HEAD = ["| case | on | caught / tried | seconds: least, median, most |", "|---|---|---|---|"]


def rows(lines: list[str]) -> list[str]:
    """One row a case and backend, in the order of the tests."""
    tried, caught, seconds = dict[tuple[str, str], int](), dict[tuple[str, str], int](), {}
    for line in lines:
        entry = json.loads(line)
        key = (entry["case"], entry["backend"])
        tried[key] = tried.get(key, 0) + entry["tried"]
        caught[key] = caught.get(key, 0) + entry["caught"]
        seconds.setdefault(key, []).extend(entry["seconds"])
    return [
        f"| {case} | {backend} | {caught[case, backend]} / {tried[case, backend]} | "
        f"{_spread(seconds[case, backend])} |"
        for case, backend in tried
    ]


def _spread(seconds: list[float]) -> str:
    if not seconds:
        return "–"
    figures = (min(seconds), statistics.median(seconds), max(seconds))
    return ", ".join(f"{figure:.2g}" for figure in figures) if len(seconds) > 1 else f"{seconds[0]:.2g}"


def where_and_when(command: str) -> str:
    """The first line of what a command writes: the machine, and the day."""
    return f"`{command}` on {cpu_name()}, {os.cpu_count()} cores, {time.strftime('%Y-%m-%d')}:"


def put_between(document: Path, begin: str, end: str, lines: list[str]) -> None:
    """Put lines between two marks of a document, which keeps everything else."""
    before, _, rest = document.read_text().partition(begin)
    _, mark, after = rest.partition(end)
    assert mark, f"{document} has no place for it: {begin} … {end}"
    document.write_text("\n".join([f"{before}{begin}", "", *lines, "", f"{end}{after}"]))


if __name__ == "__main__":
    found = rows(Path(sys.argv[1]).read_text().splitlines())
    put_between(Path(sys.argv[2]), BEGIN, END, [where_and_when("make faults"), "", *HEAD, *found])
