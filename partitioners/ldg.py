"""Partitioner `ldg`, linear deterministic greedy: nodes in one stream, for graphs that METIS cannot hold.

I. Stanton and G. Kliot, "Streaming graph partitioning for large distributed graphs", KDD 2012: a node goes to
the part that holds most of its neighbours, `|N(v) ∩ P_i| · (1 − |P_i| / C)`. J. Nishimura and J. Ugander,
"Restreaming graph partitioning", KDD 2013: further passes see where all neighbours went. Nodes come in
batches, which are decided at once; only the adjacency and a few arrays of the length of the nodes are held.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from .base import Assignment, check_parts, check_seed
from .metis import fill_empty

SMALLEST_BATCHES = 16  # at least so many batches a pass, so that batches see each other
Counts = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Ldg:
    """One pass and some repetitions over the nodes, each to the part with most of its neighbours (LDG).

    Needs no memory but the graph's, about a second a pass for 10 million entries. It reads rows only: of a
    directed graph it sees the nodes that a node aggregates from. `passes` repeat it; the order is random by
    `seed`.
    """

    seed: int = 0
    passes: int = 10
    batch: int = 4096

    def __post_init__(self) -> None:
        check_seed(self.seed)
        for name in ("passes", "batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")

    def assign(self, adjacency: sp.csr_array, parts: int) -> Assignment:
        """Part of each node `[N]`: no part has more than its equal share of rows, rounded up."""
        nodes = check_parts(adjacency, parts)
        capacity = -(-nodes // parts)
        members = np.full(nodes, -1, np.int64)
        sizes = np.zeros(parts, np.int64)
        size = max(1, min(self.batch, nodes // SMALLEST_BATCHES))
        order = np.random.default_rng(self.seed).permutation(nodes)
        for _ in range(self.passes):
            before = members.copy()
            for start in range(0, nodes, size):
                batch = order[start : start + size]
                leaving = members[batch]
                sizes -= np.bincount(leaving[leaving >= 0], minlength=parts)
                members[batch] = _place(_count_neighbours(adjacency, batch, members, parts), sizes, capacity)
                sizes += np.bincount(members[batch], minlength=parts)
            if np.array_equal(before, members):
                break
        return fill_empty(members, np.diff(adjacency.indptr), parts)


def _count_neighbours(
    adjacency: sp.csr_array, batch: npt.NDArray[np.int64], members: Assignment, parts: int
) -> Counts:
    """How many neighbours of each node of a batch are in each part, `[B, p]`."""
    rows = adjacency[batch]
    row = np.repeat(np.arange(len(batch)), np.diff(rows.indptr))
    part = members[rows.indices]
    key = (row * parts + part)[part >= 0]
    return np.bincount(key, minlength=len(batch) * parts).reshape(len(batch), parts).astype(np.float64)


def _place(counts: Counts, sizes: npt.NDArray[np.int64], capacity: int) -> Assignment:
    """Parts `[B]` of the nodes of a batch: the best score where there is room, else the emptiest part."""
    members = np.full(len(counts), -1, np.int64)
    free = capacity - sizes
    score = counts * (free / capacity)
    best = score.argmax(axis=1)
    value = score[np.arange(len(counts)), best]
    for part in np.flatnonzero(free > 0):
        candidates = np.flatnonzero((best == part) & (value > 0))
        winners = candidates[np.argsort(-value[candidates], kind="stable")[: free[part]]]
        members[winners] = part
    others = np.flatnonzero(members < 0)
    room = np.maximum(free - np.bincount(members[members >= 0], minlength=len(free)), 0)
    members[others] = _emptiest_first(room, len(others))
    return members


def _emptiest_first(room: npt.NDArray[np.int64], count: int) -> Assignment:
    """Parts `[count]` for nodes that are placed one by one, each in the part with most room left."""
    level = np.repeat(np.arange(len(room)), np.minimum(room, count))
    height = np.concatenate([np.arange(r, r - min(r, count), -1) for r in room])
    return level[np.argsort(-height, kind="stable")[:count]]
