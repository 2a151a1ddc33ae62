"""From what a user types to a graph: `synthetic:reddit@0.05`, `graphs/mine.npz`, `ogbn_arxiv/`, `cora`.

A *source* is one of

- `name` or `name:text` with a reader's name, e.g. `synthetic:nodes=5000` or `pyg:Reddit`,
- a path to a file or folder, perhaps with options (`edges.csv,labels=y.csv`), whose format is found out,
- a path to a `.zip` or `.tar.gz` of one of these, as downloaded,
- a bare name: `$SANCUS_DATA/<name>.npz` or the folder `$SANCUS_DATA/<name>`, where that variable is set,
- `package.module:Class` or `package.module:Class:text`, a reader of the user's own.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol, cast

import xxhash

from sancus import plugins
from sancus.datasets import READERS
from sancus.datasets.files import split_options
from sancus.datasets.home import home
from sancus.datasets.shapes import SHAPES
from sancus.datasets.unpack import is_archive, unpack
from sancus.errors import UserError
from sancus.graphs.graph import Graph

DATA_VARIABLE = "SANCUS_DATA"
BLOCK = 1 << 20  # bytes that are hashed at a time


class Reader(Protocol):
    """Reads one source; the constructor checks the source, and loads nothing yet."""

    def load(self) -> Graph:
        """Read or generate the whole graph."""

    def fingerprint(self) -> str:
        """A short, file-name-safe text that changes whenever the graph does: the key of caches."""


def open_graph(source: str) -> Graph:
    """The graph of a source; a mistake in the source or in its content is a `UserError`."""
    return find_reader(source)[1].load()


def check_source(source: str) -> None:
    """Raise the `UserError` that `open_graph` would raise early on; reads and generates nothing."""
    find_reader(source)


def fingerprint(source: str) -> str:
    """The identity of the content of a source, e.g. `npz-3f0c…`: equal means the same graph."""
    return find_reader(source)[1].fingerprint()


def find_reader(source: str) -> tuple[str, Reader]:
    """The name of the format of a source, and its reader."""
    name, colon, rest = source.partition(":")
    if name in READERS and (colon or not Path(source).exists()):
        return name, _build(name, READERS[name], rest)
    text, _ = split_options(source)
    path = Path(text).expanduser()
    if text and path.exists():
        return _by_content(path, source[len(text) :])
    own = own_reader(source)
    if own is not None:
        return name, _build(source, own, rest.partition(":")[2])
    if _is_bare(text):
        location = _find_stored(text)
        if location is not None:
            return _by_content(location, source[len(text) :])
    raise UserError(_explain(source, path))


def own_reader(source: str) -> str | None:
    """The `module:Class` of a user's own reader that a source names; None where it names none."""
    name, colon, rest = source.partition(":")
    if not colon or "." not in name or name in READERS:
        return None
    is_path = Path(split_options(source)[0]).expanduser().exists()
    return None if is_path else f"{name}:{rest.partition(':')[0]}"


def _by_content(path: Path, options: str) -> tuple[str, Reader]:
    """The reader that recognises a file or folder; `options` begin with a comma.

    Pipes, sockets and devices are refused: to open a pipe may take for ever.
    """
    if not path.is_file() and not path.is_dir():
        raise UserError(f"graph {str(path)!r} is neither a file nor a folder; copy its content to a file")
    if is_archive(path):
        path = _unpack_once(path)
    for name, target in READERS.items():
        recognises = getattr(plugins.load("graph", plugins.Spec(name, target, {})), "recognises", None)
        if recognises is not None and recognises(path):
            return name, _build(name, target, f"{path}{options}")
    inside = [child for child in path.iterdir() if child.is_dir()] if path.is_dir() else []
    if len(inside) == 1 and path.is_dir() and not any(child.is_file() for child in path.iterdir()):
        return _by_content(inside[0], options)
    what = "folder" if path.is_dir() else f"file ({path.suffix or 'no suffix'})"
    formats = ", ".join(name for name in READERS if name != "synthetic")
    raise UserError(
        f"graph {str(path)!r}: no reader knows this {what}; name its format (FORMAT:{path}): {formats}"
    )


def _unpack_once(path: Path) -> Path:
    """The folder with an archive's content, cached under the hash of the archive."""
    digest = xxhash.xxh3_128()
    try:
        with path.open("rb") as file:
            while block := file.read(BLOCK):
                digest.update(block)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); check the file") from error
    target = home() / "unpacked" / digest.hexdigest() / path.name.split(".")[0]
    if not target.exists():
        unpack(path, target)
    return target


def _build(name: str, target: str, text: str) -> Reader:
    reader_class = plugins.load("graph", plugins.Spec(name, target, {}))
    try:
        return cast(Reader, reader_class(text))
    except ValueError as error:
        raise UserError(f"graph {name!r}: {error}") from error


def _is_bare(source: str) -> bool:
    return bool(source) and not Path(source).suffix and Path(source).name == source


def _data_folder() -> Path | None:
    folder = os.environ.get(DATA_VARIABLE)
    return Path(folder).expanduser() if folder else None


def _find_stored(name: str) -> Path | None:
    folder = _data_folder()
    paths = (folder / f"{name}.npz", folder / name) if folder else ()
    return next((path for path in paths if path.exists()), None)


def _explain(source: str, path: Path) -> str:
    """The error message for a source that does not exist, with the names nearest to it."""
    if source and not _is_bare(str(path)) and ":" not in source and "@" not in source:
        return f"graph {source!r} does not exist; give the path of a .npz file, of a folder, or synthetic"
    shape = source.partition("@")[0].partition(":")[0]
    if shape in SHAPES:
        return f"graph {source!r} does not exist; did you mean synthetic:{source}?"
    folder = _data_folder()
    stems = [file.stem for file in folder.glob("*.npz")] if folder and folder.is_dir() else []
    names = plugins.choices(["synthetic", *stems], source.partition(":")[0])
    where = f"a name in ${DATA_VARIABLE} ({folder})" if folder else f"a name in ${DATA_VARIABLE} (not set)"
    return f"graph {source!r} does not exist; give synthetic, the path of a .npz file or {where}: {names}"
