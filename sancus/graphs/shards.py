"""Shards on disk: what each rank needs of a partitioned graph, and nothing else.

A shard directory holds `manifest.json` (facts of the whole graph, block offsets, the partition's
quality, a checksum of every file and of itself) and `rank-<i>/<array>.npy`. Arrays are memory-mapped when
opened. The adjacency is stored raw, with the row sums of own and neighbouring nodes, so one shard serves
every normalisation. The manifest is written last and the directory renamed into place, so that a directory
that exists is whole.
"""

from __future__ import annotations

import json
import mmap
import tokenize
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import xxhash

from sancus.errors import UserError
from sancus.graphs.bounded import release
from sancus.graphs.graph import Graph
from sancus.graphs.normalise import OWN_TRANSPOSE, Normalisation, RowSums, normalise, normalise_transposed
from sancus.graphs.operator import Operator
from sancus.graphs.shard_files import checksum_of_file

FORMAT = 4
BEFORE = 3  # wrote the dense features of reordered rows in the wrong order; its other shards are right
MANIFEST = "manifest.json"
DAMAGE = (
    OSError,
    ValueError,
    EOFError,
    SyntaxError,
    OverflowError,
    tokenize.TokenError,
)  # of numpy, of headers
Ids = npt.NDArray[np.int64]


class UnusableShardsError(UserError):
    """Shards that are not what was written, or that another version wrote; `fact` says which, and what."""

    def __init__(self, fact: str, directory: Path) -> None:
        super().__init__(f"{fact}; delete {directory} and make it again (sancus partition)")
        self.fact = fact


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

    @property
    def chunk_sizes(self) -> Ids:
        """`[p, K]`: how many rows of every part are in each chunk; a part's rows are sorted by chunk."""
        sizes = self.manifest.get("chunk_sizes", [[size] for size in np.diff(self.offsets).tolist()])
        return np.asarray(sizes, np.int64)

    def digest(self) -> str:
        """A hash of the content of all ranks' shards."""
        sums = json.dumps(self.manifest["checksums"], sort_keys=True)
        return xxhash.xxh3_128_hexdigest(sums.encode())

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

    def release(self, name: str) -> None:
        """Take the pages of a mapped array out of this process's memory; the next read brings them back."""
        mapping = getattr(self.arrays.get(name), "_mmap", None)
        if mapping is not None:
            mapping.madvise(mmap.MADV_DONTNEED)

    def operator(self, kind: Normalisation) -> Operator:
        """This rank's rows of `Â` and `Âᵀ` under a normalisation."""
        incoming = self.edges("incoming")
        outgoing = self.edges("outgoing") if self.manifest["graph"]["directed"] else incoming
        start = int(self.offsets[self.rank])
        rows = normalise(kind, incoming, start, self.row_sums)
        for array in self.arrays.values():
            release(array)
        if outgoing is incoming and kind in OWN_TRANSPOSE:
            return Operator(self.rank, self.offsets, rows, rows)
        return Operator(
            self.rank, self.offsets, rows, normalise_transposed(kind, outgoing, start, self.row_sums)
        )

    def edges(self, name: str) -> sp.csr_array:
        """Own rows `[n_i, N]` of the raw `A` (`incoming`) or, where it differs, of `Aᵀ` (`outgoing`)."""
        return self._csr(name, (len(self.nodes), int(self.offsets[-1])))

    def row_sums(self, ids: Ids) -> RowSums:
        """Row sums of own and neighbouring nodes, by their place in the partitioned graph."""
        position = np.searchsorted(self.arrays["known"], ids)
        return RowSums(self.arrays["sums_plain"][position], self.arrays["sums_looped"][position])

    def _csr(self, name: str, shape: tuple[int, int]) -> sp.csr_array:
        parts = (self.arrays[f"{name}_{field}"] for field in ("data", "indices", "indptr"))
        return sp.csr_array(tuple(parts), shape=shape)


def open_shard(directory: Path, rank: int) -> Shard:
    """Open one rank's shard: checks its version, its checksums, and maps its arrays.

    What is not as it was written is `UnusableShardsError`, also where it goes while it is read.
    """
    manifest = read_manifest(directory)
    arrays = {}
    for file, checksum in manifest["checksums"].items():
        folder, _, name = file.partition("/")
        if folder != f"rank-{rank}":
            continue
        path = directory / file
        damage = UnusableShardsError(f"{path} is damaged or missing", directory)
        try:
            if checksum_of_file(path) != checksum:
                raise damage
            arrays[name.removesuffix(".npy")] = np.load(path, mmap_mode="r", allow_pickle=False)
        except DAMAGE as error:
            raise damage from error
    if manifest["format"] == BEFORE and "features" in arrays and np.any(np.diff(arrays["nodes"]) < 0):
        fact = f"{directory} has features in the wrong rows, by an error of before"
        raise UnusableShardsError(fact, directory)
    return Shard(rank, manifest, arrays)


def read_manifest(directory: Path) -> dict[str, Any]:
    """The manifest of a shard directory, without its own checksum; a damaged one is `UnusableShardsError`."""
    path = directory / MANIFEST
    damage = UnusableShardsError(f"{path} is damaged or missing", directory)
    try:
        text = path.read_text()
        manifest: dict[str, Any] = json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise damage from error
    if not isinstance(manifest, dict):
        raise damage
    if manifest.get("format") not in (BEFORE, FORMAT):
        fact = f"{directory} has shard format {manifest.get('format')}, this version reads {FORMAT}"
        raise UnusableShardsError(fact, directory)
    if manifest_text(manifest) != text or manifest.pop("checksum", None) != checksum_of_facts(manifest):
        raise damage
    return manifest


def describe(graph: Graph) -> dict[str, Any]:
    """The `graph` section of `run.json`; `class_names` and `notes` only where there are any."""
    told = {"class_names": graph.origin.classes, "notes": graph.origin.notes}
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
    } | {name: list(words) for name, words in told.items() if words}


def manifest_text(manifest: dict[str, Any]) -> str:
    """The one spelling of a manifest: a byte that changed is noticed even where no fact did."""
    return json.dumps(manifest, indent=1)


def checksum_of_facts(manifest: dict[str, Any]) -> str:
    """The checksum of a manifest's facts, in whatever order they are."""
    return xxhash.xxh3_128_hexdigest(json.dumps(manifest, sort_keys=True).encode())
