"""Renumbers the nodes of a partitioned graph, so that every rank owns one contiguous block of rows.

Nodes have two numbers: the *user's* id, and the *row* after sorting by part. Rank `i` owns the rows
`offsets[i] … offsets[i+1]`; `order[row]` is the user's id of a row. Inside a block the rows are in the user's
order, or in one that is better for the cache (`sancus.graphs.row_order`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Blocks:
    """Who owns which rows, and how rows map back to the user's nodes."""

    order: Ids  # [N] row -> user's id
    offsets: Ids  # [p + 1]

    @classmethod
    def from_assignment(cls, assignment: Ids, parts: int, order: Ids | None = None) -> Blocks:
        """Blocks from the part of each node `[N]`; `order [N]`, sorted by part, is the user's by default."""
        sizes = np.bincount(assignment, minlength=parts)
        assert len(sizes) == parts, "a partitioner assigned a part that does not exist"
        if order is None:
            order = np.argsort(assignment, kind="stable").astype(np.int64)
        assert bool((np.diff(assignment[order]) >= 0).all()), "an order left its part"
        return cls(order, np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))

    @property
    def parts(self) -> int:
        """`p`, the number of parts."""
        return len(self.offsets) - 1

    def own(self, rank: int) -> Ids:
        """User's ids of the rows of a rank, `[n_i]`."""
        return self.order[self.offsets[rank] : self.offsets[rank + 1]]

    def relabel(self, adjacency: sp.csr_array) -> sp.csr_array:
        """The adjacency `[N, N]` with rows and columns renumbered; one copy, sorted columns."""
        row_of = np.empty_like(self.order)
        row_of[self.order] = np.arange(len(self.order))
        rows = adjacency[self.order]
        indices = row_of[rows.indices].astype(rows.indices.dtype)
        relabelled = sp.csr_array((rows.data, indices, rows.indptr), shape=adjacency.shape)
        relabelled.sort_indices()
        return relabelled
