"""Features spread by owner, pulled by whoever needs them: first how many, then which, then the rows.

What is pulled is a payload of layer 0 in the ledger: bytes by owner and receiver. Numbers of rows and their
counts are agreement. All ranks pull together, and a rank that needs nothing says so. Rows that are kept cross
once, in full precision; they are copied to where pulled ones are, so that sums over them have the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sancus.comm.group import Group
from sancus.comm.ledger import AGREEMENT
from sancus.errors import UserError
from sancus.kernels.base import Csr, Kernel, index_dtype
from sancus.kernels.matrix import SparseMatrix
from sancus.kernels.picked import PickedRows, Table
from sancus.store.parcel import Coding, DenseParcel, Parcel, Route, SparseParcel, Step

BEFORE = Step(0, 0)  # when rows cross that are kept


@dataclass(frozen=True, eq=False)
class Places:
    """Where the row of each node is, by the node's number."""

    owner: torch.Tensor  # [N] the rank that has it
    row: torch.Tensor  # [N] its row there


class FeatureStore:
    """Own rows of the features, kept rows of other ranks, and the way to all the others."""

    def __init__(self, own: Table, places: Places, group: Group, coding: Coding | None = None) -> None:
        """`own [n_i, F]`, dense or sparse alike on all ranks."""
        if coding is not None and not coding.codec.lossless and isinstance(own, SparseMatrix):
            raise UserError("--feature-codec codes dense features, and these are sparse; leave it out")
        self.own = own
        self.kept = _without_rows(own)
        self.places = places
        self.group = group
        self.coding = coding
        self.place_kept = torch.full_like(places.row, -1)  # [N] of a row that is kept

    def keep(self, nodes: torch.Tensor) -> None:
        """From now on hold a copy of the rows of `nodes [k]` of other ranks; every rank calls it."""
        nodes = nodes[by_owner(self.places, nodes)]
        fetching = Fetching(self, nodes, BEFORE, None)
        fetching.run()
        self.kept = fetching.unpack()
        self.place_kept[nodes] = torch.arange(len(nodes))


class Fetching:
    """Rows of nodes of other ranks on their way here, and own rows on their way to others.

    `ask`, `send` and `receive` are for all ranks together; `pack` and `unpack` are local. In the order of
    ask, pack, send, receive, unpack.
    """

    def __init__(
        self,
        store: FeatureStore,
        nodes: torch.Tensor,
        step: Step,
        coding: Coding | None,
        *,
        background: bool = False,
    ) -> None:
        """`nodes [r]` stand by their owners; `coding` is for dense rows."""
        self._store = store
        self._nodes = nodes
        self._step = step
        self._coding = coding
        self._background = background
        self._requests = torch.empty(0, dtype=torch.int64)  # own rows that others want
        self._parcel: Parcel | None = None

    def run(self) -> None:
        """All of it but `unpack`, one after another."""
        self.ask()
        self.pack()
        self.send()
        self.receive()

    def ask(self) -> None:
        """Tell everyone how many rows are wanted of it, then which."""
        group, places = self._store.group, self._store.places
        wanted = torch.bincount(places.owner[self._nodes], minlength=group.size)
        everyone = group.all_gather(wanted, AGREEMENT)
        route = Route(group, everyone[:, group.rank].tolist(), wanted.tolist(), self._background)
        rows = places.row[self._nodes].to(index_dtype(len(places.row)))
        requests = rows.new_empty(sum(route.going))
        group.all_to_all(rows, route.coming, requests, route.going, AGREEMENT).wait()
        self._requests = requests.to(torch.int64)
        own = self._store.own
        if isinstance(own, SparseMatrix):
            self._parcel = SparseParcel(own, route)
        else:
            self._parcel = DenseParcel(own, route, self._coding, self._step)

    def pack(self) -> None:
        """Take the rows that others want."""
        self._sure().pack(self._requests)

    def send(self) -> None:
        """Start moving them."""
        self._sure().send()

    def receive(self) -> None:
        """Wait for the rows that were asked for."""
        self._sure().receive()

    def unpack(self) -> Table:
        """The rows `[r, F]`."""
        return self._sure().unpack()

    def _sure(self) -> Parcel:
        assert self._parcel is not None, "nobody was asked yet"
        return self._parcel


class Pull:
    """The rows of one batch: which of them are own, kept, or to be fetched."""

    def __init__(
        self, store: FeatureStore, nodes: torch.Tensor, step: Step, *, background: bool = False
    ) -> None:
        """Local; `nodes [n]`."""
        self._store = store
        self._place = store.places.row[nodes]
        held = store.place_kept[nodes]
        missing = (held < 0) & (store.places.owner[nodes] != store.group.rank)
        which = torch.nonzero(missing).flatten()
        which = which[by_owner(store.places, nodes[which])]
        kept = torch.nonzero(held >= 0).flatten()
        others = torch.cat([kept, which])
        self._place[others] = torch.arange(len(others)) + store.own.shape[0]
        self._kept = held[kept]
        self.pulled_rows = len(which)
        self.cached_rows = len(kept)
        self.fetching = Fetching(store, nodes[which], step, store.coding, background=background)

    def rows(self) -> PickedRows:
        """Local: all rows of the batch `[n, F]`, after those that were fetched have come."""
        store, pulled = self._store, self.fetching.unpack()
        if len(self._kept):
            place = torch.cat([self._kept, torch.arange(pulled.shape[0]) + store.kept.shape[0]])
            pulled = PickedRows(store.kept, pulled, place).to_rows()
        return PickedRows(store.own, pulled, self._place)


def by_owner(places: Places, nodes: torch.Tensor) -> torch.Tensor:
    """The order `[n]` in which nodes stand by their owners."""
    return torch.argsort(places.owner[nodes], stable=True)


def _without_rows(own: Table) -> Table:
    """A table as wide, with no row."""
    if isinstance(own, torch.Tensor):
        return own[:0]
    kernel: Kernel = own.kernel
    empty = own.csr.col[:0], own.csr.value[:0]
    return SparseMatrix(Csr(own.csr.crow[:1] * 0, *empty, (0, own.shape[1])), kernel)
