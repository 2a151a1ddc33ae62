"""What makes two graphs in memory the same, for the key of the shard cache."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import xxhash

from sancus.graphs.graph import Graph


def fingerprint_of(graph: Graph) -> str:
    """A hash of everything that a graph holds: name, classes, edges, features, labels and split."""
    digest = xxhash.xxh3_128(f"{graph.name} {graph.classes}".encode())
    masks = (graph.train_mask, graph.val_mask, graph.test_mask)
    for item in (graph.adjacency, graph.features, graph.labels, *masks):
        for part in _arrays(item):
            digest.update(str((part.dtype, part.shape)).encode())
            digest.update(np.ascontiguousarray(part).view(np.uint8).data)
    digest.update(graph.origin.key())
    return digest.hexdigest()


def _arrays(item: Any) -> list[npt.NDArray[Any]]:
    return [item.indptr, item.indices, item.data] if sp.issparse(item) else [item]
