"""Features, labels and split of a graph whose edge list or matrix holds none: from files beside it.

| option | file | content |
|---|---|---|
| `features` | `.npy` `[N, F]`, `.npz` of `scipy.sparse.save_npz`, a table | a row a node, or `degree` |
| `labels` | `.npy` or a table | a class a node, or rows `node,class`, or columns of 0 and 1 |
| `split` | a table | a number a node: 0 train, 1 validation, 2 test, -1 none; else a seeded split |
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
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
    split_note,
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
LOOKS_LIKE_TIME = 1e8  # seconds since 1970 are beyond it since 1973


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
        rows = nodes if features is not None else 0 if by_node else len(table.arrays["labels"])
        _refuse_from_one(self.edge_file(), edges, rows)
        self._note_weights(weights)
        if features is None and not certain and not by_node:
            nodes = max(nodes, len(table.arrays["labels"]))  # the last nodes may have no edge
        fields = Fields(str(self.edge_file()), {})
        adjacency = adjacency_of(
            fields, "edges", edges, nodes, weights, undirected=self.options["undirected"], notes=self.notes
        )
        if features is None:
            features = degree_features(adjacency)
        if by_node:
            table = Fields(table.file, {"labels": _by_node(table, table.arrays["labels"], nodes)})
        else:
            self._check_length(table.arrays["labels"], nodes)
        labels, classes = class_labels(table, "labels", nodes)
        masks = self._masks(labels, nodes)
        return self.graph(adjacency, features, labels, masks, classes)

    def _check_length(self, labels: Array, nodes: int) -> None:
        """A blank line is no label, so that the others would belong to the wrong nodes."""
        if len(labels) != nodes:
            raise UserError(
                f"{self.table('labels')}: {len(labels):,} labels for {nodes:,} nodes; a node without one "
                "has -1, not a blank line, or give rows of node and class"
            )

    def _note_weights(self, weights: Array | None) -> None:
        """A third column may be no weight at all."""
        if weights is not None and len(weights) and float(weights.max()) > LOOKS_LIKE_TIME:
            self.notes.append(
                f"the third column of the edges reaches {float(weights.max()):.3g}, as times do, and is "
                "taken as weights: leave it out, or train with --no-edge-weights"
            )

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
        with words_hint():
            table = read_npy(path) if path.suffix == ".npy" else read_table(path, np.float64)
        by_node = is_table(path) and table.shape[1] == 2 and not np.isin(table, (0, 1)).all()
        return Fields(str(path), {"labels": table}), by_node

    def _masks(self, labels: Labels, nodes: int) -> Masks:
        path = self.table("split")
        if path is None:
            self.notes.append(split_note(self.options))
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


@contextlib.contextmanager
def words_hint() -> Iterator[None]:
    """Where numbers are read: what is no number may be an id or a class in words, or a blank."""
    try:
        yield
    except UserError as error:
        if "'' is not a number" in str(error):
            raise UserError(f"{error}; a node without a label has -1") from error
        if "is not a number" in str(error):
            raise UserError(
                f"{error}; ids and classes in words go in nodes.csv (id, label, features) beside edges.csv"
            ) from error
        raise


def _refuse_from_one(path: Path, edges: Array, rows: int) -> None:
    """Nodes that are numbered from 1 look like one node too many."""
    if rows and edges.size and int(edges.min()) == 1 and int(edges.max()) == rows:
        raise UserError(
            f"{path}: nodes are numbered from 1 to {rows}, for {rows} rows; they go from 0: subtract 1, "
            "or name them in nodes.csv (id, label, …)"
        )


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
