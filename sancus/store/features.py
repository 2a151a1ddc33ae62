"""Features spread by owner, pulled by whoever needs them: first how many, then which, then the rows.

What is pulled is a payload of layer 0 in the ledger: bytes by owner and receiver. Numbers of rows and their
counts are agreement. All ranks pull together, and a rank that needs nothing says so.
"""

from __future__ import annotations

import numpy as np
import torch

from sancus.comm.group import Group
from sancus.comm.ledger import AGREEMENT, Entry, Stream
from sancus.kernels.base import Csr, Kernel
from sancus.kernels.matrix import SparseMatrix
from sancus.kernels.picked import PickedRows, Table, to_scipy
from sancus.kernels.rows import take


class FeatureStore:
    """Own rows of the features, and the way to those of other ranks."""

    def __init__(self, own: Table, group: Group) -> None:
        """`own [n_i, F]`, dense or sparse alike on all ranks."""
        self.own = own
        self.pulled_rows = 0  # so far
        self._group = group
        self._none = _without_rows(own)
        self._entry = Entry("payload", Stream(0, "forward", group.members[group.rank]))

    def pull(self, owner: torch.Tensor, row: torch.Tensor) -> PickedRows:
        """Rows `row [n]` of ranks `owner [n]`, numbered from 0 at their owners; every rank calls it."""
        if self._group.size == 1:
            return PickedRows(self.own, self._none, row)
        mine = owner == self._group.rank
        theirs = torch.nonzero(~mine).flatten()
        order = theirs[torch.argsort(owner[theirs], stable=True)]
        wanted = torch.bincount(owner[order], minlength=self._group.size)
        pulled = self._fetch(row[order], wanted)
        place = row.clone()
        place[order] = torch.arange(len(order)) + self.own.shape[0]
        self.pulled_rows += len(order)
        return PickedRows(self.own, pulled, place)

    def _fetch(self, ids: torch.Tensor, wanted: torch.Tensor) -> Table:
        """Rows `ids [r]` of others, ordered by owner, of whom `wanted [p]` come of each."""
        everyone = self._group.all_gather(wanted, AGREEMENT)
        asked = everyone[:, self._group.rank].tolist()  # of this rank, by each
        counts = wanted.tolist()
        requests = ids.new_empty(sum(asked))
        self._group.all_to_all(ids.contiguous(), counts, requests, asked, AGREEMENT).wait()
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
