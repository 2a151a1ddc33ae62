"""A sparse matrix that multiplies dense tensors through a kernel, differentiably."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from sancus.kernels.base import Csr, Kernel


class SparseMatrix:
    """A constant CSR matrix `[m, n]`; its transpose is made at most once.

    `A @ H` is differentiable with respect to `H [n, f]`: `dH = Aᵀ dY`. The matrix itself never
    receives a gradient.
    """

    def __init__(self, csr: Csr, kernel: Kernel) -> None:
        self.csr = csr
        self.kernel = kernel

    @classmethod
    def from_scipy(
        cls, matrix: sp.csr_array, kernel: Kernel, dtype: torch.dtype, device: torch.device | None = None
    ) -> SparseMatrix:
        """Copy a scipy matrix into tensors of the run's dtype."""
        rows, columns = matrix.shape
        csr = Csr(
            torch.from_numpy(np.asarray(matrix.indptr, np.int64)).to(device),
            torch.from_numpy(np.asarray(matrix.indices, np.int64)).to(device),
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
        """Stored entries."""
        return int(self.csr.col.numel())

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the values."""
        return self.csr.value.dtype

    @cached_property
    def transposed(self) -> SparseMatrix:
        """`Aᵀ [n, m]`, stored for the backward pass."""
        order, crow, col = self._transposition
        flipped = SparseMatrix(
            Csr(crow, col, self.csr.value[order], (self.shape[1], self.shape[0])), self.kernel
        )
        flipped.__dict__["transposed"] = self
        return flipped

    def with_values(self, value: torch.Tensor) -> SparseMatrix:
        """The same pattern with other values `[nnz]`; the sorted transpose pattern is shared."""
        matrix = SparseMatrix(Csr(self.csr.crow, self.csr.col, value, self.shape), self.kernel)
        matrix.__dict__["_transposition"] = self._transposition
        return matrix

    def row_of_entries(self) -> torch.Tensor:
        """The row of each stored entry, `[nnz]`."""
        counts = self.csr.crow[1:] - self.csr.crow[:-1]
        return torch.repeat_interleave(torch.arange(self.shape[0], device=counts.device), counts)

    def to_dense(self) -> torch.Tensor:
        """`[m, n]`; for the faithful baseline that moves dense inputs, and for tests."""
        dense = torch.zeros(self.shape, dtype=self.dtype, device=self.csr.value.device)
        return dense.index_put_((self.row_of_entries(), self.csr.col), self.csr.value, accumulate=True)

    def multiply(self, dense: torch.Tensor) -> torch.Tensor:
        """`A H`, outside autograd."""
        return self.kernel.multiply(self._prepared, dense.contiguous())

    def accumulate(self, dense: torch.Tensor, out: torch.Tensor) -> None:
        """`out += A H`, outside autograd."""
        self.kernel.accumulate(self._prepared, dense.contiguous(), out)

    def __matmul__(self, dense: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = _Product.apply(self, dense)  # type: ignore[no-untyped-call]
        return result

    @cached_property
    def _prepared(self) -> object:
        return self.kernel.prepare(self.csr)

    @cached_property
    def _transposition(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Order of the entries by column (stable, so rows ascend), with the transpose's crow and col."""
        order = torch.argsort(self.csr.col, stable=True)
        counts = torch.bincount(self.csr.col, minlength=self.shape[1])
        crow = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        return order, crow, self.row_of_entries()[order]


class _Product(torch.autograd.Function):
    """`Y = A H`, `dH = Aᵀ dY`."""

    @staticmethod
    def forward(ctx: Any, matrix: SparseMatrix, dense: torch.Tensor) -> torch.Tensor:
        ctx.matrix = matrix
        return matrix.multiply(dense)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, torch.Tensor]:
        return None, ctx.matrix.transposed.multiply(gradient)
