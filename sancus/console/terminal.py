"""A terminal that goes away while something runs: what is written to it then is lost, and nothing else."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class Terminal(io.FileIO):
    """A terminal as a raw file, which becomes `/dev/null` when it is gone (EIO)."""

    def write(self, data: ReadableBuffer, /) -> int:
        """Write, or drop: a connection that broke is no reason to fail, and SIGHUP tells of it anyway."""
        try:
            return super().write(data) or 0
        except OSError as error:
            if error.errno != errno.EIO:
                raise
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)
        return memoryview(data).nbytes


def outlive_terminal() -> None:
    """Let stdout and stderr, where they are terminals, outlive them.

    The hang-up of a terminal is told to its shell first, whose jobs hear of it later: a line that is printed
    in between would end a run before it can save its work.
    """
    sys.stdout, sys.stderr = _guarded(sys.stdout), _guarded(sys.stderr)


def _guarded(stream: TextIO) -> TextIO:
    if not stream.isatty() or isinstance(getattr(stream.buffer, "raw", None), Terminal):
        return stream
    stream.flush()
    raw = Terminal(stream.fileno(), "w", closefd=False)
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding=stream.encoding, errors=stream.errors, line_buffering=True
    )
