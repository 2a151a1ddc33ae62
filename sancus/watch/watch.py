"""The watch of a rank: posts its status, says whom it waits for, and adds to an error who caused it.

Nothing here ever ends a run: that is the transport's timeout.

    with Watch(world.rank, world.size, patience_of(timeout), say) as watch:
        watch.follow(group, folder)

"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from sancus.comm.errors import CommError
from sancus.comm.group import Group
from sancus.comm.ledger import Stream
from sancus.comm.observer import Observer
from sancus.watch.blame import SILENT_SECONDS, Suspect, describe, find_suspects
from sancus.watch.board import FileNotes
from sancus.watch.poster import BEAT_SECONDS, Poster
from sancus.watch.proc import birth_of
from sancus.watch.status import Status

EXPLAIN_SECONDS = 4.0  # until a failed collective is explained by what the others post, or do not post
LONGEST_PATIENCE = 30.0


def patience_of(timeout: float) -> float:
    """Seconds that a rank waits in one collective before it says for whom."""
    return min(LONGEST_PATIENCE, timeout / 4)


class Watch(Observer):
    """Follows one rank's collectives; `say` gets its lines."""

    def __init__(self, rank: int, size: int, patience: float, say: Callable[[str], None]) -> None:
        self.status = Status(rank, socket.gethostname(), os.getpid(), birth_of(os.getpid()))
        self.status.since = time.monotonic()
        self._size = size
        self._patience = patience
        self._say = say
        self._poster = Poster(self.status, size)
        self._next_words = patience  # how long a wait must last before the next line
        self._announcement: tuple[int, int] | None = None  # who was waited for, and in which collective

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Post how this rank ended, so that the others learn it at once."""
        if self._poster.cut_off:
            return
        self._poster.stop()
        if error is None:
            self._welcome()
        if isinstance(error, Exception):
            self.status.ending = "lost" if isinstance(error, CommError) else "error"
            self.status.error = _one_line(error)
        elif error is None:
            self.status.ending = "done"
        _within(EXPLAIN_SECONDS, self._poster.post)

    def follow(self, group: Group, folder: Path | None) -> None:
        """Observe a group's collectives; the board is in `folder`, else in the store where ranks met.

        MPI has no such store: its board begins with `use_folder`.
        """
        group.observer = self
        notes = FileNotes(folder) if folder is not None else group.notes()
        if notes is not None:
            self._poster.open(notes, self._look)

    def use_folder(self, folder: Path) -> None:
        """A folder that all ranks of this host see; used where there is no board yet."""
        if self._poster.board is None and self._size > 1:
            self._poster.open(FileNotes(folder), self._look)

    def begin_epoch(self, epoch: int) -> None:
        first = self.status.epoch < 0
        self.status.epoch = epoch
        self._poster.write()
        if first:
            self._poster.post()  # a rank that stops before its next beat is known to train already

    def started(self, number: int, what: str, stream: Stream | None) -> None:
        status = self.status
        status.number, status.what = number, what
        if stream is None:
            status.layer = status.direction = None
        else:
            status.layer, status.direction = stream.layer, stream.direction
        self._poster.write()

    def waits(self, number: int) -> None:
        self.status.since = time.monotonic()
        self.status.awaited = number
        self._poster.write()

    def goes_on(self) -> None:
        self.status.since = time.monotonic()
        self.status.awaited = None
        self._poster.write()

    def explain(self, message: str) -> str:
        """The message of a failed collective, with the rank that caused it.

        Waits a few seconds for evidence: a posted error, a dead process, a missing beat.
        """
        self.status.ending = "lost"
        suspects: list[Suspect] = []
        self._poster.cut_off = not _within(2 * EXPLAIN_SECONDS, lambda: suspects.extend(self._investigate()))
        if self._poster.cut_off:
            return f"{message}; this rank is cut off from the host of rank 0, or that is gone"
        return f"{message}; {describe(suspects)}" if suspects else message

    def _investigate(self) -> list[Suspect]:
        if self._poster.board is None:
            return []
        self._poster.post()
        at_first = find_suspects(self._poster.board, self.status)  # who was late may come yet, too late
        deadline = time.monotonic() + EXPLAIN_SECONDS
        while time.monotonic() < deadline:
            suspects = find_suspects(self._poster.board, self.status, waiting=False)
            if suspects:
                return suspects
            time.sleep(BEAT_SECONDS / 10)
        return at_first

    def _look(self) -> None:
        """Say for whom this rank waits, at growing intervals, and when that is over."""
        assert self._poster.board is not None
        status = self.status
        awaited, seconds = status.awaited, time.monotonic() - status.since
        if self._announcement is not None and awaited != self._announcement[1]:
            self._welcome()
        if awaited is None or seconds < self._next_words or status.ending:
            return
        suspects = [] if self._another_speaks() else find_suspects(self._poster.board, status)
        if suspects:
            self._next_words = 2 * seconds
            self._announcement = (suspects[0].rank, awaited)
            self._say(f"waiting for {seconds:.0f} s in collective {awaited}: {describe(suspects)}")

    def _welcome(self) -> None:
        """If a wait was announced, say that it is over."""
        if self._announcement is not None:
            self._say(f"rank {self._announcement[0]} is back; the run goes on")
            self._announcement, self._next_words = None, self._patience

    def _another_speaks(self) -> bool:
        """Whether a lower rank waits too: only the lowest one says so, so that a stall is reported once."""
        assert self._poster.board is not None
        lower = [other for rank, other in self._poster.board.read().items() if rank < self.status.rank]
        waiting = [other for other in lower if other.awaited is not None and other.ending == ""]
        return any(self._poster.board.silence(other, self.status.host) < SILENT_SECONDS for other in waiting)


def _within(seconds: float, action: Callable[[], None]) -> bool:
    """Run `action` for at most so many seconds, as a store may be gone with its host; True if it finished."""
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


def _one_line(error: BaseException) -> str:
    words = " ".join(str(error).split())
    return words if type(error).__name__ == "UserError" else f"{type(error).__name__}: {words}"
