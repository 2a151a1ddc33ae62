"""Shards on disk: what each rank needs of a partitioned graph, and nothing else.

A shard directory holds `manifest.json` (facts of the whole graph, block offsets, the partition's
quality, a checksum of every file and of itself) and `rank-<i>/<array>.npy`. Arrays are memory-mapped when
opened. The adjacency is stored raw, with the row sums of own and neighbouring nodes, so one shard serves
every normalisation. The manifest is written last and the directory renamed into place, so that a directory
that exists is whole.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import xxhash

from partitioners.quality import quality
from sancus.errors import UserError
from sancus.graphs.blocks import Blocks
from sancus.graphs.graph import Graph
from sancus.graphs.normalise import Normalisation, RowSums, normalise, normalise_transposed, row_sums
from sancus.graphs.operator import Operator

FORMAT = 2
Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Shard:
    """One rank's part of a graph, opened from disk."""

    rank: int
    manifest: dict[str, Any]
    arrays: dict[str, npt.NDArray[Any]]

    @property
    def offsets(self) -> Ids:
        """Block offsets of all ranks, `[p + 1]`."""
        return np.asarray(self.manifest["offsets"], np.int64)

    @property
    def nodes(self) -> Ids:
        """The user's id of every own row, `[n_i]`."""
        return self.arrays["nodes"]

    @property
    def labels(self) -> npt.NDArray[Any]:
        """`[n_i]` classes (−1: none) or `[n_i, C]` booleans."""
        return self.arrays["labels"]

    def mask(self, split: str) -> npt.NDArray[np.bool_]:
        """Own rows of a split (`train`, `val`, `test`), `[n_i]`."""
        return self.arrays[f"{split}_mask"]

    @cached_property
    def features(self) -> npt.NDArray[np.float32] | sp.csr_array:
        """Own rows of the features, `[n_i, F]`; sparse where the user's were."""
        if "features" in self.arrays:
            return self.arrays["features"]
        shape = (len(self.nodes), self.manifest["graph"]["features"])
        return self._csr("features", shape)

    def operator(self, kind: Normalisation) -> Operator:
        """This rank's rows of `Â` and `Âᵀ` under a normalisation."""
        shape = (len(self.nodes), int(self.offsets[-1]))
        incoming = self._csr("incoming", shape)
        outgoing = self._csr("outgoing", shape) if self.manifest["graph"]["directed"] else incoming
        start = int(self.offsets[self.rank])
        rows = normalise(kind, incoming, start, self._sums)
        return Operator(
            self.rank, self.offsets, rows, normalise_transposed(kind, outgoing, start, self._sums)
        )

    def _sums(self, ids: Ids) -> RowSums:
        position = np.searchsorted(self.arrays["known"], ids)
        return RowSums(self.arrays["sums_plain"][position], self.arrays["sums_looped"][position])

    def _csr(self, name: str, shape: tuple[int, int]) -> sp.csr_array:
        parts = (self.arrays[f"{name}_{field}"] for field in ("data", "indices", "indptr"))
        return sp.csr_array(tuple(parts), shape=shape)


