"""Sums over the columns of `Â`, whether one rank has all rows or each has its own."""

from __future__ import annotations

import torch

from sancus.comm.group import Group
from sancus.comm.ledger import TOPOLOGY
from sancus.kernels.topology import Topology

_AT_ONCE = 1 << 22  # entries, so that little memory is taken


class Columns:
    """Who has whom as a neighbour."""

    def __init__(self, topology: Topology, group: Group | None = None) -> None:
        """Where rows are spread over a `group`, `topology` has own rows alone; all its ranks call this."""
        self._topology = topology
        self._group = group
        self.degrees = topology.degrees  # [N] entries of every row
        if group is not None:
            self.degrees = group.all_gather(topology.degrees, TOPOLOGY).sum(dim=0)

    def sums(self, values: torch.Tensor) -> torch.Tensor:
        """`Σ_{v: u ∈ N(v)} values_v` for every `u`, `[N]`.

        Where rows are spread, `values [N]` may differ from rank to rank: each gets the sums of its own.
        """
        if self._group is None:
            return self._own(values)
        group = self._group
        parts = torch.stack([self._own(row) for row in group.all_gather(values, TOPOLOGY)])  # [p, N]
        counts = [int(rank != group.rank) for rank in range(group.size)]
        others = torch.nonzero(torch.tensor(counts)).flatten()
        received = parts.new_empty(len(others), parts.shape[1])
        group.all_to_all(parts[others], counts, received, counts, TOPOLOGY).wait()
        return parts[group.rank] + received.sum(dim=0)

    def _own(self, values: torch.Tensor) -> torch.Tensor:
        topology, degrees = self._topology, self._topology.degrees
        sums = torch.zeros_like(values)
        rows = _AT_ONCE // max(1, topology.largest_degree) + 1
        for first in range(0, topology.nodes, rows):
            last = min(topology.nodes, first + rows)
            part = topology.col[int(topology.crow[first]) : int(topology.crow[last])]
            sums.index_add_(0, part, values[first:last].repeat_interleave(degrees[first:last]))
        return sums
