"""Shared memory that MPICH left behind: ranks that were killed while they joined cannot remove it.

Ranks take its name away as soon as all have joined (`sancus.comm.mpi`), so this is about that short time
only, and about what programs without this care have left.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

FOLDER = Path("/dev/shm")
PATTERN = "mpich_shm_*"


def remove_leftovers(folder: Path = FOLDER) -> None:
    """Remove this user's shared memory of MPICH that no process has mapped or open any more (Linux).

    The process that makes such a file keeps it open and mapped until it ends, so a run that lives is spared,
    also one that has only just begun.
    """
    found = [path for path in folder.glob(PATTERN) if _is_ours(path)]
    if not found:
        return
    used = set(_used(folder))
    for path in found:
        if str(path) not in used:
            path.unlink(missing_ok=True)


def _is_ours(path: Path) -> bool:
    try:
        return path.stat().st_uid == os.getuid()
    except OSError:
        return False


def _used(folder: Path) -> Iterator[str]:
    """Files of `folder` that a process has mapped or open; those of other users cannot be ours."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            for line in (process / "maps").read_text(errors="replace").splitlines():
                if str(folder) in line:
                    yield line.split(maxsplit=5)[-1]
        with suppress(OSError):
            for number in (process / "fd").iterdir():
                with suppress(OSError):
                    yield os.readlink(number)