def write_shards(graph: Graph, assignment: Ids, parts: int, partitioner: str, target: Path) -> None:
    """Cut a graph into one shard a part and write them as the directory `target`, all or nothing."""
    blocks = Blocks.from_assignment(assignment, parts)
    adjacency = blocks.relabel(graph.adjacency)
    transposed = adjacency.T.tocsr() if graph.directed else adjacency
    sums = row_sums(adjacency)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}-"))
    try:
        checksums = {}
        for rank in range(parts):
            for name, array in _arrays(graph, blocks, adjacency, transposed, sums, rank).items():
                file = f"rank-{rank}/{name}.npy"
                checksums[file] = _save(partial / file, array)
        manifest = {
            "format": FORMAT,
            "graph": describe(graph),
            "partitioner": partitioner,
            "offsets": blocks.offsets.tolist(),
            "partition": {"partitioner": partitioner} | quality(graph.adjacency, assignment, parts).to_dict(),
            "checksums": checksums,
        }
        manifest["checksum"] = _checksum_of_facts(manifest)
        (partial / "manifest.json").write_text(json.dumps(manifest, indent=1))
        os.replace(partial, target)
    except OSError as error:
        raise UserError(
            f"cannot write shards to {target}: {error.strerror}; free space or set SANCUS_HOME"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def open_shard(directory: Path, rank: int) -> Shard:
    """Open one rank's shard: checks its version, its checksums, and maps its arrays."""
    manifest = read_manifest(directory)
    arrays = {}
    for file, expected in manifest["checksums"].items():
        folder, _, name = file.partition("/")
        if folder != f"rank-{rank}":
            continue
        path = directory / file
        if not path.is_file() or _checksum(path) != expected:
            raise UserError(f"{path} is damaged or missing; delete {directory} and run again to rebuild it")
        arrays[name.removesuffix(".npy")] = np.load(path, mmap_mode="r", allow_pickle=False)
    return Shard(rank, manifest, arrays)


def read_manifest(directory: Path) -> dict[str, Any]:
    """The facts of a shard directory."""
    path = directory / "manifest.json"
    damage = UserError(f"{path} is damaged or missing; delete {directory} and run again to rebuild it")
    try:
        manifest: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise damage from error
    if manifest.get("format") != FORMAT:
        raise UserError(
            f"{directory} has shard format {manifest.get('format')}, this version reads {FORMAT}; "
            "delete it and run again"
        )
    if manifest.pop("checksum", None) != _checksum_of_facts(manifest):
        raise damage
    return manifest


def describe(graph: Graph) -> dict[str, Any]:
    """The `graph` section of `run.json`."""
    return {
        "name": graph.name,
        "nodes": graph.nodes,
        "edges": graph.edges,
        "features": graph.feature_count,
        "sparse_features": bool(sp.issparse(graph.features)),
        "classes": graph.classes,
        "multilabel": graph.multilabel,
        "directed": graph.directed,
        "train": int(graph.train_mask.sum()),
        "val": int(graph.val_mask.sum()),
        "test": int(graph.test_mask.sum()),
    }


def _arrays(
    graph: Graph,
    blocks: Blocks,
    adjacency: sp.csr_array,
    transposed: sp.csr_array,
    sums: RowSums,
    rank: int,
) -> dict[str, npt.NDArray[Any]]:
    start, stop = blocks.offsets[rank], blocks.offsets[rank + 1]
    own = blocks.own(rank)
    incoming = adjacency[start:stop]
    arrays: dict[str, npt.NDArray[Any]] = {"nodes": own, **_csr_arrays("incoming", incoming)}
    outgoing = incoming
    if graph.directed:
        outgoing = transposed[start:stop]
        arrays |= _csr_arrays("outgoing", outgoing)
    known = np.union1d(np.arange(start, stop), np.union1d(incoming.indices, outgoing.indices))
    known = known.astype(np.int64)
    arrays |= {"known": known, "sums_plain": sums.plain[known], "sums_looped": sums.looped[known]}
    if sp.issparse(graph.features):
        arrays |= _csr_arrays("features", graph.features[own])
    else:
        arrays["features"] = graph.features[own]
    arrays["labels"] = graph.labels[own]
    for split in ("train", "val", "test"):
        arrays[f"{split}_mask"] = getattr(graph, f"{split}_mask")[own]
    return arrays


def _csr_arrays(name: str, matrix: sp.csr_array) -> dict[str, npt.NDArray[Any]]:
    return {f"{name}_{field}": getattr(matrix, field) for field in ("data", "indices", "indptr")}


def _save(path: Path, array: npt.NDArray[Any]) -> str:
    path.parent.mkdir(exist_ok=True)
    with path.open("wb") as file:
        np.save(file, array, allow_pickle=False)
    return _checksum(path)


def _checksum_of_facts(manifest: dict[str, Any]) -> str:
    """Of the facts, not of their spelling in the file."""
    return xxhash.xxh3_128_hexdigest(json.dumps(manifest, sort_keys=True).encode())


def _checksum(path: Path) -> str:
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while piece := file.read(1 << 22):
            digest.update(piece)
    return digest.hexdigest()
