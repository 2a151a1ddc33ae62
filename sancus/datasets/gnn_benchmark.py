"""gnn-benchmark's `.npz`: Coauthor CS and Physics, Amazon Computers and Photo, Cora-ML, Cora-Full, DBLP.

O. Shchur and others, "Pitfalls of graph neural network evaluation", 2018. Both spellings are read: `adj_data`
and `adj_matrix.data`. As in PyG the graph is made undirected and loses its loops. It has no split of its own:
a seeded one is drawn (`train=0.6,val=0.2,test=0.2,seed=0`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from sancus.datasets.archive import members_of, read_npz
from sancus.datasets.assemble import (
    RANDOM_SPLIT,
    class_labels,
    csr_of,
    dense_features,
    random_split,
    split_note,
    symmetric,
)
from sancus.datasets.files import FileReader
from sancus.graphs.graph import Graph

PARTS = ("data", "indices", "indptr", "shape")
SPELLINGS = (("adj_", "attr_"), ("adj_matrix.", "attr_matrix."))


class GnnBenchmarkReader(FileReader):
    """A gnn-benchmark .npz: Coauthor, Amazon, Cora-ML; gets a seeded split."""

    kind = "gnn-benchmark"
    what = "a gnn-benchmark .npz"
    defaults: ClassVar[Mapping[str, Any]] = {**RANDOM_SPLIT, "undirected": True}

    @staticmethod
    def recognises(path: Path) -> bool:
        """An archive with `adj_indptr` or `adj_matrix.indptr`."""
        return path.suffix == ".npz" and bool({"adj_indptr", "adj_matrix.indptr"} & members_of(path))

    def load(self) -> Graph:
        names = [f"{prefix}{part}" for spelling in SPELLINGS for prefix in spelling for part in PARTS]
        fields = read_npz(self.path, [*names, "attr_matrix", "labels"])
        edges, attributes = SPELLINGS["adj_matrix.indptr" in fields]
        adjacency = csr_of(fields, edges)
        nodes = adjacency.shape[0]
        if adjacency.shape[1] != nodes:
            raise fields.error(f"{edges}shape", f"is {list(adjacency.shape)}; an adjacency is square")
        if self.options["undirected"]:
            adjacency = symmetric(adjacency, weighted=bool((adjacency.data != 1).any()))
        if "attr_matrix" in fields:
            features = dense_features(fields, "attr_matrix", nodes)
        else:
            features = csr_of(fields, attributes)
        fields.get("labels", "iufb", None)
        labels, classes = class_labels(fields, "labels", nodes)
        masks = random_split(labels, self.options, str(self.path))
        self.notes.append(split_note(self.options))
        return self.graph(adjacency, features, labels, masks, classes)
