"""Batches of edges: every edge is asked at the owner of its target, which samples for both ends.

So no embedding crosses: a rank has the topology, and pulls the features it lacks (ByteGNN's unsupervised DAG,
with the branches of sources, targets and drawn nodes in one sample).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sancus.kernels.pairs import PairScores
from sancus.kernels.sample import hop_sampler
from sancus.kernels.topology import Sampled
from sancus.kernels.transpose import row_of_entries
from sancus.sampling.base import SampleKey, order_key
from sancus.sampling.batch_source import SubgraphSampler
from sancus.training.asker import Ask, Loss
from sancus.training.edge_split import order_of
from sancus.training.pair_loss import PairLoss


@dataclass(frozen=True, eq=False)
class EdgeBatch:
    """The edges of one step, over all ranks."""

    edges: torch.Tensor  # [b, 2] ids of source and target
    share: float  # of the epoch


class LinkAsker:
    """Batches of the training edges, in an order of the epoch."""

    collective = False
    unit = "training_edges"

    def __init__(self, loss: PairLoss, ask: Ask) -> None:
        """All training edges are read from the topology, which has no others."""
        assert not isinstance(ask.sampler, SubgraphSampler), "refused with the settings"
        self._loss = loss
        self._ask = ask
        self._sampler = ask.sampler
        whole = ask.everything.topology
        self._hops = hop_sampler(whole, ask.dtype)
        edges = torch.stack([whole.col.to(torch.int64), whole.rows], dim=1)
        self._edges = edges[edges[:, 0] != edges[:, 1] if loss.directed else edges[:, 0] < edges[:, 1]]
        self.count = len(self._edges)

    def of_epoch(self, epoch: int) -> list[EdgeBatch]:
        """Edges in the order of a hash, cut every so many."""
        key = order_key(self._ask.seed, epoch)
        cut = order_of(self._edges, key).split(min(self._ask.settings.batch_size, max(1, self.count)))
        return [EdgeBatch(edges, len(edges) / max(1, self.count)) for edges in cut]

    def sample(self, batch: EdgeBatch, key: SampleKey) -> tuple[Sampled, Loss]:
        """Seeds are the ends of the own edges and of the pairs drawn for them."""
        pair_loss, ask = self._loss, self._ask
        own = batch.edges[ask.everything.owner[batch.edges[:, 1]] == ask.group.rank]
        pairs, truth = pair_loss.asked(own, key.epoch)
        seeds, at = torch.unique(pairs, return_inverse=True)
        sampled = self._sampler.sample(self._hops, seeds, ask.fanouts, key.of_hops(len(ask.fanouts)))
        if pair_loss.settings.leave_out:
            sampled = without(sampled, batch.edges, ask.everything.topology.nodes)

        def loss(embeddings: torch.Tensor) -> torch.Tensor:
            return pair_loss.share_of(PairScores.apply(embeddings, at), truth, len(batch.edges))

        return sampled, loss


def without(sampled: Sampled, edges: torch.Tensor, nodes: int) -> Sampled:
    """The same sample without the entries of `edges [b, 2]` and of their reverses."""
    gone = torch.cat([edges[:, 0] * nodes + edges[:, 1], edges[:, 1] * nodes + edges[:, 0]])
    hops = []
    for crow, col, value in sampled.entries:
        ends = sampled.nodes[row_of_entries(crow)] * nodes + sampled.nodes[col.to(torch.int64)]
        keep = ~torch.isin(ends, gone)
        kept = torch.cat([crow.new_zeros(1), keep.cumsum(0)])
        hops.append((kept[crow], col[keep], value[keep]))
    return Sampled(sampled.nodes, sampled.counts, tuple(hops))
