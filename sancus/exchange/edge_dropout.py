"""Dropout of attention weights, whose mask is a function of the edge, not of the rank that holds it.

An edge is known by the user's ids of both ends. So a rank must know the ids of the rows that it receives:
they cross once, when they are first needed, and are counted as agreement.
"""

from __future__ import annotations

import torch

from sancus.comm.group import Group
from sancus.comm.ledger import Entry
from sancus.exchange.attention import ALL, EdgeFactors
from sancus.exchange.dropout import DropoutKey, edge_factors
from sancus.kernels.matrix import SparseMatrix
from sancus.plans.base import Leg
from sancus.plans.maps import Pick


class EdgeDropout:
    """The nodes behind the columns of own rows."""

    def __init__(self, nodes: torch.Tensor, leg: Leg, group: Group) -> None:
        """`nodes [n_i]` are the user's ids of the own rows."""
        self._own = nodes
        own, ranks = group.rank, range(group.size)
        maps = [row_map for rank, row_map in enumerate(leg.make) if rank != own]
        send = [nodes[row_map.index] if isinstance(row_map, Pick) else nodes for row_map in maps]
        out = [0 if rank == own else leg.make[rank].rows_out for rank in ranks]
        coming = [0 if rank == own else leg.add[rank].rows_in for rank in ranks]
        received = nodes.new_empty(sum(coming))
        if group.size > 1:
            group.all_to_all(torch.cat(send), out, received, coming, Entry("agreement")).wait()
        self._received = received.split(coming)
        self._rank = own

    def columns(self) -> torch.Tensor:
        """The user's ids of own and received rows, `[n_i + r_i]`."""
        return torch.cat([self._own, *self._received])

    def thinned(self, heads: int, share: float, key: DropoutKey) -> EdgeFactors:
        """Factors `[nnz, heads]`, 0 or `1 / (1 − share)`, of own rows over an owner's columns or all."""
        return lambda owner, matrix: self._factors(owner, matrix, heads, share, key)

    def _factors(
        self, owner: int, matrix: SparseMatrix, heads: int, share: float, key: DropoutKey
    ) -> torch.Tensor:
        if owner == self._rank:
            sources = self._own
        elif owner == ALL:  # those of all, or, where other rows are absent, the own ones
            sources = self.columns()[: matrix.shape[1]]
        else:
            sources = self._received[owner]
        ends = self._own[matrix.row_of_entries()], sources[matrix.csr.col.to(torch.int64)]
        return edge_factors(*ends, heads, share, key, matrix.dtype)
