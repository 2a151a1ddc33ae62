"""Codecs `int8`, `int4`, `int2`, `int1`: few bits a value, a zero point and a scale a row (Sylvie eq. 3-5).

Wire format, one row after another: the levels, `bits` each, lowest bits first, padded to whole bytes; then
the zero point and the scale, float32 in the byte order of the machine. A row of `f` values takes
`⌈f·bits/8⌉ + 8` bytes; with `tail=short`, zero point and scale are bfloat16, and it takes 4 bytes less.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from sancus.codecs.base import Moment, refuse_infinite
from sancus.kernels.bits import pack, packed_bytes, unpack

Tail = Literal["full", "short"]
TAILS: dict[Tail, torch.dtype] = {"full": torch.float32, "short": torch.bfloat16}


@dataclass(frozen=True)
class LowBit:
    """Stochastic rounding to `2^bits` levels between a row's least and largest value: right on average.

    `tail=short` halves what zero point and scale take, which is most of a narrow row. They are rounded
    outwards, so decoding stays right on average, but a constant row is no longer exact.
    """

    lossless: ClassVar[bool] = False
    row_by_row: ClassVar[bool] = True
    bits: ClassVar[int]
    tail: Tail = "full"

    def __post_init__(self) -> None:
        if self.tail not in TAILS:
            raise ValueError(f"tail={self.tail!r} must be full or short")

    def wire(
        self, rows: int, columns: int, dtype: torch.dtype, device: torch.device, stage: float
    ) -> torch.Tensor:
        """`[rows, ⌈columns·bits/8⌉ + 8]` bytes, or 4 less."""
        width = row_bytes(columns, self.bits, self.tail)
        return torch.empty(rows, width, dtype=torch.uint8, device=device)

    def encode(self, payload: torch.Tensor, moment: Moment, weight: torch.Tensor) -> torch.Tensor:
        """Levels, zero points and scales (eq. 3-4); the random numbers are a hash of seed, row and column."""
        ids = torch.arange(len(payload), device=payload.device)
        return encode_rows(payload, self.bits, moment, ids, self.tail)

    def decode(
        self, wire: torch.Tensor, rows: int, columns: int, dtype: torch.dtype, stage: float
    ) -> torch.Tensor:
        """`zero + scale · level` (eq. 5)."""
        return decode_rows(wire, self.bits, columns, self.tail).to(dtype)


def row_bytes(columns: int, bits: int, tail: Tail) -> int:
    """Bytes of an encoded row."""
    return packed_bytes(columns, bits) + 2 * TAILS[tail].itemsize


def encode_rows(
    payload: torch.Tensor, bits: int, moment: Moment, ids: torch.Tensor, tail: Tail
) -> torch.Tensor:
    """Rows `[n, f]` as bytes `[n, row_bytes]`; `ids [n]` number the rows for the hash."""
    wire, finite = code_rows(payload, bits, moment.seed, ids, tail)
    refuse_infinite(finite)
    return wire


def code_rows(
    rows: torch.Tensor, bits: int, seed: int, ids: torch.Tensor, tail: Tail
) -> tuple[torch.Tensor, torch.Tensor]:
    """`encode_rows`, and which rows are finite `[n]`: one that is not decodes to NaN."""
    packed = pack(rows, bits, seed, ids, coarse=tail == "short")
    ends = torch.stack([packed.zero, packed.scale], dim=1).to(TAILS[tail])
    return torch.cat([packed.data, ends.view(torch.uint8)], dim=1), packed.finite


def decode_rows(wire: torch.Tensor, bits: int, columns: int, tail: Tail) -> torch.Tensor:
    """The inverse of `encode_rows`, float32 `[n, columns]`."""
    data = wire[:, : packed_bytes(columns, bits)]
    ends = wire[:, data.shape[1] :].flatten().clone().view(TAILS[tail])
    zero, scale = ends.float().view(-1, 2).unbind(dim=1)
    return unpack(data, zero, scale, bits, columns)


@dataclass(frozen=True)
class Int8(LowBit):
    """256 levels."""

    bits: ClassVar[int] = 8


@dataclass(frozen=True)
class Int4(LowBit):
    """16 levels."""

    bits: ClassVar[int] = 4


@dataclass(frozen=True)
class Int2(LowBit):
    """4 levels (SuperGCN)."""

    bits: ClassVar[int] = 2


@dataclass(frozen=True)
class Int1(LowBit):
    """2 levels (Sylvie)."""

    bits: ClassVar[int] = 1
