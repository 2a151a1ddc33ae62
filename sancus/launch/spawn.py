"""From a command that needs several ranks to the process that starts them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from sancus.launch import local
from sancus.launch.arrivals import Arrivals
from sancus.launch.interrupt import block_signals, check_early
from sancus.launch.process import WARM


class RanksNeeded(Exception):  # noqa: N818 - nothing went wrong
    """Raised by a verb that must run as several local ranks: whoever called the verb starts them.

    A verb cannot start them itself: each rank runs the whole command line, of which the verb is a part.
    """

    def __init__(self, ranks: int, backend: str, restarts: int = 0) -> None:
        super().__init__(f"{ranks} ranks over {backend}")
        self.ranks = ranks
        self.backend = backend
        self.restarts = restarts


def spawn(argv: Sequence[str], needed: RanksNeeded, main: Callable[[], None], module: str) -> NoReturn:
    """Become the launcher of `sancus argv` as local ranks, in a clean process.

    What was loaded and computed here is gone then, threads included, so that the launcher can fork. It runs
    `python -m module RANKS BACKEND RESTARTS ARGV…`. A process that was forked for this command alone is the
    launcher itself, and its ranks run `main`. A signal that arrives while one process becomes the other is
    the launcher's.
    """
    check_early()
    if WARM in os.environ:
        sys.exit(local.run(main, argv, needed.ranks, needed.backend, needed.restarts, Arrivals()))
    sys.stdout.flush()
    sys.stderr.flush()
    block_signals()
    how = [str(needed.ranks), needed.backend, str(needed.restarts)]
    os.execv(sys.executable, [sys.executable, "-m", module, *how, *argv])
