"""The constant input: `H⁰ = X` never changes, so what the first layer needs of others crosses once.

Dense features: `Â X` is computed once and kept. Sparse features stay sparse: `Â X` would be dense and large,
so the rows of `X` that this rank needs are sent once, and every rank computes `X W` for own and received
rows alone. What is kept is kept for each of two modes: training under the policy `drop` lacks the rows of
others, which evaluation has.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from sancus.comm.group import Group
from sancus.comm.ledger import Entry
from sancus.comm.stopwatch import Stopwatch
from sancus.exchange.dropout import DropoutKey, drop_dense, drop_sparse, drop_transform
from sancus.exchange.mover import Mover
from sancus.exchange.noise import Noise
from sancus.exchange.timing import time_way_back
from sancus.kernels.base import Csr
from sancus.kernels.matrix import SparseMatrix, part_of
from sancus.plans.base import Plan
from sancus.plans.chunked import select
from sancus.plans.maps import Pick

Thinning = Callable[[SparseMatrix, torch.Tensor], SparseMatrix]


class ConstantInput:
    """What this rank needs of the constant features, kept after it crossed."""

    def __init__(
        self, x: torch.Tensor | SparseMatrix, mover: Mover, noise: Noise, plan: Plan | None = None
    ) -> None:
        """`x [n_i, F]` are the features of the own rows; `plan` picks the rows of sparse ones that cross."""
        self.x = x
        self._mover = mover
        self._noise = noise
        self.sparse = (
            ConstantRows(x, noise.nodes, mover, plan or mover.plan) if isinstance(x, SparseMatrix) else None
        )
        self._aggregated: dict[bool, torch.Tensor] = {}  # Â X [n_i, F], by whether others' rows are absent
        self._rows: dict[bool, tuple[torch.Tensor, torch.Tensor]] = {}  # X [n_i + r_i, F] and their nodes

    def propagate(self, layer: int, weight: torch.Tensor | None, dropout: float) -> torch.Tensor:
        """`Â (dropout(X) W)`, with no message after the first; of dense features `dropout(Â X) W`."""
        key, dropout = self._noise.key(layer), self._noise.share_now(dropout)
        if self.sparse is not None:
            return self.sparse.received(layer).propagate(weight, dropout, key)
        return _transform_dense(self.aggregated(layer), self._noise.nodes, weight, dropout, key)

    def rows(self, layer: int, weight: torch.Tensor | None, dropout: float) -> torch.Tensor:
        """`dropout(X) W` of own and received rows `[n_i + r_i, ·]`, with no message after the first."""
        key, dropout = self._noise.key(layer), self._noise.share_now(dropout)
        if self.sparse is not None:
            return self.sparse.received(layer).rows(weight, dropout, key)
        return _transform_dense(*self.gathered(layer), weight, dropout, key)

    def aggregated(self, layer: int) -> torch.Tensor:
        """`Â X [n_i, F]` of dense features, in the present mode."""
        assert isinstance(self.x, torch.Tensor)
        absent = self._mover.crossing.absent("forward")
        if absent not in self._aggregated:
            with torch.no_grad():
                self._aggregated[absent] = self._mover.aggregate_once(self.x, layer, absent=absent)
        return self._aggregated[absent]

    def gathered(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Own and received rows of dense features `[n_i + r_i, F]`, and the user's ids of their nodes."""
        assert isinstance(self.x, torch.Tensor)
        absent = self._mover.crossing.absent("forward")
        if absent not in self._rows:
            rows = self._mover.gather_once(self.x, layer, absent=absent)
            self._rows[absent] = rows, self._noise.columns()[: len(rows)]
        return self._rows[absent]

    def part(self, rows: slice, noise: Noise) -> ConstantPart:
        """The features of some own rows; `noise` is theirs."""
        return ConstantPart(self, rows, noise)


