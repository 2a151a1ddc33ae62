"""What verbs print: plain lines and tables, which can be copied and read by programs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any


def print_table(rows: list[list[str]]) -> None:
    """A plain table; the first row is its head. A line is never broken, so that it can be copied."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print_line("  ".join(cells).rstrip())


def print_line(line: str) -> None:
    """One plain line, seen at once."""
    print(line, flush=True)


def score_text(score: float | None) -> str:
    """Four decimals, or `undefined`: None in files, NaN in Python."""
    return "undefined" if score is None or math.isnan(score) else f"{score:.4f}"


def print_result(run: dict[str, Any], directory: Path, *, verbose: bool) -> None:
    """The last lines of a run: the bill, the score, and where the files are."""
    from sancus.report.summary import bill, breakdown

    print_table([["the bill", ""], *([label, value] for label, value in bill(run))])
    if verbose:
        print_table(breakdown(run))
    result = run["result"]
    print_line(
        f"test {result['metric']} {score_text(result['test'])} at the best validation epoch "
        f"({result['best_epoch'] + 1} of {result['epochs']}, val {score_text(result['val'])})"
    )
    print_line(f"files in {directory}; open {directory / 'report.html'}")
