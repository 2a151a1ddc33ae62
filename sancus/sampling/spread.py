"""Samples where no rank has all edges: targets are drawn for by their owners, hop by hop (DistDGL §4.1).

What a target draws is a function of its number and of the hop's key alone, so whoever has its row draws the
same; and a sample is put together in the order of its targets. So it is that of one process, bit for bit.
"""

from __future__ import annotations

import torch

from sancus.comm.group import Group
from sancus.comm.ledger import TOPOLOGY
from sancus.errors import UserError
from sancus.kernels.base import index_dtype
from sancus.kernels.sample_torch import first_seen
from sancus.kernels.topology import Sampled
from sancus.sampling.base import Batch, SampleKey, Sampler
from sancus.sampling.batch_source import Ground, HopBatches, SubgraphSampler

Rows = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # lengths [t], sources [e] by number, values [e]


class SpreadBatches(HopBatches):
    """Seeds in an order of the epoch; each rank draws for the targets whose edges it has."""

    collective = True

    def __init__(self, sampler: Sampler, ground: Ground, group: Group, owner: torch.Tensor) -> None:
        """`owner [N]` is the rank that has the row of each node; the others' rows are empty here."""
        super().__init__(sampler, ground)
        self._group = group
        self._owner = owner
        self._place = torch.full_like(owner, -1)  # of each node in this sample
        self._index = index_dtype(len(owner))

    def sample(self, batch: Batch, seeds: torch.Tensor, key: SampleKey) -> Sampled:
        """What the sampler draws for the own seeds; all ranks call it together."""
        fanouts = self._ground.fanouts
        nodes, counts, entries = seeds, [len(seeds)], []
        self._place[nodes] = torch.arange(len(nodes))
        for fanout, hop in zip(fanouts, key.of_hops(len(fanouts)), strict=True):
            lengths, sources, values = self._rows(nodes, fanout, hop)
            new = first_seen(sources[self._place[sources] < 0])
            self._place[new] = torch.arange(len(nodes), len(nodes) + len(new))
            crow = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
            entries.append((crow, self._place[sources].to(torch.int32), values))
            nodes = torch.cat([nodes, new])
            counts.append(len(nodes))
        self._place[nodes] = -1
        return Sampled(nodes, tuple(counts), tuple(entries))

    def _rows(self, targets: torch.Tensor, fanout: int, hop: int) -> Rows:
        """The drawn rows of targets `[t]`: requests leave first, then the own ones are drawn."""
        group = self._group
        order = torch.argsort(self._owner[targets], stable=True)
        wanted = torch.bincount(self._owner[targets], minlength=group.size)
        mine = self._owner[targets[order]] == group.rank
        wanted[group.rank] = 0
        counts, asked = wanted.tolist(), group.all_gather(wanted, TOPOLOGY)[:, group.rank].tolist()
        requests = torch.empty(sum(asked), dtype=self._index)
        going = targets[order[~mine]].to(self._index)
        asking = group.all_to_all(going, counts, requests, asked, TOPOLOGY)
        own = self._draw(targets[order[mine]], fanout, hop)
        asking.wait()
        parts = requests.to(torch.int64).split(asked)
        others = self._swap([self._draw(part, fanout, hop) for part in parts], asked, counts)
        return _in_order([own, others], torch.cat([order[mine], order[~mine]]))

    def _draw(self, targets: torch.Tensor, fanout: int, hop: int) -> Rows:
        """The rows that targets `[t]` draw, whose edges are here."""
        drawn = self._sampler.sample(self._hops, targets, (fanout,), (hop,))
        crow, col, value = drawn.entries[0]
        return crow.diff(), drawn.nodes[col.to(torch.int64)], value

    def _swap(self, answers: list[Rows], asked: list[int], counts: list[int]) -> Rows:
        """Answers `[p]` to those who asked; the rows that this rank asked for."""
        lengths = self._move(torch.cat([rows[0] for rows in answers]).to(torch.int32), asked, counts)
        lengths = lengths.to(torch.int64)
        going = [len(rows[1]) for rows in answers]
        coming = [int(part.sum()) for part in lengths.split(counts)]
        sources = self._move(torch.cat([rows[1] for rows in answers]).to(self._index), going, coming)
        values = self._move(torch.cat([rows[2] for rows in answers]), going, coming)
        return lengths, sources.to(torch.int64), values

    def _move(self, rows: torch.Tensor, going: list[int], coming: list[int]) -> torch.Tensor:
        received = rows.new_empty(sum(coming))
        self._group.all_to_all(rows, going, received, coming, TOPOLOGY).wait()
        return received


def _in_order(parts: list[Rows], place: torch.Tensor) -> Rows:
    """Rows of several parts, one after another, each at its `place [t]`."""
    lengths, sources, values = (torch.cat([part[column] for part in parts]) for column in range(3))
    ordered = torch.empty_like(lengths)
    ordered[place] = lengths
    start = ordered.cumsum(0) - ordered
    shift = (start[place] - (lengths.cumsum(0) - lengths)).repeat_interleave(lengths)
    to = shift + torch.arange(len(shift))
    return ordered, torch.empty_like(sources).index_copy_(0, to, sources), _put(values, to)


def _put(values: torch.Tensor, to: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(values).index_copy_(0, to, values)


def spread_batches(
    sampler: Sampler | SubgraphSampler, ground: Ground, group: Group, owner: torch.Tensor
) -> SpreadBatches:
    """The batches of a sampler that draws hop by hop; one that needs all edges in one place is refused."""
    if isinstance(sampler, SubgraphSampler):
        raise UserError(
            f"--topology owner draws hop by hop, and sampler {type(sampler).__name__.lower()} takes "
            "subgraphs; choose --topology mapped, or --sampler neighbour or labor"
        )
    return SpreadBatches(sampler, ground, group, owner)