class ConstantPart:
    """The constant features of some own rows, and what these need of others."""

    def __init__(self, whole: ConstantInput, rows: slice, noise: Noise) -> None:
        self.x = whole.x[rows] if isinstance(whole.x, torch.Tensor) else part_of(whole.x, rows)
        self._whole = whole
        self._rows = rows
        self._noise = noise
        self._received: dict[bool, ReceivedRows] = {}

    def propagate(self, layer: int, weight: torch.Tensor | None, dropout: float) -> torch.Tensor:
        """What `ConstantInput.propagate` gives for these rows, `[k, ·]`."""
        key, dropout = self._noise.key(layer), self._noise.share_now(dropout)
        if self._whole.sparse is None:
            part = self._whole.aggregated(layer)[self._rows]
            return _transform_dense(part, self._noise.nodes, weight, dropout, key)
        whole = self._whole.sparse
        if whole.absent not in self._received:
            self._received[whole.absent] = whole.received(layer).part(self._rows)
        return self._received[whole.absent].propagate(weight, dropout, key)

    def rows_of(
        self, nodes: torch.Tensor, layer: int, weight: torch.Tensor | None, dropout: float
    ) -> torch.Tensor:
        """`dropout(X) W` of the rows of some nodes `[u]`, own or received ones: `[u, ·]`."""
        key, dropout = self._noise.key(layer), self._noise.share_now(dropout)
        if self._whole.sparse is not None:
            return self._whole.sparse.received(layer).of(nodes).rows(weight, dropout, key)
        rows, there = self._whole.gathered(layer)
        return _transform_dense(rows[_places(there, nodes)], nodes, weight, dropout, key)


class ConstantRows:
    """Sparse rows that never change: those that this rank needs of others cross once in each mode."""

    def __init__(self, own: SparseMatrix, nodes: torch.Tensor, mover: Mover, plan: Plan) -> None:
        """`own [n_i, F]`, their user's ids `nodes [n_i]`; `plan` picks the rows that cross."""
        self.own = own
        self.nodes = nodes
        self._mover = mover
        self._plan = plan
        self._received: dict[bool, ReceivedRows] = {}

    @property
    def absent(self) -> bool:
        """The present mode: whether rows of others are left out."""
        return self._mover.crossing.absent("forward")

    def received(self, layer: int) -> ReceivedRows:
        """Own and received rows in the present mode; `layer` is whom their bytes are counted for."""
        absent = self.absent
        if absent not in self._received:
            with torch.no_grad():
                self._received[absent] = self._alone() if absent else self._fetch(layer)
        return self._received[absent]

    def _alone(self) -> ReceivedRows:
        mover = self._mover
        return ReceivedRows(self.own, self.nodes, mover.plan.forward.diagonal.matrix, mover.group.stopwatch)

    def _fetch(self, layer: int) -> ReceivedRows:
        group = self._mover.group
        entry = self._mover.crossing.once_use(layer).entry(group.rank)
        return fetch_sparse_rows(self.own, self.nodes, self._plan, group, entry)


class ReceivedRows:
    """Own and received rows of a sparse `X`; dropout falls on the entries of `X`, as in one process."""

    def __init__(
        self, x: SparseMatrix, nodes: torch.Tensor, local_rows: SparseMatrix, stopwatch: Stopwatch
    ) -> None:
        self._x = x  # [n_i + r_i, F]
        self._nodes = nodes  # [n_i + r_i]
        self._local_rows = local_rows  # [n_i, n_i + r_i]
        self._stopwatch = stopwatch

    def part(self, rows: slice) -> ReceivedRows:
        """What some own rows need: their part of the matrix, over the rows of `X` that it has entries for."""
        selection = select(part_of(self._local_rows, rows), torch.arange(0))
        found = _taken(self._x, selection.columns), self._nodes[selection.columns]
        return ReceivedRows(*found, selection.matrix, self._stopwatch)

    def of(self, nodes: torch.Tensor) -> ReceivedRows:
        """The rows of some nodes `[u]`, for `rows` alone."""
        return ReceivedRows(
            _taken(self._x, _places(self._nodes, nodes)), nodes, self._local_rows, self._stopwatch
        )

    def propagate(self, weight: torch.Tensor | None, share: float, key: DropoutKey) -> torch.Tensor:
        """`Â (dropout(X) W)`, with no message."""
        return self.multiply(weight, lambda x, nodes: drop_sparse(x, share, nodes, key) if share else x)

    def multiply(self, weight: torch.Tensor | None, thin: Thinning) -> torch.Tensor:
        """`Â (thin(X) W)`, where `thin` leaves out entries by node, the same in every copy of a row."""
        x = thin(self._x, self._nodes)
        values = x.to_dense() if weight is None else x @ weight
        with self._stopwatch.at("aggregation"):
            out = self._local_rows @ values
        time_way_back(self._stopwatch, values, out)
        return out

    def rows(self, weight: torch.Tensor | None, share: float, key: DropoutKey) -> torch.Tensor:
        """`dropout(X) W` of own and received rows `[n_i + r_i, ·]`, with no message."""
        x = drop_sparse(self._x, share, self._nodes, key) if share else self._x
        return x.to_dense() if weight is None else x @ weight


