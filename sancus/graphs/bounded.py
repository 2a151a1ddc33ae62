"""Large arrays in bounded pieces: what works on all entries of a graph holds only some of them at a time.

Mapped arrays are given back to the system after every piece, so that the resident size of a process stays
small while it reads or writes files that are larger than memory. Row pointers are 64-bit where they must be,
and every offset is computed in 64 bits.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from sancus.partitioners.pieces import csr_pieces, rows_of_entries

Array = npt.NDArray[Any]
Ids = npt.NDArray[np.int64]

VALUES = 1 << 22  # numbers of a dense matrix that are worked on at a time
LARGEST_INT32 = 2**31 - 1


def index_type(largest: int) -> type[np.signedinteger[Any]]:
    """The smallest index type that holds `largest`: of columns, and of row pointers."""
    return np.int32 if largest <= LARGEST_INT32 else np.int64


def row_pieces(matrix: Array, values: int = VALUES) -> Iterator[slice]:
    """Slices of rows with about `values` numbers each; a mapped matrix is given back after each."""
    rows = max(1, values // max(1, int(np.prod(matrix.shape[1:], dtype=np.int64))))
    for start in range(0, len(matrix), rows):
        yield slice(start, min(len(matrix), start + rows))
        release(matrix)


def release(array: Array) -> None:
    """Take the pages of a mapped array out of this process; they stay in its file."""
    mapping = getattr(array, "_mmap", None)
    if isinstance(mapping, mmap.mmap):
        mapping.madvise(mmap.MADV_DONTNEED)


def first_not_finite(array: Array) -> int | None:
    """Flat place of the first NaN or infinity, None where there is none."""
    if array.ndim == 0:
        return None if np.isfinite(array) else 0
    width = int(np.prod(array.shape[1:], dtype=np.int64))
    for rows in row_pieces(array):
        bad = ~np.isfinite(array[rows])
        if bad.any():
            return rows.start * width + int(np.flatnonzero(bad.ravel())[0])
    return None


def take_columns(adjacency: sp.csr_array, columns: Ids) -> sp.csr_array:
    """Rows `columns` of the transposed matrix, `[len(columns), N]`, sorted; found piece by piece.

    `A.T.tocsr()[columns]` would hold a second copy of the whole matrix.
    """
    place = np.full(adjacency.shape[1], -1, np.int64)
    place[columns] = np.arange(len(columns))
    pieces: list[tuple[Ids, Ids, Array]] = [(np.zeros(0, np.int64),) * 2 + (adjacency.data[:0],)]
    for rows in csr_pieces(adjacency.indptr):
        entries = slice(int(adjacency.indptr[rows.start]), int(adjacency.indptr[rows.stop]))
        places = place[adjacency.indices[entries]]
        keep = np.flatnonzero(places >= 0)
        pieces.append(
            (places[keep], rows_of_entries(adjacency.indptr, rows)[keep], adjacency.data[entries][keep])
        )
    row, column, data = (np.concatenate(parts) for parts in zip(*pieces, strict=True))
    selection = sp.csr_array((data, (row, column)), shape=(len(columns), adjacency.shape[0]))
    selection.sort_indices()
    return selection


def is_symmetric(adjacency: sp.csr_array, pieces: int = 8) -> bool:
    """Whether a canonical matrix equals its transpose, in pattern and weight; stops at a difference."""
    step = -(-adjacency.shape[0] // pieces)
    for start in range(0, adjacency.shape[0], max(1, step)):
        own = adjacency[start : start + step]
        transpose = take_columns(adjacency, np.arange(start, start + own.shape[0], dtype=np.int64))
        fields = ("indptr", "indices", "data")
        if not all(np.array_equal(getattr(own, name), getattr(transpose, name)) for name in fields):
            return False
    return True
