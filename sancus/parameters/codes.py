"""Codes of slices: how the values of one sum become bytes, a row for each rank that owns a slice.

A *slice* is what one rank adds up for all. Slices are padded with zeros to one size, which follows from the
number of values and ranks alone, so that every rank knows the size of what comes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from sancus.codecs.low_bit import Tail, code_rows, decode_rows, row_bytes

NEAREST = {1: 1.0, 2: 0.996}  # bits -> step over RMS, of the best even levels for a normal distribution


class Code(Protocol):
    """Slices to bytes, and back."""

    def size(self, values: int, ranks: int) -> int:
        """Values of a slice, of which `ranks` hold `values`."""
        ...

    def nbytes(self, size: int, itemsize: int) -> int:
        """Bytes of a slice."""
        ...

    def encode(self, slices: torch.Tensor, seed: int) -> torch.Tensor:
        """`[n, size]` to bytes `[n, nbytes]`."""
        ...

    def decode(self, wire: torch.Tensor, size: int, dtype: torch.dtype) -> torch.Tensor:
        """The inverse, as everybody sees it; a slice that held NaN or infinity holds NaN."""
        ...


class Whole:
    """Values as they are."""

    def size(self, values: int, ranks: int) -> int:
        """An equal share."""
        return -(-values // ranks)

    def nbytes(self, size: int, itemsize: int) -> int:
        """All of each."""
        return size * itemsize

    def encode(self, slices: torch.Tensor, seed: int) -> torch.Tensor:
        """The bytes of the values."""
        return slices.contiguous().view(torch.uint8)

    def decode(self, wire: torch.Tensor, size: int, dtype: torch.dtype) -> torch.Tensor:
        """The values of the bytes."""
        return wire.clone(memory_format=torch.contiguous_format).view(dtype)


@dataclass(frozen=True)
class FewBits:
    """Rows of up to `width` values in few bits, with a zero point and a scale each, as payloads cross.

    With 4 or 8 bits values are rounded by chance, right on average. One or two bits leave out more than
    there is if they must reach a row's least and largest value, so values go to the nearest of even levels
    around zero, scaled by least squares: what is left out is then never longer than what was given, which
    error feedback needs (Karimireddy et al., ICML 2019).
    """

    bits: int
    width: int

    @property
    def tail(self) -> Tail:
        """Zero point and scale: in full for many levels, which are finer than bfloat16."""
        return "short" if self.bits in NEAREST else "full"

    def size(self, values: int, ranks: int) -> int:
        """Whole rows; the width follows, so that a slice is one row at least, and little is padding."""
        share = -(-values // ranks)
        rows = -(-share // self.width)
        return rows * -(-share // max(1, rows))

    def nbytes(self, size: int, itemsize: int) -> int:
        """Those of its rows."""
        rows = self._rows(size)
        return rows * row_bytes(size // rows, self.bits, self.tail)

    def encode(self, slices: torch.Tensor, seed: int) -> torch.Tensor:
        """Levels, zero points and scales; the random numbers are a hash of seed, row and column."""
        rows = slices.reshape(len(slices) * self._rows(slices.shape[1]), -1)
        if self.bits in NEAREST:
            rows = _nearest(rows, self.bits)
        ids = torch.arange(len(rows), device=rows.device)
        wire, _ = code_rows(rows, self.bits, seed, ids, self.tail)
        return wire.view(len(slices), -1)

    def decode(self, wire: torch.Tensor, size: int, dtype: torch.dtype) -> torch.Tensor:
        """`zero + scale · level`."""
        rows = self._rows(size)
        coded = wire.reshape(len(wire) * rows, -1)
        return decode_rows(coded, self.bits, size // rows, self.tail).view(len(wire), size).to(dtype)

    def _rows(self, size: int) -> int:
        return -(-size // self.width)


def _nearest(x: torch.Tensor, bits: int) -> torch.Tensor:
    """`x [n, w]` on `2^bits` even levels around zero, each row scaled to be as near as they can be."""
    rms = x.square().mean(dim=1, keepdim=True).sqrt()
    step = torch.where(rms == 0, 1.0, rms * NEAREST[bits])
    top = (2**bits - 1) / 2
    levels = ((x / step).floor() + 0.5).clamp(-top, top)
    scale = (x * levels).sum(dim=1, keepdim=True) / levels.square().sum(dim=1, keepdim=True)
    return levels * scale.bfloat16().to(x)  # as it crosses
