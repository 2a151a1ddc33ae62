"""Experiments that train nothing: rows are computed from graphs alone, with `--quick` for a small one."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from experiments import documents
from experiments.engine import results
from sancus.errors import UserError

Rows = list[dict[str, Any]]


def main_of(
    folder: Path,
    title: str,
    description: str | None,
    measure: Callable[[str, Sequence[int]], Rows],
    graphs: Sequence[str],
    sizes: Sequence[int],
    few: int,
) -> int:
    """Compute the rows of all graphs, write the results and the README; `--quick`: the first `few` sizes."""
    name = f"experiments.{folder.name}"
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one small graph; writes nothing")
    quick = parser.parse_args().quick
    try:
        chosen, wanted = (("synthetic",), sizes[:few]) if quick else (graphs, sizes)
        rows = [row for data in chosen for row in measure(data, wanted)]
    except UserError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2
    if not quick:
        content = results.heading(f"python -m {name}") | {"title": title, "rows": rows}
        results.write(folder / results.RESULTS_FILE, content)
        documents.write([folder / "README.md"])
    return 0
