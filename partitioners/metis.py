"""Partitioner `metis`: few cut edges, as DistDGL uses it.

G. Karypis and V. Kumar, "A fast and high quality multilevel scheme for partitioning irregular graphs",
SIAM J. Sci. Comput. 20(1), 1998. METIS wants an undirected graph without self-loops, so it is given the
pattern of `A + Aᵀ`: an edge costs traffic in whichever direction it points, and a self-loop never does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from .base import Assignment, Splits, check_parts, check_seed
from .metis_library import several_constraints
from .pieces import csr_pieces, rows_of_entries

BALANCES = ("rows", "nonzeros", "train", "val", "test")

KWAY_ROWS_A_PART = 100  # below this METIS's k-way scheme may put every row in one part


@dataclass(frozen=True)
class Metis:
    """Parts with few edges between them, by METIS; the usual choice.

    `balance` is what parts have equally much of: `rows` (memory, dense layers), `nonzeros` (aggregation
    time; where few nodes have most edges this gives very uneven rows), or several at once, as DistDGL
    balances them (§4.1.2): `rows+nonzeros+train+val+test`. The same seed gives the same parts.
    """

    knows_splits: ClassVar[bool] = True

    seed: int = 0
    balance: str = "rows"

    def __post_init__(self) -> None:
        check_seed(self.seed)
        for what in self.balance.split("+"):
            if what not in BALANCES:
                raise ValueError(f"balance={self.balance!r}: {what!r} is not one of {', '.join(BALANCES)}")
        if len(set(self.balance.split("+"))) < len(self.balance.split("+")):
            raise ValueError(f"balance={self.balance!r} names something twice")

    def assign(self, adjacency: sp.csr_array, parts: int, splits: Splits | None = None) -> Assignment:
        """Part of each node `[N]`; sizes are balanced to about 3 %, and no part is empty."""
        nodes = check_parts(adjacency, parts)
        if parts == 1:
            return np.zeros(nodes, np.int64)
        starts, neighbours = undirected(adjacency)
        weights = self._weights(adjacency, splits)
        recursive = nodes < KWAY_ROWS_A_PART * parts
        seed = self.seed + 1  # C's srand takes 0 and 1 for the same seed
        if weights is not None and weights.shape[1] > 1:
            members = several_constraints(starts, neighbours, weights, parts, seed, recursive=recursive)
        else:
            members = one_constraint(starts, neighbours, weights, parts, seed, recursive=recursive)
        return fill_empty(members, np.diff(starts), parts)

    def _weights(self, adjacency: sp.csr_array, splits: Splits | None) -> npt.NDArray[np.int64] | None:
        """Weights `[N, constraints]`; None where every row counts the same."""
        if self.balance == "rows":
            return None
        nodes = adjacency.shape[0]
        split_of = np.zeros(nodes, np.int8) if splits is None else splits
        columns = {
            "rows": np.ones(nodes, np.int64),
            "nonzeros": np.diff(adjacency.indptr).astype(np.int64) + 1,  # a row without edges is still a row
            "train": (split_of == 1).astype(np.int64),
            "val": (split_of == 2).astype(np.int64),
            "test": (split_of == 3).astype(np.int64),
        }
        constraints = [columns[what] for what in self.balance.split("+") if columns[what].any()]
        return np.stack(constraints, axis=1) if constraints else None


def one_constraint(
    starts: npt.NDArray[np.integer],
    neighbours: npt.NDArray[np.integer],
    weights: npt.NDArray[np.int64] | None,
    parts: int,
    seed: int,
    *,
    recursive: bool,
) -> Assignment:
    """Parts `[N]` with equal sums of `weights [N, 1]` (None: of rows), and few edges between them."""
    import pymetis

    index = pymetis.zero_copy_dtype()
    _, members = pymetis.part_graph(
        parts,
        adjacency=pymetis.CSRAdjacency(starts.astype(index), neighbours.astype(index)),
        vweights=None if weights is None else weights[:, 0].astype(index),
        recursive=recursive,
        options=pymetis.Options(seed=seed),
    )
    return np.asarray(members, dtype=np.int64)


def undirected(adjacency: sp.csr_array) -> tuple[npt.NDArray[np.integer], npt.NDArray[np.integer]]:
    """Row starts `[N+1]` and neighbours of the pattern of `A + Aᵀ` without its diagonal.

    Stored zeros are edges too: the pattern decides what is sent, not the weight.
    """
    ones = np.ones(adjacency.nnz, dtype=bool)
    pattern = sp.csr_array((ones, adjacency.indices, adjacency.indptr), shape=adjacency.shape)
    transpose = pattern.T.tocsr()
    same = all(
        np.array_equal(getattr(pattern, name), getattr(transpose, name)) for name in ("indptr", "indices")
    )
    both = pattern if same else (pattern + transpose).tocsr()
    del transpose
    return _without_loops(both)


def _without_loops(pattern: sp.csr_array) -> tuple[npt.NDArray[np.integer], npt.NDArray[np.integer]]:
    """Row starts and columns of what is not on the diagonal, found piece by piece."""
    loops = np.zeros(pattern.nnz, dtype=bool)
    loop_counts = np.zeros(pattern.shape[0] + 1, np.int64)
    for rows in csr_pieces(pattern.indptr):
        entries = slice(int(pattern.indptr[rows.start]), int(pattern.indptr[rows.stop]))
        row = rows_of_entries(pattern.indptr, rows)
        loops[entries] = row == pattern.indices[entries]
        loop_counts[1:] += np.bincount(row[loops[entries]], minlength=pattern.shape[0])
    if not loops.any():
        return pattern.indptr, pattern.indices
    return pattern.indptr - np.cumsum(loop_counts), pattern.indices[~loops]


def fill_empty(members: Assignment, degrees: npt.NDArray[np.integer], parts: int) -> Assignment:
    """Give every empty part the row with fewest neighbours of the then largest part.

    METIS leaves parts empty where there are hardly more nodes than parts, or where one node outweighs
    a whole part. While `parts <= N` no part needs to be.
    """
    sizes = np.bincount(members, minlength=parts)
    for part in np.flatnonzero(sizes == 0):
        largest = int(sizes.argmax())
        rows = np.flatnonzero(members == largest)
        members[rows[degrees[rows].argmin()]] = part
        sizes[largest] -= 1
        sizes[part] = 1
    return members
