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
    """Block row `rank` of a normalised adjacency, and of its transpose."""

    rank: int
    offsets: Ids  # [p + 1]
    rows: sp.csr_array  # [n_i, N] of Â
    transposed_rows: sp.csr_array  # [n_i, N] of Âᵀ

    @property
    def ranks(self) -> int:
        """`p`, the number of ranks."""
        return len(self.offsets) - 1

    @property
    def own(self) -> int:
        """`n_i`, the rows of this rank."""
        return self.size(self.rank)

    def size(self, rank: int) -> int:
        """`n_j`, the rows of a rank."""
        return int(self.offsets[rank + 1] - self.offsets[rank])

    def block(self, other: int) -> sp.csr_array:
        """`Â_ij [n_i, n_j]`."""
        return self._columns(self.rows, other)

    def transposed_block(self, other: int) -> sp.csr_array:
        """`(Âᵀ)_ij = (Â_ji)ᵀ [n_i, n_j]`."""
        return self._columns(self.transposed_rows, other)

    def halo(self, other: int) -> Ids:
        """Rows of `other`, numbered from 0 in its block, that this rank needs; ascending."""
        return np.unique(self.block(other).indices).astype(np.int64)

    def boundary(self, other: int) -> Ids:
        """Own rows, numbered from 0, that `other` needs; equal to `other`'s halo in this rank."""
        return np.flatnonzero(np.diff(self.transposed_block(other).indptr)).astype(np.int64)

    def _columns(self, matrix: sp.csr_array, other: int) -> sp.csr_array:
        return sp.csr_array(matrix[:, self.offsets[other] : self.offsets[other + 1]])
