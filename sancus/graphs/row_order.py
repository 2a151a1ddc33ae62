"""The order of rows inside a block: neighbours near each other, so that their rows are found in the cache.

A product reads row `j` of `H` for every entry `(i, j)`; an entry is cheap if a nearby row used `j` already.
Which rows a rank owns, and hence what crosses the wire, does not change.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.sparse.csgraph import reverse_cuthill_mckee

from sancus.errors import UserError
from sancus.partitioners.metis import Metis
from sancus.plugins import choices

Ids = npt.NDArray[np.int64]
RowOrder = Literal["auto", "given", "rcm", "metis"]

ROWS_IN_CACHE = 4096  # rows of H that a second-level cache holds: 1 MiB of 64 columns
ROWS_A_PART = 512  # of the sub-parts: several of them fit in that cache
LEAST_GAIN = 0.1  # of the hit rate: below this the given order is kept
MOST_ENTRIES = 50_000_000  # of a block that `auto` looks at: beyond, finding the order takes too long
SAMPLE = 4_000_000  # entries that the hit rate is taken from


def block_order(adjacency: sp.csr_array, assignment: Ids, parts: int, how: RowOrder = "auto") -> Ids:
    """`order [N]`: row -> user's id, sorted by part, and inside each part as `how` says.

    - `given`: the user's order.
    - `rcm`: reverse Cuthill-McKee. Linear, but it can spoil an order that was good.
    - `metis`: sub-parts of about 512 rows with few edges between them.
    - `auto`: `metis` where the block is larger than a cache, not too large, and the hit rate rises; else
      `given`.
    """
    if how not in get_args(RowOrder):
        raise UserError(f"row order {how!r} does not exist; choose from {choices(get_args(RowOrder), how)}")
    by_part = np.argsort(assignment, kind="stable").astype(np.int64)
    if how == "given":
        return by_part
    sizes = np.bincount(assignment, minlength=parts)
    blocks = np.split(by_part, np.cumsum(sizes)[:-1])
    return np.concatenate([nodes[_inside(adjacency[nodes][:, nodes], how)] for nodes in blocks])


def chunks_of(adjacency: sp.csr_array, chunks: int) -> Ids:
    """`[N]`: the chunk of every node, by METIS: rows that go through a pipeline together (GNNPipe §3.3).

    Depends on graph and number alone, not on parts or ranks. Where there are more chunks than nodes, some are
    empty.
    """
    nodes = adjacency.shape[0]
    if chunks >= nodes:
        return np.arange(nodes)
    return np.asarray(Metis().assign(adjacency, chunks), np.int64)


def by_chunk(order: Ids, assignment: Ids, chunk: Ids) -> Ids:
    """An order `[N]` sorted by part, with the rows of every part sorted by chunk and otherwise as before."""
    return order[np.lexsort((chunk[order], assignment[order]))]


def hit_rate(adjacency: sp.csr_array, order: Ids | None = None, slots: int = ROWS_IN_CACHE) -> float:
    """Share of the entries whose row of `H` is still in a cache of `slots` rows, in the order of a product.

    A cache where row `j` may only be in slot `j mod slots`; the first entries stand for all.
    """
    columns = (adjacency if order is None else permute(adjacency, order)).indices[:SAMPLE]
    assert slots <= 2**15, "slots are numbered in 16 bits, which sort in linear time"
    if len(columns) < 2:
        return 1.0
    by_slot = columns[np.argsort((columns % slots).astype(np.int16), kind="stable")]
    return float(np.mean(by_slot[1:] == by_slot[:-1]))


def _inside(block: sp.csr_array, how: RowOrder) -> Ids:
    """`[n_i]`: the old place of each row of one block, in the new order."""
    rows = block.shape[0]
    unchanged = np.arange(rows)
    if rows < 2:
        return unchanged
    if how == "rcm":
        return np.asarray(
            reverse_cuthill_mckee(sp.csr_matrix(block + block.T), symmetric_mode=True), np.int64
        )
    parts = -(-rows // ROWS_A_PART)
    if parts < 2 or (how == "auto" and (rows <= ROWS_IN_CACHE or block.nnz > MOST_ENTRIES)):
        return unchanged
    by_part = np.argsort(Metis().assign(block, parts), kind="stable")
    if how == "auto" and hit_rate(block, by_part) < hit_rate(block) + LEAST_GAIN:
        return unchanged
    return by_part


def permute(adjacency: sp.csr_array, order: Ids) -> sp.csr_array:
    """The adjacency with row and column `k` taken from `order[k]`; columns ascend in each row."""
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    rows = adjacency[order]
    renumbered = sp.csr_array((rows.data, place[rows.indices], rows.indptr), shape=adjacency.shape)
    renumbered.sort_indices()
    return renumbered
