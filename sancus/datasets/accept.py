"""Graphs that a program has in memory: PyG `Data`, OGB node datasets, scipy matrices.

Neither PyG nor OGB is imported: an object is recognised by its attributes, not by its class.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from sancus.datasets.objects import graph_of
from sancus.datasets.open import open_graph
from sancus.errors import UserError
from sancus.graphs.graph import Graph

SPLITS = ("train_mask", "val_mask", "test_mask")


def accept(source: Any, **fields: Any) -> Graph:
    """The graph of a source, a path, a `Graph`, a PyG `Data` or dataset, an OGB dataset, or a scipy matrix.

    A scipy matrix `[N, N]` (row `v` holds the nodes that `v` aggregates from) needs the `fields` `x [N, F]`
    (dense or scipy), `y [N]` or `[N, C]`, and `train_mask`, `val_mask`, `test_mask` (masks or node numbers).
    """
    if isinstance(source, Graph):
        return source
    if isinstance(source, str | Path):
        return open_graph(str(source))
    if sp.issparse(source):
        return _from_scipy(source, fields)
    if hasattr(source, "get_idx_split"):
        return graph_of(_ogb_item(source), _name(source), {}, source.get_idx_split())
    if not _has_edges(source) and hasattr(source, "__getitem__") and hasattr(source, "__len__"):
        if len(source) != 1:
            raise UserError(f"{_name(source)} holds {len(source)} graphs; give one of them: dataset[0]")
        source = source[0]
    if not _has_edges(source):
        raise UserError(
            f"a {type(source).__name__} is no graph; give a name, a path, a Graph, a PyG Data, "
            "an OGB dataset, or a scipy matrix with x, y and masks"
        )
    return graph_of(source, _name(source), {})


def _has_edges(source: Any) -> bool:
    return "edge_index" in source if isinstance(source, dict) else hasattr(source, "edge_index")


def _ogb_item(dataset: Any) -> Any:
    """A PyG `Data`, or the fields of OGB's own `(graph, labels)`."""
    item = dataset[0]
    if not isinstance(item, tuple):
        return item
    graph, labels = item
    return {"edge_index": graph["edge_index"], "x": graph["node_feat"], "y": labels, **_nodes(graph)}


def _nodes(graph: dict[str, Any]) -> dict[str, Any]:
    return {"num_nodes": graph["num_nodes"]} if "num_nodes" in graph else {}


def _name(source: Any) -> str:
    name = getattr(source, "name", None)
    return name if isinstance(name, str) and name else type(source).__name__


def _from_scipy(matrix: Any, fields: dict[str, Any]) -> Graph:
    missing = [name for name in ("x", "y", *SPLITS) if fields.get(name) is None]
    if missing:
        raise UserError(f"a scipy matrix holds edges alone; also give {', '.join(f'{n}=…' for n in missing)}")
    extra = sorted(set(fields) - {"x", "y", "name", *SPLITS})
    if extra:
        raise UserError(f"load has no field {extra[0]!r}; its fields: x, y, {', '.join(SPLITS)}, name")
    adjacency = sp.csr_array(matrix).astype(np.float32)
    adjacency.sum_duplicates()
    x, y = fields["x"], np.asarray(fields["y"])
    features = sp.csr_array(x).astype(np.float32) if sp.issparse(x) else np.asarray(x, np.float32)
    labels = y.astype(np.bool_) if y.ndim == 2 else y.astype(np.int64)
    classes = labels.shape[1] if labels.ndim == 2 else int(labels.max(initial=0)) + 1
    train, val, test = (_mask(name, fields[name], adjacency.shape[0]) for name in SPLITS)
    name = fields.get("name", "scipy")
    return Graph(adjacency, features, labels, train, val, test, classes=classes, name=name)


def _mask(name: str, selection: Any, nodes: int) -> npt.NDArray[np.bool_]:
    array = np.asarray(selection)
    if array.dtype == np.bool_:
        return array.copy()
    if array.size and (array.min() < 0 or array.max() >= nodes):
        raise UserError(f"{name} holds node {array.max()}; nodes are 0 to {nodes - 1}")
    mask = np.zeros(nodes, bool)
    mask[array] = True
    return mask
