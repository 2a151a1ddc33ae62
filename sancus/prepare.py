"""From what the user typed to shards on disk: load, check, partition, cut; cached by content.

Every process of a host may call `prepare`: a lock lets the first one build while the others wait, and
they then find the result. A graph that cannot be used is refused here, before any group starts.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path

import xxhash

from partitioners import PARTITIONERS
from sancus.datasets.open import fingerprint, open_graph
from sancus.errors import UserError
from sancus.graphs import shards
from sancus.graphs.graph import Graph
from sancus.plugins import build


def home() -> Path:
    """Where Sancus keeps its cache: `SANCUS_HOME`, or the user's cache directory."""
    if "SANCUS_HOME" in os.environ:
        return Path(os.environ["SANCUS_HOME"])
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "sancus"


def prepare(
    data: str, partitioner: str, parts: int, say: Callable[[str], None] = lambda line: None
) -> Path:
    """The shard directory of `data` in `parts` parts; built if it is not in the cache."""
    identity = json.dumps([shards.FORMAT, fingerprint(data), partitioner, parts])
    target = home() / "shards" / xxhash.xxh3_128_hexdigest(identity.encode())
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        lock = target.with_suffix(".lock").open("w")
    except OSError as error:
        raise UserError(f"cannot write to {home()}: {error.strerror}; set SANCUS_HOME to a directory of yours") from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (target / "manifest.json").exists():
            say(f"loading {data}")
            graph = open_graph(data)
            say(f"partitioning {graph.nodes:,} nodes, {graph.edges:,} entries into {parts} by {partitioner}")
            _build(graph, partitioner, parts, target)
    return target


def _build(graph: Graph, partitioner: str, parts: int, target: Path) -> None:
    if parts > graph.nodes:
        raise UserError(f"{parts} ranks for {graph.nodes} nodes: every rank needs at least one; use fewer ranks")
    assignment = build("partitioner", PARTITIONERS, partitioner).assign(graph.adjacency, parts)
    shards.write_shards(graph, assignment, parts, partitioner, target)
