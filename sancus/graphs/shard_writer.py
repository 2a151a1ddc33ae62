"""Cut a graph into shards on disk, streaming: beside the adjacency only pieces of it are in memory.

Features are read once, in the user's order, and every row is put at its place in the file of its owner, so
that a mapped feature matrix may be larger than memory. Everything is written to a folder beside the target,
which takes its name at the end.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from sancus.errors import UserError
from sancus.graphs.blocks import Blocks
from sancus.graphs.bounded import Ids, row_pieces, take_columns
from sancus.graphs.graph import Graph
from sancus.graphs.normalise import row_sums
from sancus.graphs.row_order import RowOrder, block_order, by_chunk, chunks_of
from sancus.graphs.shard_files import ShardFolder
from sancus.graphs.shards import FORMAT, MANIFEST, checksum_of_facts, describe, manifest_text
from sancus.partitioners.base import Assignment
from sancus.partitioners.pieces import csr_pieces
from sancus.partitioners.quality import COVER_LIMIT, quality

OPEN_FILES = 64  # ranks whose features are written in one pass
TRANSPOSE_ENTRIES = 1 << 26  # entries of the transposed adjacency that are held at a time
VALUE_BYTES = 4  # fp32 on the wire


def write_shards(
    graph: Graph,
    assignment: Assignment,
    parts: int,
    partitioner: str,
    target: Path,
    cover_limit: int = COVER_LIMIT,
    row_order: RowOrder = "auto",
    step: Callable[[str], None] = lambda line: None,
    publish: Callable[[Path, Path], None] = os.replace,
    chunks: int = 1,
) -> None:
    """Cut a graph into one shard a part and write them as the directory `target`.

    The directory appears when it is complete; a failure leaves nothing behind.

    `row_order` is how the rows of a block are ordered for the cache; it changes no result but rounding.
    `step` is called with a line on what is being done, `publish` gives the complete directory its name. With
    more than one of the `chunks` of a pipeline, the rows of every part are sorted by chunk.
    """
    step("ordering the rows of every part")
    order = block_order(graph.adjacency, assignment, parts, row_order)
    chunk_sizes = {}
    if chunks > 1:
        chunk = chunks_of(graph.adjacency, chunks)
        order = by_chunk(order, assignment, chunk)
        counts = np.bincount(assignment * chunks + chunk, minlength=parts * chunks)
        chunk_sizes = {"chunk_sizes": counts.reshape(parts, chunks).tolist()}
    blocks = Blocks.from_assignment(assignment, parts, order)
    partial = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}-"))
        folders = [ShardFolder(partial, rank) for rank in range(parts)]
        _write_edges(graph, blocks, folders, step)
        step(f"writing {graph.feature_count:,} features of {graph.nodes:,} nodes")
        _write_features(graph, blocks, folders)
        for rank, folder in enumerate(folders):
            own = blocks.own(rank)
            folder.save("nodes", own)
            folder.save("labels", graph.labels[own])
            for split in ("train", "val", "test"):
                folder.save(f"{split}_mask", getattr(graph, f"{split}_mask")[own])
        if graph.origin.ids is not None:
            folders[0].save("ids", graph.origin.ids)  # of all nodes [N], in the user's order: rank 0 writes
        step("counting what every plan sends (minimum vertex cover)")
        costs = quality(graph.adjacency, assignment, parts, cover_limit).to_dict()
        manifest = {
            "format": FORMAT,
            "graph": describe(graph),
            "partitioner": partitioner,
            "row_order": row_order,
            "offsets": blocks.offsets.tolist(),
            **chunk_sizes,
            "partition": {"partitioner": partitioner}
            | costs
            | {"bytes_per_column": _bytes_per_column(costs["payload_rows"])}
            | _split_counts(graph, assignment, parts),
            "checksums": {name: value for folder in folders for name, value in folder.checksums.items()},
        }
        manifest["checksum"] = checksum_of_facts(manifest)
        (partial / MANIFEST).write_text(manifest_text(manifest))
        publish(partial, target)
    except OSError as error:
        raise UserError(
            f"cannot write shards to {target}: {error.strerror}; free space or choose another directory"
        ) from error
    finally:
        if partial is not None:
            shutil.rmtree(partial, ignore_errors=True)


def _bytes_per_column(payload_rows: dict[str, int]) -> dict[str, int]:
    """What every column of a layer costs an epoch under each plan: its rows there and back in fp32."""
    return {plan: 2 * VALUE_BYTES * rows for plan, rows in payload_rows.items()}


def _split_counts(graph: Graph, assignment: Assignment, parts: int) -> dict[str, list[int]]:
    """Training, validation and test nodes a part."""
    masks = {split: getattr(graph, f"{split}_mask") for split in ("train", "val", "test")}
    return {split: np.bincount(assignment[mask], minlength=parts).tolist() for split, mask in masks.items()}


def _write_edges(
    graph: Graph, blocks: Blocks, folders: list[ShardFolder], step: Callable[[str], None]
) -> None:
    """Write every rank's rows of `A` (`incoming`), of a directed graph also of `Aᵀ`, and its row sums."""
    adjacency = graph.adjacency
    row_of = np.empty_like(blocks.order)
    row_of[blocks.order] = np.arange(len(blocks.order))
    sums = row_sums(adjacency)
    out_degrees = _count_columns(adjacency) if graph.directed else None
    for rank, folder in enumerate(folders):
        step(f"writing edges of shard {rank + 1} of {len(folders)}")
        own = blocks.own(rank)
        neighbourhood = folder.save_rows("incoming", adjacency, own, row_of)
        if out_degrees is not None:
            neighbourhood |= _save_transpose(folder, adjacency, own, row_of, out_degrees)
        neighbourhood[blocks.offsets[rank] : blocks.offsets[rank + 1]] = True
        rows = np.flatnonzero(neighbourhood)
        folder.save("known", rows)
        folder.save("sums_plain", sums.plain[blocks.order[rows]])
        folder.save("sums_looped", sums.looped[blocks.order[rows]])


