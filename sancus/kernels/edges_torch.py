"""The operators of `edges` in torch: for CUDA, for machines without the native library, and for tests."""

from __future__ import annotations

import torch
from torch import Tensor

from sancus.kernels.base import Csr
from sancus.kernels.torch_csr import TorchKernel
from sancus.kernels.transpose import row_of_entries

_VALUES_AT_ONCE = 1 << 24  # gathered values in memory while scores are computed


def spmm(crow: Tensor, col: Tensor, value: Tensor, dense: Tensor) -> Tensor:
    """`[m, f]`, one CSR product a head."""
    kernel, shape = TorchKernel(), (len(crow) - 1, len(dense))
    weights = value.unbind(1) if value.dim() == 2 else (value,)
    parts = dense.split(max(1, dense.shape[1] // len(weights)), dim=1)
    products = [
        kernel.multiply(kernel.prepare(Csr(crow, col, weight.contiguous(), shape)), part)
        for weight, part in zip(weights, parts, strict=True)
    ]
    return torch.cat(products, dim=1)


def sddmm(crow: Tensor, col: Tensor, left: Tensor, right: Tensor, heads: int) -> Tensor:
    """`[nnz, heads]`: `<left[i], right[j]>` of every entry; so many at a time that memory is bounded."""
    score = left.new_empty(len(col), heads)
    step = max(1, _VALUES_AT_ONCE // max(1, left.shape[1]))
    for rows, columns, out in zip(
        row_of_entries(crow).split(step), col.split(step), score.split(step), strict=True
    ):
        products = left.index_select(0, rows) * right.index_select(0, columns)
        torch.sum(products.unflatten(1, (heads, -1)), dim=2, out=out)
    return score


def edge_softmax(crow: Tensor, score: Tensor) -> Tensor:
    """Shares `[nnz, heads]`: softmax of the scores over the entries of each row."""
    rows = row_of_entries(crow)
    most = score.new_full((len(crow) - 1, score.shape[1]), -torch.inf)
    most = most.scatter_reduce(0, rows[:, None].expand_as(score), score, "amax")
    share = (score - most[rows]).exp()
    return share / _row_sums(share, rows, len(crow) - 1)[rows]


def edge_softmax_backward(crow: Tensor, share: Tensor, gradient: Tensor) -> Tensor:
    """The gradient of the scores `[nnz, heads]` from that of the shares."""
    rows = row_of_entries(crow)
    total = _row_sums(share * gradient, rows, len(crow) - 1)
    return share * (gradient - total[rows])


def _row_sums(value: Tensor, rows: Tensor, count: int) -> Tensor:
    return value.new_zeros(count, value.shape[1]).index_add_(0, rows, value)
