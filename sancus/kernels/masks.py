"""Dropout by a hash of row key and column key: native where the library loads, else in torch, bit for bit.

The hash is the finaliser of MurmurHash3. A mask is never stored: the backward pass hashes again, which is
faster than reading a mask of floats and takes no memory.
"""

from __future__ import annotations

from typing import Any

import torch

from sancus.kernels.matrix import SparseMatrix
from sancus.kernels.native import calls
from sancus.kernels.native.library import available

Keys = tuple[torch.Tensor, torch.Tensor]  # int32: of rows [n], of columns [f]
_BUCKETS = 1 << 31


def drop(h: torch.Tensor, keys: Keys, share: float) -> torch.Tensor:
    """`h [n, f]` with a `share` of its entries zeroed and the others scaled by `1 / (1 - share)`."""
    if h.device.type == "cpu" and available():
        dropped: torch.Tensor = _Drop.apply(h, *keys, share)
        return dropped
    rows, columns = keys
    return h * factors(noise(rows[:, None], columns[None, :]), share, h.dtype)


def drop_entries(x: SparseMatrix, keys: Keys, share: float) -> torch.Tensor:
    """The values `[nnz]` of a constant sparse matrix, dropped alike."""
    csr, (rows, columns) = x.csr, keys
    if csr.value.device.type == "cpu" and available():
        return calls.drop_entries((csr.crow, csr.col), csr.value, keys, bucket(share), 1.0 / (1.0 - share))
    found = noise(rows[x.row_of_entries()], columns[csr.col.to(torch.int64)])
    return csr.value * factors(found, share, x.dtype)


def noise(rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """Uniform in `[0, 2^31)`, int32, of int32 keys; broadcasts."""
    x = rows ^ columns
    x = (x ^ _shift(x, 16)).mul_(-2048144789)
    x = (x ^ _shift(x, 13)).mul_(-1028477387)
    return (x ^ _shift(x, 16)).bitwise_and_(_BUCKETS - 1)


def bucket(share: float) -> int:
    """Noise below this is dropped."""
    return int(share * _BUCKETS)


def factors(found: torch.Tensor, share: float, dtype: torch.dtype) -> torch.Tensor:
    """0 or `1 / (1 - share)` for every noise."""
    return (found >= bucket(share)).to(dtype).mul_(1.0 / (1.0 - share))


class _Drop(torch.autograd.Function):
    """The native dropout; the gradient is dropped where the entries were."""

    @staticmethod
    def forward(
        context: Any, h: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor, share: float
    ) -> Any:
        """The keys are all that backward needs."""
        context.save_for_backward(rows, columns)
        context.share = share
        return calls.drop(h, (rows, columns), bucket(share), 1.0 / (1.0 - share))

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> Any:
        """The same mask."""
        rows, columns = context.saved_tensors
        share = context.share
        dropped = calls.drop(gradients[0], (rows, columns), bucket(share), 1.0 / (1.0 - share))
        return dropped, None, None, None


def _shift(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Logical shift to the right of int32."""
    return (x >> bits).bitwise_and_((1 << (32 - bits)) - 1)
