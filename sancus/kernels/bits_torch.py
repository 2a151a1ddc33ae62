"""The arithmetic of `bits` in torch: for machines without the native library, and the reference of its tests.

Bit for bit what `native/bits_isa.h` computes; see there and in `bits` for the meaning.
"""

from __future__ import annotations

import torch

from sancus.kernels.hashing import MASK64, signed, splitmix, splitmix_scalar

_MASK32 = (1 << 32) - 1
_SMALLEST_NORMAL = torch.finfo(torch.float32).tiny
_WIDEST = 2.0**127  # a range capped at this decodes to no infinity


def pack(
    x: torch.Tensor, bits: int, seed: int, row_ids: torch.Tensor, *, coarse: bool = False
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Packed rows, zero points, scales, and which rows are finite; `x [n, c]` float32 with c > 0."""
    top = float((1 << bits) - 1)
    finite = torch.isfinite(x).all(dim=1)
    x = torch.where(finite[:, None], x, 0.0)
    zero = x.amin(dim=1) + 0.0  # one zero, not two
    if coarse:
        zero = _outer_bf16(zero, zero < 0)
    value_range = x.amax(dim=1).double() - zero.double()
    scale = (value_range.clamp(max=_WIDEST) / top).float()
    if coarse:
        scale = _outer_bf16(scale, torch.ones_like(finite))
    varies = scale >= _SMALLEST_NORMAL
    inverse = torch.where(varies, 1.0 / scale, 0.0)
    inside = ((x - zero[:, None]) * inverse[:, None]).clamp(max=top)
    floored = inside.floor()
    level = floored + (_uniform(seed, row_ids, x.shape[1]) < inside - floored)
    level = torch.where(varies[:, None], level, 0.0)
    scale = torch.where(varies, scale, 0.0)
    wrong = torch.full_like(zero, torch.nan)
    return (
        _squeeze(level.to(torch.uint8), bits),
        torch.where(finite, zero, wrong),
        torch.where(finite, scale, wrong),
        finite,
    )


def unpack(
    data: torch.Tensor, zero: torch.Tensor, scale: torch.Tensor, bits: int, columns: int
) -> torch.Tensor:
    """`zero + scale · level`, float32 `[n, columns]`."""
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=data.device)
    level = (data[:, :, None] >> shifts) & ((1 << bits) - 1)
    return zero[:, None] + scale[:, None] * level.flatten(1)[:, :columns].float()


def _outer_bf16(x: torch.Tensor, away: torch.Tensor) -> torch.Tensor:
    """`x` rounded to bfloat16, kept as float32: away from zero where `away`, towards zero elsewhere."""
    word = x.contiguous().view(torch.int32)
    inexact, small = (word & 0xFFFF) != 0, (word & 0x7FFFFFFF) < 0x7F7F0000
    step = (away & inexact & small).to(torch.int32) * 0x10000
    return ((word + step) & ~0xFFFF).view(torch.float32)


def _squeeze(level: torch.Tensor, bits: int) -> torch.Tensor:
    """Levels `[n, c]`, one a byte, as `[n, ceil(c bits / 8)]`."""
    a_byte = 8 // bits
    whole_bytes = torch.nn.functional.pad(level, (0, -level.shape[1] % a_byte))
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=level.device)
    return (whole_bytes.unflatten(1, (-1, a_byte)) << shifts).sum(dim=2, dtype=torch.uint8)


def _uniform(seed: int, row_ids: torch.Tensor, columns: int) -> torch.Tensor:
    """Numbers in [0, 1) of 24 bits, `[n, columns]` float32."""
    key = splitmix(row_ids ^ signed(splitmix_scalar(seed & MASK64)))
    low, high = key & _MASK32, (key >> 32) & _MASK32
    hashed = torch.arange(columns, device=row_ids.device) * 0x9E3779B9 + low[:, None]
    hashed &= _MASK32
    hashed = ((hashed ^ (hashed >> 16)) * 0x7FEB352D + high[:, None]) & _MASK32
    hashed = ((hashed ^ (hashed >> 15)) * 0x846CA68B) & _MASK32
    hashed ^= hashed >> 16
    return (hashed >> 8).float() * 2.0**-24
