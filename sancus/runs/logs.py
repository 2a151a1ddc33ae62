"""One log file a rank, `DIR/logs/rank-N.log`: where it ran, what each epoch cost *this* rank, how it ended.

What `metrics.jsonl` combines over ranks is here apart, so that a slow or a failing rank can be found. A log
is never a reason to fail: where the file cannot be written, there is none.
"""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from sancus.console.speaker import Record

if TYPE_CHECKING:
    from sancus.comm.desk import Desk

FOLDER = "logs"
LOGGER = "sancus"


class RankLog:
    """The log of this rank; its epochs as differences of ledger and stopwatch."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._read = desk.stopwatch.read()
        self._bytes = 0

    def epoch(self, record: Record) -> None:
        """What the epoch, with its evaluation, cost this rank."""
        lap, sent = self._desk.stopwatch.since(self._read), self._desk.ledger.wire_of("payload")
        split = ", ".join(f"{activity} {value:.4f} s" for activity, value in sorted(lap.seconds.items()))
        logging.getLogger(LOGGER).info(
            "epoch %d: loss %.6g, %.4f s, payloads sent by this rank %d B, with evaluation: %s",
            int(record["epoch"] or 0),
            record["loss"] or 0.0,
            record["seconds"] or 0.0,
            sent - self._bytes,
            split,
        )
        self._read, self._bytes = self._desk.stopwatch.read(), sent


def open_log(directory: Path, rank: int, ranks: int, facts: str) -> None:
    """Log lines and warnings of this process go to the rank's file from now on, after earlier ones."""
    path = directory / FOLDER / f"rank-{rank}.log"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handler = logging.FileHandler(path, encoding="utf-8")
    except OSError:
        return
    handler.handleError = lambda record: None  # type: ignore[method-assign]  # a full disk is no reason to fail
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger = logging.getLogger(LOGGER)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    show = warnings.showwarning

    def note(message: Warning | str, category: type[Warning], filename: str, *rest: object) -> None:
        logger.warning("%s: %s (%s)", category.__name__, message, filename)
        show(message, category, filename, *rest)  # type: ignore[arg-type]

    warnings.showwarning = note  # type: ignore[assignment]
    logger.info("rank %d of %d on %s, process %d; %s", rank, ranks, platform.node(), os.getpid(), facts)


@contextlib.contextmanager
def own_logs() -> Iterator[None]:
    """Logs and noted warnings that begin inside the `with` end with it: a program may run many times."""
    logger, show = logging.getLogger(LOGGER), warnings.showwarning
    before, level, propagate = list(logger.handlers), logger.level, logger.propagate
    try:
        yield
    finally:
        for handler in [handler for handler in logger.handlers if handler not in before]:
            logger.removeHandler(handler)
            handler.close()
        logger.propagate, warnings.showwarning = propagate, show
        logger.setLevel(level)


def note_end(line: str, *, failed: bool) -> None:
    """Write the last line of this rank's log, where it has one."""
    logger = logging.getLogger(LOGGER)
    if logger.handlers:
        logger.log(logging.ERROR if failed else logging.INFO, "%s", line)
