"""Dropout by a hash of row key and column key: native, in Triton on a GPU, or in torch, bit for bit the same.

The hash is the finaliser of MurmurHash3. A mask is never stored: the backward pass hashes again, which is
faster than reading a mask of floats and takes no memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from sancus.kernels import gpu
from sancus.kernels.base import Csr
from sancus.kernels.matrix import SparseMatrix
from sancus.kernels.native import calls
from sancus.kernels.native.library import available

Keys = tuple[torch.Tensor, torch.Tensor]  # int32: of rows [n], of columns [f]
_BUCKETS = 1 << 31
_TILE_BYTES = 1 << 20


@dataclass(frozen=True)
class EdgeMask:
    """Dropout of the entries of a matrix `[m, n]`, head by head: what their hash needs."""

    rows: torch.Tensor  # keys [m] int32
    columns: torch.Tensor  # keys [n, heads] int32
    share: float

    def factors(self, matrix: SparseMatrix) -> torch.Tensor:
        """`[nnz, heads]`: 0, or `1 / (1 - share)`."""
        columns = self.columns.index_select(0, matrix.csr.col.to(torch.int64))
        values = noise(self.rows[matrix.row_of_entries()][:, None], columns)
        return factors(values, self.share, matrix.dtype)


def drop(h: torch.Tensor, keys: Keys, share: float) -> torch.Tensor:
    """`h [n, f]` with a `share` of its entries zeroed and the others scaled by `1 / (1 - share)`."""
    if gpu.compiles(h) or (h.device.type == "cpu" and available()):
        dropped: torch.Tensor = _Drop.apply(h, *keys, share)
        return dropped
    return _dropped(h, keys, share)


def drop_product(h: torch.Tensor, keys: Keys, share: float, weight: torch.Tensor) -> torch.Tensor:
    """`drop(h) @ weight [n, f_out]`, tile by tile: `drop(h)` is neither written out nor kept for backward."""
    product: torch.Tensor = _DropProduct.apply(h, *keys, share, weight)
    return product


def drop_entries(x: SparseMatrix, keys: Keys, share: float) -> Csr:
    """A constant sparse matrix `[n, f]` under the mask of `drop`: dropped entries are not even stored."""
    csr, (rows, columns), scale = x.csr, keys, 1.0 / (1.0 - share)
    pattern = csr.crow, csr.col
    if gpu.compiles(csr.value):
        from sancus.kernels.triton import triton_masks as kernels  # takes seconds to import

        keep = kernels.keep_entries(pattern, keys, bucket(share))
    elif csr.value.device.type == "cpu" and available():
        return Csr(*calls.keep_entries(pattern, csr.value, keys, bucket(share), scale), x.shape)
    else:
        keep = noise(rows[x.row_of_entries()], columns[csr.col.to(torch.int64)]) >= bucket(share)
    before = torch.cat([keep.new_zeros(1, dtype=torch.int64), keep.cumsum(0)])
    return Csr(before[csr.crow], csr.col[keep], csr.value[keep] * scale, x.shape)


def noise(rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """Uniform in `[0, 2^31)`, int32, of int32 keys; broadcasts."""
    x = rows ^ columns
    x = (x ^ _shift(x, 16)).mul_(-2048144789)
    x = (x ^ _shift(x, 13)).mul_(-1028477387)
    return (x ^ _shift(x, 16)).bitwise_and_(_BUCKETS - 1)


def bucket(share: float) -> int:
    """The threshold of a dropout share: an entry with noise below it is dropped."""
    return int(share * _BUCKETS)


def factors(values: torch.Tensor, share: float, dtype: torch.dtype) -> torch.Tensor:
    """What dropout multiplies an entry by, for noise `values` of any shape: 0, or `1 / (1 - share)`."""
    return (values >= bucket(share)).to(dtype).mul_(1.0 / (1.0 - share))


class _Drop(torch.autograd.Function):
    """The dropout of our kernels; the gradient is dropped where the entries were."""

    @staticmethod
    def forward(
        context: Any, h: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor, share: float
    ) -> Any:
        """Saves the keys alone, from which backward makes the same mask again."""
        context.save_for_backward(rows, columns)
        context.share = share
        return _dropped(h, (rows, columns), share)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> Any:
        """The gradient under the mask of the forward pass."""
        return _dropped(gradients[0], context.saved_tensors, context.share), None, None, None


class _DropProduct(torch.autograd.Function):
    """`Z = D(H) W`, `dW = D(H)ᵀ dZ`, `dH = D(dZ Wᵀ)`, where `D` drops; the tiles of `D(H)` are made twice."""

    @staticmethod
    def forward(
        context: Any,
        h: torch.Tensor,
        rows: torch.Tensor,
        columns: torch.Tensor,
        share: float,
        weight: torch.Tensor,
    ) -> Any:
        """`h [n, f_in]`, `weight [f_in, f_out]` to `[n, f_out]`."""
        context.save_for_backward(h, rows, columns, weight)
        context.share = share
        out = h.new_empty(len(h), weight.shape[1])
        for tile in _tiles(h):
            torch.mm(_dropped(h[tile], (rows[tile], columns), share), weight, out=out[tile])
        return out

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> Any:
        """`dH` only where it is needed: a constant input has none."""
        h, rows, columns, weight = context.saved_tensors
        gradient, share = gradients[0], context.share
        d_weight = torch.zeros_like(weight) if context.needs_input_grad[4] else None
        d_h = torch.empty_like(h) if context.needs_input_grad[0] else None
        for tile in _tiles(h):
            keys = rows[tile], columns
            if d_weight is not None:
                d_weight.addmm_(_dropped(h[tile], keys, share).T, gradient[tile])
            if d_h is not None:
                d_h[tile] = _dropped(gradient[tile] @ weight.T, keys, share)
        return d_h, None, None, None, d_weight


def _dropped(h: torch.Tensor, keys: Keys, share: float) -> torch.Tensor:
    """`h` under its mask. Only the torch form is seen by autograd; `_Drop` differentiates the others."""
    if gpu.compiles(h):
        from sancus.kernels.triton import triton_masks as kernels

        return kernels.drop(h, keys, bucket(share), 1.0 / (1.0 - share))
    if h.device.type == "cpu" and available():
        return calls.drop(h, keys, bucket(share), 1.0 / (1.0 - share))
    rows, columns = keys
    return h * factors(noise(rows[:, None], columns[None, :]), share, h.dtype)


def _tiles(h: torch.Tensor) -> Iterator[slice]:
    """Rows that fit a core's cache; on a GPU all at once."""
    height = len(h) if h.device.type != "cpu" else max(64, _TILE_BYTES // max(1, h.shape[1] * h.itemsize))
    for start in range(0, len(h), max(1, height)):
        yield slice(start, min(start + height, len(h)))


def _shift(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Logical shift to the right of int32."""
    return (x >> bits).bitwise_and_((1 << (32 - bits)) - 1)
