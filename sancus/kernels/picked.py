"""Rows of a table, and of a smaller one beside it, by number: what a sample sees of the features.

They are not copied before they are needed: a product with a sparse matrix reads them where they stand.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
import torch

from sancus.kernels import rows
from sancus.kernels.base import Csr
from sancus.kernels.matrix import SparseMatrix

Table = torch.Tensor | SparseMatrix  # constant rows, dense or sparse


class PickedRows:
    """`[n, F]`: row `k` is row `place_k` of `own [m, F]`, or from `m` on row `place_k − m` of `pulled`."""

    def __init__(self, own: Table, pulled: Table, place: torch.Tensor) -> None:
        """Both tables are dense, or both are sparse; `place [n]` int64."""
        assert isinstance(own, SparseMatrix) == isinstance(pulled, SparseMatrix)
        self._own = own
        self._pulled = pulled
        self._place = place

    @property
    def shape(self) -> tuple[int, int]:
        """`(n, F)`."""
        return len(self._place), self._own.shape[1]

    @property
    def dense(self) -> bool:
        """Whether the rows are dense."""
        return isinstance(self._own, torch.Tensor)

    def first(self, count: int) -> PickedRows:
        """The first `count` of the rows."""
        return PickedRows(self._own, self._pulled, self._place[:count])

    def to_rows(self) -> Table:
        """A copy of the rows, as dense or sparse as they are."""
        mine = self._place < self._own.shape[0]
        other = self._place[~mine] - self._own.shape[0]
        if isinstance(self._own, SparseMatrix):
            assert isinstance(self._pulled, SparseMatrix)
            return _sparse_rows(self._own, self._pulled, self._place[mine], other, mine)
        assert isinstance(self._pulled, torch.Tensor)
        if not len(other):
            return rows.take(self._own, self._place)
        out = self._own.new_empty(self.shape)
        out[mine] = rows.take(self._own, self._place[mine])
        out[~mine] = rows.take(self._pulled, other)
        return out

    def to_dense(self) -> torch.Tensor:
        """A copy of the rows as one tensor."""
        copy = self.to_rows()
        return copy.to_dense() if isinstance(copy, SparseMatrix) else copy

    def __matmul__(self, weight: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = self.to_rows() @ weight
        return product

    def summed_by(self, matrix: SparseMatrix) -> torch.Tensor:
        """`A H [m, F]` for a matrix `A [m, k]` over the first `k` rows, read in place; dense only."""
        csr, own = matrix.csr, self._own
        assert isinstance(own, torch.Tensor) and isinstance(self._pulled, torch.Tensor)
        column = self._place[csr.col.to(torch.int64)]
        mine = column < len(own)
        if bool(mine.all()):
            return (
                SparseMatrix(Csr(csr.crow, column, csr.value, (matrix.shape[0], len(own))), matrix.kernel)
                @ own
            )
        out = own.new_zeros(matrix.shape[0], own.shape[1])
        for table, of_table, first in ((own, mine, 0), (self._pulled, ~mine, len(own))):
            crow = torch.cat([of_table.new_zeros(1, dtype=torch.int64), of_table.cumsum(0)])[csr.crow]
            shape = (matrix.shape[0], len(table))
            part = SparseMatrix(
                Csr(crow, column[of_table] - first, csr.value[of_table], shape), matrix.kernel
            )
            part.accumulate(table, out)
        return out


def _sparse_rows(
    own: SparseMatrix, pulled: SparseMatrix, here: torch.Tensor, there: torch.Tensor, mine: torch.Tensor
) -> SparseMatrix:
    """Rows `here` of `own` where `mine [n]` says so, rows `there` of `pulled` elsewhere."""
    stacked = sp.vstack([to_scipy(own)[here.numpy()], to_scipy(pulled)[there.numpy()]], format="csr")
    order = np.empty(len(mine), np.int64)
    order[mine.numpy()], order[~mine.numpy()] = np.arange(len(here)), np.arange(len(there)) + len(here)
    return SparseMatrix.from_scipy(sp.csr_array(stacked[order]), own.kernel, own.dtype)


def first_rows(matrix: SparseMatrix, count: int) -> SparseMatrix:
    """The first `count` rows of a matrix."""
    csr = matrix.csr
    end = int(csr.crow[count])
    part = Csr(csr.crow[: count + 1], csr.col[:end], csr.value[:end], (count, matrix.shape[1]))
    return SparseMatrix(part, matrix.kernel)


def to_scipy(matrix: SparseMatrix) -> sp.csr_array:
    """The same matrix in scipy, with no copy."""
    csr = matrix.csr
    return sp.csr_array((csr.value.numpy(), csr.col.numpy(), csr.crow.numpy()), shape=csr.shape)
