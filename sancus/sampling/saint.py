"""Sampler `saint`: subgraphs of random walks (Zeng et al., "GraphSAINT", ICLR 2020, Algorithms 1 and 2).

Every training node is the root of one walk an epoch; a batch is the nodes that its roots' walks visit, and
all edges among them. Before training, subgraphs are drawn as in training, and counted (§3.2): `C_v` of them
have node `v`, `C_uv` the edge from `u` to `v`. An entry of row `v` then counts `1/α_uv = C_v/C_uv` times, and
the loss of a training node in a batch `1/λ_v`, one over the share of batches that have it. So both are right
on average (§3.3), as far as the counts are. Walks that meet in the same step go on together.
"""

from __future__ import annotations

import torch

from sancus.comm.group import Group
from sancus.kernels.sample import hop_sampler
from sancus.kernels.subgraph import induced, subgraph, walks
from sancus.kernels.topology import Topology
from sancus.sampling.base import Batch, SampleKey, batches
from sancus.sampling.batch_source import Ground, SubgraphSampler


class Saint(SubgraphSampler):
    """Nodes on random walks from the seeds, all edges among them, and what makes up for the others."""

    def __init__(self, length: int = 2, coverage: int = 50) -> None:
        """Walks of `length` steps; `coverage` epochs of subgraphs are counted before training."""
        for name, value in (("length", length), ("coverage", coverage)):
            if value < 1:
                raise ValueError(f"{name}={value} must be at least 1")
        self._length = length
        self._coverage = coverage

    def prepare(self, ground: Ground, group: Group) -> None:
        """Count nodes and edges in the subgraphs of epochs that are never trained, the same on all ranks."""
        self._ground = ground
        whole = ground.topology
        self._walker = hop_sampler(whole, torch.float64)
        nodes, edges = torch.zeros(whole.nodes), torch.zeros(len(whole.col))
        drawn = 0
        for epoch in range(-self._coverage, 0):
            for members in self._members(epoch):
                nodes[members] += 1
                edges[induced(whole, members)[2]] += 1
                drawn += 1
        nodes = nodes.double().clamp(min=1)
        self._factor = nodes[whole.rows] / edges.double().clamp(min=1)
        self._weight = drawn / nodes  # of a node's loss, where it is in a batch

    def of_epoch(self, epoch: int) -> list[Batch]:
        """The subgraph of every step; its seeds are all training nodes that are in it."""
        training, subgraphs = self._ground.training, self._members(epoch)
        out = []
        for members in subgraphs:
            seeds = members[torch.isin(members, training)]
            out.append(Batch(seeds, 1 / len(subgraphs), self._weight[seeds], members))
        return out

    def subgraph(self, members: torch.Tensor) -> Topology:
        """The members' rows, whose entries count as often as they are rare."""
        return subgraph(self._ground.topology, members, self._factor)

    def _members(self, epoch: int) -> list[torch.Tensor]:
        """The nodes of each subgraph of an epoch, ascending."""
        ground = self._ground
        roots = batches(ground.training, ground.size, ground.seed, epoch)
        keys = [SampleKey(ground.seed, epoch, step).of_hops(self._length) for step in range(len(roots))]
        return [walks(self._walker, some, key) for some, key in zip(roots, keys, strict=True)]
