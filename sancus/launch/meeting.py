"""The folder in which local ranks meet, and what becomes of it where its launcher is killed.

A launcher removes its folder at its end, however it ends, unless it is killed. So each holds a lock in its
folder, and removes the folders of those that are gone when it starts: their locks can be had. A folder
without such a lock is nobody's business here.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

PREFIX = "sancus-"
LOCK = ".launcher"  # locked as long as the launcher lives


@contextlib.contextmanager
def meeting_folder() -> Iterator[Path]:
    """A new folder for local ranks, gone at the end; those of launchers that were killed go at once."""
    remove_abandoned(Path(tempfile.gettempdir()))
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    claim = None
    try:
        claim = _claim(folder)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if claim is not None:
            os.close(claim)


def remove_abandoned(place: Path) -> None:
    """Remove the folders of this user's launchers that were killed."""
    for folder in place.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            number = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(number)


def _claim(folder: Path) -> int | None:
    """Lock a folder until the process ends; None where there are no locks. It is locked when it is seen.

    Forked ranks hold the lock too, and die with their launcher.
    """
    hidden = folder / f"{LOCK}.new"
    number = os.open(hidden, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # a file system without locks
        os.close(number)
        return None
    os.rename(hidden, folder / LOCK)
    return number
