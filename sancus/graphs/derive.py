"""Shards of another graph on the same nodes: its training subgraph, fewer edges, or all with weight 1.

Each rank derives its shard from the one on disk. What it needs of other ranks' rows (whether they stay, their
row sums) is a vector over all rows `[N]`, which ranks sum up from their own parts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from sancus.graphs.normalise import row_sums
from sancus.graphs.shards import Shard

Vector = npt.NDArray[np.float64]
Drop = Callable[[npt.NDArray[np.integer], npt.NDArray[np.integer]], npt.NDArray[np.bool_]]
Total = Callable[[Vector], Vector]  # the sum over ranks of vectors of equal length


def training_shard(shard: Shard, total: Total) -> Shard:
    """The rows of the training nodes, and the edges between them: what an inductive model may see."""
    return _derive(shard, np.array(shard.mask("train")), total, weighted=True)


def unweighted_shard(shard: Shard, total: Total) -> Shard:
    """The same rows and edges, every edge with weight 1."""
    return _derive(shard, np.ones(len(shard.nodes), bool), total, weighted=False)


def shard_without(shard: Shard, drop: Drop, total: Total) -> Shard:
    """The same rows without the edges for which `drop(row, column)` holds, by their places in the graph."""
    start = int(shard.offsets[shard.rank])
    edges = {}
    for name in _stored_edges(shard):
        matrix = shard.edges(name)
        row = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
        keep = ~drop(row + start, matrix.indices)
        ends = np.concatenate([[0], np.cumsum(keep)])[matrix.indptr]
        edges[name] = sp.csr_array((matrix.data[keep], matrix.indices[keep], ends), shape=matrix.shape)
    arrays = dict(shard.arrays)
    for name, matrix in edges.items():
        arrays |= _parts(name, matrix)
    return Shard(shard.rank, shard.manifest, arrays | _sums(edges, shard.offsets, shard.rank, total))


def _derive(shard: Shard, keep: npt.NDArray[np.bool_], total: Total, *, weighted: bool) -> Shard:
    nodes, rank = int(shard.offsets[-1]), shard.rank
    start, stop = shard.offsets[rank : rank + 2]
    own = np.zeros(nodes)
    own[start:stop] = keep
    everyone = total(own) > 0
    offsets = np.concatenate([[0], np.cumsum(everyone)])[shard.offsets].astype(np.int64)
    arrays: dict[str, npt.NDArray[Any]] = {"nodes": shard.nodes[keep], "labels": shard.labels[keep]}
    arrays |= {f"{split}_mask": shard.mask(split)[keep] for split in ("train", "val", "test")}
    features = shard.features[keep]
    arrays |= _parts("features", features) if sp.issparse(features) else {"features": features}
    edges = {name: _select(shard, name, keep, everyone, weighted) for name in _stored_edges(shard)}
    for name, matrix in edges.items():
        arrays |= _parts(name, matrix)
    arrays |= _sums(edges, offsets, rank, total)
    graph = shard.manifest["graph"] | {"nodes": int(offsets[-1])}
    ends = np.concatenate([[0], np.cumsum(shard.chunk_sizes)])
    kept = np.diff(np.concatenate([[0], np.cumsum(everyone)])[ends]).reshape(shard.chunk_sizes.shape)
    facts = {"offsets": offsets.tolist(), "graph": graph, "chunk_sizes": kept.tolist()}
    return Shard(rank, shard.manifest | facts, arrays)


def _stored_edges(shard: Shard) -> list[str]:
    return ["incoming", "outgoing"] if shard.manifest["graph"]["directed"] else ["incoming"]


def _select(
    shard: Shard,
    name: str,
    keep: npt.NDArray[np.bool_],
    everyone: npt.NDArray[np.bool_],
    weighted: bool,
) -> sp.csr_array:
    matrix = shard.edges(name)[keep][:, everyone]
    matrix = sp.csr_array(matrix)
    matrix.sort_indices()
    if not weighted:
        matrix.data = np.ones_like(matrix.data)
    return matrix


def _sums(
    edges: dict[str, sp.csr_array], offsets: npt.NDArray[np.int64], rank: int, total: Total
) -> dict[str, npt.NDArray[Any]]:
    """Row sums of own and neighbouring rows, as a shard on disk has them."""
    start, stop = (int(offset) for offset in offsets[rank : rank + 2])
    mine = row_sums(edges["incoming"], start)
    plain, looped = np.zeros(offsets[-1]), np.zeros(offsets[-1])
    plain[start:stop], looped[start:stop] = mine.plain, mine.looped
    rows = np.unique(np.concatenate([np.arange(start, stop), *(m.indices for m in edges.values())]))
    rows = rows.astype(np.int64)
    return {"known": rows, "sums_plain": total(plain)[rows], "sums_looped": total(looped)[rows]}


def _parts(name: str, matrix: sp.csr_array) -> dict[str, npt.NDArray[Any]]:
    return {f"{name}_{field}": getattr(matrix, field) for field in ("data", "indices", "indptr")}
