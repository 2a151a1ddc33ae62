"""The one cache of shards, for the command line and for Python: load, partition, cut; found again by content.

Every process of a host may ask for the same shards: a lock lets the first one build while the others wait,
and they then find the result. A graph that cannot be used is refused here, before any group starts.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import xxhash

from sancus.console.speaker import SILENT, Speaker
from sancus.datasets.home import home
from sancus.datasets.open import fingerprint, open_graph
from sancus.errors import UserError
from sancus.graphs import shards
from sancus.graphs.graph import Graph
from sancus.graphs.order import RowOrder
from sancus.partitioners import PARTITIONERS
from sancus.partitioners.base import Partitioner
from sancus.plugins import build
from sancus.shards.identity import fingerprint_of
from sancus.shards.partition import build_shards


def prepare(
    data: str,
    partitioner: str,
    parts: int,
    say: Speaker = SILENT,
    row_order: RowOrder = "auto",
) -> Path:
    """The shard directory of a source in `parts` parts; built if it is not in the cache.

    Where `data` is a shard directory already, it is that.
    """
    if is_shards(data):
        return _use_shards(Path(data), parts)

    def load() -> Graph:
        say.step(f"loading {data}")
        return open_graph(data)

    return _cached(fingerprint(data), load, partitioner, parts, say, row_order)


def prepare_graph(graph: Graph, partitioner: str, parts: int, row_order: RowOrder = "auto") -> Path:
    """The shard directory of a graph in memory; built if it is not in the cache."""
    return _cached(fingerprint_of(graph), lambda: graph, partitioner, parts, SILENT, row_order)


def _cached(
    identity: str, load: Callable[[], Graph], spec: str, parts: int, say: Speaker, row_order: RowOrder
) -> Path:
    """The directory with the shards of a graph, which is only loaded where they are not there yet."""
    partitioner: Partitioner = build("partitioner", PARTITIONERS, spec)
    key = json.dumps([shards.FORMAT, identity, spec, _source_of(partitioner), parts, row_order])
    target = home() / "shards" / xxhash.xxh3_128_hexdigest(key.encode())
    with locked(target):
        if not (target / shards.MANIFEST).exists():
            for leftover in (target, *target.parent.glob(f".{target.name}-*")):  # of a killed process
                shutil.rmtree(leftover, ignore_errors=True)
            build_shards(load(), partitioner, spec, parts, target, say, row_order=row_order)
    return target


@contextmanager
def locked(target: Path) -> Iterator[None]:
    """Hold the lock of `target`: one process of a host builds it, the others wait and find the result."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        lock = target.with_suffix(".lock").open("w")
    except OSError as error:
        raise UserError(
            f"cannot write to {home()}: {error.strerror}; set SANCUS_HOME to a directory you can write"
        ) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def is_shards(data: str) -> bool:
    """Whether what the user typed is a directory that `sancus partition` wrote."""
    return bool(data) and (Path(data).expanduser() / shards.MANIFEST).is_file()


def parts_of(data: str) -> int | None:
    """How many parts a shard directory has; None where `data` is none."""
    if not is_shards(data):
        return None
    return len(shards.read_manifest(Path(data).expanduser())["offsets"]) - 1


def _use_shards(directory: Path, parts: int) -> Path:
    directory = directory.expanduser()
    held = len(shards.read_manifest(directory)["offsets"]) - 1
    if held != parts:
        raise UserError(
            f"{directory} holds {held} parts for {parts} ranks; use --ranks {held}, or partition it again"
        )
    return directory


def _source_of(partitioner: Partitioner) -> str:
    """What a partitioner of the user's own does: its module's text, which may change between runs.

    The module keeps the text that it had when it was first used here: an edit that Python has not loaded
    must not name what the old text does.
    """
    module = sys.modules[type(partitioner).__module__]
    if module.__name__.startswith("sancus.partitioners."):
        return ""
    return str(vars(module).setdefault("__sancus_text__", Path(str(module.__file__)).read_text()))
