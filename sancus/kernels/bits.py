"""Rows of floats in 1, 2, 4 or 8 bits a value, with a zero point and a scale a row (Sylvie eq. 3-5).

`zero = min(x)`, `scale = (max(x) - min(x)) / B` with `B = 2^bits - 1`, and a value becomes the level
`(x - zero) / scale`, rounded down or up at random so that the decoded value is right on average (eq. 4).
The value of column `c` fills the bits from `c · bits` of its row on, lowest first.

The random number of a value is a hash of (seed, row id, column), so the bits depend neither on the machine
nor on threads, nor on which rows are packed together. The caller mixes into the seed what must differ between
two uses of the same rows: epoch, layer, direction. Row ids are the caller's, any int64.

With `coarse`, zero points and scales are bfloat16 numbers, so that they can cross in two bytes each: the zero
point is rounded down and the scale up, so the levels still enclose the row, a little wider, and decoding is
still right on average. Otherwise a constant row decodes exactly. A row with NaN or infinity decodes to NaN
and is reported in `finite`. A row whose range is beyond 2^127 saturates; one whose scale is not a normal
float32 decodes to its minimum.

fp16 and bf16 need no packing: `x.to(torch.float16)` runs at the memory's speed.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from sancus.kernels import bits_torch, gpu
from sancus.kernels.native import calls
from sancus.kernels.native.library import available

WIDTHS = (1, 2, 4, 8)


class PackedRows(NamedTuple):
    """Rows in few bits: what `unpack` needs, and which rows it can decode."""

    data: torch.Tensor  # [n, ceil(c bits / 8)] uint8
    zero: torch.Tensor  # [n] float32
    scale: torch.Tensor  # [n] float32
    finite: torch.Tensor  # [n] bool: False where the row held NaN or infinity


def packed_bytes(columns: int, bits: int) -> int:
    """Bytes of one packed row, without its zero point and scale."""
    return (columns * bits + 7) // 8


def pack(x: torch.Tensor, bits: int, seed: int, row_ids: torch.Tensor, *, coarse: bool = False) -> PackedRows:
    """Pack `x [n, c]`, rounded to float32; `row_ids [n]` int64 number the rows for the hash."""
    assert bits in WIDTHS, f"{bits} bits; a value is packed in one of {WIDTHS}"
    assert x.dim() == 2 and row_ids.shape == (len(x),) and row_ids.dtype == torch.int64
    x = x.detach().to(torch.float32)
    if not x.numel():
        n = len(x)
        width = packed_bytes(x.shape[1], bits)
        nothing = x.new_zeros(n)
        return PackedRows(x.new_empty(n, width, dtype=torch.uint8), nothing, nothing.clone(), nothing == 0)
    if gpu.compiles(x):
        from sancus.kernels.triton import triton_bits as kernels  # takes seconds to import

        return PackedRows(*kernels.pack(x, bits, seed, row_ids.contiguous(), coarse=coarse))
    if x.device.type == "cpu" and available():
        return PackedRows(*calls.pack(x, bits, seed, row_ids.contiguous(), coarse=coarse))
    return PackedRows(*bits_torch.pack(x, bits, seed, row_ids, coarse=coarse))


def unpack(
    data: torch.Tensor,
    zero: torch.Tensor,
    scale: torch.Tensor,
    bits: int,
    columns: int,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """`zero + scale · level` (eq. 5) as float32 `[n, columns]`, into `out` if it is given."""
    assert bits in WIDTHS, f"{bits} bits; a value is packed in one of {WIDTHS}"
    assert data.shape == (len(zero), packed_bytes(columns, bits)) and zero.shape == scale.shape
    if out is None:
        out = zero.new_empty(len(data), columns)
    assert out.shape == (len(data), columns)
    if not out.numel():
        return out
    ends = zero.contiguous(), scale.contiguous()
    if gpu.compiles(data):
        from sancus.kernels.triton import triton_bits as kernels

        kernels.unpack(data.contiguous(), *ends, bits, out)
    elif data.device.type == "cpu" and available():
        calls.unpack(data.contiguous(), *ends, bits, out)
    else:
        out.copy_(bits_torch.unpack(data, zero, scale, bits, columns))
    return out