def _count_columns(adjacency: sp.csr_array) -> Ids:
    counts = np.zeros(adjacency.shape[1], np.int64)
    for rows in csr_pieces(adjacency.indptr):
        entries = slice(int(adjacency.indptr[rows.start]), int(adjacency.indptr[rows.stop]))
        counts += np.bincount(adjacency.indices[entries], minlength=adjacency.shape[1])
    return counts


def _save_transpose(
    folder: ShardFolder, adjacency: sp.csr_array, own: Ids, row_of: Ids, out_degrees: Ids
) -> Any:
    """The file `outgoing`: own rows of `Aᵀ`, so many at a time that a bounded number of entries is held."""
    pointer = np.concatenate([[0], np.cumsum(out_degrees[own])])
    length = int(pointer[-1])
    has_entry = np.zeros(len(row_of), bool)
    index = adjacency.indices.dtype
    with (
        folder.open("outgoing_data", adjacency.data.dtype, (length,)) as data,
        folder.open("outgoing_indices", index, (length,)) as indices,
    ):
        for rows in csr_pieces(pointer, TRANSPOSE_ENTRIES):
            transpose = take_columns(adjacency, own[rows])
            transpose = sp.csr_array(
                (transpose.data, row_of[transpose.indices], transpose.indptr), shape=transpose.shape
            )
            transpose.sort_indices()
            data.append(transpose.data)
            indices.append(transpose.indices)
            has_entry[transpose.indices] = True
    folder.close("outgoing_data", data)
    folder.close("outgoing_indices", indices)
    folder.save("outgoing_indptr", pointer.astype(index))
    return has_entry


def _write_features(graph: Graph, blocks: Blocks, folders: list[ShardFolder]) -> None:
    if not isinstance(graph.features, np.ndarray):
        for rank, folder in enumerate(folders):
            folder.save_rows("features", graph.features, blocks.own(rank), None)
        return
    part, place = np.empty((2, graph.nodes), np.int64)  # of every node: who owns it, and its row there
    for rank in range(len(folders)):
        own = blocks.own(rank)
        part[own], place[own] = rank, np.arange(len(own))
    for first in range(0, len(folders), OPEN_FILES):
        group = folders[first : first + OPEN_FILES]
        with contextlib.ExitStack() as stack:
            files = [
                stack.enter_context(
                    folder.open("features", np.float32, (len(blocks.own(first + index)), graph.feature_count))
                )
                for index, folder in enumerate(group)
            ]
            for rows in row_pieces(graph.features):
                piece, owner, row = graph.features[rows], part[rows], place[rows]
                for index, file in enumerate(files):
                    mine = owner == first + index
                    file.place(row[mine], piece[mine])
        for folder, file in zip(group, files, strict=True):
            folder.close("features", file)
