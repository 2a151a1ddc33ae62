"""Codecs `fp16` and `bf16`: half precision, rounded to the nearest."""

from __future__ import annotations

from typing import ClassVar

import torch

from sancus.codecs.base import Moment, refuse_infinite


class HalfPrecision:
    """Two bytes a value. What lies beyond the largest half-precision number becomes that number."""

    lossless = False
    row_by_row = True
    half: ClassVar[torch.dtype]

    def wire(
        self, rows: int, columns: int, dtype: torch.dtype, device: torch.device, stage: float
    ) -> torch.Tensor:
        """An empty tensor `[rows, columns]` of two bytes a value."""
        return torch.empty(rows, columns, dtype=self.half, device=device)

    def encode(self, payload: torch.Tensor, moment: Moment, weight: torch.Tensor) -> torch.Tensor:
        """Nearest half-precision values."""
        refuse_infinite(torch.isfinite(payload).all(dim=1))
        largest = torch.finfo(self.half).max
        return payload.clamp(-largest, largest).to(self.half)

    def decode(
        self, wire: torch.Tensor, rows: int, columns: int, dtype: torch.dtype, stage: float
    ) -> torch.Tensor:
        """The same values in the run's dtype."""
        return wire.to(dtype)


class Float16(HalfPrecision):
    """11 bits of precision, up to 65504."""

    half = torch.float16


class BFloat16(HalfPrecision):
    """8 bits of precision, the range of float32."""

    half = torch.bfloat16
