"""The heterophilous-graphs `.npz`: roman-empire, amazon-ratings, minesweeper, tolokers, questions.

O. Platonov and others, "A critical look at the evaluation of GNNs under heterophily", ICLR 2023:
`node_features`, `node_labels`, `edges [E, 2]`, and ten splits, of which `split=0` is taken unless another is
named. As in PyG the graph is made undirected.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from sancus.datasets.archive import members_of, read_npz
from sancus.datasets.assemble import adjacency_of, class_labels, dense_features
from sancus.datasets.fields import FLAGS, INTEGERS, Fields
from sancus.datasets.files import FileReader
from sancus.graphs.graph import Graph, Mask

MASKS = ("train_masks", "val_masks", "test_masks")


class HeterophilousReader(FileReader):
    """A heterophilous-graphs .npz: roman-empire, tolokers, …; split=0 to 9."""

    kind = "heterophilous"
    what = "a heterophilous-graphs .npz"
    defaults: ClassVar[Mapping[str, Any]] = {"split": 0}

    @staticmethod
    def recognises(path: Path) -> bool:
        """An archive with `node_features` and `edges`."""
        return path.suffix == ".npz" and {"node_features", "edges"} <= members_of(path)

    def load(self) -> Graph:
        fields = read_npz(self.path, ("node_features", "node_labels", "edges", *MASKS))
        features = dense_features(fields, "node_features")
        nodes = len(features)
        edges = fields.get("edges", INTEGERS, None, 2).T
        adjacency = adjacency_of(fields, "edges", edges, nodes, undirected=True)
        fields.get("node_labels", "iufb", None)
        labels, classes = class_labels(fields, "node_labels", nodes)
        train, val, test = (split_mask(fields, name, self.options["split"], nodes) for name in MASKS)
        return self.graph(adjacency, features, labels, (train, val, test), classes)


def split_mask(fields: Fields, name: str, split: int, nodes: int) -> Mask:
    """Mask `[N]` of one of several splits `[S, N]`."""
    table = fields.get(name, FLAGS, None, nodes)
    if not 0 <= split < len(table):
        raise fields.error(name, f"has splits 0 to {len(table) - 1}; split={split} does not exist")
    return Fields(fields.file, {name: np.asarray(table[split])}).mask(name, nodes)
