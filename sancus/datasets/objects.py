"""A PyG `Data`, or anything with its fields, to a graph: `x`, `edge_index`, `y`, masks or an index split.

Neither PyG nor OGB is needed: an object is asked for its fields, tensors are recognised by `numpy()`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from sancus.datasets.assemble import (
    RANDOM_SPLIT,
    Masks,
    adjacency_of,
    class_labels,
    degree_features,
    dense_features,
    masks_from_indices,
    random_split,
    split_note,
)
from sancus.datasets.fields import FLAGS, INTEGERS, NUMBERS, Fields
from sancus.datasets.recognise import notes_of_edges, refuse_other_tasks
from sancus.errors import UserError
from sancus.graphs.graph import Graph, Mask
from sancus.graphs.origin import Origin

MASKS = ("train_mask", "val_mask", "test_mask")
INDEX_SPLITS = (("train", "valid", "test"), ("train_idx", "val_idx", "test_idx"))
FIELDS = ("x", "edge_index", "edge_weight", "y", "num_nodes", *MASKS, *INDEX_SPLITS[1])


def graph_of(
    data: Any, name: str, options: Mapping[str, Any], splits: Mapping[str, Any] | None = None
) -> Graph:
    """The graph of a `Data` object or of a dictionary with its fields.

    `options` are those of a random split, `split` (the column where masks are `[N, S]`) and
    `features=degree`; `splits` is what OGB's `get_idx_split()` gives.
    """
    refuse_other_tasks(data, name)
    arrays = {
        field: _plain(name, field, value) for field in FIELDS if (value := _get(data, field)) is not None
    }
    fields = Fields(name, arrays)
    edges = fields.get("edge_index", INTEGERS, 2, None)
    notes = notes_of_edges(data, weighted="edge_weight" in fields)
    nodes = _nodes(fields, edges)
    weights = fields.get("edge_weight", NUMBERS, edges.shape[1]) if "edge_weight" in fields else None
    adjacency = adjacency_of(fields, "edge_index", edges, nodes, weights, undirected=False, notes=notes)
    labels, classes = class_labels(fields, "y", nodes) if "y" in fields else (fields.get("y", NUMBERS), 0)
    masks = _masks(fields, nodes, options, splits)
    if masks is None:
        notes.append(split_note({**RANDOM_SPLIT, **options}))
        masks = random_split(labels, {**RANDOM_SPLIT, **options}, name)
    if labels.ndim == 1:
        unlabelled = np.flatnonzero((masks[0] | masks[1] | masks[2]) & (labels < 0))
        if unlabelled.size:
            raise fields.error("y", f"is -1 for node {unlabelled[0]}, which a split selects; leave it out")
    facts: dict[str, Any] = {"classes": classes, "name": name, "origin": Origin(notes=tuple(notes))}
    return Graph(adjacency, _features(fields, nodes, adjacency, options), labels, *masks, **facts)


def _get(data: Any, field: str) -> Any:
    return data.get(field) if isinstance(data, Mapping) else getattr(data, field, None)


def _plain(name: str, field: str, value: Any) -> npt.NDArray[Any]:
    """A tensor, array, list or number as an array."""
    try:
        if hasattr(value, "detach"):
            value = value.detach().cpu()
            value = (value if str(value.layout) == "torch.strided" else value.to_dense()).numpy()
        return np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"{name}: {field} is not an array of numbers; save it as a tensor") from error


def _nodes(fields: Fields, edges: npt.NDArray[Any]) -> int:
    for field in ("x", "y"):
        if field in fields and fields.arrays[field].ndim:
            return int(fields.arrays[field].shape[0])
    if "num_nodes" in fields:
        return int(fields.get("num_nodes", INTEGERS))
    return int(edges.max()) + 1 if edges.size else 0


def _features(fields: Fields, nodes: int, adjacency: sp.csr_array, options: Mapping[str, Any]) -> Any:
    if options.get("features") == "degree":
        return degree_features(adjacency)
    if "x" not in fields:
        raise fields.error("x", "is missing; add it, or ,features=degree after the name")
    return dense_features(fields, "x", nodes)


def _masks(
    fields: Fields, nodes: int, options: Mapping[str, Any], splits: Mapping[str, Any] | None
) -> Masks | None:
    """Masks, an index split, or None where the data has neither."""
    if splits is not None:
        lists = {key: _plain(fields.file, key, splits.get(key, [])) for key in INDEX_SPLITS[0]}
        return masks_from_indices(fields, lists, nodes)
    if all(field in fields for field in MASKS):
        train, val, test = (_mask(fields, field, int(options.get("split", 0)), nodes) for field in MASKS)
        return train, val, test
    if all(field in fields for field in INDEX_SPLITS[1]):
        return masks_from_indices(fields, {field: fields.arrays[field] for field in INDEX_SPLITS[1]}, nodes)
    return None


def _mask(fields: Fields, field: str, split: int, nodes: int) -> Mask:
    """`[N]`, also where the data has several splits `[N, S]`."""
    array = fields.arrays[field]
    if array.ndim == 2:
        table = fields.get(field, FLAGS, nodes, None)
        if not 0 <= split < table.shape[1]:
            raise fields.error(field, f"has splits 0 to {table.shape[1] - 1}; split={split} does not exist")
        return Fields(fields.file, {field: np.ascontiguousarray(table[:, split])}).mask(field, nodes)
    return fields.mask(field, nodes)
