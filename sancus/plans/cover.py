"""The least rows that can cross a cut: a minimum vertex cover (SuperGCN Algorithm 2).

The entries of a block `Â_ij` join rows of the receiver to columns of the owner. Every entry must be served by
a payload row: its column, sent as it is (*post*: the receiver multiplies), or its row, summed by the owner
(*pre*). The fewest payload rows are a minimum vertex cover of this bipartite graph, which König's theorem
takes from a maximum matching.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.sparse.csgraph import breadth_first_order, maximum_bipartite_matching

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Cover:
    """Rows and columns of a block, ascending, that together touch every entry; as few as possible."""

    rows: Ids
    columns: Ids

    @property
    def size(self) -> int:
        """The number of payload rows."""
        return len(self.rows) + len(self.columns)


def minimum_cover(block: sp.csr_array) -> Cover:
    """A minimum vertex cover of the entries of `block [n_i, n_j]`.

    Hopcroft-Karp for the matching, then König: what alternating paths reach from the unmatched rows. The
    result depends on the pattern alone, so owner and receiver, who hold the same block, find the same cover.
    """
    used_rows = np.flatnonzero(np.diff(block.indptr))
    used_columns, column = np.unique(block.indices, return_inverse=True)
    n_rows, n_columns = len(used_rows), len(used_columns)
    if not n_rows:
        return Cover(np.empty(0, np.int64), np.empty(0, np.int64))
    starts = np.append(block.indptr[used_rows], block.indptr[-1])
    pattern = sp.csr_array((np.ones(len(column), np.int8), column, starts), shape=(n_rows, n_columns))
    pattern.sum_duplicates()
    partner = maximum_bipartite_matching(sp.csr_matrix(pattern), perm_type="row")  # [n_columns] row, or −1
    reachable = _reach(pattern, partner)
    rows = ~reachable[:n_rows]
    columns = reachable[n_rows : n_rows + n_columns]
    return Cover(used_rows[rows].astype(np.int64), used_columns[columns].astype(np.int64))


def _reach(pattern: sp.csr_array, partner: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
    """`[n_rows + n_columns + 1]`: what alternating paths reach from the rows without a partner.

    The directed graph: every entry leads from its row to its column, every matched column to its partner,
    and a source to each row that has none. A matched entry need not be left out: its column leads back to
    the row that it came from.
    """
    n_rows, n_columns = pattern.shape
    source = n_rows + n_columns
    with_partner = np.flatnonzero(partner >= 0)
    free = np.setdiff1d(np.arange(n_rows), partner[with_partner])
    entries = pattern.tocoo()
    tails = np.concatenate([entries.coords[0], n_rows + with_partner, np.full(len(free), source)])
    heads = np.concatenate([n_rows + entries.coords[1], partner[with_partner], free])
    graph = sp.csr_matrix((np.ones(len(tails), np.int8), (tails, heads)), shape=(source + 1, source + 1))
    order = breadth_first_order(graph, source, directed=True, return_predecessors=False)
    reachable = np.zeros(source + 1, bool)
    reachable[order] = True
    return reachable
