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


def write_table(lines: list[str], document: Path) -> None:
    """Put the table between the marks."""
    before, _, rest = document.read_text().partition(BEGIN)
    _, mark, after = rest.partition(END)
    assert mark, f"{document} has no place for the table: {BEGIN} … {END}"
    where = f"`make faults` on {cpu_name()}, {os.cpu_count()} cores, {time.strftime('%Y-%m-%d')}:"
    table = "\n".join([BEGIN, "", where, "", *HEAD, *rows(lines), "", END])
    document.write_text(f"{before}{table}{after}")


if __name__ == "__main__":
    write_table(Path(sys.argv[1]).read_text().splitlines(), Path(sys.argv[2]))
