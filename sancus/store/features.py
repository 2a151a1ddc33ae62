"""Features spread by owner, pulled by whoever needs them: first how many, then which, then the rows.

What is pulled is a payload of layer 0 in the ledger: bytes by owner and receiver. Numbers of rows and their
counts are agreement. All ranks pull together, and a rank that needs nothing says so. Rows that are kept cross
once; they are copied to where pulled ones are, so that sums over them have the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from sancus.comm.group import Group
from sancus.comm.ledger import AGREEMENT, Entry, Stream
from sancus.kernels.base import Csr, Kernel
from sancus.kernels.matrix import SparseMatrix
from sancus.kernels.picked import PickedRows, Table, to_scipy
from sancus.kernels.rows import take


@dataclass(frozen=True, eq=False)
class Places:
    """Where the row of each node is, by the node's number."""

    owner: torch.Tensor  # [N] the rank that has it
    row: torch.Tensor  # [N] its row there


class FeatureStore:
    """Own rows of the features, kept rows of other ranks, and the way to all the others."""

    def __init__(self, own: Table, places: Places, group: Group) -> None:
        """`own [n_i, F]`, dense or sparse alike on all ranks."""
        self.own = own
        self.kept = _without_rows(own)
        self.pulled_rows = 0  # so far
        self.cached_rows = 0  # rows of other ranks that were kept, so far
        self._places = places
        self._place_kept = torch.full_like(places.row, -1)  # [N] of a row that is kept
        self._group = group
        self._entry = Entry("payload", Stream(0, "forward", group.members[group.rank]))

    def keep(self, nodes: torch.Tensor) -> None:
        """From now on hold a copy of the rows of `nodes [k]` of other ranks; every rank calls it."""
        nodes = nodes[self._by_owner(nodes)]
        self.kept = self._fetch(nodes)
        self._place_kept[nodes] = torch.arange(len(nodes))

    def pull(self, nodes: torch.Tensor) -> PickedRows:
        """Rows of the nodes `[n]`; every rank calls it."""
        place = self._places.row[nodes]
        if self._group.size == 1:
            return PickedRows(self.own, self.kept, place)
        here = self._place_kept[nodes]
        missing = (here < 0) & (self._places.owner[nodes] != self._group.rank)
        which = torch.nonzero(missing).flatten()
        which = which[self._by_owner(nodes[which])]
        held = torch.nonzero(here >= 0).flatten()
        pulled = self._fetch(nodes[which])
        others = torch.cat([held, which])
        place[others] = torch.arange(len(others)) + self.own.shape[0]
        self.pulled_rows += len(which)
        self.cached_rows += len(held)
        return PickedRows(self.own, self._beside_kept(here[held], pulled), place)

    def _by_owner(self, nodes: torch.Tensor) -> torch.Tensor:
        """The order `[n]` in which nodes stand by their owners."""
        return torch.argsort(self._places.owner[nodes], stable=True)

    def _beside_kept(self, held: torch.Tensor, pulled: Table) -> Table:
        """The rows `held [k]` of those that are kept, then those that were pulled."""
        if not len(held):
            return pulled
        place = torch.cat([held, torch.arange(pulled.shape[0]) + self.kept.shape[0]])
        return PickedRows(self.kept, pulled, place).to_rows()

    def _fetch(self, nodes: torch.Tensor) -> Table:
        """Rows of nodes `[r]` of other ranks, which stand by their owners."""
        wanted = torch.bincount(self._places.owner[nodes], minlength=self._group.size)
        everyone = self._group.all_gather(wanted, AGREEMENT)
        asked = everyone[:, self._group.rank].tolist()  # of this rank, by each
        counts = wanted.tolist()
        rows = self._places.row[nodes]
        requests = rows.new_empty(sum(asked))
        self._group.all_to_all(rows, counts, requests, asked, AGREEMENT).wait()
        if isinstance(self.own, SparseMatrix):
            return self._exchange_sparse(self.own, requests, asked, counts)
        return self._exchange(take(self.own, requests), asked, counts)

    def _exchange(self, rows: torch.Tensor, going: list[int], coming: list[int]) -> torch.Tensor:
        """Rows to those who asked for them; the rows that were asked for."""
        received = rows.new_empty(sum(coming), *rows.shape[1:])
        before = self._group.ledger.wire_of("payload")
        self._group.all_to_all(rows, going, received, coming, self._entry).wait()
        assert self._entry.stream is not None
        self._group.ledger.count_raw(self._entry.stream, self._group.ledger.wire_of("payload") - before)
        return received

    def _exchange_sparse(
        self, own: SparseMatrix, requests: torch.Tensor, going: list[int], coming: list[int]
    ) -> SparseMatrix:
        """Sparse rows: how long each is, then their columns and values."""
        rows = to_scipy(own)[requests.numpy()]
        lengths = torch.from_numpy(np.diff(rows.indptr).astype(np.int64))
        received = self._exchange(lengths, going, coming)
        sizes = [
            [int(part.sum()) for part in by_rank.split(counts)]
            for by_rank, counts in ((lengths, going), (received, coming))
        ]
        column = self._exchange(torch.from_numpy(rows.indices.astype(np.int64)), *sizes)
        value = self._exchange(torch.from_numpy(rows.data), *sizes)
        crow = torch.cat([received.new_zeros(1), received.cumsum(0)])
        return SparseMatrix(Csr(crow, column, value, (len(received), own.shape[1])), own.kernel)


def _without_rows(own: Table) -> Table:
    """A table as wide, with no row."""
    if isinstance(own, torch.Tensor):
        return own[:0]
    kernel: Kernel = own.kernel
    empty = own.csr.col[:0], own.csr.value[:0]
    return SparseMatrix(Csr(own.csr.crow[:1] * 0, *empty, (0, own.shape[1])), kernel)
