"""A graph in one `.npz` file, read without pickles, and written.

| field | shape | meaning |
|---|---|---|
| `edge_index` | `[2, E]` | source and target of every edge, as in PyG |
| or `indptr`, `indices` | `[N + 1]`, `[E]` | CSR: row `v` lists the nodes that `v` aggregates from |
| `edge_weight` (optional) | `[E]` | 1 where absent |
| `x` | `[N, F]` | dense features |
| or `x_indptr`, `x_indices`, `x_data`, `x_shape` | CSR | sparse features; they stay sparse |
| `y` | `[N]` or `[N, C]` | class of a node, -1 for none; or 0 and 1 for several labels a node |
| `classes` (optional) | scalar | number of classes; where absent the largest label + 1 |
| `train_mask`, `val_mask`, `test_mask` | `[N]` | disjoint splits |

Equal edges without weights count once; with weights they add up. Other fields are ignored.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from sancus.datasets.archive import read_npz
from sancus.datasets.assemble import MOST_CLASSES
from sancus.datasets.fields import FLAGS, INTEGERS, NUMBERS, Fields
from sancus.datasets.files import FileReader
from sancus.errors import UserError
from sancus.graphs.graph import Graph, from_edges

EDGE_FIELDS = ("edge_index", "indptr", "indices", "edge_weight")
FEATURE_FIELDS = ("x", "x_indptr", "x_indices", "x_data", "x_shape")
MASK_FIELDS = ("train_mask", "val_mask", "test_mask")
FIELD_NAMES = (*EDGE_FIELDS, *FEATURE_FIELDS, "y", "classes", *MASK_FIELDS)
Labels = npt.NDArray[np.int64] | npt.NDArray[np.bool_]


class NpzReader(FileReader):
    """A graph in one .npz file: edges, features, labels and masks."""

    kind = "npz"
    what = "a .npz file"

    @staticmethod
    def recognises(path: Path) -> bool:
        """A file that ends in `.npz`."""
        return path.suffix == ".npz"

    def load(self) -> Graph:
        """Read and check the whole graph."""
        fields = read_npz(self.path, FIELD_NAMES)
        features = _features(fields)
        nodes = int(features.shape[0])
        adjacency = _adjacency(fields, nodes)
        labels, classes = _labels(fields, nodes)
        train, val, test = _masks(fields, labels, nodes)
        return Graph(adjacency, features, labels, train, val, test, classes=classes, name=self.path.stem)


def save_npz(graph: Graph, path: str | Path) -> None:
    """Write a graph that `NpzReader` reads back: all of the file or, on any failure, nothing."""
    path = Path(path).expanduser()
    if path.suffix != ".npz":
        raise UserError(f"{str(path)!r} has the suffix {path.suffix!r}; a graph file must end in .npz")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            np.savez(file, **_arrays(graph))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror}); check folder and space") from error
    finally:
        temporary.unlink(missing_ok=True)


def _arrays(graph: Graph) -> dict[str, Any]:
    """The fields of a file; weights are left out where all are 1."""
    arrays: dict[str, Any] = {"indptr": graph.adjacency.indptr, "indices": graph.adjacency.indices}
    if not np.all(graph.adjacency.data == 1):
        arrays["edge_weight"] = graph.adjacency.data
    if sp.issparse(graph.features):
        x = sp.csr_array(graph.features)
        arrays |= {"x_indptr": x.indptr, "x_indices": x.indices, "x_data": x.data}
        arrays["x_shape"] = np.array(x.shape)
    else:
        arrays["x"] = graph.features
    masks = {name: getattr(graph, name) for name in MASK_FIELDS}
    return {**arrays, "y": graph.labels, "classes": np.array(graph.classes), **masks}


def _features(fields: Fields) -> npt.NDArray[np.float32] | sp.csr_array:
    """`[N, F]`, dense or sparse as in the file."""
    if "x" in fields and "x_indptr" in fields:
        raise fields.error("x", "and x_indptr are both present; keep one form of the features")
    if "x" in fields or not any(name in fields for name in FEATURE_FIELDS):
        dense = fields.get("x", NUMBERS, None, None)
        _check_size(fields, "x", dense.shape)
        return fields.finite("x", dense)
    nodes, width = (int(length) for length in fields.get("x_shape", INTEGERS, 2))
    _check_size(fields, "x_shape", (nodes, width))
    indices = fields.get("x_indices", INTEGERS, None)
    values = fields.finite("x_data", fields.get("x_data", NUMBERS, len(indices)))
    pointer = fields.pointer("x_indptr", nodes, len(indices), "x_indices")
    indices = fields.indices("x_indices", indices, width, "column")
    features = sp.csr_array((values, indices, pointer), shape=(nodes, width))
    features.sum_duplicates()
    return features


def _check_size(fields: Fields, field: str, shape: tuple[int, ...]) -> None:
    if min(shape) < 1:
        raise fields.error(field, f"describes {shape[0]} nodes and {shape[1]} features; both must be above 0")


def _adjacency(fields: Fields, nodes: int) -> sp.csr_array:
    """`[N, N]`, sorted, equal edges merged."""
    if "edge_index" in fields and "indptr" in fields:
        raise fields.error("edge_index", "and indptr are both present; keep one form of the edges")
    if "indptr" in fields or "indices" in fields:
        return _from_rows(fields, nodes)
    edges = fields.get("edge_index", INTEGERS, None, None)
    if edges.shape[0] != 2:
        hint = "; transpose it" if edges.shape[1] == 2 else ""
        raise fields.error("edge_index", f"has shape {list(edges.shape)}; it must be [2, E]{hint}")
    weights = _weights(fields, edges.shape[1])
    return from_edges(fields.indices("edge_index", edges, nodes, "node"), nodes, weights)


def _from_rows(fields: Fields, nodes: int) -> sp.csr_array:
    indices = fields.get("indices", INTEGERS, None)
    pointer = fields.pointer("indptr", nodes, len(indices), "indices")
    indices = fields.indices("indices", indices, nodes, "node")
    weights = _weights(fields, len(indices))
    data = np.ones(len(indices), np.float32) if weights is None else weights
    adjacency = sp.csr_array((data, indices, pointer), shape=(nodes, nodes))
    adjacency.sum_duplicates()
    if weights is None:
        adjacency.data[:] = 1.0
    return adjacency


def _weights(fields: Fields, edges: int) -> npt.NDArray[np.float32] | None:
    if "edge_weight" not in fields:
        return None
    return fields.finite("edge_weight", fields.get("edge_weight", NUMBERS, edges))


def _labels(fields: Fields, nodes: int) -> tuple[Labels, int]:
    """Labels and the number of classes."""
    classes = int(fields.get("classes", INTEGERS)) if "classes" in fields else None
    if "y" in fields and fields.arrays["y"].ndim == 2 and fields.arrays["y"].shape[1] != 1:
        several = fields.get("y", NUMBERS, nodes, classes)
        if not np.isin(several, (0, 1)).all():
            wrong = several[~np.isin(several, (0, 1))][0]
            raise fields.error("y", f"holds {wrong}; with several labels a node, y [N, C] holds only 0 and 1")
        return several.astype(np.bool_), int(several.shape[1])
    if "y" in fields and fields.arrays["y"].ndim == 2:
        labels = fields.get("y", FLAGS, nodes, 1)[:, 0]
    else:
        labels = fields.get("y", FLAGS, nodes)
    bound = min(MOST_CLASSES, classes) if classes is not None else MOST_CLASSES
    wrong = np.flatnonzero((labels < -1) | (labels >= bound))
    if wrong.size:
        range_text = f"0 to {classes - 1}" if classes is not None else "0, 1, 2, …"
        raise fields.error(
            "y",
            f"holds label {labels[wrong[0]]} for node {wrong[0]}; labels are {range_text}, or -1 for none",
        )
    single = labels.astype(np.int64)
    return single, classes if classes is not None else int(single.max()) + 1


def _masks(fields: Fields, labels: Labels, nodes: int) -> list[npt.NDArray[np.bool_]]:
    """The three splits: disjoint, and every node in them is labelled."""
    masks: dict[str, npt.NDArray[np.bool_]] = {}
    for name in MASK_FIELDS:
        mask = fields.mask(name, nodes)
        for other, earlier in masks.items():
            both = np.flatnonzero(mask & earlier)
            if both.size:
                raise fields.error(name, f"and {other} both select node {both[0]}; splits must not overlap")
        if labels.ndim == 1 and np.any(mask & (labels < 0)):
            node = np.flatnonzero(mask & (labels < 0))[0]
            raise fields.error(name, f"selects node {node}, which has no label (y is -1); leave it out")
        masks[name] = mask
    return list(masks.values())
