"""Rows of a large matrix in bounded pieces, so that no temporary array has an entry a stored entry."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

ENTRIES = 1 << 24  # stored entries that are worked on at a time


def csr_pieces(pointer: npt.NDArray[Any], entries: int = ENTRIES) -> Iterator[slice]:
    """Slices of rows with at most `entries` stored entries each, or one row; `pointer` is `[N + 1]`."""
    rows, start = len(pointer) - 1, 0
    while start < rows:
        limit = int(pointer[start]) + entries
        stop = int(np.searchsorted(pointer, limit, side="right")) - 1
        stop = min(rows, max(start + 1, stop))
        yield slice(start, stop)
        start = stop


def rows_of_entries(pointer: npt.NDArray[Any], rows: slice) -> npt.NDArray[np.int64]:
    """The row number of each entry of some rows."""
    counts = np.diff(pointer[rows.start : rows.stop + 1])
    return np.repeat(np.arange(rows.start, rows.stop, dtype=np.int64), counts)
