"""The page of a run, of several, or of a comparison: where it goes, and what it may not replace."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from sancus.errors import UserError
from sancus.report.page import write_report
from sancus.runs.belongings import REPORT_FILE, Belongings, is_proven
from sancus.runs.compare import COMPARE_FILE
from sancus.runs.directory import holds_run


def make_report(directories: Sequence[Path], out: Path | None = None) -> Path:
    """Write one page on runs, or on what `sancus compare` left; its path."""
    if not directories:
        raise UserError("RUN_DIR is missing: give the --out directory of one run or of several")
    runs = [run for directory in directories for run in _runs_in(directory)]
    compared = len(directories) == 1 and (directories[0] / COMPARE_FILE).is_file()
    if compared and out is None:
        return _write(runs, directories[0] / REPORT_FILE)
    if out is None and len(runs) > 1:
        raise UserError(f"{len(runs)} runs need --out: the page to write, e.g. --out report.html")
    page = runs[0] / REPORT_FILE
    if out is None and page.exists() and not is_proven(runs[0], REPORT_FILE):
        raise UserError(
            f"{page} is not as a run has written it; move it away, or write to another with --out"
        )
    return _write(runs, out)


def _runs_in(directory: Path) -> list[Path]:
    """A run, or the runs of a comparison in the order of its table, wherever its folder is now."""
    file = directory / COMPARE_FILE
    if not file.is_file():
        if not holds_run(directory):
            raise UserError(
                f"{directory} holds no run; give the --out directory of one, or of sancus compare"
            )
        return [directory]
    try:
        named = [name for row in json.loads(file.read_text())["rows"] for name in row["directories"]]
        runs = [directory / Path(name).name for name in named]
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise UserError(f"{file} is damaged ({type(error).__name__}); give its run directories") from error
    missing = [run for run in runs if not holds_run(run)]
    if missing or not runs:
        raise UserError(f"{directory} has lost {missing[0].name if missing else 'its runs'}; compare again")
    return runs


def _write(runs: Sequence[Path], out: Path | None) -> Path:
    publish = Belongings.of(runs[0]).publish if out is None else os.replace
    try:
        return write_report(*runs, out=out, publish=publish)
    except OSError as error:
        where = out or runs[0]
        raise UserError(f"cannot write {where}: {error.strerror or error}; choose another --out") from error
