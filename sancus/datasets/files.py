"""The base class of all readers of files: a path with options, and a hash of all bytes that are read.

A source is `path` or `path,key=value,…`: `graphs/edges.csv,labels=y.csv,undirected=true`. A comma or an
equals sign inside the path is fine as long as no part between commas looks like an option.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import xxhash

from sancus.datasets.assemble import rest_of_split
from sancus.errors import UserError
from sancus.graphs.graph import Graph, Mask
from sancus.graphs.origin import Origin
from sancus.plugins import choices

Masks = tuple[Mask, Mask, Mask]

BLOCK = 1 << 20  # bytes that are hashed at a time
DEEPEST = "nested too deeply"


class FileReader:
    """A reader of one file or folder; subclasses name their options with their defaults."""

    kind: ClassVar[str] = ""  # the reader's name in `name:path`
    what: ClassVar[str] = "a file"  # what the path must be, for the error
    defaults: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, text: str) -> None:
        path, texts = split_options(text)
        self.path = Path(path).expanduser()
        if not path or not self.path.exists():
            raise UserError(f"graph {path!r} does not exist; give the path of {self.what}, or synthetic")
        given = self._convert_options(texts)
        self.options = dict(self.defaults) | given
        self.options |= rest_of_split(given, self.options)
        self.notes: list[str] = []  # what a user should know of what was read
        self.check()

    def check(self) -> None:
        """Refuse what can be refused without reading content."""
        self.files()

    def files(self) -> list[Path]:
        """Every file whose bytes make the graph; a missing one is a `UserError`."""
        if not self.path.is_file():
            raise UserError(f"{self.path}: is not a file; give the path of {self.what}")
        return [self.path]

    def load(self) -> Graph:
        """Read and check the whole graph."""
        raise NotImplementedError

    def graph(self, adjacency: Any, features: Any, labels: Any, masks: Masks, classes: int) -> Graph:
        """The graph; what is wrong with it is said with the name of the file."""
        try:
            origin = Origin(notes=tuple(self.notes))
            facts: dict[str, Any] = {"classes": classes, "name": self.title, "origin": origin}
            return Graph(adjacency, features, labels, *masks, **facts)
        except UserError as error:
            raise UserError(f"{self.path}: {str(error).removeprefix(f'{self.title}: ')}") from error

    @property
    def title(self) -> str:
        """The graph's name: that of its file or folder."""
        return self.path.name.split(".")[0] or self.path.name

    def fingerprint(self) -> str:
        """Hash of the bytes of all files, and of the options."""
        digest = xxhash.xxh3_128(json.dumps(self.options, sort_keys=True).encode())
        for path in self.files():
            digest.update(path.name.encode())
            _hash_file(path, digest)
        return f"{self.kind}-{digest.hexdigest()}"

    def sibling(self, name: str) -> Path:
        """A file that an option names: relative to the working directory, else to the graph's folder."""
        here = Path(name).expanduser()
        beside = (self.path if self.path.is_dir() else self.path.parent) / name
        for path in (here, beside):
            if path.is_file():
                return path
        raise UserError(f"{self.path}: file {name!r} does not exist, neither here nor beside the graph")

    def _convert_options(self, texts: Mapping[str, str]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key, text in texts.items():
            if key not in self.defaults:
                names = choices(self.defaults, key) if self.defaults else "none"
                raise UserError(f"graph {self.kind!r} has no option {key!r}; its options: {names}")
            values[key] = _convert(self.kind, key, text, self.defaults[key])
        return values


def split_options(text: str) -> tuple[str, dict[str, str]]:
    """`path,key=value,key=value` to the path and its options."""
    pieces = text.split(",")
    options: dict[str, str] = {}
    while len(pieces) > 1 and (match := re.fullmatch(r"\s*([a-z_]+)=(.*)", pieces[-1])):
        options[match[1]] = match[2].strip()
        pieces.pop()
    return ",".join(pieces), options


def read_json(path: Path) -> Any:
    """A JSON file, whatever its content."""
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); check the file") from error
    except RecursionError as error:
        raise UserError(f"{path}: is {DEEPEST}; write it again") from error
    except ValueError as error:
        raise UserError(f"{path}: is not JSON ({' '.join(str(error).split())}); write it again") from error


def need(folder: Path, names: Sequence[str], kind: str) -> list[Path]:
    """Files that must be in a folder; the first that is not there is named."""
    for name in names:
        if not (folder / name).is_file():
            raise UserError(f"{folder}: {name} is missing; a {kind} folder holds {', '.join(names)}")
    return [folder / name for name in names]


def _hash_file(path: Path, digest: Any) -> None:
    try:
        with path.open("rb") as file:
            while block := file.read(BLOCK):
                digest.update(block)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); check the file") from error


def _convert(kind: str, key: str, text: str, default: Any) -> Any:
    """An option's text as the type of its default."""
    if isinstance(default, bool):
        if text.lower() not in ("true", "false"):
            raise UserError(f"graph {kind!r}: {key}={text!r} must be true or false")
        return text.lower() == "true"
    for type_, word in ((int, "a whole number"), (float, "a number")):
        if isinstance(default, type_):
            try:
                return type_(text)
            except ValueError:
                raise UserError(f"graph {kind!r}: {key}={text!r} is not {word}") from None
    return text
