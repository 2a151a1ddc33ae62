"""A sparse matrix that multiplies dense tensors through a kernel, differentiably."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from sancus.kernels.base import Csr, Kernel, index_dtype
from sancus.kernels.native.operands import check_indices
from sancus.kernels.transpose import Transposition, row_of_entries, transposition_of


class SparseMatrix:
    """A constant CSR matrix `[m, n]`; its transpose is made at most once.

    `A @ H` is differentiable with respect to `H [n, f]`: `dH = Aᵀ dY`. The matrix itself never
    receives a gradient.
    """

    def __init__(self, csr: Csr, kernel: Kernel) -> None:
        """`csr.col` may be of either index dtype; it is kept as int32 where the columns fit."""
        self.csr = replace(csr, col=csr.col.to(index_dtype(csr.shape[1])))
        self.kernel = kernel

    @classmethod
    def from_scipy(
        cls, matrix: sp.csr_array, kernel: Kernel, dtype: torch.dtype, device: torch.device | None = None
    ) -> SparseMatrix:
        """Copy a scipy matrix into tensors of the run's dtype."""
        rows, columns = matrix.shape
        csr = Csr(
            torch.from_numpy(np.array(matrix.indptr, np.int64)).to(device),
            torch.from_numpy(np.array(matrix.indices)).to(device),
            torch.from_numpy(np.array(matrix.data)).to(device, dtype),
            (int(rows), int(columns)),
        )
        return cls(csr, kernel)

    @property
    def shape(self) -> tuple[int, int]:
        """`(m, n)`."""
        return self.csr.shape

    @property
    def nnz(self) -> int:
        """The number of stored entries."""
        return int(self.csr.col.numel())

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the values."""
        return self.csr.value.dtype

    @cached_property
    def transposed(self) -> SparseMatrix:
        """`Aᵀ [n, m]`, made at first use and kept for the backward pass; the sorting order is not kept."""
        crow, col, order = self.__dict__.get("transposition") or transposition_of(self.csr)
        transpose = SparseMatrix(
            Csr(crow, col, self.csr.value[order], (self.shape[1], self.shape[0])), self.kernel
        )
        transpose.__dict__["transposed"] = self
        return transpose

    def with_values(self, value: torch.Tensor) -> SparseMatrix:
        """The same pattern with other values `[nnz]`; the sorted transpose pattern is shared."""
        matrix = SparseMatrix(Csr(self.csr.crow, self.csr.col, value, self.shape), self.kernel)
        matrix.__dict__["transposition"] = self.transposition
        return matrix

    def weighted_columns(self, weight: torch.Tensor) -> SparseMatrix:
        """Every column times its `weight [n]`, those of weight 0 left out: `[m, k]`.

        Its transpose is made along, from that of this matrix, so that nothing is sorted again.
        """
        csr, flipped, present = self.csr, self.transposed.csr, weight != 0
        shape = (self.shape[0], int(present.sum()))
        place = present.cumsum(0) - 1  # the number that a column gets
        column = csr.col.to(torch.int64)
        keep = present[column]
        column = column[keep]
        thin = Csr(_starts(keep)[csr.crow], place[column], csr.value[keep] * weight[column], shape)
        row = row_of_entries(flipped.crow)
        keep = present[row]
        lengths = (flipped.crow[1:] - flipped.crow[:-1])[present]
        crow = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        values = flipped.value[keep] * weight[row[keep]]
        return with_transpose(thin, Csr(crow, flipped.col[keep], values, shape[::-1]), self.kernel)

    def row_of_entries(self) -> torch.Tensor:
        """The row of each stored entry, `[nnz]`."""
        return row_of_entries(self.csr.crow)

    def to_dense(self) -> torch.Tensor:
        """`[m, n]`; for the faithful baseline that moves dense inputs, and for tests."""
        dense = torch.zeros(self.shape, dtype=self.dtype, device=self.csr.value.device)
        places = self.row_of_entries(), self.csr.col.to(torch.int64)
        return dense.index_put_(places, self.csr.value, accumulate=True)

    def multiply(self, dense: torch.Tensor) -> torch.Tensor:
        """`A H`, outside autograd."""
        return self.kernel.multiply(self._prepared, dense)

    def accumulate(self, dense: torch.Tensor, out: torch.Tensor) -> None:
        """`out += A H`, outside autograd."""
        self.kernel.accumulate(self._prepared, dense, out)

    def __matmul__(self, dense: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = _Product.apply(self, dense)
        return result

    @cached_property
    def _prepared(self) -> object:
        return self.kernel.prepare(self.csr)

    @cached_property
    def transposition(self) -> Transposition:
        """The pattern of the transpose, made at first use and kept; see `transposition_of`."""
        return transposition_of(self.csr)


def checked_pattern(matrix: SparseMatrix) -> tuple[torch.Tensor, torch.Tensor]:
    """crow and col of a matrix for operators that take indices on trust: checked once, then kept with it."""
    kept = matrix.__dict__.get("checked_pattern")
    if kept is None:
        kept = matrix.csr.crow.contiguous(), matrix.csr.col.contiguous()
        if __debug__:
            check_indices(*kept, matrix.shape[1])
        matrix.__dict__["checked_pattern"] = kept
    crow, col = kept
    return crow, col


def part_of(matrix: SparseMatrix, rows: slice) -> SparseMatrix:
    """Consecutive rows `[k, n]` of a matrix; they share its memory."""
    crow = matrix.csr.crow[rows.start : rows.stop + 1]
    entries = slice(int(crow[0]), int(crow[-1]))
    shape = (rows.stop - rows.start, matrix.shape[1])
    csr = Csr(crow - crow[0], matrix.csr.col[entries], matrix.csr.value[entries], shape)
    return SparseMatrix(csr, matrix.kernel)


def with_transpose(csr: Csr, transpose: Csr, kernel: Kernel) -> SparseMatrix:
    """A matrix whose transpose the caller has already, so that nothing is sorted.

    The transpose does not refer back to the matrix, so both are freed when an epoch is done with them.
    """
    matrix = SparseMatrix(csr, kernel)
    matrix.__dict__["transposed"] = SparseMatrix(transpose, kernel)
    return matrix


def _starts(keep: torch.Tensor) -> torch.Tensor:
    """`[nnz + 1]`: how many of the entries before each one stay, for `keep [nnz]`."""
    return torch.cat([keep.new_zeros(1, dtype=torch.int64), keep.cumsum(0)])


class _Product(torch.autograd.Function):
    """`Y = A H`, `dH = Aᵀ dY`."""

    @staticmethod
    def forward(ctx: Any, matrix: SparseMatrix, dense: torch.Tensor) -> torch.Tensor:
        ctx.matrix = matrix
        return matrix.multiply(dense)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, torch.Tensor]:
        return None, ctx.matrix.transposed.multiply(gradient)
