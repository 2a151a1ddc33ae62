"""`sancus runs`: the runs below a folder, newest last, with score, bytes and time. Imports no torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sancus.errors import UserError
from sancus.report.units import bytes_text, seconds_text
from sancus.runs.belongings import RUN_FILE

HEAD = ["run", "graph", "model", "preset", "ranks", "epochs", "test", "bytes an epoch", "time an epoch"]
DEPTH = 3  # folders below the one that is looked through


def list_runs(folder: Path) -> list[dict[str, Any]]:
    """What every run below a folder says of itself, by the time at which it was written last."""
    if not folder.is_dir():
        raise UserError(f"{folder} is no directory; give one that holds runs, e.g. sancus runs runs")
    patterns = ["/".join(["*"] * depth + [RUN_FILE]) for depth in range(DEPTH + 1)]
    files = [file for pattern in patterns for file in folder.glob(pattern) if file.is_file()]
    return [_facts(file) for file in sorted(files, key=lambda file: file.stat().st_mtime)]


def table(runs: list[dict[str, Any]]) -> list[list[str]]:
    """The rows of a table; the first is its head."""
    return [HEAD, *(_row(run) for run in runs)]


def _facts(file: Path) -> dict[str, Any]:
    """Of one run; what it does not say, for it was ended early or its file is damaged, is None."""
    try:
        run = json.loads(file.read_text())
    except (OSError, ValueError, RecursionError):
        run = None

    def value(*path: str) -> Any:
        found = run
        for name in path:
            found = found.get(name) if isinstance(found, dict) else None
        return found

    return {
        "directory": file.parent,
        "graph": value("graph", "name"),
        "model": value("model", "given") or value("config", "model"),
        "preset": value("config", "preset"),
        "ranks": value("hardware", "ranks"),
        "epochs": value("result", "epochs"),
        "metric": value("result", "metric"),
        "test": value("result", "test"),
        "bytes": value("communication", "per_epoch", "all_bytes"),
        "seconds": value("result", "seconds_per_epoch"),
        "finished": value("result") is not None,
    }


def _row(run: dict[str, Any]) -> list[str]:
    def shown(name: str, text: Any = str) -> str:
        value = run[name]
        try:
            return "-" if value is None else str(text(value))
        except (TypeError, ValueError):
            return "damaged"

    score = shown("test", lambda value: f"{value:.4f} {run['metric']}")
    if not run["finished"]:
        score = "unfinished" if run["graph"] else "damaged"
    names = [shown(name) for name in ("graph", "model", "preset", "ranks", "epochs")]
    return [str(run["directory"]), *names, score, shown("bytes", bytes_text), shown("seconds", seconds_text)]
