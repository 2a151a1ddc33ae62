"""Graphs that a program has in memory: PyG `Data`, OGB node datasets, scipy matrices.

Neither PyG nor OGB is imported: an object is recognised by its attributes, not by its class.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from sancus.datasets.assemble import RANDOM_SPLIT, dense_features, rest_of_split
from sancus.datasets.columns import columns_of
from sancus.datasets.fields import Fields
from sancus.datasets.node_table import graph_of_tables
from sancus.datasets.objects import graph_of
from sancus.datasets.open import open_graph
from sancus.datasets.recognise import refuse_other_tasks
from sancus.errors import UserError
from sancus.graphs.graph import Graph
from sancus.plugins import choices

SPLITS = ("train_mask", "val_mask", "test_mask")


def accept(source: Any = None, **fields: Any) -> Graph:
    """The graph of a source, a path, a `Graph`, a PyG `Data` or dataset, an OGB dataset, or a scipy matrix.

    Frames of pandas, Polars or Arrow are `edges=frame, nodes=frame` (`node_table.py` has their columns).
    A scipy matrix `[N, N]` (row `v` holds the nodes that `v` aggregates from) needs the `fields` `x [N, F]`
    (dense or scipy), `y [N]` or `[N, C]`, and `train_mask`, `val_mask`, `test_mask` (masks or node numbers).
    """
    if "edges" in fields or "nodes" in fields:
        return _from_tables(source, fields)
    if isinstance(source, Graph):
        return source
    if isinstance(source, str | Path):
        return open_graph(str(source))
    if sp.issparse(source):
        return _from_scipy(source, fields)
    if hasattr(source, "get_idx_split"):
        return graph_of(_ogb_item(source), _name(source), {}, source.get_idx_split())
    if not isinstance(source, dict | list | tuple | set):
        refuse_other_tasks(source, _name(source))
    if isinstance(source, dict) and not _has_edges(source):
        keys = ", ".join(map(str, source)) or "nothing"
        raise UserError(
            f"a dict of {keys[:80]} is no graph; give edge_index, x, y and masks, as a PyG Data has"
        )
    if not _has_edges(source) and hasattr(source, "__getitem__") and hasattr(source, "__len__"):
        graphs = [item for item in source if _has_edges(item)] if isinstance(source, list | tuple) else None
        if graphs is not None and len(graphs) != len(source):
            raise _no_graph(source)
        if len(source) != 1:
            raise UserError(
                f"{_name(source)} holds {len(source)} graphs; give one of them, dataset[0]: Sancus trains "
                "on one large graph"
            )
        source = source[0]
    if not _has_edges(source):
        raise _no_graph(source)
    return graph_of(source, _name(source), {})


def _no_graph(source: Any) -> UserError:
    return UserError(
        f"a {type(source).__name__} is no graph; give a name, a path, a Graph, a PyG Data, "
        "an OGB dataset, or a scipy matrix with x, y and masks"
    )


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


def _from_tables(source: Any, fields: dict[str, Any]) -> Graph:
    """Frames of edges and nodes, with the options of a folder of tables; `features` may be an array."""
    given = dict(fields)
    edges, nodes = given.pop("edges", source), given.pop("nodes", None)
    if edges is None or nodes is None:
        raise UserError("a graph of tables needs both: load(edges=frame, nodes=frame)")
    options = {**RANDOM_SPLIT, "undirected": False, "drop": "", "features": ""}
    name = str(given.pop("name", "tables"))
    unknown = sorted(set(given) - set(options))
    if unknown:
        raise UserError(
            f"load of tables has no field {unknown[0]!r}; choose from {choices(options, unknown[0])}"
        )
    features = given.get("features")
    rows = (
        None
        if features is None or isinstance(features, str)
        else dense_features(Fields("features", {"features": np.asarray(features)}), "features")
    )
    if rows is not None:
        given.pop("features")
    options = options | given
    options |= rest_of_split(given, options)
    tables = (columns_of(edges, "edges"), columns_of(nodes, "nodes"))
    return graph_of_tables(*tables, name, options, rows)


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
