"""The board: the last status that every rank posted, for all ranks to read at any time.

It is kept in the store where ranks met, or as one small file a rank in a folder that they share: the
launcher's own for local ranks, the run's `logs/` under MPI. Beside a file there is a live part in shared
memory, which the rank writes at every collective; in a store a status is as old as its last post. Imports no
torch, since a launcher reads it too.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

from sancus.watch.status import LIVE, Status

WATCH = "SANCUS_WATCH"  # for ranks of mpiexec that we started: the folder of the board
RENDEZVOUS = "SANCUS_RENDEZVOUS"


class Notes(Protocol):
    """Where statuses are kept by name: the part of `sancus.comm.notes` that a board needs."""

    def put(self, name: str, content: bytes) -> None:
        """Store `content` under `name`, in place of what was there."""
        ...

    def get(self, name: str) -> bytes | None:
        """What was last stored under `name`, or None."""
        ...


@runtime_checkable
class LiveNotes(Protocol):
    """Notes that also have shared memory."""

    def open_live(self, name: str) -> mmap.mmap:
        """The shared memory of `name`, to write to."""
        ...

    def get_live(self, name: str) -> bytes | None:
        """What the shared memory of `name` holds now, or None."""
        ...


class FileNotes:
    """Notes as files of a folder, each replaced as a whole."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def put(self, name: str, content: bytes) -> None:
        """Replace the file; where the disk is full or the folder gone the note is lost, and nothing stops."""
        target = self._folder / f"{name}.status"
        partial = self._folder / f".{name}.status"
        try:
            partial.write_bytes(content)
            os.replace(partial, target)
        except OSError:
            return

    def get(self, name: str) -> bytes | None:
        """What the file holds."""
        try:
            return (self._folder / f"{name}.status").read_bytes()
        except OSError:
            return None

    def open_live(self, name: str) -> mmap.mmap:
        """A mapped file, which outlives its process."""
        path = self._folder / f"{name}.live"
        path.write_bytes(bytes(LIVE.size))
        with path.open("r+b") as file:
            return mmap.mmap(file.fileno(), LIVE.size)

    def get_live(self, name: str) -> bytes | None:
        """What the mapped file holds now."""
        try:
            return (self._folder / f"{name}.live").read_bytes()
        except OSError:
            return None


def folder_of(env: Mapping[str, str]) -> Path | None:
    """The folder that this rank's launcher made for the board, a new one at each start; None without one."""
    if WATCH in env:
        return Path(env[WATCH])
    return Path(f"{env[RENDEZVOUS]}.watch") if RENDEZVOUS in env else None


class Board:
    """The statuses of all ranks, and for how long each has posted nothing new."""

    def __init__(self, notes: Notes, size: int, host: str = "", since: float = 0.0) -> None:
        """Statuses posted on `host` before the time `since` are an earlier run's, and are ignored.

        So are those of a time that has not come yet: `host` was started anew since.
        """
        self._notes = notes
        self._size = size
        self._host = host
        self._since = since
        self._last: dict[int, tuple[int, float]] = {}  # beat of each rank, and when this reader first saw it

    def open_live(self, rank: int) -> mmap.mmap | None:
        """The shared memory that a rank writes at every collective; None where the board has none."""
        return self._notes.open_live(_name(rank)) if isinstance(self._notes, LiveNotes) else None

    def post(self, status: Status) -> None:
        """Publish a status, with the time and the count of its posts."""
        status.beat += 1
        status.posted = time.monotonic()
        self._notes.put(_name(status.rank), status.to_bytes())

    def read(self) -> dict[int, Status]:
        """What every rank last posted; without those that never did."""
        statuses: dict[int, Status] = {}
        for rank in range(self._size):
            content = self._notes.get(_name(rank))
            status = Status.from_bytes(content) if content is not None else None
            if status is not None and not self._is_earlier(status):
                live = self._notes.get_live(_name(rank)) if isinstance(self._notes, LiveNotes) else None
                if live is not None and len(live) == LIVE.size:
                    status.read_live(live)
                statuses[rank] = status
                if self._last.get(rank, (0, 0.0))[0] != status.beat:
                    self._last[rank] = (status.beat, time.monotonic())
        return statuses

    def _is_earlier(self, status: Status) -> bool:
        """Whether an earlier run has left this status."""
        return status.host == self._host and not self._since <= status.posted <= time.monotonic()

    def silence(self, status: Status, host: str) -> float:
        """Seconds since a rank last posted; on another host since this reader saw it post."""
        if status.host == host:
            return max(0.0, time.monotonic() - status.posted)
        return time.monotonic() - self._last[status.rank][1]


def _name(rank: int) -> str:
    return f"rank-{rank}"
