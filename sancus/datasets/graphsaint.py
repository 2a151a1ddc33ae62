"""GraphSAINT's folders: `adj_full.npz`, `adj_train.npz`, `feats.npy`, `class_map.json`, `role.json`.

H. Zeng and others, "GraphSAINT", ICLR 2020: Flickr, Reddit, Yelp, Amazon, PPI. Training here is on the whole
graph, so `adj_train.npz` (the edges between training nodes) is not used. Features are taken as they are:
GraphSAINT's own code scales them by the training nodes' mean and deviation, `scale=true` does the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from sancus.datasets.archive import read_npy, read_npz
from sancus.datasets.assemble import Masks, class_labels, csr_of, dense_features, masks_from_indices
from sancus.datasets.fields import Fields
from sancus.datasets.files import FileReader, need, read_json
from sancus.datasets.spool import spool
from sancus.errors import UserError
from sancus.graphs.bounded import row_pieces
from sancus.graphs.graph import Graph

FILES = ("adj_full.npz", "feats.npy", "class_map.json", "role.json")
ROLES = ("tr", "va", "te")


class GraphSaintReader(FileReader):
    """A GraphSAINT folder: Flickr, Reddit, Yelp, Amazon."""

    kind = "graphsaint"
    what = "a GraphSAINT folder"
    defaults: ClassVar[Mapping[str, Any]] = {"scale": False}

    @staticmethod
    def recognises(path: Path) -> bool:
        """A folder with `adj_full.npz` and `role.json`."""
        return (path / "adj_full.npz").is_file() and (path / "role.json").is_file()

    def files(self) -> list[Path]:
        return need(self.path, FILES, "GraphSAINT")

    def load(self) -> Graph:
        adjacency_file, features_file, classes_file, role_file = self.files()
        fields = read_npz(adjacency_file, ("indptr", "indices", "data", "shape"))
        adjacency = csr_of(fields, "")
        nodes = adjacency.shape[0]
        if adjacency.shape[1] != nodes:
            raise fields.error("shape", f"is {list(adjacency.shape)}; an adjacency is square")
        features = dense_features(
            Fields(str(features_file), {"feats": read_npy(features_file)}), "feats", nodes
        )
        labels, classes = _labels(classes_file, nodes)
        masks = _masks(role_file, nodes)
        if self.options["scale"]:
            features = scale_features(features, masks[0], str(features_file))
        return self.graph(adjacency, features, labels, masks, classes)


def scale_features(
    features: npt.NDArray[np.float32], train: npt.NDArray[np.bool_], what: str
) -> npt.NDArray[np.float32]:
    """Features minus the training nodes' mean, over their deviation (1 where it is 0); on disk."""
    training_rows = features[train].astype(np.float64)
    mean, deviation = training_rows.mean(axis=0), training_rows.std(axis=0)
    deviation[deviation == 0] = 1.0
    return spool(((features[rows] - mean) / deviation for rows in row_pieces(features)), what)


def _labels(path: Path, nodes: int) -> tuple[Any, int]:
    """`class_map.json`: node -> class, or node -> list of 0 and 1."""
    content = read_json(path)
    fields = Fields(str(path), {})
    if not isinstance(content, dict) or len(content) != nodes:
        size = len(content) if isinstance(content, dict) else type(content).__name__
        raise fields.error("class_map", f"has {size} nodes; the graph has {nodes}")
    ids = _whole(path, list(content), "node")
    order = fields.indices("class_map", ids, nodes, "node")
    if len(np.unique(order)) != nodes:
        raise fields.error("class_map", "names a node twice")
    values = list(content.values())
    widths = {len(value) if isinstance(value, list) else -1 for value in values}
    if len(widths) > 1:
        raise fields.error(
            "class_map", f"has labels of different lengths {sorted(widths)}; all nodes need the same"
        )
    by_entry = _whole(path, values, "label")
    labels = np.empty_like(by_entry)
    labels[order] = by_entry
    return class_labels(Fields(str(path), {"class_map": labels}), "class_map", nodes)


def _masks(path: Path, nodes: int) -> Masks:
    content = read_json(path)
    missing = [
        role for role in ROLES if not isinstance(content, dict) or not isinstance(content.get(role), list)
    ]
    if missing:
        raise UserError(f"{path}: {missing[0]} is missing; role.json has the lists {', '.join(ROLES)}")
    lists = {role: _whole(path, content[role], role) for role in ROLES}
    return masks_from_indices(Fields(str(path), {}), lists, nodes)


def _whole(path: Path, values: list[Any], what: str) -> npt.NDArray[Any]:
    """A list of whole numbers (or of lists of them) as an array."""
    try:
        array = np.array([int(value) for value in values] if what == "node" else values)
    except (TypeError, ValueError, OverflowError) as error:
        raise UserError(f"{path}: holds a {what} that is not a whole number; write it again") from error
    if array.size and (array.dtype.kind not in "iubf" or not np.all(array == np.floor(array))):
        raise UserError(f"{path}: holds a {what} that is not a whole number; write it again")
    return array.astype(np.int64)
