"""Which rows the plan `drawn` draws, written down once more: plain integers, nothing of `sancus`.

Whether receiver `i` draws row `v` in an update is SplitMix64 of (seed, epoch, a constant, receiver, row). A
row is known by its number in the partitioned graph: blocks one after another, each in the order of its rank.
"""

from __future__ import annotations

import torch

from tests.helpers.masks import WORD, splitmix

SALT = 1 << 40  # where masks of dropout have the layer
FINE = 1 << 53


def drawn(seed: int, epoch: int, receiver: int, row: int, rate: float) -> bool:
    """Whether a receiver draws a row in an epoch's only update."""
    state = 0
    for value in (seed, epoch, SALT):
        state = splitmix((state ^ value % WORD) % WORD)
    return splitmix(row ^ splitmix(splitmix(state) ^ receiver)) >> 11 < int(rate * FINE)


def sampled(a: torch.Tensor, blocks: list[torch.Tensor], seed: int, epoch: int, rate: float) -> torch.Tensor:
    """`Â [N, N]` in an epoch: in the rows of every rank, other ranks' columns are scaled by 1/p, or gone."""
    out, row = a.clone(), 0
    for owner, nodes in enumerate(blocks):
        for node in nodes.tolist():
            for receiver, own in enumerate(blocks):
                if receiver != owner:
                    out[own, node] *= drawn(seed, epoch, receiver, row, rate) / rate
            row += 1
    return out
