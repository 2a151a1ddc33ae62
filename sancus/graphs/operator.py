"""One rank's rows of `Â` and of `Âᵀ`, cut into the blocks of the other ranks.

`Â_ij [n_i, n_j]` is the block of rank `i`'s rows and rank `j`'s columns (docs/design.md). Rank `i` holds its
block row of both matrices, so it knows without a message which rows it needs from `j` (the *halo*: columns
of `Â_ij` with an entry) and which of its own rows `j` needs (the *boundary*: rows of `(Âᵀ)_ij` with one).
Both sides derive the same list in the same order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Operator:
    """Block row `rank` of a normalised adjacency, and of its transpose.

    Its columns may be some nodes only (`only`): then own rows `[n_i]` take from the rows `[m_j]` of `H` of
    every rank that are among those nodes.
    """

    rank: int
    offsets: Ids  # [p + 1] of the columns
    rows: sp.csr_array  # [n_i, M] of Â: all own rows, over the columns
    transposed_rows: sp.csr_array  # [m_i, N] of Âᵀ: the own ones of the columns, over all rows
    row_offsets: Ids | None = None  # [p + 1] of the rows, where those of the columns are others

    @property
    def ranks(self) -> int:
        """`p`, the number of ranks."""
        return len(self.offsets) - 1

    @property
    def own(self) -> int:
        """`m_i`, the rows of `H` of this rank: `n_i`, where all nodes are columns."""
        return self.size(self.rank)

    @property
    def targets(self) -> int:
        """`n_i`, the rows of this rank that take from others."""
        return int(self.rows.shape[0])

    def size(self, rank: int) -> int:
        """`m_j`, the rows of `H` of a rank."""
        return int(self.offsets[rank + 1] - self.offsets[rank])

    def block(self, other: int) -> sp.csr_array:
        """`Â_ij [n_i, m_j]`."""
        return _columns(self.rows, self.offsets, other)

    def transposed_block(self, other: int) -> sp.csr_array:
        """`(Âᵀ)_ij = (Â_ji)ᵀ [m_i, n_j]`."""
        return _columns(self.transposed_rows, self._row_offsets, other)

    def only(self, starts: Ids, stops: Ids) -> Operator:
        """The same operator over the columns `starts[j] … stops[j]` `[p]` of every rank's block, from 0."""
        own = slice(int(starts[self.rank]), int(stops[self.rank]))
        first = self.offsets[:-1]
        kept = [np.arange(*pair) for pair in zip(first + starts, first + stops, strict=True)]
        offsets = np.concatenate([[0], np.cumsum(stops - starts)]).astype(np.int64)
        rows = sp.csr_array(self.rows[:, np.concatenate(kept)])
        rows.sort_indices()
        return Operator(self.rank, offsets, rows, sp.csr_array(self.transposed_rows[own]), self._row_offsets)

    def halo(self, other: int) -> Ids:
        """Rows of `other`, numbered from 0 in its block, that this rank needs; ascending."""
        return np.unique(self.block(other).indices).astype(np.int64)

    def boundary(self, other: int) -> Ids:
        """Own rows, numbered from 0, that `other` needs; equal to `other`'s halo in this rank."""
        return np.flatnonzero(np.diff(self.transposed_block(other).indptr)).astype(np.int64)

    @property
    def _row_offsets(self) -> Ids:
        return self.offsets if self.row_offsets is None else self.row_offsets


def _columns(matrix: sp.csr_array, offsets: Ids, other: int) -> sp.csr_array:
    """The columns of one rank."""
    return sp.csr_array(matrix[:, offsets[other] : offsets[other + 1]])
