"""The one way to read a checkpoint: through its manifest, which knows every file. Imports no torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sancus.errors import UserError
from sancus.runs.checkpoints import durable
from sancus.runs.checkpoints.names import PATTERN, SHARED

Files = dict[str, bytes]
FORMAT = 1  # of what is written; a checkpoint that names none is of a version that wrote the same without it


def read_newest(folder: Path) -> Files | None:
    """What all ranks have in common of the newest checkpoint that has it whole."""
    checkpoints = map(read_shared, sorted(folder.glob(PATTERN), reverse=True))
    newest = next((files for files in checkpoints if files is not None), None)
    if newest is not None:
        check_format(newest)
    return newest


def check_format(files: Files) -> None:
    """Refuse a checkpoint of a later version, which may mean something else by the same words."""
    try:
        found = json.loads(files["state.json"]).get("format", FORMAT)
    except (ValueError, AttributeError, RecursionError):  # no checkpoint of ours: told when it is loaded
        return
    if found != FORMAT:
        raise UserError(
            f"the checkpoint has format {found!r}, this version reads {FORMAT}; "
            "go on with the version that wrote it, or start anew"
        )


def read_shared(directory: Path) -> Files | None:
    """What all ranks have in common of a checkpoint; None where it is not whole."""
    sums = durable.read_manifest(directory)
    if sums is None or not set(SHARED) <= set(sums):
        return None
    files: Files = {}
    for name in SHARED:
        content = durable.read_checked(directory / name, sums[name])
        if content is None:
            return None
        files[name] = content
    return files


def read_settings(folder: Path) -> dict[str, Any]:
    """The settings that the newest whole checkpoint was made with; none where there is no such checkpoint.

    A run goes on from that one, so it may not go on with the settings of another.
    """
    files = read_newest(folder)
    try:
        settings = json.loads(files["state.json"])["extra"]["config"] if files else {}
    except (ValueError, LookupError, TypeError):  # no checkpoint of ours: told when it is loaded
        return {}
    return settings if isinstance(settings, dict) else {}
