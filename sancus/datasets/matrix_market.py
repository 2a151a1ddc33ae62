"""Matrix Market: `%%MatrixMarket matrix coordinate real|integer|pattern general|symmetric`, also `.mtx.gz`.

Entry `(i, j)` says that `i` aggregates from `j`. Features, labels and split are files beside it: see
`tables.py`.
"""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np

from sancus.datasets.tables import Array, TablesReader
from sancus.datasets.text import open_text, table_pieces
from sancus.errors import UserError

SUFFIXES = (".mtx", ".mtx.gz")
HEADER_LINES = 10_000
LONGEST_HEADER_LINE = 1 << 16


class MatrixMarketReader(TablesReader):
    """A sparse matrix in the Matrix Market format (.mtx, .mtx.gz), with features and labels beside it."""

    kind = "mtx"
    what = "a .mtx file"

    @staticmethod
    def recognises(path: Path) -> bool:
        """A file that ends in `.mtx` or `.mtx.gz`."""
        return path.name.endswith(SUFFIXES) and path.is_file()

    def read_edges(self) -> tuple[Array, Array | None, int, bool]:
        field, symmetry, size_line, nodes, entries = _header(self.path)
        columns = 2 if field == "pattern" else 3
        pieces = [np.zeros((0, columns))]
        for piece in table_pieces(self.path, np.float64, columns, skip=size_line):
            pieces.append(piece.rows)
        table = np.concatenate(pieces)
        if len(table) != entries:
            raise UserError(
                f"{self.path}: has {len(table)} entries, its header says {entries}; copy it again"
            )
        ends = table[:, :2].T - 1
        wrong = np.flatnonzero(((ends != np.floor(ends)) | (ends < 0) | (ends >= nodes)).any(axis=0))
        if wrong.size:
            row, column = table[wrong[0], :2]
            raise UserError(
                f"{self.path}: entry {wrong[0] + 1} is ({row:g}, {column:g}); rows are 1 to {nodes}"
            )
        edges = ends[::-1].astype(np.int64)  # source is the column
        weights = table[:, 2].astype(np.float32) if columns == 3 else None
        if symmetry == "symmetric":
            off = edges[0] != edges[1]
            edges = np.concatenate([edges, edges[::-1, off]], axis=1)
            weights = None if weights is None else np.concatenate([weights, weights[off]])
        return edges, weights, nodes, True


def _header(path: Path) -> tuple[str, str, int, int, int]:
    """Field, symmetry, the number of the size line, nodes and entries."""
    try:
        with open_text(path) as file:
            first = file.readline(LONGEST_HEADER_LINE).decode("ascii", "replace").lower().split()
            lines = (file.readline(LONGEST_HEADER_LINE) for _ in range(HEADER_LINES))
            size = next(
                (
                    (at, text)
                    for at, text in enumerate(lines, 2)
                    if text.strip() and not text.startswith(b"%")
                ),
                None,
            )
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: is damaged or truncated; copy it again") from error
    if len(first) != 5 or first[:3] != ["%%matrixmarket", "matrix", "coordinate"]:
        raise UserError(
            f"{path}: line 1 is not '%%MatrixMarket matrix coordinate …'; only sparse matrices are read"
        )
    if first[3] not in ("real", "integer", "pattern") or first[4] not in ("general", "symmetric"):
        raise UserError(
            f"{path}: is {first[3]} {first[4]}; real, integer or pattern, general or symmetric are read"
        )
    numbers = size[1].split() if size else []
    if (
        size is None
        or len(numbers) != 3
        or not all(number.isdigit() and len(number) < 19 for number in numbers)
    ):
        raise UserError(f"{path}: has no line 'rows columns entries' after its header; copy it again")
    rows, columns, entries = (int(number) for number in numbers)
    if rows != columns or rows < 1:
        raise UserError(f"{path}: is {rows} × {columns}; an adjacency is square")
    return first[3], first[4], size[0], rows, entries
