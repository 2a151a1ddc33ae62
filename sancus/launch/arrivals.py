"""What signals have arrived at a launcher, and which of them its ranks have not heard of yet."""

from __future__ import annotations

import os
import selectors
import signal
import time
from contextlib import suppress

from sancus.launch.attempt import Attempt
from sancus.launch.interrupt import SAME_SECONDS, handle_signals, unblock_signals


class Arrivals:
    """Notes signals from now on, and does nothing else: whoever waits for ranks passes them on.

    A handler that acted by itself would act on the ranks that it knows: those that are being forked, or
    started again, it does not know yet. What is noted can be passed on whenever there is somebody to hear it.
    """

    def __init__(self) -> None:
        self.received: list[int] = []
        self._passed = 0  # how many of them the ranks have heard of
        self._answered: float | None = None  # when they heard of the first SIGINT
        self._impatient = False  # whether another one came well after that
        self._waker, wake = os.pipe()  # readable when a signal came, so that a wait ends
        os.set_blocking(self._waker, False)
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake)
        handle_signals(self._note)
        unblock_signals()

    def wake(self, selector: selectors.BaseSelector) -> None:
        """Let a signal end a wait of `selector`, which then has an event without data."""
        selector.register(self._waker, selectors.EVENT_READ)

    def pass_on(self, attempt: Attempt) -> None:
        """Tell the ranks what has arrived; a SIGINT of an impatient user kills them.

        To be called before every wait: a signal that comes later ends the wait.
        """
        with suppress(BlockingIOError):
            os.read(self._waker, 4096)
        while self._passed < len(self.received):
            number = self.received[self._passed]
            self._passed += 1
            if number == signal.SIGINT and self._answered is not None:
                continue  # the same Ctrl-C once more, or the end of patience
            attempt.signal(number)
            if number == signal.SIGINT:
                self._answered = time.monotonic()
        if self._impatient:
            attempt.kill()

    def _note(self, number: int, _: object) -> None:
        self.received.append(number)
        if number == signal.SIGINT and self._answered is not None:
            self._impatient |= time.monotonic() - self._answered > SAME_SECONDS
