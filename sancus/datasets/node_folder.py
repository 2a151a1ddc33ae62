"""A folder with `nodes.csv` and `edges.csv` (.tsv, .txt, also .gz, or .parquet): ids and labels may be words.

`FOLDER,undirected=true,drop=created_at+city,train=0.8`: the columns are those of `node_table.py`. Features
may be `features.npy` instead, a row a node in the order of `nodes.csv`; `features=degree` makes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from sancus.datasets.archive import read_npy
from sancus.datasets.assemble import RANDOM_SPLIT, Features, dense_features
from sancus.datasets.columns import PARQUET, read_columns
from sancus.datasets.fields import Fields
from sancus.datasets.files import FileReader
from sancus.datasets.node_table import KNOWN, graph_of_tables
from sancus.errors import UserError
from sancus.graphs.graph import Graph

SUFFIXES = (*(f"{s}{z}" for s in (".csv", ".tsv", ".txt") for z in ("", ".gz")), PARQUET)
FEATURES = "features.npy"


class NodeFolderReader(FileReader):
    """A folder with a table of nodes and one of edges, in text or Parquet; ids and labels may be words."""

    kind = "nodes"
    what = "a folder with nodes.csv and edges.csv"
    defaults: ClassVar[Mapping[str, Any]] = {**RANDOM_SPLIT, "undirected": False, "drop": "", "features": ""}

    @staticmethod
    def recognises(path: Path) -> bool:
        """A folder with a table of nodes."""
        return path.is_dir() and bool(_tables(path, "nodes"))

    def files(self) -> list[Path]:
        paths = []
        for kind in ("nodes", "edges"):
            found = _tables(self.path, kind)
            if len(found) != 1:
                names = ", ".join(file.name for file in found) or "none"
                raise UserError(
                    f"{self.path}: must hold one {kind}.csv, .tsv, .txt or {PARQUET}; it holds {names}"
                )
            paths += found
        if (self.path / FEATURES).is_file():
            paths.append(self.path / FEATURES)
        return paths

    def check(self) -> None:
        super().check()
        if self.options["features"] not in ("", "degree"):
            raise UserError(
                f"{self.path}: features={self.options['features']}: only degree; else put {FEATURES} there"
            )

    def load(self) -> Graph:
        nodes, edges, *rest = self.files()
        features: Features | None = None
        if rest and self.options["features"] != "degree":
            features = dense_features(Fields(str(rest[0]), {"features": read_npy(rest[0])}), "features")
        tables = (
            read_columns(edges, ("source", "target", "column 3"), KNOWN),
            read_columns(nodes, ("id", "label"), KNOWN),
        )
        return graph_of_tables(*tables, self.title, self.options, features)


def _tables(folder: Path, kind: str) -> list[Path]:
    return [path for suffix in SUFFIXES if (path := folder / f"{kind}{suffix}").is_file()]
