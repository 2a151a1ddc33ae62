"""The sparse product on a GPU behind the contract of `sancus.kernels.base`."""

from __future__ import annotations

import torch

from sancus.kernels.base import Csr
from sancus.kernels.triton import spmm


class TritonKernel:
    """Our own kernels for GPUs, compiled at first use; rows of very many entries are cut."""

    def prepare(self, matrix: Csr) -> spmm.Prepared:
        """The matrix itself, and where its longest rows are cut."""
        return spmm.prepare(matrix)

    def multiply(self, prepared: spmm.Prepared, dense: torch.Tensor) -> torch.Tensor:
        """`A H` as a new tensor `[m, f]`."""
        out = dense.new_empty(prepared.matrix.shape[0], dense.shape[1])
        spmm.spmm(prepared, prepared.matrix.value, dense, out)
        return out

    def accumulate(self, prepared: spmm.Prepared, dense: torch.Tensor, out: torch.Tensor) -> None:
        """`out += A H` in place."""
        spmm.spmm(prepared, prepared.matrix.value, dense, out, accumulate=True)
