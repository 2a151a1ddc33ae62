"""The constant input: `H⁰ = X` never changes, so what the first layer needs of others crosses once.

Dense features: `Â X` is computed once and kept. Sparse features stay sparse: `Â X` would be dense and large,
so the rows of `X` that this rank needs are sent once, and every rank computes `X W` for own and received
rows alone (design §2, exact savings).
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from sancus.comm.group import Group
from sancus.comm.ledger import Entry
from sancus.exchange.dropout import DropoutKey, drop_dense, drop_sparse, drop_transform
from sancus.kernels.base import Csr
from sancus.kernels.matrix import SparseMatrix
from sancus.plans.base import Plan
from sancus.plans.maps import Pick

Thinning = Callable[[SparseMatrix, torch.Tensor], SparseMatrix]


class DenseConstant:
    """`Â X` as a constant; the dropout that a model asks for falls on `Â X`, after the aggregation."""

    def __init__(self, aggregated: torch.Tensor, nodes: torch.Tensor) -> None:
        self._aggregated = aggregated  # [n_i, F]
        self._nodes = nodes

    def propagate(self, weight: torch.Tensor | None, share: float, key: DropoutKey) -> torch.Tensor:
        """`dropout(Â X) W`, with no message."""
        return _transform_dense(self._aggregated, self._nodes, weight, share, key)


class SparseConstant:
    """Own and received rows of a sparse `X`; dropout falls on the entries of `X`, as in one process."""

    def __init__(self, x: SparseMatrix, nodes: torch.Tensor, local_rows: SparseMatrix) -> None:
        self._x = x  # [n_i + r_i, F]
        self._nodes = nodes  # [n_i + r_i]
        self._local_rows = local_rows  # [n_i, n_i + r_i]

    def propagate(self, weight: torch.Tensor | None, share: float, key: DropoutKey) -> torch.Tensor:
        """`Â (dropout(X) W)`, with no message."""
        return self.multiply(weight, lambda x, nodes: drop_sparse(x, share, nodes, key) if share else x)

    def multiply(self, weight: torch.Tensor | None, thin: Thinning) -> torch.Tensor:
        """`Â (thin(X) W)`, where `thin` leaves out entries by node, the same in every copy of a row."""
        x = thin(self._x, self._nodes)
        return self._local_rows @ (x.to_dense() if weight is None else x @ weight)

    def rows(self, weight: torch.Tensor | None, share: float, key: DropoutKey) -> torch.Tensor:
        """`dropout(X) W` of own and received rows `[n_i + r_i, ·]`, with no message."""
        x = drop_sparse(self._x, share, self._nodes, key) if share else self._x
        return x.to_dense() if weight is None else x @ weight


class DenseRows:
    """Own and received rows of a dense `X`, for models that weigh edges by content."""

    def __init__(self, x: torch.Tensor, nodes: torch.Tensor) -> None:
        self._x = x  # [n_i + r_i, F]
        self._nodes = nodes  # [n_i + r_i]

    def rows(self, weight: torch.Tensor | None, share: float, key: DropoutKey) -> torch.Tensor:
        """`dropout(X) W` of own and received rows `[n_i + r_i, ·]`, with no message."""
        return _transform_dense(self._x, self._nodes, weight, share, key)


def _transform_dense(
    x: torch.Tensor, nodes: torch.Tensor, weight: torch.Tensor | None, share: float, key: DropoutKey
) -> torch.Tensor:
    """`dropout(x) W`, or `dropout(x)`."""
    if weight is None:
        return drop_dense(x, share, nodes, key) if share else x
    return drop_transform(x, share, nodes, key, weight) if share else x @ weight


def fetch_sparse_rows(
    x: SparseMatrix, nodes: torch.Tensor, plan: Plan, group: Group, entry: Entry
) -> SparseConstant:
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
    return SparseConstant(SparseMatrix(joined, x.kernel), all_nodes, plan.local_rows())


def _entries_of_rows(crow: torch.Tensor, rows: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Positions of all entries of the given rows, in order."""
    starts = torch.repeat_interleave(crow[rows] - (lengths.cumsum(0) - lengths), lengths)
    return starts + torch.arange(len(starts), device=crow.device)
