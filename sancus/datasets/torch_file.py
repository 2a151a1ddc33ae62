"""PyG's `.pt` files, loaded with `weights_only=True`: tensors and plain containers, no code.

Read are a dictionary with the fields of a `Data`, a saved `Data` object, and what PyG's datasets write as
`processed/data.pt`, `(dictionary, slices, class)`. PyG is not needed: its classes are replaced by empty ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, ClassVar

from sancus.datasets.archive import check_ratio, line
from sancus.datasets.assemble import RANDOM_SPLIT
from sancus.datasets.files import FileReader
from sancus.datasets.objects import graph_of
from sancus.errors import UserError
from sancus.graphs.graph import Graph

# What PyG's own files name, by version: each stands for an object with attributes and nothing else.
PYG_CLASSES = (
    "torch_geometric.data.data.Data",
    "torch_geometric.data.data.DataEdgeAttr",
    "torch_geometric.data.data.DataTensorAttr",
    "torch_geometric.data.storage.GlobalStorage",
)


class Plain:
    """Stands for a class of PyG: keeps its attributes."""

    def __setstate__(self, state: object) -> None:
        if isinstance(state, dict):
            self.__dict__.update(state)


class TorchFileReader(FileReader):
    """A PyG graph in a .pt file, loaded without running code; split=0, features=degree."""

    kind = "pt"
    what = "a .pt file"
    defaults: ClassVar[Mapping[str, Any]] = {**RANDOM_SPLIT, "split": 0, "features": "auto"}

    @staticmethod
    def recognises(path: Path) -> bool:
        """A file that ends in `.pt` or `.pth`."""
        return path.suffix in (".pt", ".pth") and path.is_file()

    def load(self) -> Graph:
        data = fields_of(load_tensors(self.path))
        if data is None:
            raise UserError(f"{self.path}: holds no graph; save a dictionary with x, edge_index, y and masks")
        return graph_of(data, str(self.path), self.options)


@contextmanager
def plain_pyg_classes() -> Iterator[None]:
    """Only our stand-ins count as safe while a file is read.

    An imported PyG has registered classes of its own under the same names; which of the two torch would take
    is left to the order of a set.
    """
    from torch.serialization import add_safe_globals, clear_safe_globals, get_safe_globals, safe_globals

    registered = get_safe_globals()
    clear_safe_globals()
    try:
        with safe_globals([(Plain, name) for name in PYG_CLASSES]):
            yield
    finally:
        add_safe_globals(registered)


def load_tensors(path: Path) -> Any:
    """What a `.pt` holds; a file that would run code is refused by torch before it does."""
    import zipfile

    import torch

    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                check_ratio(path, sum(info.file_size for info in archive.infolist()), path.stat().st_size)
        with plain_pyg_classes():
            return torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError as error:
        reason = line(error)
        class_name = reason.partition("GLOBAL ")[2].split(" ")[0] if "GLOBAL " in reason else ""
        complaint = (
            f"names {class_name}, which could run code"
            if class_name
            else "is damaged, or no file of torch.save"
        )
        raise UserError(f"{path}: {complaint}; save a dictionary of tensors") from error
    except UserError:
        raise
    except Exception as error:  # torch raises many kinds on damaged files
        raise UserError(f"{path}: is damaged ({line(error)[:120]}); save it again") from error


def fields_of(content: Any) -> dict[str, Any] | None:
    """The fields of a graph in whatever form the file has it."""
    if isinstance(content, tuple | list) and content and isinstance(content[0], dict | Plain):
        content = content[0]
    if isinstance(content, Plain):
        store = content.__dict__.get("_store", content)
        store = store.__dict__ if isinstance(store, Plain) else store
        content = store.get("_mapping", store) if isinstance(store, dict) else None
    if isinstance(content, dict) and "_store" in content:
        content = content["_store"]
    return content if isinstance(content, dict) and "edge_index" in content else None
