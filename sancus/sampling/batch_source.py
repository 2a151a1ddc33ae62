"""Where the batches of an epoch come from, and the sample of each: hop by hop, or inside a subgraph.

Everybody knows all batches: they are functions of seed, epoch and node. A rank asks for the sample of those
seeds of a batch that it owns.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Protocol

import torch

from sancus.comm.group import Group
from sancus.kernels.sample import HopSampler, hop_sampler
from sancus.kernels.topology import UNIFORM, Draw, Sampled, Topology
from sancus.sampling.base import Batch, SampleKey, Sampler, batches


@dataclass(frozen=True, eq=False)
class Ground:
    """What batches are cut from, and samples drawn on."""

    topology: Topology
    training: torch.Tensor  # [t] numbers of all training nodes, ascending
    size: int  # seeds of a step
    fanouts: tuple[int, ...]  # one an aggregation of the model, from the seeds outward
    seed: int
    dtype: torch.dtype  # of the values

    @property
    def steps(self) -> int:
        """Of an epoch."""
        return max(1, -(-len(self.training) // self.size))


class BatchSource(Protocol):
    """Batches, and samples of the own part of each."""

    collective: bool  # whether all ranks sample together

    def of_epoch(self, epoch: int) -> list[Batch]:
        """All batches of an epoch, the same on all ranks."""
        ...

    def sample(self, batch: Batch, seeds: torch.Tensor, key: SampleKey) -> Sampled:
        """The hops that lead to `seeds [s]`, some of the batch's."""
        ...


class HopBatches:
    """Seeds in an order of the epoch, cut every so many; neighbours are drawn hop by hop."""

    collective = False

    def __init__(self, sampler: Sampler, ground: Ground) -> None:
        self._sampler = sampler
        self._ground = ground
        self._hops: HopSampler = hop_sampler(ground.topology, ground.dtype)

    def of_epoch(self, epoch: int) -> list[Batch]:
        """Training nodes in the order of a hash."""
        ground = self._ground
        total = max(1, len(ground.training))
        cut = batches(ground.training, ground.size, ground.seed, epoch)
        return [Batch(seeds, len(seeds) / total) for seeds in cut]

    def sample(self, batch: Batch, seeds: torch.Tensor, key: SampleKey) -> Sampled:
        """What the sampler draws for the own seeds."""
        fanouts = self._ground.fanouts
        return self._sampler.sample(self._hops, seeds, fanouts, key.of_hops(len(fanouts)))


class SubgraphSampler(abc.ABC):
    """Draws the nodes of every batch; all neighbours among these are summed up."""

    @abc.abstractmethod
    def prepare(self, ground: Ground, group: Group) -> None:
        """Make what epochs need, once; all ranks call it together."""

    @abc.abstractmethod
    def of_epoch(self, epoch: int) -> list[Batch]:
        """All batches of an epoch, with their `members`."""

    @abc.abstractmethod
    def subgraph(self, members: torch.Tensor) -> Topology:
        """`Â [m, m]` over the members, scaled for what lacks."""


class SubgraphBatches:
    """The batches of a sampler of subgraphs."""

    collective = False

    def __init__(self, sampler: SubgraphSampler, ground: Ground, group: Group) -> None:
        sampler.prepare(ground, group)
        self._sampler = sampler
        self._ground = ground

    def of_epoch(self, epoch: int) -> list[Batch]:
        """As the sampler draws them."""
        return self._sampler.of_epoch(epoch)

    def sample(self, batch: Batch, seeds: torch.Tensor, key: SampleKey) -> Sampled:
        """All neighbours of the own seeds inside the subgraph, hop by hop."""
        members, fanouts = batch.members, self._ground.fanouts
        assert members is not None
        hops = hop_sampler(self._sampler.subgraph(members), self._ground.dtype)
        place = torch.searchsorted(members, seeds)
        inside = hops.sample(place, Draw(UNIFORM, fanouts, key.of_hops(len(fanouts))))
        return Sampled(members[inside.nodes], inside.counts, inside.entries)


def batch_source(sampler: Sampler | SubgraphSampler, ground: Ground, group: Group) -> BatchSource:
    """The batches of a sampler of either kind; all ranks call it together."""
    if isinstance(sampler, SubgraphSampler):
        return SubgraphBatches(sampler, ground, group)
    return HopBatches(sampler, ground)
