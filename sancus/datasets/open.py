"""From what a user types to a graph: `synthetic:reddit@0.05`, `graphs/mine.npz`, `cora`.

A *source* is one of

- `name` or `name:text` with a reader's name, e.g. `synthetic` or `synthetic:nodes=5000`,
- a path to a file whose suffix is a reader's name, e.g. `graphs/mine.npz`,
- a bare name, which means `$SANCUS_DATA/<name>.npz` where that variable is set,
- `package.module:Class` or `package.module:Class:text`, a reader of the user's own.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol, cast

from sancus import plugins
from sancus.datasets import READERS
from sancus.datasets.shapes import SHAPES
from sancus.errors import UserError
from sancus.graphs.graph import Graph

DATA_VARIABLE = "SANCUS_DATA"


class Reader(Protocol):
    """One source, checked when made without loading it."""

    def load(self) -> Graph:
        """Read or generate the whole graph."""

    def fingerprint(self) -> str:
        """A short, file-name-safe text that changes whenever the graph does: the key of caches."""


def open_graph(source: str) -> Graph:
    """The graph of a source; a mistake in the source or in its content is a `UserError`."""
    return _reader(source).load()


def check_source(source: str) -> None:
    """Raise the `UserError` that `open_graph` would raise early on; reads and generates nothing."""
    _reader(source)


def fingerprint(source: str) -> str:
    """The identity of the content of a source, e.g. `npz-3f0c…`: equal means the same graph."""
    return _reader(source).fingerprint()


def _reader(source: str) -> Reader:
    name, colon, rest = source.partition(":")
    if name in READERS:
        return _build(name, READERS[name], rest)
    path = Path(source).expanduser()
    suffix = path.suffix[1:]
    if suffix in READERS:
        return _build(suffix, READERS[suffix], str(path))
    if colon and "." in name and not path.exists():
        attribute, _, text = rest.partition(":")
        return _build(source, f"{name}:{attribute}", text)
    if _is_bare(source):
        stored = _stored(source)
        if stored is not None:
            return _build("npz", READERS["npz"], str(stored))
    raise UserError(_unknown(source, path))


def _build(name: str, target: str, text: str) -> Reader:
    made = plugins.load("graph", plugins.Spec(name, target, {}))
    try:
        return cast(Reader, made(text))
    except ValueError as error:
        raise UserError(f"graph {name!r}: {error}") from error


def _is_bare(source: str) -> bool:
    return bool(source) and not Path(source).suffix and Path(source).name == source


def _data_folder() -> Path | None:
    folder = os.environ.get(DATA_VARIABLE)
    return Path(folder).expanduser() if folder else None


def _stored(name: str) -> Path | None:
    folder = _data_folder()
    path = folder / f"{name}.npz" if folder else None
    return path if path is not None and path.is_file() else None


def _unknown(source: str, path: Path) -> str:
    """Why a source means nothing, in one line with the nearest names."""
    if source and path.is_dir():
        return f"graph {source!r} is a folder; give a .npz file in it"
    if source and path.exists():
        return f"graph {source!r} has the suffix {path.suffix!r}; a graph file must be a .npz"
    if source and not _is_bare(source) and ":" not in source and "@" not in source:
        if path.suffix:
            return f"graph {source!r} does not exist; give a .npz file (not {path.suffix!r}), or synthetic"
        return f"graph {source!r} does not exist; give the path of a .npz file, or synthetic"
    shape = source.partition("@")[0].partition(":")[0]
    if shape in SHAPES:
        return f"graph {source!r} does not exist; did you mean synthetic:{source}?"
    folder = _data_folder()
    stored = [file.stem for file in folder.glob("*.npz")] if folder and folder.is_dir() else []
    names = plugins.choices(["synthetic", *stored], source.partition(":")[0])
    where = f"a name in ${DATA_VARIABLE} ({folder})" if folder else f"a name in ${DATA_VARIABLE} (not set)"
    return f"graph {source!r} does not exist; give synthetic, the path of a .npz file or {where}: {names}"
