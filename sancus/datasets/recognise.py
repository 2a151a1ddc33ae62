"""Objects of PyG that are no graph for one task of nodes: recognised, and told so with what to do instead.

Nothing of PyG is imported: an object is recognised by its attributes, not by its class.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sancus.errors import UserError

ONE_GRAPH = "Sancus classifies the nodes of one large graph"


def refuse_other_tasks(data: Any, name: str) -> None:
    """Refuse graphs of several kinds, events in time, many small graphs, and links, each with a way out."""
    if _has(data, "node_types") and _has(data, "edge_types"):
        raise UserError(
            f"{name}: a HeteroData has nodes of several kinds; {ONE_GRAPH} of one kind: give "
            "data.to_homogeneous(), with features of one width, or train it with PyG"
        )
    if _has(data, "src") and _has(data, "dst") and _has(data, "t"):
        raise UserError(
            f"{name}: a TemporalData holds events in time; {ONE_GRAPH} that stays: give a Data of the edges "
            "up to a moment, or train it with PyG"
        )
    if _get(data, "y") is None and (_has(data, "edge_label_index") or _has(data, "edge_label")):
        raise UserError(
            f"{name}: has labels of edges (edge_label) and none of nodes (y); {ONE_GRAPH}: for links train "
            "with PyG"
        )
    if _has(data, "ptr") and _has(data, "batch") and _size(data, "y") == _size(data, "ptr") - 1 > 1:
        raise UserError(f"{name}: has {_size(data, 'y')} graphs with a label each; {MANY}")
    nodes, labels = max(_size(data, "x"), _size(data, "num_nodes")), _size(data, "y")
    if labels == 1 < nodes:
        raise UserError(f"{name}: y is one label of the whole graph, for {nodes} nodes; {MANY}")


MANY = f"{ONE_GRAPH}: for the classification of graphs train with PyG's DataLoader"


def notes_of_edges(data: Any, *, weighted: bool) -> list[str]:
    """What is said of features of edges, which no model of Sancus reads."""
    attributes = _get(data, "edge_attr")
    if attributes is None:
        return []
    shape = list(getattr(attributes, "shape", [len(attributes)]))
    single = len(shape) == 1 or shape[1:] == [1]
    way = "; as weights of edges they are data.edge_weight" if single and not weighted else ""
    return [f"edge_attr {shape} is not used: models see edges and their weights{way}"]


def _has(data: Any, field: str) -> bool:
    return _get(data, field) is not None


def _get(data: Any, field: str) -> Any:
    try:
        return data.get(field) if isinstance(data, Mapping) else getattr(data, field, None)
    except (KeyError, ValueError, RuntimeError):
        return None


def _size(data: Any, field: str) -> int:
    """The number of rows of a field, or the number that it is; 0 where it is not there."""
    value = _get(data, field)
    shape = getattr(value, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else 1
    return value if isinstance(value, int) else 0
