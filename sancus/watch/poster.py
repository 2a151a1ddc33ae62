"""Posts one rank's status on the board: whole once a second, and the live part of it at every collective.

A thread of its own posts, so a rank whose process is stopped is seen by its beat standing still, while one
that is stuck in its own code beats on and does not come to where the others wait.
"""

from __future__ import annotations

import atexit
import mmap
import threading
from collections.abc import Callable

from sancus.watch.board import Board, Notes
from sancus.watch.status import Status

BEAT_SECONDS = 1.0


class Poster:
    """Keeps `status` on the board once there is one; until then nothing is posted."""

    def __init__(self, status: Status, size: int) -> None:
        """`status` is the rank's own, one of `size`; statuses posted before its time `since` are not read."""
        self.board: Board | None = None
        self.cut_off = False  # from the board: there is nobody to tell
        self._status = status
        self._began = status.since
        self._size = size
        self._live: mmap.mmap | None = None
        self._posting = threading.Lock()
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    def open(self, notes: Notes, at_beat: Callable[[], None]) -> None:
        """Post from now on, once a second until `stop`; `at_beat` is called after every such post."""
        self.board = Board(notes, self._size, self._status.host, self._began)
        self._live = self.board.open_live(self._status.rank)
        self.write()
        self.post()
        self._thread = threading.Thread(target=self._run, args=(at_beat,), name="sancus-watch", daemon=True)
        self._thread.start()
        atexit.register(self.stop)

    def write(self) -> None:
        """Bring the live part up to date; called at every collective, so it only writes to memory."""
        if self._live is not None:
            self._status.write_live(self._live)

    def post(self) -> None:
        """Post the whole status now."""
        if self.board is not None:
            with self._posting:
                self.board.post(self._status)

    def stop(self) -> None:
        """End the thread, and wait for it unless its last post can never be answered."""
        self._end.set()
        if self._thread is not None and self._thread is not threading.current_thread() and not self.cut_off:
            self._thread.join(2 * BEAT_SECONDS)

    def _run(self, at_beat: Callable[[], None]) -> None:
        while not self._end.wait(BEAT_SECONDS):
            self.post()
            at_beat()
