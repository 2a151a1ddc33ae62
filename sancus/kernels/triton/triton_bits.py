"""Rows in few bits in Triton: bit for bit what `native/bits_isa.h` computes; see `sancus.kernels.bits`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from sancus.kernels.hashing import MASK64, signed, splitmix_scalar

BLOCK = 256  # values of a step


@triton.jit
def splitmix(x):
    """SplitMix64 of uint64."""
    x = x + 0x9E3779B97F4A7C15
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit
def outer_bf16(x, away):
    """`x` rounded to bfloat16, kept as float32: away from zero where `away`, towards zero elsewhere."""
    word = x.to(tl.int32, bitcast=True)
    inexact = (word & 0xFFFF) != 0
    small = (word & 0x7FFFFFFF) < 0x7F7F0000
    word = tl.where(away & inexact & small, word + 0x10000, word)
    return (word & -0x10000).to(tl.float32, bitcast=True)


@triton.jit
def pack_kernel(
    x,
    row_id,
    data,
    zero,
    scale,
    finite,
    seed,  # [1] int64, mixed
    x_stride,
    columns,
    width,  # bytes of a packed row
    BITS: tl.constexpr,
    COARSE: tl.constexpr,
    SIZE: tl.constexpr,
):
    """One program a row: its range, then its levels."""
    A_BYTE: tl.constexpr = 8 // BITS
    TOP: tl.constexpr = (1 << BITS) - 1
    row = tl.program_id(0).to(tl.int64)
    x += row * x_stride
    lows = tl.full((SIZE,), float("inf"), tl.float32)
    highs = tl.full((SIZE,), float("-inf"), tl.float32)
    zeros = tl.zeros((SIZE,), tl.float32)
    for start in range(0, columns, SIZE):
        column = start + tl.arange(0, SIZE)
        inside = column < columns
        here = tl.load(x + column, mask=inside, other=0.0)
        lows = tl.minimum(lows, tl.where(inside, here, float("inf")))
        highs = tl.maximum(highs, tl.where(inside, here, float("-inf")))
        zeros += here * 0.0
    low = tl.min(lows, axis=0) + 0.0
    high = tl.max(highs, axis=0) + 0.0
    right = tl.sum(zeros, axis=0) == 0.0
    low = tl.where(right, low, 0.0)
    high = tl.where(right, high, 0.0)
    if COARSE:
        low = outer_bf16(low, low < 0.0)
    value_range = high.to(tl.float64) - low.to(tl.float64)
    value_range = tl.minimum(value_range, tl.full((), 2.0**127, tl.float64))
    step = (value_range / tl.full((), TOP, tl.float64)).to(tl.float32)
    if COARSE:
        step = outer_bf16(step, step == step)
    step = tl.where(step >= 1.1754943508222875e-38, step, 0.0)  # below a normal number: as good as constant
    inverse = tl.where(step > 0.0, tl.div_rn(1.0, tl.where(step > 0.0, step, 1.0)), 0.0)
    used = tl.where(right, columns, 0)
    key = splitmix(
        tl.load(row_id + row).to(tl.uint64, bitcast=True) ^ tl.load(seed).to(tl.uint64, bitcast=True)
    )
    key_low = key.to(tl.uint32)
    key_high = (key >> 32).to(tl.uint32)
    place = tl.arange(0, SIZE // A_BYTE)[:, None]
    inner = tl.arange(0, A_BYTE)[None, :]
    for start in range(0, columns, SIZE):
        column = start + place * A_BYTE + inner
        inside = column < used
        here = tl.load(x + column, mask=inside, other=0.0)
        hashed = column.to(tl.uint32) * 0x9E3779B9 + key_low
        hashed = (hashed ^ (hashed >> 16)) * 0x7FEB352D + key_high
        hashed = (hashed ^ (hashed >> 15)) * 0x846CA68B
        hashed = hashed ^ (hashed >> 16)
        uniform = (hashed >> 8).to(tl.int32).to(tl.float32) * (2.0**-24)
        level = tl.minimum(tl.where(inside, (here - low) * inverse, 0.0), TOP * 1.0)
        floored = level.to(tl.int32)
        floored += (uniform < level - floored.to(tl.float32)).to(tl.int32)
        floored = tl.where(inside, floored, 0)
        packed = tl.sum(floored << (inner * BITS), axis=1)
        byte = start // A_BYTE + tl.arange(0, SIZE // A_BYTE)
        tl.store(data + row * width + byte, packed.to(tl.uint8), mask=byte < width)
    tl.store(zero + row, tl.where(right, low, float("nan")))
    tl.store(scale + row, tl.where(right, step, float("nan")))
    tl.store(finite + row, right)


@triton.jit
def unpack_kernel(data, zero, scale, out, out_stride, columns, width, BITS: tl.constexpr, SIZE: tl.constexpr):
    """One program a row and block of columns."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * SIZE + tl.arange(0, SIZE)
    inside = column < columns
    place = column * BITS
    byte = tl.load(data + row * width + place // 8, mask=inside, other=0).to(tl.int32)
    level = (byte >> (place % 8)) & ((1 << BITS) - 1)
    values = tl.load(zero + row) + tl.load(scale + row) * level.to(tl.float32)
    tl.store(out + row * out_stride + column, values, mask=inside)


def pack(
    x: torch.Tensor, bits: int, seed: int, row_ids: torch.Tensor, *, coarse: bool = False
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Packed rows, zero points, scales, and which rows are finite; `x [n, c]` float32 with c > 0."""
    x = x if x.stride(1) == 1 else x.contiguous()
    rows, columns = x.shape
    width = (columns * bits + 7) // 8
    data = torch.empty(rows, width, dtype=torch.uint8, device=x.device)
    zero, scale = x.new_empty(rows), x.new_empty(rows)
    finite = torch.empty(rows, dtype=torch.bool, device=x.device)
    mixed = torch.full((1,), signed(splitmix_scalar(seed & MASK64)), dtype=torch.int64, device=x.device)
    size = max(8, min(BLOCK, triton.next_power_of_2(columns)))
    pack_kernel[(rows,)](
        x,
        row_ids,
        data,
        zero,
        scale,
        finite,
        mixed,
        x.stride(0),
        columns,
        width,
        BITS=bits,
        COARSE=coarse,
        SIZE=size,
        enable_fp_fusion=False,  # the C library rounds after every operation
    )
    return data, zero, scale, finite


def unpack(data: torch.Tensor, zero: torch.Tensor, scale: torch.Tensor, bits: int, out: torch.Tensor) -> None:
    """Decode into `out [n, c]` float32."""
    rows, columns = out.shape
    size = min(BLOCK, triton.next_power_of_2(columns))
    unpack_kernel[(rows, triton.cdiv(columns, size))](
        data,
        zero,
        scale,
        out,
        out.stride(0),
        columns,
        data.shape[1],
        BITS=bits,
        SIZE=size,
        enable_fp_fusion=False,
    )
