"""Dropout masks, written down once more: plain Python integers, nothing of `sancus`.

Whether an entry is dropped is a hash of (seed, epoch, layer, the user's node id, column): SplitMix64 (Steele,
Lea and Flood 2014) makes a key of a row and one of a column, MurmurHash3's 32-bit finaliser mixes both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

WORD = 1 << 64
COLUMN_SALT = 0x632BE5AB
BUCKETS = 1 << 31


def splitmix(x: int) -> int:
    """SplitMix64 of an unsigned number."""
    x = (x + 0x9E3779B97F4A7C15) % WORD
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % WORD
    x = (x ^ x >> 27) * 0x94D049BB133111EB % WORD
    return x ^ x >> 31


def murmur(x: int) -> int:
    """`fmix32` of MurmurHash3."""
    x = (x ^ x >> 16) * 0x85EBCA6B % (1 << 32)
    x = (x ^ x >> 13) * 0xC2B2AE35 % (1 << 32)
    return x ^ x >> 16


def factor(seed: int, epoch: int, layer: int, node: int, column: int, share: float) -> float:
    """What dropout multiplies one entry by: 0, or `1 / (1 − share)`."""
    state = 0
    for value in (seed, epoch, layer):
        state = splitmix((state ^ value % WORD) % WORD)
    row_key = splitmix(node ^ state) >> 16
    column_key = splitmix(column + COLUMN_SALT) >> 16
    noise = murmur((row_key ^ column_key) % (1 << 32)) % BUCKETS
    return 0.0 if noise < int(share * BUCKETS) else 1.0 / (1.0 - share)


@dataclass(frozen=True)
class Masks:
    """The masks of one epoch over the rows of some nodes."""

    seed: int
    epoch: int
    nodes: Sequence[int]  # the user's ids of the rows
    share: float  # of entries of a layer's input
    edge_share: float = 0.0  # of attention weights

    def drop(self, h: torch.Tensor, layer: int) -> torch.Tensor:
        """`h [n, f]` after dropout."""
        factors = [
            [factor(self.seed, self.epoch, layer, node, column, self.share) for column in range(h.shape[1])]
            for node in self.nodes
        ]
        return h * torch.tensor(factors, dtype=h.dtype)

    def drop_edges(self, attention: torch.Tensor, layer: int, head: int, heads: int) -> torch.Tensor:
        """`attention [n, n]` of one head after dropout; edges draw with layer numbers that no row has."""
        factors = [
            [
                factor(self.seed, self.epoch, -2 - layer, target, source * heads + head, self.edge_share)
                for source in self.nodes
            ]
            for target in self.nodes
        ]
        return attention * torch.tensor(factors, dtype=attention.dtype)
