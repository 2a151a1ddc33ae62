"""From edges, features, labels and a split, as files have them, to a checked graph.

`N` is the number of nodes, `E` of edges. Formats without a split get a seeded random one over the labelled
nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from sancus.datasets.fields import INTEGERS, NUMBERS, Fields
from sancus.errors import UserError
from sancus.graphs.graph import from_edges

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]
Masks = tuple[Mask, Mask, Mask]
Features = npt.NDArray[np.float32] | sp.csr_array
Labels = npt.NDArray[np.int64] | npt.NDArray[np.bool_]

MOST_CLASSES = 1_000_000  # a larger label is an identifier, not a class
SPLITS = ("train", "val", "test")
RANDOM_SPLIT: dict[str, Any] = {"train": 0.6, "val": 0.2, "test": 0.2, "seed": 0}
MOST_COLUMNS = 2**31 - 1
MOST_UNUSED = (
    1 << 26
)  # node numbers that no edge has: beyond this they are identifiers, or the file is damaged


def adjacency_of(
    fields: Fields,
    field: str,
    edges: Array,
    nodes: int,
    weights: Array | None = None,
    *,
    undirected: bool,
    notes: list[str] | None = None,
) -> sp.csr_array:
    """`[N, N]` from edges `[2, E]`; `undirected` adds every edge's other direction and drops loops.

    How many edges were there before goes into `notes`.
    """
    if nodes > MOST_UNUSED + 2 * edges.shape[1]:
        raise fields.error(
            field, f"joins {edges.shape[1]} pairs of {nodes} nodes; number nodes from 0 without gaps"
        )
    node_pairs = fields.indices(field, edges, nodes, "node")
    values = None if weights is None else fields.finite(f"{field} weight", weights)
    adjacency = from_edges(node_pairs, nodes, values)
    again = edges.shape[1] - adjacency.nnz
    if again and notes is not None:
        how = "counted once" if weights is None else "their weights are added up"
        notes.append(f"{again:,} of {edges.shape[1]:,} edges repeat an earlier one: {how}")
    return symmetric(adjacency, weighted=weights is not None) if undirected else adjacency


def symmetric(adjacency: sp.csr_array, *, weighted: bool) -> sp.csr_array:
    """Both directions of every edge, without loops; the larger weight where they differ."""
    both = sp.csr_array(adjacency.maximum(adjacency.T.tocsr()))
    both.setdiag(0)
    both.eliminate_zeros()
    if not weighted:
        both.data[:] = 1.0
    return both


def csr_of(fields: Fields, prefix: str, *, shape: str | None = None) -> sp.csr_array:
    """A CSR from the fields `<prefix>indptr`, `indices`, `data`, and `shape`; canonical, float32."""
    names = {part: f"{prefix}{part}" for part in ("indptr", "indices", "data")}
    rows, columns = (int(n) for n in fields.get(shape or f"{prefix}shape", INTEGERS, 2))
    if rows < 1 or not 1 <= columns <= MOST_COLUMNS:
        raise fields.error(shape or f"{prefix}shape", f"is [{rows}, {columns}]; both must be above 0")
    indices = fields.get(names["indices"], INTEGERS, None)
    pointer = fields.pointer(names["indptr"], rows, len(indices), names["indices"])
    indices = fields.indices(names["indices"], indices, columns, "column")
    if names["data"] in fields:
        values = fields.finite(names["data"], fields.get(names["data"], NUMBERS, len(indices)))
    else:
        values = np.ones(len(indices), np.float32)
    matrix = sp.csr_array((values.astype(np.float32), indices, pointer), shape=(rows, columns))
    matrix.sum_duplicates()
    return matrix


def dense_features(fields: Fields, field: str, nodes: int | None = None) -> npt.NDArray[np.float32]:
    """`[N, F]` finite numbers; what is mapped as float32 stays on disk."""
    array = fields.get(field, NUMBERS, nodes, None)
    if min(array.shape) < 1:
        raise fields.error(field, f"describes {array.shape[0]} nodes and {array.shape[1]} features; both > 0")
    return fields.finite(field, array)


def class_labels(fields: Fields, field: str, nodes: int, classes: int | None = None) -> tuple[Labels, int]:
    """Labels `[N]` (-1 or NaN: none) or `[N, C]` of 0 and 1, and the number of classes."""
    array = fields.get(field, NUMBERS, *([nodes] if fields.arrays[field].ndim == 1 else [nodes, classes]))
    if array.ndim == 2 and array.shape[1] != 1:
        places = np.argwhere(~np.isin(array, (0, 1)))
        if len(places):
            row, column = places[0]
            raise fields.error(
                field, f"holds {array[row, column]} for node {row}; with several labels a node, only 0 and 1"
            )
        return array.astype(np.bool_), int(array.shape[1])
    single = array.reshape(-1)
    if single.dtype.kind == "f":
        single = np.where(np.isnan(single), -1, single)
    bound = min(MOST_CLASSES, classes) if classes is not None else MOST_CLASSES
    wrong = np.flatnonzero((single < -1) | (single >= bound) | (single != np.floor(single)))
    if wrong.size:
        range_text = f"0 to {classes - 1}" if classes is not None else "0, 1, 2, …"
        raise fields.error(
            field,
            f"holds label {single[wrong[0]]} for node {wrong[0]}; labels are {range_text}, or -1 for none",
        )
    labels = single.astype(np.int64)
    return labels, classes if classes is not None else int(labels.max()) + 1


def masks_from_indices(fields: Fields, lists: Mapping[str, Array], nodes: int) -> Masks:
    """Three masks `[N]` from lists of nodes, e.g. `{"tr": …, "va": …, "te": …}` in that order."""
    masks, owner = [], np.full(nodes, -1, np.int8)
    names = list(lists)
    for place, (name, ids) in enumerate(lists.items()):
        if ids.ndim != 1 or (ids.dtype.kind not in INTEGERS and ids.size):
            raise fields.error(
                name, f"has dtype {ids.dtype} and shape {list(ids.shape)}; it is a list of nodes"
            )
        members = fields.indices(name, ids.astype(np.int64), nodes, "node")
        overlap = members[(owner[members] >= 0) & (owner[members] != place)]
        if overlap.size:
            other = names[owner[overlap[0]]]
            raise fields.error(name, f"and {other} both select node {overlap[0]}; splits must not overlap")
        owner[members] = place
        masks.append(owner == place)
    return masks[0], masks[1], masks[2]


def random_split(labels: Labels, options: Mapping[str, Any], what: str) -> Masks:
    """Three disjoint random masks of the labelled nodes, in the shares that the options give."""
    shares = [float(options[name]) for name in SPLITS]
    if min(shares) <= 0 or sum(shares) > 1 + 1e-9:
        raise UserError(f"{what}: train, val and test are shares above 0 with a sum up to 1; got {shares}")
    if options["seed"] < 0:
        raise UserError(f"{what}: seed={options['seed']} must be 0 or more")
    candidates = np.flatnonzero(labels >= 0) if labels.ndim == 1 else np.arange(len(labels))
    if len(candidates) < len(SPLITS):
        raise UserError(f"{what}: {len(candidates)} labelled nodes cannot be split in three; add labels")
    order = np.random.default_rng(int(options["seed"])).permutation(candidates)
    val = min(len(order) - 2, max(1, round(shares[1] * len(order))))
    test = min(len(order) - 1 - val, max(1, round(shares[2] * len(order))))
    train = min(len(order) - val - test, max(1, round(shares[0] * len(order))))
    masks = []
    for start, count in ((0, train), (train, val), (train + val, test)):
        mask = np.zeros(len(labels), np.bool_)
        mask[order[start : start + count]] = True
        masks.append(mask)
    return masks[0], masks[1], masks[2]


def split_note(options: Mapping[str, Any]) -> str:
    """Tells that a split is random, and how it was drawn."""
    shares = " / ".join(f"{100 * float(options[name]):g}" for name in SPLITS)
    return f"the data has no split: it is random, {shares} % for {', '.join(SPLITS)}, seed {options['seed']}"


def rest_of_split(given: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, float]:
    """Shares of the splits that were not given, where the usual ones have no room beside those that were."""
    named = [name for name in SPLITS if name in given]
    others = [name for name in SPLITS if name not in given]
    if not named or not others or any(name not in options for name in SPLITS):
        return {}
    if sum(float(options[name]) for name in SPLITS) <= 1 + 1e-9:
        return {}
    left = 1.0 - sum(float(options[name]) for name in named)
    return {name: round(left / len(others), 12) for name in others}


def degree_features(adjacency: sp.csr_array) -> sp.csr_array:
    """One-hot buckets of the degree, `⌊log2(1 + degree)⌋`, where a graph has no features of its own."""
    bucket = np.log2(1 + np.diff(adjacency.indptr)).astype(np.int64)
    nodes = len(bucket)
    ones = np.ones(nodes, np.float32)
    return sp.csr_array((ones, bucket, np.arange(nodes + 1)), shape=(nodes, int(bucket.max()) + 1))
