"""The contract of a partitioner, and the checks that all of them share.

Notation: `N` nodes, `p` parts. Row `v` of the adjacency lists the nodes that `v` aggregates from.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

Assignment = npt.NDArray[np.int64]  # [N], the part of each node


Splits = npt.NDArray[np.int8]  # [N], 0 none, 1 training, 2 validation, 3 test


class Partitioner(Protocol):
    """Assigns rows to parts: a frozen dataclass whose settings are checked when it is made.

    `assign` is a pure function of the settings and its arguments: every rank that calls it gets the same
    answer, and the adjacency is left as it was. A partitioner of ours leaves no part empty; one
    of a user's may, since an empty block is legal. One that balances training, validation and test nodes sets
    `knows_splits = True` and takes them as a third argument, `splits [N]` (None: unknown).
    """

    def assign(self, adjacency: sp.csr_array, parts: int) -> Assignment:
        """Part of each node `[N]`, each in `0 .. parts-1`; `adjacency` is `[N, N]`, perhaps directed.

        Raises `ValueError` unless `1 <= parts <= N`.
        """
        ...


def check_parts(adjacency: sp.csr_array, parts: int) -> int:
    """`N`, or a `ValueError` where that many nodes cannot be cut into `parts` parts."""
    nodes = int(adjacency.shape[0])
    if parts < 1:
        raise ValueError(f"parts={parts}: at least one part is needed")
    if parts > nodes:
        raise ValueError(f"parts={parts}: the graph has only {nodes} nodes; use at most one part a node")
    return nodes


def check_assignment(assignment: npt.NDArray[np.integer], nodes: int, parts: int) -> Assignment:
    """The assignment as int64, or a `ValueError` that names the first thing wrong with it."""
    if assignment.shape != (nodes,) or not np.issubdtype(assignment.dtype, np.integer):
        raise ValueError(
            f"an assignment is {nodes} whole numbers, one a node; got {assignment.dtype} of shape "
            f"{assignment.shape}"
        )
    bad = np.flatnonzero((assignment < 0) | (assignment >= parts))
    if bad.size:
        raise ValueError(
            f"node {bad[0]} is assigned to part {assignment[bad[0]]}; parts are 0 to {parts - 1}"
        )
    return assignment.astype(np.int64, copy=False)


def assign(partitioner: Partitioner, adjacency: sp.csr_array, parts: int, splits: Splits) -> Assignment:
    """The checked assignment `[N]` of a partitioner, which gets the splits if it `knows_splits`."""
    if getattr(partitioner, "knows_splits", False):
        members = partitioner.assign(adjacency, parts, splits)  # type: ignore[call-arg]
    else:
        members = partitioner.assign(adjacency, parts)
    return check_assignment(members, int(adjacency.shape[0]), parts)


def splits_of(
    train: npt.NDArray[np.bool_], val: npt.NDArray[np.bool_], test: npt.NDArray[np.bool_]
) -> Splits:
    """Three masks `[N]` as one array."""
    return (train + np.int8(2) * val + np.int8(3) * test).astype(np.int8)


def check_seed(seed: int) -> None:
    """A `ValueError` unless the seed is one that numpy and METIS both take."""
    if not 0 <= seed < 2**31:
        raise ValueError(f"seed={seed} is out of range; use 0 to {2**31 - 1}")


def even(nodes: int, parts: int) -> Assignment:
    """`N` nodes in `p` runs of equal length (to one node) `[N]`: none is empty while `p <= N`."""
    return np.arange(nodes, dtype=np.int64) * parts // nodes
