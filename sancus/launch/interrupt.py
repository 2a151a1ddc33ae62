"""Signals that ask a run to end: SIGTERM, SIGINT, and SIGUSR1, by which Slurm announces the end of a job.

A signal is only noted here. All ranks hear of it at the end of the epoch, in the gather that they make
anyway, and so write one checkpoint together. A second SIGINT leaves at once.
"""

from __future__ import annotations

import os
import signal
import time

from sancus.launch.exit_codes import EXIT_INTERRUPTED

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
SAME_SECONDS = 1.0  # Ctrl-C reaches a rank from the terminal, and again from its launcher


class Stopped(Exception):  # noqa: N818 - nothing went wrong
    """The run was asked to end, and its work is saved."""

    def __init__(self, number: int, line: str) -> None:
        super().__init__(line)
        self.number = number


def heed_signals() -> None:
    """Give signals their usual meaning: from now on each of `SIGNALS` ends this process at once."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)


class Interrupt:
    """Notes the first signal that arrives from now on, so that the trainer can ask for it."""

    def __init__(self) -> None:
        self.received = 0
        self._since = 0.0
        self._before = {number: signal.signal(number, self._handle) for number in SIGNALS}

    def restore(self) -> None:
        """Give the signals the handlers back that they had before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _: object) -> None:
        if not self.received:
            self.received, self._since = number, time.monotonic()
        elif number == signal.SIGINT and time.monotonic() - self._since > SAME_SECONDS:
            os._exit(EXIT_INTERRUPTED)
