"""Small awkward graphs: directed, with an isolated node, hubs, self-loops, rows that no p divides."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import scipy.sparse as sp

from sancus.graphs.graph import Graph
from sancus.graphs.shard_writer import write_shards
from sancus.partitioners import PARTITIONERS
from sancus.plugins import build


def awkward_graph(
    nodes: int = 23,
    features: int = 7,
    classes: int = 3,
    *,
    seed: int = 0,
    directed: bool = True,
    sparse: bool = False,
    multilabel: bool = False,
    weighted: bool = False,
) -> Graph:
    """Random edges, a hub (node 1), a self-loop (node 2) and an isolated node (the last but one)."""
    rng = np.random.default_rng(seed)
    dense = rng.random((nodes, nodes)) < 0.15
    dense[1] |= rng.random(nodes) < 0.6
    np.fill_diagonal(dense, False)
    dense[2, 2] = True
    if not directed:
        dense |= dense.T
    isolated = nodes - 2
    dense[isolated] = dense[:, isolated] = False
    weights = dense * (rng.random((nodes, nodes)) + 0.5 if weighted else 1.0)
    if not directed:
        weights = np.triu(weights) + np.triu(weights, 1).T
    x = rng.standard_normal((nodes, features)).astype(np.float32)
    if sparse:
        x[rng.random(x.shape) < 0.7] = 0.0
    labels = rng.random((nodes, classes)) < 0.4 if multilabel else rng.integers(0, classes, nodes)
    split = rng.permutation(nodes)
    masks = np.zeros((3, nodes), bool)
    masks[0, split[: nodes // 2]] = True
    masks[1, split[nodes // 2 : -4]] = True
    masks[2, split[-4:]] = True
    return Graph(
        sp.csr_array(weights.astype(np.float32)),
        sp.csr_array(x) if sparse else x,
        labels,
        *masks,
        classes=classes,
        name="awkward",
    )


def with_train_nodes(graph: Graph, nodes: list[int]) -> Graph:
    """The same graph with another training set, so that some rank has no training node."""
    mask = np.zeros(graph.nodes, bool)
    mask[nodes] = True
    return Graph(
        graph.adjacency,
        graph.features,
        graph.labels,
        mask,
        graph.val_mask & ~mask,
        graph.test_mask & ~mask,
        graph.classes,
        graph.name,
    )


def shards_of(graph: Graph, how: str, parts: int, folder: Path, chunks: int = 1) -> Path:
    """Shards by a partitioner, or `with-empty-block`: the last rank owns nothing; sorted by chunk."""
    if how == "with-empty-block":
        assignment = np.arange(graph.nodes, dtype=np.int64) % max(1, parts - 1)
    else:
        assignment = build("partitioner", PARTITIONERS, how).assign(graph.adjacency, parts)
    target = folder / (f"{how}-{parts}" if chunks == 1 else f"{how}-{parts}-{chunks}")
    write_shards(graph, assignment, parts, how, target, chunks=chunks)
    return target
