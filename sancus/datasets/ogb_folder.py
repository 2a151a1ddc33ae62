"""OGB node datasets as downloaded: `raw/`, `split/<kind>/`, in the csv.gz or in the binary layout.

W. Hu and others, "Open Graph Benchmark", NeurIPS 2020. `undirected=auto` does what OGB's own table says: both
directions of every edge for ogbn-products and ogbn-proteins, edges as they are for the others. Features in
text are read once, to a file without a name. Graphs with several kinds of nodes (ogbn-mag) are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from sancus.datasets.archive import read_npz
from sancus.datasets.assemble import (
    adjacency_of,
    class_labels,
    degree_features,
    dense_features,
    masks_from_indices,
)
from sancus.datasets.fields import INTEGERS, Fields
from sancus.datasets.files import FileReader
from sancus.datasets.spool import spool
from sancus.datasets.text import read_table, table_pieces
from sancus.errors import UserError
from sancus.graphs.graph import Graph

SPLIT_FILES = ("train", "valid", "test")
BOTH_DIRECTIONS = ("products", "proteins")  # `add_inverse_edge` of OGB's table
CSV_EDGES = "edge.csv.gz"
Array = npt.NDArray[Any]


class OgbFolderReader(FileReader):
    """An OGB node dataset as downloaded and unpacked: csv.gz or binary files, with its split."""

    kind = "ogb-folder"
    what = "an OGB folder with raw/ and split/"
    defaults: ClassVar[Mapping[str, Any]] = {"undirected": "auto", "features": "auto"}

    @staticmethod
    def recognises(path: Path) -> bool:
        """A folder with `raw/edge.csv.gz` or `raw/data.npz`, and `split/`."""
        raw = path / "raw"
        return (path / "split").is_dir() and ((raw / CSV_EDGES).is_file() or (raw / "data.npz").is_file())

    def check(self) -> None:
        for option, values in (("undirected", ("auto", "true", "false")), ("features", ("auto", "degree"))):
            if self.options[option] not in values:
                raise UserError(
                    f"graph 'ogb-folder': {option}={self.options[option]!r} is not {', '.join(values)}"
                )
        super().check()

    def files(self) -> list[Path]:
        raw = self.path / "raw"
        if (raw / "triplet-type-list.csv.gz").exists() or (raw / "edge_index_dict.npz").exists():
            raise UserError(f"{self.path}: has several kinds of nodes; only graphs with one kind are read")
        if (raw / "data.npz").is_file():
            mandatory, optional = [raw / "data.npz", raw / "node-label.npz"], []
        else:
            mandatory = [raw / CSV_EDGES, raw / "num-node-list.csv.gz", raw / "node-label.csv.gz"]
            optional = [raw / "node-feat.csv.gz"]
        mandatory += [self._split_folder() / f"{name}.csv.gz" for name in SPLIT_FILES]
        for path in mandatory:
            if not path.is_file():
                raise UserError(f"{path}: is missing; unpack the OGB download again")
        return mandatory + [path for path in optional if path.is_file()]

    def load(self) -> Graph:
        files = self.files()
        reader = self._read_binary if files[0].suffix == ".npz" else self._read_csv
        adjacency, features, labels, classes = reader()
        folder = self._split_folder()
        lists = {name: read_table(folder / f"{name}.csv.gz", np.int64, 1)[:, 0] for name in SPLIT_FILES}
        masks = masks_from_indices(Fields(str(folder), {}), lists, adjacency.shape[0])
        return self.graph(adjacency, features, labels, masks, classes)

    @property
    def _undirected(self) -> bool:
        setting = self.options["undirected"]
        return setting == "true" or (
            setting == "auto" and any(name in self.path.name for name in BOTH_DIRECTIONS)
        )

    def _split_folder(self) -> Path:
        folders = sorted(path for path in (self.path / "split").glob("*") if path.is_dir())
        if len(folders) != 1:
            names = ", ".join(folder.name for folder in folders) or "none"
            raise UserError(f"{self.path / 'split'}: must hold one split, it holds {names}")
        return folders[0]

    def _features(self, rows: npt.NDArray[np.float32] | None, adjacency: sp.csr_array) -> Any:
        if self.options["features"] == "degree":
            return degree_features(adjacency)
        if rows is None:
            raise UserError(f"{self.path}: has no node features; add ,features=degree after its name")
        return rows

    def _read_csv(self) -> tuple[sp.csr_array, Any, Any, int]:
        raw = self.path / "raw"
        counts = read_table(raw / "num-node-list.csv.gz", np.int64, 1)
        nodes = _one_graph(Fields(str(raw / "num-node-list.csv.gz"), {}), "num-node-list", counts)
        edges = read_table(raw / CSV_EDGES, np.int64, 2).T
        fields = Fields(str(raw / CSV_EDGES), {})
        adjacency = adjacency_of(fields, "edge", edges, nodes, undirected=self._undirected)
        file = raw / "node-feat.csv.gz"
        features = None
        if file.is_file() and self.options["features"] == "auto":
            rows = spool((piece.rows for piece in table_pieces(file, np.float32)), str(file))
            features = dense_features(Fields(str(file), {"node-feat": rows}), "node-feat", nodes)
        label_file = raw / "node-label.csv.gz"
        table = Fields(str(label_file), {"node-label": read_table(label_file, np.float64)})
        labels, classes = class_labels(table, "node-label", nodes)
        return adjacency, self._features(features, adjacency), labels, classes

    def _read_binary(self) -> tuple[sp.csr_array, Any, Any, int]:
        raw = self.path / "raw"
        fields = read_npz(raw / "data.npz", ("edge_index", "num_nodes_list", "node_feat"))
        nodes = _one_graph(fields, "num_nodes_list", fields.get("num_nodes_list", INTEGERS, None))
        edges = fields.get("edge_index", INTEGERS, 2, None)
        adjacency = adjacency_of(fields, "edge_index", edges, nodes, undirected=self._undirected)
        features = dense_features(fields, "node_feat", nodes) if "node_feat" in fields else None
        table = read_npz(raw / "node-label.npz", ("node_label",))
        table.get(
            "node_label",
            "iufb",
            *[None] * table.arrays["node_label"].ndim if "node_label" in table else [None],
        )
        labels, classes = class_labels(table, "node_label", nodes)
        return adjacency, self._features(features, adjacency), labels, classes


def _one_graph(fields: Fields, field: str, counts: Array) -> int:
    if counts.size != 1 or int(counts.ravel()[0]) < 1:
        raise fields.error(field, f"lists {counts.size} graphs; it must be one number of nodes, above 0")
    return int(counts.ravel()[0])
