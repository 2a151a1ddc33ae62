"""SplitMix64: numbers that depend on their counter alone, the same on any machine and thread count."""

from __future__ import annotations

import torch

MASK64 = (1 << 64) - 1


def splitmix(x: torch.Tensor) -> torch.Tensor:
    """SplitMix64 of int64, whose shifts are made logical by a mask."""
    x = x + signed(0x9E3779B97F4A7C15)
    x = (x ^ ((x >> 30) & ((1 << 34) - 1))) * signed(0xBF58476D1CE4E5B9)
    x = (x ^ ((x >> 27) & ((1 << 37) - 1))) * signed(0x94D049BB133111EB)
    return x ^ ((x >> 31) & ((1 << 33) - 1))


def splitmix_scalar(x: int) -> int:
    """SplitMix64 of one unsigned Python integer."""
    x = (x + 0x9E3779B97F4A7C15) & MASK64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK64
    return x ^ (x >> 31)


def signed(x: int) -> int:
    """The int64 with the bits of an unsigned number."""
    return x - (1 << 64) if x >= 1 << 63 else x
