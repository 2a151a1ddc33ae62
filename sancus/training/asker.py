"""What a step in batches asks: which rows it samples for, and the loss of what the model makes of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from sancus.comm.group import Group
from sancus.kernels.topology import Sampled
from sancus.sampling.base import SampleKey, Sampler
from sancus.sampling.batch_source import Ground, SubgraphSampler
from sancus.sampling.gathered import GatheredTopology
from sancus.sampling.settings import SamplingSettings

Loss = Callable[[torch.Tensor], torch.Tensor]  # of the logits [s, C] of the seeds


@dataclass(frozen=True, eq=False)
class Ask:
    """What batches are made of."""

    everything: GatheredTopology
    sampler: Sampler | SubgraphSampler
    settings: SamplingSettings
    fanouts: tuple[int, ...]
    seed: int
    dtype: torch.dtype
    group: Group

    def ground(self, training: torch.Tensor) -> Ground:
        """Where nodes `training [t]` are seeds."""
        size, whole = self.settings.batch_size, self.everything.topology
        return Ground(whole, training, size, self.fanouts, self.seed, self.dtype)


class Asker(Protocol):
    """Batches of whatever a task is about."""

    collective: bool  # whether all ranks sample together
    unit: str  # what they are made of, as `run.json` names their number

    @property
    def count(self) -> int:
        """How many nodes, or edges, an epoch goes through."""
        ...

    def of_epoch(self, epoch: int) -> Sequence[Any]:
        """All batches of an epoch, each with its `share`, the same on all ranks."""
        ...

    def sample(self, batch: Any, key: SampleKey) -> tuple[Sampled, Loss]:
        """The sample of this rank's part of a batch, and its share of the batch's loss."""
        ...
