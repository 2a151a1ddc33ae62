"""WikiCS: one JSON file with `features`, `labels`, `links`, `train_masks`, `val_masks`, `test_mask`.

P. Mernyei and C. Cangea, "Wiki-CS: a Wikipedia-based benchmark for graph neural networks", 2020. There are 20
training and validation splits, of which `split=0` is taken unless another is named; `stopping_masks` are not
used. As in PyG the graph is made undirected.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from sancus.datasets.assemble import adjacency_of, class_labels, dense_features
from sancus.datasets.fields import Fields
from sancus.datasets.files import FileReader, read_json
from sancus.datasets.heterophilous import split_mask
from sancus.errors import UserError
from sancus.graphs.graph import Graph

TABLES = ("features", "labels", "train_masks", "val_masks", "test_mask")


class WikiCsReader(FileReader):
    """WikiCS as one JSON file; split=0 to 19."""

    kind = "wikics"
    what = "the data.json of WikiCS"
    defaults: ClassVar[Mapping[str, Any]] = {"split": 0}

    @staticmethod
    def recognises(path: Path) -> bool:
        """Any `.json` that is a file."""
        return path.suffix == ".json" and path.is_file()

    def load(self) -> Graph:
        content = read_json(self.path)
        missing = [
            name for name in (*TABLES, "links") if not isinstance(content, dict) or name not in content
        ]
        if missing:
            raise UserError(
                f"{self.path}: {missing[0]} is missing; WikiCS has {', '.join((*TABLES, 'links'))}"
            )
        fields = Fields(str(self.path), {name: _array(self.path, name, content[name]) for name in TABLES})
        features = dense_features(fields, "features")
        nodes = len(features)
        edges = _edges(self.path, content["links"], nodes)
        adjacency = adjacency_of(fields, "links", edges, nodes, undirected=True)
        fields.get("labels", "iu", None)
        labels, classes = class_labels(fields, "labels", nodes)
        split = self.options["split"]
        train, val = (split_mask(fields, name, split, nodes) for name in ("train_masks", "val_masks"))
        test = fields.mask("test_mask", nodes)
        return self.graph(adjacency, features, labels, (train, val, test), classes)


def _array(path: Path, name: str, value: Any) -> npt.NDArray[Any]:
    try:
        array = np.array(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise UserError(f"{path}: {name} has rows of different lengths; write it again") from error
    if array.dtype.kind not in "biuf":
        raise UserError(f"{path}: {name} holds something that is not a number; write it again")
    return array


def _edges(path: Path, links: Any, nodes: int) -> npt.NDArray[Any]:
    """`[2, E]` from a list of neighbours a node."""
    if not isinstance(links, list) or len(links) != nodes or not all(isinstance(row, list) for row in links):
        raise UserError(f"{path}: links must be {nodes} lists of nodes, one a node; write it again")
    rows = np.repeat(np.arange(nodes), [len(row) for row in links])
    columns = _array(path, "links", [other for row in links for other in row])
    if columns.size and columns.dtype.kind not in "iu":
        raise UserError(f"{path}: links has dtype {columns.dtype}; nodes are whole numbers")
    return np.stack([rows, columns.astype(np.int64)])
