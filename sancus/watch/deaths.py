"""Which rank ended first, for a launcher whose ranks are not its children: mpiexec ends all when one ends.

The board tells the process of every rank; the kernel tells when each ends (`pidfd`, Linux). Imports no torch.
"""

from __future__ import annotations

import os
import select
import threading
from pathlib import Path
from types import TracebackType

from sancus.watch.board import Board, FileNotes
from sancus.watch.proc import state_of
from sancus.watch.status import Status

LOOK_SECONDS = 0.2  # between looks for ranks that have not posted yet


class DeathWatch:
    """Watches the processes of local ranks in a thread; after the run `who_failed` names the first to die."""

    def __init__(self, folder: Path, ranks: int) -> None:
        """`folder` is the one that ranks find in `SANCUS_WATCH`."""
        self._board = Board(FileNotes(folder), ranks)
        self._ranks = ranks
        self._first: list[Status] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> DeathWatch:
        if hasattr(os, "pidfd_open"):
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()

    def who_failed(self) -> str | None:
        """`rank 1 failed: …` or `rank 1 was killed …`; None where no rank is known to have died."""
        statuses = self._board.read().values()
        failures = [status for status in statuses if status.ending == "error"]
        if failures:
            return f"rank {failures[0].rank} failed: {failures[0].error}"
        deaths = [status for status in self._first if status.ending == ""]
        if not deaths:
            return None
        names = " or ".join(f"rank {status.rank}" for status in deaths)
        return f"{names} was killed; it was last {deaths[0].doing()}"

    def _run(self) -> None:
        """Wait for the first process that ends, and keep the last status of its rank."""
        poll, rank_of = select.poll(), dict[int, int]()  # file descriptor → rank
        try:
            while not self._over.is_set() and not self._first:
                for rank, status in self._board.read().items():
                    if rank not in rank_of.values():
                        self._add(status, poll, rank_of)
                if self._first:
                    return
                dead = [rank_of[number] for number, _ in poll.poll(LOOK_SECONDS * 1000)]
                statuses = self._board.read()
                self._first += [statuses[rank] for rank in dead if rank in statuses]
        finally:
            for number in rank_of:
                os.close(number)

    def _add(self, status: Status, poll: select.poll, rank_of: dict[int, int]) -> None:
        try:
            number = os.pidfd_open(status.pid)
        except OSError:
            self._first.append(status)
            return
        rank_of[number] = status.rank
        if state_of(status) == "Z":
            self._first.append(status)
        else:
            poll.register(number, select.POLLIN)
