"""Sampler `cluster`: batches of whole clusters (Chiang et al., "Cluster-GCN", KDD 2019, Algorithm 1).

The graph is cut once into many clusters with few edges between them. A step takes some, in an order of its
epoch, and trains on their subgraph, edges between them included (§3.2). What a row lacks is made up for by
those that are there: an entry of row `v` counts `Σ_u |A_vu| / Σ_{u in the batch} |A_vu|` times, which for
means is the paper's normalisation of the batch's own matrix (§3.2, §6.2). So sums are *not* right on average:
neighbours in other clusters are seldom there, and near ones stand for them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import scipy.sparse as sp
import torch

from sancus.comm.group import Group
from sancus.comm.ledger import AGREEMENT
from sancus.kernels.hashing import signed, splitmix
from sancus.kernels.subgraph import subgraph
from sancus.kernels.topology import Topology
from sancus.partitioners import PARTITIONERS
from sancus.plugins import build
from sancus.sampling.base import Batch, order_key
from sancus.sampling.batch_source import Ground, SubgraphSampler

PER_BATCH = 10  # clusters, where their number is not given


class Cluster(SubgraphSampler):
    """Whole clusters of the graph, and all edges among those of a batch (Cluster-GCN)."""

    def __init__(self, parts: int = 0, by: str = "metis") -> None:
        """`parts` clusters in all (0: ten a batch), made by a partitioner `by`."""
        if parts < 0:
            raise ValueError(f"parts={parts} must not be negative; 0 is ten clusters a batch")
        self._parts = parts
        self._by = by

    def prepare(self, ground: Ground, group: Group) -> None:
        """Rank 0 cuts the graph, and tells the others."""
        self._ground = ground
        whole = ground.topology
        parts = max(ground.steps, min(self._parts or PER_BATCH * ground.steps, whole.nodes))
        cluster = torch.zeros(whole.nodes, dtype=torch.int64)
        if group.rank == 0:
            ones = np.ones(len(whole.col), np.float32)
            adjacency = sp.csr_array(
                (ones, whole.col.numpy(), whole.crow.numpy()), shape=(whole.nodes, whole.nodes)
            )
            assign = build("partitioner", PARTITIONERS, self._by).assign
            cluster = torch.from_numpy(np.asarray(assign(adjacency, parts), np.int64))
        if group.size > 1:
            group.broadcast(cluster, 0, AGREEMENT).wait()
        self._cluster = cluster
        self._sums = whole.sums()

    def of_epoch(self, epoch: int) -> list[Batch]:
        """Clusters in an order of the epoch, as many a step as can be; steps without a seed are left out."""
        ground = self._ground
        noise = splitmix(torch.arange(int(self._cluster.max()) + 1) ^ signed(order_key(ground.seed, epoch)))
        order = torch.argsort(noise, stable=True)
        chosen = [torch.isin(self._cluster, clusters) for clusters in order.tensor_split(ground.steps)]
        cut = [(inside.nonzero().flatten(), ground.training[inside[ground.training]]) for inside in chosen]
        total = max(1, len(ground.training))
        return [Batch(seeds, len(seeds) / total, members=members) for members, seeds in cut if len(seeds)]

    def subgraph(self, members: torch.Tensor) -> Topology:
        """The members' rows, scaled to the sums that they have in the whole graph."""
        part = subgraph(self._ground.topology, members)
        there = part.sums()
        lacking = torch.where(there > 0, self._sums[members] / there, 1.0)
        return replace(part, left=part.left * lacking)
