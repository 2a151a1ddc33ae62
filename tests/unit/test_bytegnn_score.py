"""ByteGNN's Algorithm 2 written down once more, in plain loops, and a hand-made case of its score."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from sancus.partitioners.bytegnn import ROOM, ByteGnn, neighbourhood_blocks
from sancus.partitioners.metis import fill_empty, undirected

TRAIN, VAL, TEST = 1, 2, 3
Edges = list[tuple[int, int]]


def adjacency(nodes: int, edges: Edges) -> sp.csr_array:
    dense = np.zeros((nodes, nodes), np.float32)
    for a, b in edges:
        dense[a, b] = dense[b, a] = 1.0
    return sp.csr_array(dense)


def test_cross_edges_count_by_the_size_of_the_part() -> None:
    """`CE[j] = |cross edges to P_j| / |P_j|`: one edge to a small part outweighs two to a large one.

    Blocks (hops=1) around the split nodes 0, 1 and 2: {0, 3, 4, 5, 6, 7}, {1} and {2}. Node 0 comes first and
    fills part 0, node 1 has no edge and takes the empty part 1. Node 2 has two edges to part 0, of six rows,
    and one to part 1, of one row: 2/6 < 1/1. Balance weighs nothing here (all are of the test split, γ = 0).
    """
    graph = adjacency(8, [(0, 3), (0, 4), (0, 5), (0, 6), (0, 7), (2, 3), (2, 4), (2, 1)])
    splits = np.zeros(8, np.int8)
    splits[[0, 1, 2]] = TEST
    starts, neighbours = undirected(graph)
    blocks = neighbourhood_blocks(starts, neighbours, splits > 0, 1)
    assert blocks.tolist() == [0, 1, 2, 0, 0, 0, 0, 0]
    members = ByteGnn(hops=1, train=1.0, val=0.0, test=0.0).assign(graph, 2, splits)
    assert members.tolist() == [0, 1, 1, 0, 0, 0, 0, 0]


def test_balance_multiplies_the_cross_edges() -> None:
    """`BS[j] = 1 − α |P_j(train)| / C(train) − …`: a part that has its share of a split takes no more."""
    graph = adjacency(6, [(0, 4), (0, 5), (4, 1), (5, 1)])
    splits = np.array([TRAIN, TRAIN, VAL, VAL, 0, 0], np.int8)
    members = ByteGnn(hops=0).assign(graph, 2, splits)
    assert members[0] != members[1] and members[2] != members[3]


def test_the_block_with_most_rows_comes_first() -> None:
    """Every block holds one split node, so the paper's order ties; rows decide, not the number of the node.

    Blocks (hops=1): {0}, {1} and {2, 3, 4, 5, 6}; nodes 0 and 1 have an edge to each other alone. The large
    block comes first and takes part 0; in node order node 0 would.
    """
    graph = adjacency(7, [(0, 1), (2, 3), (2, 4), (2, 5), (2, 6)])
    splits = np.zeros(7, np.int8)
    splits[[0, 1, 2]] = TRAIN
    members = ByteGnn(hops=1).assign(graph, 2, splits)
    assert members.tolist() == [1, 1, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("seed", range(12))
def test_algorithm_2(seed: int) -> None:
    draws = np.random.default_rng(seed)
    nodes, parts = int(draws.integers(6, 30)), int(draws.integers(2, 5))
    edges = [(int(a), int(b)) for a, b in draws.integers(0, nodes, (2 * nodes, 2)) if a != b]
    graph = adjacency(nodes, edges)
    splits = draws.integers(0, 4, nodes).astype(np.int8)
    splits[0] = TRAIN
    weights = {TRAIN: 2.0, VAL: 1.0, TEST: 0.5}
    partitioner = ByteGnn(int(draws.integers(0, 3)), *weights.values())
    expected = algorithm_2(graph, splits, parts, partitioner.hops, weights)
    assert partitioner.assign(graph, parts, splits).tolist() == expected


def algorithm_2(
    graph: sp.csr_array, splits: np.ndarray, parts: int, hops: int, weights: dict[int, float]
) -> list[int]:
    """Blocks from the largest on, each to the part with the highest `CE · BS` that has room."""
    dense = np.array(graph.todense()) > 0
    neighbours = [np.flatnonzero(dense[v]).tolist() for v in range(len(dense))]
    block = neighbourhood_blocks(*undirected(graph), splits > 0, hops).tolist()
    inside: dict[int, list[int]] = {}
    for node, number in enumerate(block):
        inside.setdefault(number, []).append(node)
    kinds = {kind: int((splits == kind).sum()) for kind in weights}
    total = sum(weight for kind, weight in weights.items() if kinds[kind])

    def count(members: list[int], kind: int) -> int:
        return len(members) if kind == 0 else sum(splits[v] == kind for v in members)

    room = {kind: max(ROOM * count(list(range(len(block))), kind) / parts, 1) for kind in (*weights, 0)}
    held: list[list[int]] = [[] for _ in range(parts)]

    def rank(number: int) -> tuple[int, int, int]:
        """From the largest on: each block holds one node of a split, or none, so rows decide."""
        return (-max(count(inside[number], kind) for kind in weights), -len(inside[number]), number)

    for number in sorted(inside, key=rank):
        block_nodes = inside[number]
        ranking = []
        for part, own in enumerate(held):
            cross = sum(other in own for node in block_nodes for other in neighbours[node])
            balance = 1.0
            for kind, weight in weights.items():
                if kinds[kind]:
                    balance -= weight / total * count(own, kind) / (kinds[kind] / parts)
            score = cross / max(len(own), 1) * balance
            for kind in (*weights, 0):
                more = count(block_nodes, kind)
                least = min(count(other, kind) for other in held)
                if more and count(own, kind) + more > room[kind] and count(own, kind) > least:
                    score = -np.inf
            ranking.append((-round(score, 12), -round(balance, 12), len(own), part))
        held[min(ranking)[-1]].extend(block_nodes)
    members = np.full(len(block), -1, np.int64)
    for part, own in enumerate(held):
        members[own] = part
    filled = fill_empty(members, np.diff(undirected(graph)[0]), parts)
    found: list[int] = filled.tolist()
    return found
