"""From a graph to parts: `sancus partition`, and the comparison of partitioners."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sancus.console.speaker import Speaker
from sancus.datasets.open import open_graph
from sancus.errors import UserError
from sancus.graphs import shards
from sancus.graphs.graph import Graph
from sancus.graphs.row_order import RowOrder
from sancus.graphs.shard_writer import write_shards
from sancus.partitioners import PARTITIONERS
from sancus.partitioners.base import Assignment, Partitioner, assign, splits_of
from sancus.partitioners.quality import COVER_LIMIT, Quality, quality
from sancus.plugins import build

FULL_COVER_LIMIT = 20_000_000  # cut entries up to which `sancus partition` counts the rows of `prepost`
HEAD = [
    "partitioner",
    "seconds",
    "cut %",
    "halo rows",
    "prepost rows",
    "rows max/mean",
    "nonzeros max/mean",
    "train max/mean",
    "val max/mean",
    "test max/mean",
]


def partition(
    data: str,
    partitioner: str,
    parts: int,
    out: Path,
    say: Speaker,
    *,
    overwrite: bool,
    row_order: RowOrder = "auto",
    chunks: int = 1,
    load: Callable[[], Graph] | None = None,
) -> dict[str, Any]:
    """Write the shards of a graph to a directory; what its manifest says of the partition.

    `load` gives a graph that a program has; `data` is only its name then.
    """
    rule: Partitioner = build("partitioner", PARTITIONERS, partitioner)
    _check_target(out, overwrite=overwrite)
    say.step(f"loading {data}")
    graph = open_graph(data) if load is None else load()
    target = out.with_name(f".{out.name}-new-{os.getpid()}") if out.exists() else out
    try:
        cut = (graph, rule, partitioner, parts, target, say, FULL_COVER_LIMIT, row_order)
        build_shards(*cut, chunks=chunks)
        if target != out:
            shutil.rmtree(out)
            os.replace(target, out)
    except OSError as error:
        raise UserError(
            f"cannot write shards to {out}: {error.strerror}; choose another directory"
        ) from error
    finally:
        if target != out:
            shutil.rmtree(target, ignore_errors=True)
    facts: dict[str, Any] = shards.read_manifest(out)["partition"]
    return facts


def build_shards(
    graph: Graph,
    partitioner: Partitioner,
    spec: str,
    parts: int,
    target: Path,
    say: Speaker,
    cover_limit: int = COVER_LIMIT,
    row_order: RowOrder = "auto",
    publish: Callable[[Path, Path], None] = os.replace,
    chunks: int = 1,
) -> None:
    """Partition a graph and write its shards, which `publish` gives their name."""
    if parts > graph.nodes:
        raise UserError(
            f"{parts} ranks for {graph.nodes} nodes: every rank needs at least one; use fewer ranks"
        )
    say.step(f"partitioning {graph.nodes:,} nodes, {graph.edges:,} entries into {parts} by {spec}")
    assignment = assign_nodes(partitioner, graph, parts, spec)
    say.step("writing shards")
    inner = partial(say.step, passing=True)
    write_shards(graph, assignment, parts, spec, target, cover_limit, row_order, inner, publish, chunks)


def assign_nodes(partitioner: Partitioner, graph: Graph, parts: int, spec: str) -> Assignment:
    """The part of each node; a partitioner of a user's may refuse the graph, or be wrong."""
    splits = splits_of(graph.train_mask, graph.val_mask, graph.test_mask)
    try:
        return assign(partitioner, graph.adjacency, parts, splits)
    except ValueError as error:
        raise UserError(f"partitioner {spec!r}: {error}") from error


def compare(
    data: str, specs: Sequence[str], parts: int, say: Speaker, load: Callable[[], Graph] | None = None
) -> list[list[str]]:
    """A table of what each partitioner costs and gives; the first row is its head."""
    rules: list[Partitioner] = [build("partitioner", PARTITIONERS, spec) for spec in specs]
    say.step(f"loading {data}")
    graph = open_graph(data) if load is None else load()
    if parts > graph.nodes:
        raise UserError(f"{parts} parts for {graph.nodes} nodes: every part needs at least one; use fewer")
    table = [HEAD]
    for spec, partitioner in zip(specs, rules, strict=True):
        say.step(f"partitioning by {spec}")
        started = time.perf_counter()
        assignment = assign_nodes(partitioner, graph, parts, spec)
        seconds = time.perf_counter() - started
        measured = quality(graph.adjacency, assignment, parts, FULL_COVER_LIMIT)
        table.append([spec, f"{seconds:.1f}", *summary(graph, assignment, measured)])
    return table


def summary(graph: Graph, assignment: Assignment, measured: Quality) -> list[str]:
    """The cells of a partitioner after its name and seconds."""
    cover = measured.payload_rows.get("prepost")
    cells = [
        f"{100 * measured.edge_cut_share:.1f}",
        f"{measured.payload_rows['halo']:,}",
        "-" if cover is None else f"{cover:,}",
        f"{measured.rows_imbalance:.2f}",
        f"{measured.nonzeros_imbalance:.2f}",
    ]
    for mask in (graph.train_mask, graph.val_mask, graph.test_mask):
        counts = np.bincount(assignment[mask], minlength=measured.parts)
        cells.append(f"{counts.max() / counts.mean():.2f}")
    return cells


def _check_target(out: Path, *, overwrite: bool) -> None:
    """Refuse to replace anything but shards, and those only when asked to."""
    if not out.exists():
        return
    holds_shards = (out / shards.MANIFEST).is_file()
    if not out.is_dir() or (not holds_shards and any(out.iterdir())):
        raise UserError(f"--out {out} exists and holds no shards; choose another directory")
    if holds_shards and not overwrite:
        raise UserError(f"--out {out} holds shards already; choose another directory, or add --overwrite")
