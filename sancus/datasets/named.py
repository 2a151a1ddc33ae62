"""Datasets by name, where PyG or OGB is installed: `pyg:Reddit`, `pyg:Planetoid,name=Cora`, `ogb:ogbn-arxiv`.

They are kept in `$SANCUS_DATA`, or in the cache of Sancus, and downloaded there once, without a question. The
files of OGB are then read by our own reader, so that no pickle is loaded; a folder that is there already
needs no OGB.
"""

from __future__ import annotations

import csv
import importlib
import importlib.util
import inspect
import os
from pathlib import Path
from typing import Any, ClassVar

import xxhash

from sancus.datasets.archive import line
from sancus.datasets.files import split_options
from sancus.datasets.home import home
from sancus.datasets.objects import graph_of
from sancus.datasets.ogb_folder import OgbFolderReader
from sancus.datasets.unpack import unpack
from sancus.errors import UserError
from sancus.graphs.graph import Graph
from sancus.plugins import choices

OURS = ("split", "features", "train", "val", "test", "seed")  # options that PyG's constructor does not get


class PygReader:
    """A dataset of PyG by its class's name: pyg:Reddit, pyg:Planetoid,name=Cora (extra: pyg)."""

    extra: ClassVar[str] = "pyg"

    def __init__(self, text: str) -> None:
        self.name, self.options = split_options(text)
        _need("torch_geometric", f"pyg:{text}", self.extra)
        if not self.name.isidentifier():
            raise UserError(
                f"graph 'pyg:{text}': {self.name!r} is not the name of a dataset of PyG, e.g. pyg:Reddit"
            )

    def load(self) -> Graph:
        datasets = importlib.import_module("torch_geometric.datasets")
        dataset_class = getattr(datasets, self.name, None)
        if not isinstance(dataset_class, type):
            names = choices([name for name in dir(datasets) if name[:1].isupper()], self.name)
            raise UserError(f"graph 'pyg:{self.name}' does not exist; torch_geometric.datasets has {names}")
        arguments = {key: value for key, value in self.options.items() if key not in OURS}
        if "root" in inspect.signature(dataset_class).parameters:
            arguments.setdefault("root", str(root() / "pyg" / "-".join([self.name, *arguments.values()])))
        try:
            dataset = dataset_class(**arguments)
        except Exception as error:  # a download, or a constructor of PyG's: anything may go wrong
            raise UserError(
                f"graph 'pyg:{self.name}': {type(error).__name__}: {' '.join(str(error).split())}"
            ) from error
        if len(dataset) != 1:
            raise UserError(
                f"graph 'pyg:{self.name}' has {len(dataset)} graphs; only datasets of one graph are read"
            )
        return graph_of(dataset[0], f"pyg:{self.name}", _ours(self.options))

    def fingerprint(self) -> str:
        """Name, options and PyG's version: a published dataset does not change."""
        version = importlib.import_module("importlib.metadata").version("torch_geometric")
        identity = f"{self.name}:{sorted(self.options.items())}:{version}"
        return f"pyg-{xxhash.xxh3_128_hexdigest(identity.encode())}"


class OgbReader:
    """A node dataset of OGB by name: ogb:ogbn-arxiv; downloaded with the package ogb (extra: ogb)."""

    extra: ClassVar[str] = "ogb"

    def __init__(self, text: str) -> None:
        self.name, _, self.option_text = text.partition(",")
        if not self.name.startswith("ogbn-"):
            raise UserError(f"graph 'ogb:{text}': node datasets of OGB are named ogbn-…, e.g. ogb:ogbn-arxiv")
        self.folder = root() / self.name.replace("-", "_")
        if not self.folder.is_dir():
            _need("ogb", f"ogb:{text}", self.extra, f", or put the unpacked download at {self.folder}")

    def load(self) -> Graph:
        return self._reader().load()

    def fingerprint(self) -> str:
        return self._reader().fingerprint()

    def _reader(self) -> OgbFolderReader:
        if not self.folder.is_dir():
            self._download()
        return OgbFolderReader(",".join(filter(None, [str(self.folder), self.option_text])))

    def _download(self) -> None:
        """Download and unpack, with the addresses of OGB's own table and without its question."""
        package = importlib.import_module("ogb.nodeproppred")
        with (Path(str(package.__file__)).parent / "master.csv").open() as file:
            table = {row[""]: row for row in csv.DictReader(file)}
        if self.name not in table["url"]:
            names = choices([name for name in table["url"] if name], self.name)
            raise UserError(f"graph 'ogb:{self.name}' does not exist; OGB has {names}")
        try:
            download = importlib.import_module("ogb.utils.url").download_url
            archive = Path(download(table["url"][self.name], str(self.folder.parent)))
        except Exception as error:  # the network
            raise UserError(
                f"graph 'ogb:{self.name}' cannot be downloaded ({line(error)}); "
                f"put the unpacked download at {self.folder}"
            ) from error
        try:
            unpack(archive, self.folder)
        finally:
            archive.unlink(missing_ok=True)


def root() -> Path:
    """Where named datasets are kept."""
    folder = os.environ.get("SANCUS_DATA")
    return Path(folder).expanduser() if folder else home() / "data"


def _ours(options: dict[str, str]) -> dict[str, Any]:
    """The options that PyG's constructor does not get, converted from text."""
    types: dict[str, Any] = {
        "split": int,
        "seed": int,
        "features": str,
        "train": float,
        "val": float,
        "test": float,
    }
    try:
        return {key: types[key](value) for key, value in options.items() if key in OURS}
    except ValueError as error:
        raise UserError(
            f"graph 'pyg': {error}; split and seed are whole numbers, train, val, test shares"
        ) from error


def _need(module: str, source: str, extra: str, otherwise: str = "") -> None:
    if importlib.util.find_spec(module) is None:
        raise UserError(f"graph {source!r} needs {module}: pip install 'sancus[{extra}]'{otherwise}")
