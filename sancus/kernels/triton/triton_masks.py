"""Dropout by a hash in Triton: the finaliser of MurmurHash3, as `native/noise.h` has it."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK = 256


@triton.jit
def dropout_noise(key):
    """31 bits of the hash of `key`, uint32."""
    x = (key ^ (key >> 16)) * 0x85EBCA6B
    x = (x ^ (x >> 13)) * 0xC2B2AE35
    return ((x ^ (x >> 16)) & 0x7FFFFFFF).to(tl.int32)


@triton.jit
def drop_kernel(
    x, row_key, column_key, out, x_stride, out_stride, columns, bucket, scale, SIZE: tl.constexpr
):
    """One program a row and block of columns."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * SIZE + tl.arange(0, SIZE)
    inside = column < columns
    key = tl.load(row_key + row).to(tl.uint32, bitcast=True)
    other = tl.load(column_key + column, mask=inside, other=0).to(tl.uint32, bitcast=True)
    kept = dropout_noise(other ^ key) >= bucket
    values = tl.load(x + row * x_stride + column, mask=inside, other=0.0)
    factor = tl.where(kept, tl.load(scale), 0.0)
    tl.store(out + row * out_stride + column, values * factor, mask=inside)


@triton.jit
def keep_kernel(crow, col, row_key, column_key, keep, bucket, SIZE: tl.constexpr):
    """Which entries of a row the hash keeps; one program a row."""
    row = tl.program_id(0).to(tl.int64)
    begin, end = tl.load(crow + row), tl.load(crow + row + 1)
    key = tl.load(row_key + row).to(tl.uint32, bitcast=True)
    for start in range(begin, end, SIZE):
        entry = start + tl.arange(0, SIZE)
        inside = entry < end
        column = tl.load(col + entry, mask=inside, other=0).to(tl.int64)
        other = tl.load(column_key + column, mask=inside, other=0).to(tl.uint32, bitcast=True)
        tl.store(keep + entry, dropout_noise(other ^ key) >= bucket, mask=inside)


def drop(x: torch.Tensor, keys: tuple[torch.Tensor, torch.Tensor], bucket: int, scale: float) -> torch.Tensor:
    """`x [n, f]` with entries zeroed or scaled by the hash of `keys`: of rows `[n]`, of columns `[f]`."""
    x = x if x.stride(1) == 1 else x.contiguous()
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if not out.numel():
        return out
    size = min(BLOCK, triton.next_power_of_2(x.shape[1]))
    drop_kernel[(len(x), triton.cdiv(x.shape[1], size))](
        x,
        *keys,
        out,
        x.stride(0),
        out.stride(0),
        x.shape[1],
        bucket,
        torch.full((1,), scale, dtype=x.dtype, device=x.device),  # a number would be float32
        SIZE=size,
        enable_fp_fusion=True,
    )
    return out


def keep_entries(
    pattern: tuple[torch.Tensor, torch.Tensor], keys: tuple[torch.Tensor, torch.Tensor], bucket: int
) -> torch.Tensor:
    """`[nnz]` bool: which entries of `(crow, col)` the hash keeps."""
    crow, col = pattern
    keep = torch.empty(len(col), dtype=torch.bool, device=col.device)
    if len(col):
        keep_kernel[(len(crow) - 1,)](crow, col, *keys, keep, bucket, SIZE=BLOCK, enable_fp_fusion=True)
    return keep
