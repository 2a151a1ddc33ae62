"""Partitioner `bytegnn`: neighbourhood blocks, assigned by cross edges and the balance of the splits.

C. Zheng and others, "ByteGNN: efficient graph neural network training at large scale", VLDB 2022, Algorithm
2. A block is what a K-hop search from a training, validation or test node reaches first. Each block goes to
the part `j` with the highest `CE[j] · BS[j]`: `CE[j]` are its edges to `P_j` over `|P_j|`, and
`BS[j] = 1 − α |P_j(train)| / C(train) − β |P_j(val)| / C(val) − γ |P_j(test)| / C(test)`, where `C` is an
equal share.

Blocks come "in descending order of max{|V(train)|, |V(val)|, |V(test)|}", so that small ones fill up what
large ones left. But a centre keeps its own block id, so every block holds exactly one node of a split, and
this order alone is no order at all. Ties are broken by rows: the block with most rows comes first, and of
equal ones that of the first centre.

The paper leaves open what happens where no part has an edge to a block (then the best balanced takes it), to
nodes that no search reaches (each is a block of its own), and how far the product may leave balance: here no
part takes more than 1.1 times its equal share of rows, or of the nodes of a split, while another has less.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from .base import Assignment, Splits, check_parts
from .metis import fill_empty, undirected

SPLITS = (1, 2, 3)  # training, validation, test
ROOM = 1.1  # of an equal share
Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ByteGnn:
    """K-hop blocks around split nodes, balanced in training, validation and test nodes (ByteGNN).

    `hops` is the paper's K, `train`, `val` and `test` are α, β and γ, as shares of their sum. Without a split
    every node counts as a training node.
    """

    knows_splits: ClassVar[bool] = True

    hops: int = 2
    train: float = 1.0
    val: float = 1.0
    test: float = 1.0

    def __post_init__(self) -> None:
        if self.hops < 0:
            raise ValueError(f"hops={self.hops} must be 0 or more")
        if min(self.train, self.val, self.test) < 0 or self.train + self.val + self.test <= 0:
            raise ValueError("train, val and test are weights: 0 or more, and not all 0")

    def assign(self, adjacency: sp.csr_array, parts: int, splits: Splits | None = None) -> Assignment:
        """Part of each node `[N]`; no part is empty."""
        nodes = check_parts(adjacency, parts)
        if parts == 1:
            return np.zeros(nodes, np.int64)
        split_of = np.ones(nodes, np.int8) if splits is None or not splits.any() else splits
        starts, neighbours = undirected(adjacency)
        block = neighbourhood_blocks(starts, neighbours, split_of > 0, self.hops)
        members = self._assign_blocks(starts, neighbours, block, split_of, parts)
        return fill_empty(members, np.diff(starts), parts)

    def _assign_blocks(
        self,
        starts: npt.NDArray[np.integer],
        neighbours: npt.NDArray[np.integer],
        block: Ids,
        splits: Splits,
        parts: int,
    ) -> Assignment:
        """The part of each node `[N]` from the block of each node `[N]` (Algorithm 2)."""
        order = np.argsort(block, kind="stable")  # nodes by block
        firsts = np.searchsorted(block[order], np.arange(int(block.max()) + 2))
        kinds = np.stack([splits == kind for kind in SPLITS] + [splits >= 0], axis=1).astype(
            np.int64
        )  # [N, 4]
        content = np.add.reduceat(kinds[order], firsts[:-1], axis=0)  # [blocks, 4], the last is rows
        penalty = self._penalties(kinds[:, :-1], parts)
        room = np.maximum(ROOM * kinds.sum(axis=0) / parts, 1)
        members = np.full(len(block), -1, np.int64)
        loads = np.zeros((parts, content.shape[1]))
        for number in _largest_first(content):
            inside = order[firsts[number] : firsts[number + 1]]
            crossing = np.zeros(parts)
            for node in inside:
                neighbour_parts = members[neighbours[starts[node] : starts[node + 1]]]
                crossing += np.bincount(neighbour_parts[neighbour_parts >= 0], minlength=parts)
            balance = 1 - loads[:, :-1] @ penalty
            score = crossing / np.maximum(loads[:, -1], 1) * balance
            full = (loads + content[number] > room) & (loads > loads.min(axis=0)) & (content[number] > 0)
            score[full.any(axis=1)] = -np.inf
            best = np.flatnonzero(score == score.max())
            part = best[np.lexsort((loads[best, -1], -balance[best]))[0]]
            members[inside] = part
            loads[part] += content[number]
        return members

    def _penalties(self, kinds: Ids, parts: int) -> npt.NDArray[np.float64]:
        """`[3]`: α / C(train), β / C(val), γ / C(test); 0 for a split without nodes."""
        weights = np.array([self.train, self.val, self.test]) * kinds.any(axis=0)
        if not weights.sum():
            return weights
        share = np.maximum(kinds.sum(axis=0) / parts, 1e-9)
        penalties: npt.NDArray[np.float64] = weights / weights.sum() / share
        return penalties


def _largest_first(content: Ids) -> Ids:
    """Numbers of the blocks: most nodes of one split first, then most rows, then the first number.

    `content [blocks, 4]` are a block's training, validation and test nodes, and its rows.
    """
    return np.lexsort((-content[:, -1], -content[:, :-1].max(axis=1))).astype(np.int64)


def neighbourhood_blocks(
    starts: npt.NDArray[Any], neighbours: npt.NDArray[Any], centres: npt.NDArray[np.bool_], hops: int
) -> Ids:
    """The block of each node `[N]`, numbered from 0: a centre's own, else that of the first to reach it."""
    block = np.full(len(centres), -1, np.int64)
    frontier = np.flatnonzero(centres)
    block[frontier] = np.arange(len(frontier))
    for _ in range(hops):
        counts = np.diff(starts)[frontier]
        if not counts.sum():
            break
        offsets = np.repeat(starts[frontier] - np.concatenate([[0], np.cumsum(counts)[:-1]]), counts)
        neighbourhood = neighbours[np.arange(counts.sum()) + offsets]
        source = np.repeat(block[frontier], counts)
        fresh = block[neighbourhood] < 0
        frontier, first = np.unique(neighbourhood[fresh], return_index=True)
        block[frontier] = source[fresh][first]
        frontier = frontier[np.argsort(block[frontier], kind="stable")]
    alone = np.flatnonzero(block < 0)
    block[alone] = np.count_nonzero(centres) + np.arange(len(alone))
    return np.unique(block, return_inverse=True)[1].astype(np.int64)
