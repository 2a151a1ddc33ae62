"""The one cache of shards, for the command line and for Python: load, partition, cut; found again by content.

A directory that has its name is complete, so it is found without a lock. Where it has to be built, every
process of a host may want to: a lock lets the first one build while the others wait, and they then find the
result. What is damaged in the cache is built again; a directory of the user's own is refused. A graph that
cannot be used is refused here, before any group starts.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import xxhash

from sancus.config.settings import LaunchSettings
from sancus.console.speaker import SILENT, Speaker
from sancus.datasets.home import home
from sancus.datasets.open import fingerprint, open_graph
from sancus.errors import UserError
from sancus.graphs import shards
from sancus.graphs.graph import Graph
from sancus.graphs.row_order import RowOrder
from sancus.graphs.shards import Shard, UnusableShardsError
from sancus.partitioners import PARTITIONERS
from sancus.partitioners.base import Partitioner
from sancus.plugins import build
from sancus.shards.identity import fingerprint_of
from sancus.shards.lock import locked, unwritable
from sancus.shards.partition import build_shards

T = TypeVar("T")


def print_warning(line: str) -> None:
    """Tell the user of trouble that is mended; on stdout, which is seen of every rank."""
    print(f"sancus: {line}", flush=True)


@dataclass(frozen=True)
class Telling:
    """Whom the cache tells what it does, and how long it waits for a builder that does nothing.

    `warn` is heard on every rank, since any of them may be the one that finds damage; `say` on rank 0.
    """

    say: Speaker = SILENT
    warn: Callable[[str], None] = print_warning
    timeout: float = LaunchSettings.timeout


USUAL = Telling()


@dataclass(frozen=True)
class Recipe:
    """How the shards of one directory of the cache are made, and made again."""

    target: Path
    load: Callable[[], Graph]
    partitioner: Partitioner
    spec: str
    parts: int
    row_order: RowOrder
    telling: Telling
    chunks: int = 1

    def find(self, check: Callable[[], T]) -> T:
        """What `check` finds in the directory; where that cannot be used, it is built first."""
        with contextlib.suppress(UnusableShardsError):
            return check()
        with locked(self.target, self.telling.timeout, self.telling.say) as alone:
            try:
                return check()  # another process was faster
            except UnusableShardsError as damage:
                self._make_room(damage, alone=alone)
            build_shards(
                *(self.load(), self.partitioner, self.spec, self.parts, self.target, self.telling.say),
                row_order=self.row_order,
                publish=_publish,
                chunks=self.chunks,
            )
            return check()

    def _make_room(self, damage: UnusableShardsError, *, alone: bool) -> None:
        """Take damaged shards away before new ones are built: if that is ended, the next run begins anew.

        Without a lock nobody is `alone`, and what looks left behind may be the work of another process.
        """
        folder, hidden = self.target.parent, f".{self.target.name}-"
        try:
            if self.target.exists():
                self.telling.warn(f"{damage.fact}: the shards in the cache are built again")
                _remove(self.target, Path(tempfile.mkdtemp(dir=folder, prefix=hidden)))
            for leftover in folder.glob(f"{hidden}*") if alone else ():
                shutil.rmtree(leftover, ignore_errors=True)
        except FileNotFoundError:  # another process has taken them away
            pass
        except OSError as error:
            raise unwritable(error) from error


@dataclass(frozen=True)
class Shards:
    """The shards of a graph on this host."""

    directory: Path
    manifest: dict[str, Any]
    recipe: Recipe | None = None  # None: they are the user's own, which we do not make again

    def tell(self, say: Speaker) -> None:
        """Say what was done with the data that its user may not expect."""
        for line in self.manifest["graph"].get("notes", ()):
            say(f"note: {line}")

    def open(self, part: int) -> Shard:
        """One part, found to be whole; where it is damaged in the cache, the shards are built again."""

        def check() -> Shard:
            return shards.open_shard(self.directory, part)

        return check() if self.recipe is None else self.recipe.find(check)


def prepare(
    data: str,
    partitioner: str,
    parts: int,
    row_order: RowOrder = "auto",
    telling: Telling = USUAL,
    chunks: int = 1,
) -> Shards:
    """The shards of a source in `parts` parts; built if they are not in the cache.

    Where `data` is a shard directory already, they are those. The rows of a part are sorted by `chunks`.
    """
    if is_shards(data):
        return _use_shards(Path(data), parts, chunks)

    def load() -> Graph:
        telling.say.step(f"loading {data}")
        return open_graph(data)

    return _cached(fingerprint(data), load, partitioner, parts, row_order, telling, chunks)


def prepare_graph(
    graph: Graph,
    partitioner: str,
    parts: int,
    row_order: RowOrder = "auto",
    telling: Telling = USUAL,
    chunks: int = 1,
) -> Shards:
    """The shards of a graph in memory; built if they are not in the cache."""
    return _cached(fingerprint_of(graph), lambda: graph, partitioner, parts, row_order, telling, chunks)


def _cached(
    identity: str,
    load: Callable[[], Graph],
    spec: str,
    parts: int,
    row_order: RowOrder,
    telling: Telling,
    chunks: int,
) -> Shards:
    """The shards of a graph, which is only loaded where they are not there yet."""
    partitioner: Partitioner = build("partitioner", PARTITIONERS, spec)
    cut = [parts, row_order, *([chunks] if chunks > 1 else [])]
    key = json.dumps([shards.FORMAT, identity, spec, _source_of(partitioner), *cut])
    target = home() / "shards" / xxhash.xxh3_128_hexdigest(key.encode())
    recipe = Recipe(target, load, partitioner, spec, parts, row_order, telling, chunks)
    return Shards(target, recipe.find(lambda: shards.read_manifest(target)), recipe)


def _publish(partial: Path, target: Path) -> None:
    """Give new shards their name; where another process was faster, for want of a lock, its shards serve."""
    try:
        os.rename(partial, target)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise


def _remove(directory: Path, empty: Path) -> None:
    """Remove a directory by way of an empty one: never is a part of it seen under its name."""
    try:
        os.rename(directory, empty)
    finally:
        shutil.rmtree(empty, ignore_errors=True)


def is_shards(data: str) -> bool:
    """Whether what the user typed is a directory that `sancus partition` wrote."""
    return bool(data) and (Path(data).expanduser() / shards.MANIFEST).is_file()


def parts_of(data: str) -> int | None:
    """How many parts a shard directory has; None where `data` is none."""
    if not is_shards(data):
        return None
    return len(shards.read_manifest(Path(data).expanduser())["offsets"]) - 1


def _use_shards(directory: Path, parts: int, chunks: int) -> Shards:
    directory = directory.expanduser()
    manifest = shards.read_manifest(directory)
    held = len(manifest["offsets"]) - 1
    if held != parts:
        raise UserError(
            f"{directory} holds {held} parts for {parts} ranks; use --ranks {held}, or partition it again"
        )
    sorted_by = len(manifest.get("chunk_sizes", [[0]])[0])
    if sorted_by != chunks and chunks > 1:
        raise UserError(
            f"{directory} is sorted by {sorted_by} chunks, not {chunks}; use --chunks {sorted_by}, "
            f"or partition it again with --chunks {chunks}"
        )
    return Shards(directory, manifest)


def _source_of(partitioner: Partitioner) -> str:
    """What a partitioner of the user's own does: its module's text, which may change between runs.

    The module keeps the text that it had when it was first used here: an edit that Python has not loaded
    must not name what the old text does.
    """
    module = sys.modules[type(partitioner).__module__]
    if module.__name__.startswith("sancus.partitioners."):
        return ""
    return str(vars(module).setdefault("__sancus_text__", Path(str(module.__file__)).read_text()))