def _transform_dense(
    x: torch.Tensor, nodes: torch.Tensor, weight: torch.Tensor | None, share: float, key: DropoutKey
) -> torch.Tensor:
    """`dropout(x) W`, or `dropout(x)`."""
    if weight is None:
        return drop_dense(x, share, nodes, key) if share else x
    return drop_transform(x, share, nodes, key, weight) if share else x @ weight


def _taken(x: SparseMatrix, rows: torch.Tensor) -> SparseMatrix:
    """The rows `[k]` of `x [n, F]`, in their order: `[k, F]`."""
    lengths = (x.csr.crow[1:] - x.csr.crow[:-1])[rows]
    entries = _entries_of_rows(x.csr.crow, rows, lengths)
    crow = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    csr = Csr(crow, x.csr.col[entries], x.csr.value[entries], (len(rows), x.shape[1]))
    return SparseMatrix(csr, x.kernel)


def _places(there: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Where the `wanted [u]` ids are among those `there [n]`, each of which is there once."""
    ordered, order = there.sort()
    return order[torch.searchsorted(ordered, wanted)]


def fetch_sparse_rows(
    x: SparseMatrix, nodes: torch.Tensor, plan: Plan, group: Group, entry: Entry
) -> ReceivedRows:
    """Send the rows of `x` that others need, once, as sparse rows; join what arrives below own rows.

    A row crosses as its node id, its length, its columns (int32) and its values: three all-to-alls, since
    receivers learn the number of entries from the first.
    """
    picks = [row_map.index for row_map in plan.forward.make if isinstance(row_map, Pick)]
    assert len(picks) == group.size, "sparse rows cross by a plan that picks rows"
    lengths = x.csr.crow[1:] - x.csr.crow[:-1]
    rows = torch.cat(picks)
    row_counts = [int(index.numel()) for index in picks]
    coming = [row_map.rows_in for row_map in plan.forward.add]
    coming[group.rank] = 0
    heads = torch.stack([nodes[rows], lengths[rows]], dim=1)
    received_heads = heads.new_empty(sum(coming), 2)
    group.all_to_all(heads.contiguous(), row_counts, received_heads, coming, entry).wait()

    entry_counts = [int(lengths[index].sum()) for index in picks]
    coming_entries = [int(part[:, 1].sum()) for part in received_heads.split(coming)]
    positions = _entries_of_rows(x.csr.crow, rows, lengths[rows])
    columns = x.csr.col[positions].to(torch.int32)
    values = x.csr.value[positions]
    received_columns = columns.new_empty(sum(coming_entries))
    received_values = values.new_empty(sum(coming_entries))
    group.all_to_all(columns, entry_counts, received_columns, coming_entries, entry).wait()
    group.all_to_all(values, entry_counts, received_values, coming_entries, entry).wait()

    if entry.purpose == "payload" and entry.stream is not None:
        group.ledger.count_raw(entry.stream, heads.nbytes + columns.nbytes + values.nbytes)
    crow = torch.cat([x.csr.crow, x.csr.crow[-1] + received_heads[:, 1].cumsum(0)])
    joined = Csr(
        crow,
        torch.cat([x.csr.col, received_columns.to(torch.int64)]),
        torch.cat([x.csr.value, received_values]),
        (x.shape[0] + len(received_heads), x.shape[1]),
    )
    all_nodes = torch.cat([nodes, received_heads[:, 0]])
    return ReceivedRows(SparseMatrix(joined, x.kernel), all_nodes, plan.local_rows(), group.stopwatch)


def _entries_of_rows(crow: torch.Tensor, rows: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Positions of all entries of the given rows, in order."""
    starts = torch.repeat_interleave(crow[rows] - (lengths.cumsum(0) - lengths), lengths)
    return starts + torch.arange(len(starts), device=crow.device)
