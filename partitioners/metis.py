"""Few cut edges: METIS, as DistDGL uses it.

G. Karypis and V. Kumar, "A fast and high quality multilevel scheme for partitioning irregular graphs",
SIAM J. Sci. Comput. 20(1), 1998. METIS wants an undirected graph without self-loops, so it is given the
pattern of `A + Aᵀ`: an edge costs traffic in whichever direction it points, and a self-loop never does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from partitioners.base import Assignment, check_parts, check_seed

Balance = Literal["rows", "nonzeros"]

KWAY_ROWS_A_PART = 100  # below this METIS's k-way scheme may put every row in one part


@dataclass(frozen=True)
class Metis:
    """Parts with few edges between them, by METIS; the usual choice.

    `balance` is what parts have equally much of: `rows` (memory, dense layers) or `nonzeros` (aggregation
    time; where few nodes have most edges this gives very uneven rows). The same seed gives the same parts.
    """

    seed: int = 0
    balance: Balance = "rows"

    def __post_init__(self) -> None:
        check_seed(self.seed)
        if self.balance not in get_args(Balance):
            raise ValueError(f"balance={self.balance!r} is not one of {', '.join(get_args(Balance))}")

    def assign(self, adjacency: sp.csr_array, parts: int) -> Assignment:
        """Part of each node `[N]`; sizes are balanced to about 3 %, and no part is empty."""
        nodes = check_parts(adjacency, parts)
        if parts == 1:
            return np.zeros(nodes, np.int64)
        import pymetis

        index = pymetis.zero_copy_dtype()
        starts, neighbours = undirected(adjacency)
        _, members = pymetis.part_graph(
            parts,
            adjacency=pymetis.CSRAdjacency(starts.astype(index), neighbours.astype(index)),
            vweights=self._weights(adjacency, index),
            recursive=nodes < KWAY_ROWS_A_PART * parts,
            options=pymetis.Options(seed=self.seed + 1),  # C's srand takes 0 and 1 for the same seed
        )
        return fill_empty(np.asarray(members, dtype=np.int64), np.diff(starts), parts)

    def _weights(self, adjacency: sp.csr_array, index: npt.DTypeLike) -> npt.NDArray[np.integer] | None:
        if self.balance == "rows":
            return None
        weights: npt.NDArray[np.integer] = np.diff(adjacency.indptr).astype(index)
        return weights + 1  # a row without edges is still a row


def undirected(adjacency: sp.csr_array) -> tuple[npt.NDArray[np.integer], npt.NDArray[np.integer]]:
    """Row starts `[N+1]` and neighbours of the pattern of `A + Aᵀ` without its diagonal.

    Stored zeros are edges too: the pattern decides what is sent, not the weight.
    """
    ones = np.ones(adjacency.nnz, dtype=bool)
    pattern = sp.csr_array((ones, adjacency.indices, adjacency.indptr), shape=adjacency.shape)
    both = (pattern + pattern.T).tocsr()
    rows = np.repeat(np.arange(both.shape[0]), np.diff(both.indptr))
    loops = rows == both.indices
    starts = both.indptr - np.concatenate([[0], np.cumsum(np.bincount(rows[loops], minlength=both.shape[0]))])
    return starts, both.indices[~loops]


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
