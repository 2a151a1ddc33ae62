"""From what the user typed to shards on disk: check, load, partition, cut; cached by content.

Every process of a host may call `prepare`: a lock lets the first one build while the others wait, and
they then find the result. A graph that cannot be used is refused here, before any group starts.
"""

from __future__ import annotations

import fcntl
import inspect
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import xxhash

from partitioners import PARTITIONERS
from partitioners.base import Assignment, Partitioner, check_assignment
from sancus import runfiles
from sancus.config import Config
from sancus.datasets.open import check_source, fingerprint, open_graph
from sancus.errors import UserError
from sancus.graphs import shards
from sancus.graphs.graph import Graph
from sancus.models import MODELS
from sancus.plugins import build, parse, settings_of

# Constructor arguments that a plug-in gets from us, not from the user's spec.
OURS = {"plan": frozenset({"operator", "bench"}), "model": frozenset({"features", "classes", "settings"})}
# Plug-ins that need nothing to be made, and no torch: their settings are checked by making one.
PURE = ("partitioner", "policy")


def check(data: str, config: Config, *, launched: bool) -> None:
    """Refuse what can be refused before anything is loaded or started.

    `launched` says that a launcher started this process: another rank may be writing to `--out` by now, so
    rank 0 checks it later, when it opens it.
    """
    check_source(data)
    for kind, table, spec in [*config.factors.specs(), ("model", MODELS, config.model)]:
        parsed = parse(kind, table, spec)
        if kind in PURE:
            build(kind, table, spec)
        elif parsed.settings or parsed.name not in table:
            settings_of(kind, parsed, OURS.get(kind, frozenset()))
    if not launched:
        runfiles.check_directory(config.output)
    if config.launch.device == "cuda":
        _check_cuda()


def home() -> Path:
    """Where Sancus keeps its cache: `SANCUS_HOME`, or the user's cache directory."""
    if "SANCUS_HOME" in os.environ:
        return Path(os.environ["SANCUS_HOME"])
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "sancus"


def prepare(data: str, partitioner: str, parts: int, say: Callable[[str], None] = lambda line: None) -> Path:
    """The shard directory of `data` in `parts` parts; built if it is not in the cache."""
    chosen: Partitioner = build("partitioner", PARTITIONERS, partitioner)
    identity = json.dumps([shards.FORMAT, fingerprint(data), partitioner, _source_of(chosen), parts])
    target = home() / "shards" / xxhash.xxh3_128_hexdigest(identity.encode())
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        lock = target.with_suffix(".lock").open("w")
    except OSError as error:
        raise UserError(
            f"cannot write to {home()}: {error.strerror}; set SANCUS_HOME to a directory you can write"
        ) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (target / "manifest.json").exists():
            for leftover in (target, *target.parent.glob(f".{target.name}-*")):  # of a killed process
                shutil.rmtree(leftover, ignore_errors=True)
            say(f"loading {data}")
            graph = open_graph(data)
            if parts > graph.nodes:
                raise UserError(
                    f"{parts} ranks for {graph.nodes} nodes: every rank needs at least one; use fewer ranks"
                )
            say(f"partitioning {graph.nodes:,} nodes, {graph.edges:,} entries into {parts} by {partitioner}")
            assignment = _assign(chosen, graph, parts, partitioner)
            shards.write_shards(graph, assignment, parts, partitioner, target)
    return target


def _source_of(partitioner: Partitioner) -> str:
    """What a partitioner of the user's own does: its module's text, which may change between runs."""
    module = sys.modules[type(partitioner).__module__]
    ours = module.__name__.split(".")[0] == "partitioners"
    return "" if ours else inspect.getsource(module)


def _assign(partitioner: Partitioner, graph: Graph, parts: int, spec: str) -> Assignment:
    """The part of each node; a partitioner of a user's may refuse the graph, or be wrong."""
    try:
        return check_assignment(partitioner.assign(graph.adjacency, parts), graph.nodes, parts)
    except ValueError as error:
        raise UserError(f"partitioner {spec!r}: {error}") from error


def _check_cuda() -> None:
    import torch

    if not torch.cuda.is_available():
        raise UserError("--device cuda, but torch finds no GPU here; use --device cpu")
