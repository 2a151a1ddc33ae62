"""The contract of a sampler, the keys of its draws, and the batches of an epoch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import torch

from sancus.kernels.hashing import MASK64, signed, splitmix, splitmix_scalar
from sancus.kernels.sample import HopSampler
from sancus.kernels.topology import Sampled

By = Literal["count", "weight"]
_SALT = 0x5A3C_17E5_0000_0001  # no key of a sample is one of a dropout mask


@dataclass(frozen=True)
class SampleKey:
    """What a draw depends on, besides hop and node."""

    seed: int
    epoch: int
    step: int

    def of_hops(self, hops: int) -> tuple[int, ...]:
        """One number a hop, from the seeds outward."""
        return tuple(_mixed(self.seed, self.epoch, self.step, 1 + hop) for hop in range(hops))


@dataclass(frozen=True, eq=False)
class Batch:
    """What one step looks at, over all ranks."""

    seeds: torch.Tensor  # [b] numbers of training nodes
    share: float  # of the epoch: those of all its steps are 1 together
    weight: torch.Tensor | None = None  # [b] of each seed's loss in the mean over all seeds; None: of these
    members: torch.Tensor | None = None  # [m] all nodes of the sample, ascending; None: as hops find them


class Sampler(Protocol):
    """Draws the neighbours of a batch.

    What a target draws depends on the key of its hop and on the numbers of the nodes, on nothing else; the
    sum `Σ_u value_vu h_u` over the entries of a row is right on average for any `h`.
    """

    def sample(
        self, hops: HopSampler, seeds: torch.Tensor, fanouts: tuple[int, ...], keys: tuple[int, ...]
    ) -> Sampled:
        """Hops from `seeds [s]` outward, one a fan-out (−1: all neighbours)."""
        ...


def batches(nodes: torch.Tensor, size: int, seed: int, epoch: int) -> list[torch.Tensor]:
    """The training nodes `[t]` in an order of this epoch, cut every `size`.

    They are sorted by a hash of each, so that the order is the same whoever holds which node.
    """
    nodes = nodes.sort().values
    noise = splitmix(nodes ^ signed(order_key(seed, epoch)))
    return list(nodes[torch.argsort(noise, stable=True)].split(min(size, max(1, len(nodes)))))


def order_key(seed: int, epoch: int) -> int:
    """What the order of batches in an epoch depends on."""
    return _mixed(seed, epoch, 0, 0)


def _mixed(*values: int) -> int:
    state = _SALT
    for value in values:
        state = splitmix_scalar((state ^ value) & MASK64)
    return state
