"""Edge lists: a line `source target` or `source target weight` an edge, nodes from 0 (SNAP's files too).

`edges.csv,labels=y.csv,features=x.npy,undirected=true`: see `tables.py` for the files beside it. A folder
with `edges.csv`, `features.npy` and `labels.csv` needs no option.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sancus.datasets.tables import Array, TablesReader, words_hint
from sancus.datasets.text import is_table, table_pieces
from sancus.errors import UserError

FOLDER_NAMES = tuple(f"edges{suffix}{gz}" for suffix in (".csv", ".tsv", ".txt") for gz in ("", ".gz"))


class EdgeListReader(TablesReader):
    """An edge list in text (.csv, .tsv, .txt, also .gz), with features and labels in files beside it."""

    kind = "edges"
    what = "an edge list"

    @staticmethod
    def recognises(path: Path) -> bool:
        """A table, or a folder with `edges.csv`, `.tsv` or `.txt`."""
        if path.is_dir():
            return any((path / name).is_file() for name in FOLDER_NAMES)
        return is_table(path)

    def edge_file(self) -> Path:
        if not self.path.is_dir():
            return self.path
        paths = [self.path / name for name in FOLDER_NAMES if (self.path / name).is_file()]
        if len(paths) != 1:
            names = ", ".join(path.name for path in paths) or "none"
            raise UserError(f"{self.path}: must hold one edges.csv, .tsv or .txt; it holds {names}")
        return paths[0]

    def read_edges(self) -> tuple[Array, Array | None, int, bool]:
        with words_hint():
            edges, weights = self._read_all()
        if not edges.size:
            raise UserError(f"{self.edge_file()}: there is no edge; is this the right file?")
        return edges, weights, int(edges.max()) + 1, False

    def _read_all(self) -> tuple[Array, Array | None]:
        """Edges `[2, E]`, and weights `[E]` where there is a third column."""
        ends, weights = [np.zeros((2, 0), np.int64)], [np.zeros(0, np.float32)]
        path = self.edge_file()
        columns = 2
        for piece in table_pieces(path, np.float64):
            columns = piece.rows.shape[1]
            if columns not in (2, 3):
                raise UserError(
                    f"{path}: line {piece.line} has {columns} columns; an edge is source, target, weight"
                )
            pairs = piece.rows[:, :2]
            wrong = np.flatnonzero(
                ((pairs != np.floor(pairs)) | (pairs < 0) | (pairs >= 2.0**53)).any(axis=1)
            )
            if wrong.size:
                pair = ", ".join(f"{value:g}" for value in pairs[wrong[0]])
                raise UserError(
                    f"{path}: edge {pair} ({wrong[0]} rows after line {piece.line}): nodes are whole, from 0"
                )
            ends.append(pairs.T.astype(np.int64))
            weights.append(piece.rows[:, 2].astype(np.float32) if columns == 3 else weights[0])
        edges = np.concatenate(ends, axis=1)
        return edges, np.concatenate(weights) if columns == 3 else None
