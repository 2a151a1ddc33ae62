"""Codecs `int8`, `int4`, `int2`, `int1`: few bits a value, a zero point and a scale a row (Sylvie eq. 3-5).

Wire format, one row after another: the levels, `bits` each, lowest bits first, padded to whole bytes; then
the zero point and the scale, float32 in the byte order of the machine. A row of `f` values takes
`⌈f·bits/8⌉ + 8` bytes.
"""

from __future__ import annotations

from typing import ClassVar

import torch

from sancus.codecs.base import Moment, refuse_infinite
from sancus.kernels.bits import pack, packed_bytes, unpack

TAIL = 8  # bytes of zero point and scale


class LowBit:
    """Stochastic rounding to `2^bits` levels between a row's least and largest value: right on average."""

    lossless = False
    bits: ClassVar[int]

    def wire(
        self, rows: int, columns: int, dtype: torch.dtype, device: torch.device, stage: float
    ) -> torch.Tensor:
        """`[rows, ⌈columns·bits/8⌉ + 8]` bytes."""
        width = packed_bytes(columns, self.bits) + TAIL
        return torch.empty(rows, width, dtype=torch.uint8, device=device)

    def encode(self, payload: torch.Tensor, moment: Moment, weight: torch.Tensor) -> torch.Tensor:
        """Levels, zero points and scales (eq. 3-4); the random numbers are a hash of seed, row and column."""
        return encode_rows(payload, self.bits, moment, torch.arange(len(payload), device=payload.device))

    def decode(
        self, wire: torch.Tensor, rows: int, columns: int, dtype: torch.dtype, stage: float
    ) -> torch.Tensor:
        """`zero + scale · level` (eq. 5)."""
        return decode_rows(wire, self.bits, columns).to(dtype)


def encode_rows(payload: torch.Tensor, bits: int, moment: Moment, ids: torch.Tensor) -> torch.Tensor:
    """Rows `[n, f]` as bytes `[n, ⌈f·bits/8⌉ + 8]`; `ids [n]` number the rows for the hash."""
    packed = pack(payload, bits, moment.seed, ids)
    refuse_infinite(packed.finite)
    tail = torch.stack([packed.zero, packed.scale], dim=1).view(torch.uint8)
    return torch.cat([packed.data, tail], dim=1)


def decode_rows(wire: torch.Tensor, bits: int, columns: int) -> torch.Tensor:
    """The inverse of `encode_rows`, float32 `[n, columns]`."""
    data, tail = wire.split([wire.shape[1] - TAIL, TAIL], dim=1)
    zero, scale = tail.flatten().clone().view(torch.float32).view(-1, 2).unbind(dim=1)
    return unpack(data, zero, scale, bits, columns)


class Int8(LowBit):
    """256 levels."""

    bits = 8


class Int4(LowBit):
    """16 levels."""

    bits = 4


class Int2(LowBit):
    """4 levels (SuperGCN)."""

    bits = 2


class Int1(LowBit):
    """2 levels (Sylvie)."""

    bits = 1
