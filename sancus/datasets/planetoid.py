"""Planetoid's files: `ind.<name>.{x,tx,allx,y,ty,ally,graph,test.index}` (Cora, CiteSeer, PubMed).

Z. Yang, W. Cohen, R. Salakhutdinov, "Revisiting semi-supervised learning with graph embeddings", ICML 2016.
`x` are the training nodes, `allx` all but the test nodes, `tx` the test nodes in the order of `test.index`.
Test nodes that no file describes (CiteSeer has 15) get zero features and no label.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from sancus.datasets.assemble import adjacency_of, class_labels
from sancus.datasets.fields import Fields
from sancus.datasets.files import FileReader
from sancus.datasets.restricted import load_restricted
from sancus.datasets.text import read_table
from sancus.errors import UserError
from sancus.graphs.graph import Graph

PARTS = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")
VALIDATION = 500  # nodes after the training nodes
Array = npt.NDArray[Any]


class PlanetoidReader(FileReader):
    """Planetoid's ind.* files: a folder, or any one of the files; no pickle can run code."""

    kind = "planetoid"
    what = "a folder with ind.* files"

    @staticmethod
    def recognises(path: Path) -> bool:
        """A folder with `ind.*.graph`, or one of the files."""
        return any(path.glob("ind.*.graph")) if path.is_dir() else path.name.startswith("ind.")

    @property
    def prefix(self) -> str:
        """`ind.<name>`."""
        if not self.path.is_dir():
            return ".".join(self.path.name.split(".")[:2])
        graph_files = sorted(self.path.glob("ind.*.graph"))
        if len(graph_files) != 1:
            names = ", ".join(path.name for path in graph_files) or "none"
            raise UserError(
                f"{self.path}: must hold one ind.*.graph, it holds {names}; give one of the files"
            )
        return graph_files[0].name.removesuffix(".graph")

    @property
    def title(self) -> str:
        return self.prefix.removeprefix("ind.")

    def files(self) -> list[Path]:
        folder = self.path if self.path.is_dir() else self.path.parent
        paths = [folder / f"{self.prefix}.{part}" for part in PARTS]
        for path in paths:
            if not path.is_file():
                raise UserError(
                    f"{path}: is missing; Planetoid has the files {', '.join(PARTS)} of {self.prefix}"
                )
        return paths

    def load(self) -> Graph:
        paths = dict(zip(PARTS, self.files(), strict=True))
        matrices = {name: _matrix(paths[name]) for name in ("x", "tx", "allx", "y", "ty", "ally")}
        order = read_table(paths["test.index"], np.int64, 1)[:, 0]
        fields = Fields(str(paths["test.index"]), {})
        other_rows, train = matrices["allx"].shape[0], matrices["y"].shape[0]
        test_rows = matrices["tx"].shape[0]
        if len(order) != test_rows or len(np.unique(order)) != test_rows or not test_rows:
            raise fields.error(
                "test.index", f"lists {len(order)} nodes; tx has {test_rows} rows, each must be listed once"
            )
        if order.min() < other_rows:
            raise fields.error(
                "test.index", f"lists node {order.min()}, which allx ({other_rows} rows) holds already"
            )
        nodes = max(other_rows + test_rows, _largest_neighbour(paths["graph"]) + 1)
        if order.max() >= nodes or nodes > 4 * (other_rows + test_rows):
            raise fields.error(
                "test.index", f"lists node {order.max()}; x, tx and allx have {other_rows + test_rows} rows"
            )
        features = _stack(matrices["allx"], matrices["tx"], order, nodes, paths["tx"])
        one_hot = _stack(matrices["ally"], matrices["ty"], order, nodes, paths["ty"])
        labels = np.where(np.diff(one_hot.indptr) > 0, np.asarray(one_hot.argmax(axis=1)).ravel(), -1)
        label_fields = Fields(str(paths["ally"]), {"ally": labels})
        labels, classes = class_labels(label_fields, "ally", nodes, one_hot.shape[1])
        masks = np.zeros((3, nodes), np.bool_)
        masks[0, :train] = True
        masks[1, train : min(train + VALIDATION, other_rows)] = True
        masks[2, order] = True
        edges = _edges(paths["graph"])
        adjacency = adjacency_of(Fields(str(paths["graph"]), {}), "graph", edges, nodes, undirected=True)
        return self.graph(adjacency, features, labels, (masks[0], masks[1], masks[2]), classes)


def _matrix(path: Path) -> sp.csr_array:
    """`[n, F]`; labels are dense in the files."""
    value = load_restricted(path)
    if isinstance(value, np.ndarray) and value.ndim == 2:
        dense = Fields(str(path), {"array": value})
        return sp.csr_array(dense.finite("array", value))
    if not isinstance(value, sp.csr_array):
        raise UserError(f"{path}: must hold a matrix, it holds {type(value).__name__}; download it again")
    return value


def _stack(upper: sp.csr_array, lower: sp.csr_array, order: Array, nodes: int, path: Path) -> sp.csr_array:
    """`[nodes, F]`: row `order[k]` is row `k` of `lower`; rows that nothing describes are empty."""
    if upper.shape[1] != lower.shape[1]:
        raise UserError(f"{path}: has {lower.shape[1]} columns, the others have {upper.shape[1]}")
    if lower.shape[0] != len(order) or upper.shape[0] > nodes:
        raise UserError(f"{path}: has {lower.shape[0]} rows, test.index lists {len(order)} nodes")
    place = np.full(nodes, -1, np.int64)
    place[: upper.shape[0]] = np.arange(upper.shape[0])
    place[order] = upper.shape[0] + np.arange(len(order))
    blank = sp.csr_array((1, upper.shape[1]), dtype=np.float32)
    return sp.csr_array(sp.vstack([upper, lower, blank], format="csr")[place])


def _neighbours(path: Path) -> dict[int, list[int]]:
    graph = load_restricted(path)
    ends = isinstance(graph, dict) and all(
        isinstance(node, int) and isinstance(others, list) and all(isinstance(other, int) for other in others)
        for node, others in graph.items()
    )
    if not ends or not graph:
        raise UserError(f"{path}: must hold a dictionary from node to list of nodes; download it again")
    return graph


def _largest_neighbour(path: Path) -> int:
    graph = _neighbours(path)
    return max(max(graph), max((max(others) for others in graph.values() if others), default=0))


def _edges(path: Path) -> Array:
    """`[2, E]`, checked for range by the caller."""
    graph = _neighbours(path)
    counts = np.array([len(others) for others in graph.values()], np.int64)
    try:
        rows = np.repeat(np.array(list(graph), np.int64), counts)
        columns = np.array([other for others in graph.values() for other in others], np.int64)
    except OverflowError as error:
        raise UserError(f"{path}: graph holds a node number beyond 64 bits; download it again") from error
    return np.stack([columns, rows])
