"""The transpose of a CSR pattern, without the values, so that matrices of one pattern share it."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
import torch

from sancus.kernels.base import Csr, index_dtype

Transposition = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""crow `[n + 1]` and col `[nnz]` of the transpose, and the order `[nnz]` that its entries had before."""


def transposition_of(matrix: Csr) -> Transposition:
    """The pattern of `Aᵀ [n, m]` for `A [m, n]`; sorting is stable, so the columns of every row ascend."""
    if matrix.col.device.type == "cpu":
        return _on_cpu(matrix)
    order = torch.argsort(matrix.col, stable=True)
    counts = torch.bincount(matrix.col, minlength=matrix.shape[1])
    crow = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    col = row_of_entries(matrix.crow)[order].to(index_dtype(matrix.shape[0]))
    return crow, col, order


def row_of_entries(crow: torch.Tensor) -> torch.Tensor:
    """The row of each stored entry, `[nnz]`, from `crow [m + 1]`."""
    counts = crow[1:] - crow[:-1]
    return torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)


def _on_cpu(matrix: Csr) -> Transposition:
    """By scipy's counting sort, which takes linear time."""
    positions = np.arange(len(matrix.col), dtype=np.int64)
    parts = (positions, matrix.col.numpy(), matrix.crow.numpy())
    transpose = sp.csr_array(parts, shape=matrix.shape).tocsc()
    crow = torch.from_numpy(transpose.indptr.astype(np.int64))
    col = torch.from_numpy(transpose.indices).to(index_dtype(matrix.shape[0]))
    return crow, col, torch.from_numpy(transpose.data)
