"""Matrices that are too large to hold: written row by row to a file without a name, and mapped.

The file is removed from its folder as soon as it is open, so that nothing is left behind however the process
ends.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from sancus.errors import UserError

Rows = npt.NDArray[np.float32]


class Spool:
    """A growing float32 matrix `[rows, F]` on disk; `finish` maps it."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.width = 0
        self.rows = 0
        try:
            self._file: IO[bytes] = tempfile.TemporaryFile(dir=spool_folder(), prefix="sancus-")  # noqa: SIM115
        except OSError as error:
            raise self._full(error) from error

    def append(self, rows: Rows) -> None:
        """More rows `[n, F]`; all have the width of the first."""
        self.width = rows.shape[1]
        self.rows += len(rows)
        try:
            self._file.write(np.ascontiguousarray(rows).data)
        except OSError as error:
            self._file.close()
            raise self._full(error) from error

    def finish(self) -> Rows:
        """The whole matrix, mapped; its space is given back when the last view is gone."""
        try:
            self._file.flush()
        except OSError as error:
            raise self._full(error) from error
        if not self.rows * self.width:
            return np.zeros((self.rows, self.width), np.float32)
        matrix: Rows = np.memmap(self._file, np.float32, "r", shape=(self.rows, self.width))
        self._file.close()
        return matrix

    def _full(self, error: OSError) -> UserError:
        return UserError(
            f"{self.what}: cannot be kept in {spool_folder()} ({error.strerror}); free space or set TMPDIR"
        )


def spool(pieces: Iterable[npt.NDArray[Any]], what: str) -> Rows:
    """Pieces of rows, one after the other, as one mapped matrix."""
    matrix = Spool(what)
    for piece in pieces:
        matrix.append(np.asarray(piece, np.float32))
    return matrix.finish()


def spool_folder() -> str:
    """Where spooled matrices live: `TMPDIR`, else `/var/tmp`, which is a disk where `/tmp` may be memory."""
    return os.environ.get("TMPDIR") or (
        "/var/tmp" if os.access("/var/tmp", os.W_OK) else tempfile.gettempdir()
    )
