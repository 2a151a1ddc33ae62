"""Signals that ask a run to end: SIGTERM, SIGINT, SIGHUP, and SIGUSR1, by which Slurm announces a job's end.

While ranks train, a signal is only noted here. All ranks hear of it at the end of the epoch, in the gather
that they make anyway, and so write one checkpoint together. A second SIGINT leaves at once. Before training
there is nothing to save: a signal ends the command by an exception.

A process that is about to become another (by a fork or an exec) blocks the signals until what comes next has
handlers of its own: they wait in the kernel, and none is lost in between.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from sancus.launch.exit_codes import EXIT_INTERRUPTED

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
SAME_SECONDS = 1.0  # one Ctrl-C can arrive twice: `timeout` signals a process, and then its whole group
Handler = Callable[[int, FrameType | None], None] | int | signal.Handlers | None
_EARLY: Final[list[int]] = []  # what arrived before there was anything to save


class Stopped(Exception):  # noqa: N818 - nothing went wrong
    """The run was asked to end, and its work is saved."""

    def __init__(self, number: int, line: str) -> None:
        super().__init__(line)
        self.number = number


class Interrupted(KeyboardInterrupt):
    """A signal came before there was anything to save; libraries treat it as they treat Ctrl-C."""

    def __init__(self, number: int) -> None:
        super().__init__(f"interrupted by {signal.Signals(number).name}")
        self.number = number


def handle_signals(handler: Handler) -> dict[int, Handler]:
    """Give every one of `SIGNALS` this handler; those that they had. What nohup ignores stays ignored.

    In a thread beside the main one Python lets nobody handle signals: there they keep what they have.
    """
    if threading.current_thread() is not threading.main_thread():
        return {}
    heeded = [number for number in SIGNALS if number != signal.SIGHUP or _heeds_hangup()]
    return {number: signal.signal(number, handler) for number in heeded}


def _heeds_hangup() -> bool:
    return signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN


def block_signals() -> None:
    """From now on signals wait in the kernel; one whose handler is due runs it here and now."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def unblock_signals() -> None:
    """What has waited arrives here, before this returns."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def heed_signals() -> None:
    """Give signals their usual meaning: from now on each of `SIGNALS` ends this process at once."""
    handle_signals(signal.SIG_DFL)
    unblock_signals()


@contextmanager
def early_signals() -> Iterator[None]:
    """In here the first signal raises `Interrupted`; further ones do not disturb what that leads to."""
    _EARLY.clear()
    before = handle_signals(_raise_first)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def check_early() -> None:
    """Raise `Interrupted` once more, where some code has swallowed it: before ranks start."""
    if _EARLY:
        raise Interrupted(_EARLY[0])


def _raise_first(number: int, _: object) -> None:
    _EARLY.append(number)
    if len(_EARLY) == 1:
        raise Interrupted(number)


class Interrupt:
    """Notes the first signal that arrives from now on, so that the trainer can ask for it.

    A rank of our own launcher is `patient`: it gets one Ctrl-C from the terminal and from its launcher, which
    alone decides whether the user has lost patience.
    """

    def __init__(self, *, patient: bool = False) -> None:
        self._patient = patient
        self.received = _EARLY[0] if _EARLY else 0
        self._since = 0.0
        self._before = handle_signals(self._handle)

    def restore(self) -> None:
        """Give the signals the handlers back that they had before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _: object) -> None:
        if not self.received:
            self.received, self._since = number, time.monotonic()
        elif not self._patient and number == signal.SIGINT and time.monotonic() - self._since > SAME_SECONDS:
            os._exit(EXIT_INTERRUPTED)
