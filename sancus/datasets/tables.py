"""Features, labels and split of a graph whose edge list or matrix holds none: from files beside it.

| option | file | content |
|---|---|---|
| `features` | `.npy` `[N, F]`, `.npz` of `scipy.sparse.save_npz`, a table | a row a node, or `degree` |
| `labels` | `.npy` or a table | a class a node, or rows `node,class`, or columns of 0 and 1 |
| `split` | a table | a number a node: 0 train, 1 validation, 2 test, -1 none; else a seeded split |
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from sancus.datasets.archive import read_npy, read_npz
from sancus.datasets.assemble import (
    RANDOM_SPLIT,
    Features,
    Labels,
    Masks,
    adjacency_of,
    class_labels,
    csr_of,
    degree_features,
    dense_features,
    random_split,
)
from sancus.datasets.fields import Fields
from sancus.datasets.files import FileReader
from sancus.datasets.spool import spool
from sancus.datasets.text import is_table, read_table, table_pieces
from sancus.errors import UserError
from sancus.graphs.graph import Graph

BESIDE = ("features", "labels", "split")  # also the names that are looked for beside a graph
ENDINGS = (".npy", ".npz", *(f"{s}{z}" for s in (".csv", ".tsv", ".txt") for z in ("", ".gz")))
Array = npt.NDArray[Any]


class TablesReader(FileReader):
    """A graph whose features, labels and split are files of their own; subclasses read the edges."""

    defaults: ClassVar[Mapping[str, Any]] = {
        **RANDOM_SPLIT,
        "features": "",
        "labels": "",
        "split": "",
        "undirected": False,
    }

    def edge_file(self) -> Path:
        """The file with the edges."""
        return self.path

    def read_edges(self) -> tuple[Array, Array | None, int, bool]:
        """Edges `[2, E]`, weights `[E]` or None, the number of nodes, and whether that number is certain.

        It is not where it is the largest node number of an edge list: the last nodes may have no edge.
        """
        raise NotImplementedError

    def files(self) -> list[Path]:
        paths = [self.edge_file()]
        if not paths[0].is_file():
            raise UserError(f"{paths[0]}: is not a file; give the path of {self.what}")
        return paths + [path for name in BESIDE if (path := self.table(name)) is not None]

    def table(self, name: str) -> Path | None:
        """The file of a kind: as the option says, else one with that name beside the edges."""
        option = self.options[name]
        if name == "features" and option == "degree":
            return None
        if option:
            return self.sibling(option)
        candidates = [path for end in ENDINGS if (path := self.edge_file().parent / f"{name}{end}").is_file()]
        return candidates[0] if candidates else None

    def check(self) -> None:
        super().check()
        if self.table("labels") is None:
            raise UserError(
                f"{self.path}: no labels; put labels.csv (a class a node) beside it, or add ,labels=FILE"
            )
        if self.table("features") is None and self.options["features"] != "degree":
            raise UserError(
                f"{self.path}: no features; put features.npy beside it, or add ,features=FILE (or degree)"
            )

    def load(self) -> Graph:
        edges, weights, nodes, certain = self.read_edges()
        features = self._features()
        if features is not None:
            if certain and features.shape[0] != nodes:
                raise UserError(
                    f"{self.table('features')}: has {features.shape[0]} rows, the graph has {nodes} nodes"
                )
            nodes = int(features.shape[0])
        table, by_node = self._label_table()
        if features is None and not certain and not by_node:
            nodes = max(nodes, len(table.arrays["labels"]))  # the last nodes may have no edge
        fields = Fields(str(self.edge_file()), {})
        adjacency = adjacency_of(
            fields, "edges", edges, nodes, weights, undirected=self.options["undirected"]
        )
        if features is None:
            features = degree_features(adjacency)
        if by_node:
            table = Fields(table.file, {"labels": _by_node(table, table.arrays["labels"], nodes)})
        labels, classes = class_labels(table, "labels", nodes)
        masks = self._masks(labels, nodes)
        return self.graph(adjacency, features, labels, masks, classes)

    def _features(self) -> Features | None:
        path = self.table("features")
        if path is None:
            return None
        if path.suffix == ".npz":
            matrix: sp.csr_array = csr_of(read_npz(path, ("indptr", "indices", "data", "shape")), "")
            return matrix
        if is_table(path):
            rows: Array = spool((piece.rows for piece in table_pieces(path, np.float32)), str(path))
        else:
            rows = read_npy(path)
        return dense_features(Fields(str(path), {"features": rows}), "features")

    def _label_table(self) -> tuple[Fields, bool]:
        """The field `labels` of its file, and whether it has rows `node, class` instead of one row a node."""
        path = self.table("labels")
        assert path is not None, "checked when made"
        table = read_npy(path) if path.suffix == ".npy" else read_table(path, np.float64)
        by_node = is_table(path) and table.shape[1] == 2 and not np.isin(table, (0, 1)).all()
        return Fields(str(path), {"labels": table}), by_node

    def _masks(self, labels: Labels, nodes: int) -> Masks:
        path = self.table("split")
        if path is None:
            return random_split(labels, self.options, str(self.path))
        fields = Fields(str(path), {"split": read_table(path, np.int64, 1)[:, 0]})
        split = fields.get("split", "i", nodes)
        wrong = np.flatnonzero((split < -1) | (split > 2))
        if wrong.size:
            raise fields.error(
                "split",
                f"holds {split[wrong[0]]} for node {wrong[0]}; 0 is train, 1 validation, 2 test, -1 none",
            )
        return split == 0, split == 1, split == 2


def _by_node(fields: Fields, table: Array, nodes: int) -> Array:
    """Rows `node, class` to a class a node, -1 where none is given."""
    ids = table[:, 0]
    if not np.array_equal(ids, np.floor(ids)):
        raise fields.error("labels", "has two columns; they must be node and class")
    node_ids = fields.indices("labels", ids.astype(np.int64), nodes, "node")
    order = np.sort(node_ids)
    twice = np.flatnonzero(order[1:] == order[:-1])
    if twice.size:
        raise fields.error("labels", f"names node {order[twice[0]]} twice; one line a node")
    labels = np.full(nodes, -1.0)
    labels[node_ids] = table[:, 1]
    return labels
