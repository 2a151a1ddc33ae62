"""The verb `demo`: what Sancus does, in two minutes and on one page, without an argument."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

from sancus.cli.compare import compare
from sancus.cli.printing import print_line

GRAPH = "synthetic:nodes=2000,degree=12"
PRESETS = ("cagnet", "sancus-a:2", "lean")
FLAGS = ("--ranks", "2", "--epochs", "40")
PLACE = Path("runs/demo")
COMPARED = "compare.json"
BEFORE = """Three ways to train the same GNN on two processes of this machine (2 000 nodes, 40 epochs):
  cagnet      every process sends all its rows, in every layer of every epoch
  sancus-a:2  they take turns; the others go on with rows that are at most 2 epochs old
  lean        only rows that are needed, in few bits; the default"""


def demo(*, out: Path | None = None) -> None:
    """Train a small graph in three ways on two local ranks, and compare what crossed: two minutes.

    Parameters
    ----------
    out
        Directory of the runs and of the page; runs/demo, or the first free name after it.
    """
    place = out or _free(PLACE)
    print_line(BEFORE)
    compare(GRAPH, *FLAGS, presets=list(PRESETS), out=place)
    rows = json.loads((place / COMPARED).read_text())["rows"]
    for line in conclusion(rows):
        print_line(line)


def conclusion(rows: list[dict[str, Any]]) -> list[str]:
    """What the rows of a comparison say in words; the first is what the others are held against."""
    first, *others = rows
    base = first["all_bytes"]["mean"]
    lines = []
    for row in others:
        fewer = base / row["all_bytes"]["mean"]
        points = 100 * (row["test"]["mean"] - first["test"]["mean"])
        lines.append(
            f"{row['preset']} sent {fewer:.1f} times fewer bytes in all than {first['preset']}, "
            f"and is {points:+.1f} points of test accuracy from it"
        )
    lines.append(
        "one seed on a small graph shows what is sent, not what is better; next: sancus train --help"
    )
    return lines


def _free(place: Path) -> Path:
    """The place, or the first of `place-2`, `place-3`, … that is not there."""
    if not place.exists():
        return place
    names = (place.with_name(f"{place.name}-{number}") for number in itertools.count(2))
    return next(name for name in names if not name.exists())
