"""What a graph is like, and what looks wrong with it: `sancus data info`.

*Homophily* is the share of stored entries that join two nodes of one class, of those whose ends are both
labelled. Components are weak ones: directions are ignored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from sancus.graphs.bounded import row_pieces
from sancus.graphs.graph import Graph
from sancus.partitioners.pieces import csr_pieces, rows_of_entries

SPLITS = ("train", "val", "test")
MANY = 0.1  # share of the nodes from which an oddity is worth a line
LARGE_VALUE = 1e3  # of a feature: training wants them near 1


@dataclass(frozen=True)
class Facts:
    """Numbers of a graph that take a pass over it."""

    homophily: float | None  # None where nodes have several labels, or no entry joins two labelled nodes
    loops: int
    components: int
    largest: int  # nodes of the largest component
    zero_rows: int  # nodes whose features are all 0
    largest_value: float  # of a feature, as an absolute value
    distinct: bool  # whether some feature differs between two nodes


def facts_of(graph: Graph) -> Facts:
    """One pass over edges and features, in pieces."""
    equal, both, loops = 0, 0, 0
    single = None if graph.multilabel else graph.labels
    adjacency = graph.adjacency
    for rows in csr_pieces(adjacency.indptr):
        row = rows_of_entries(adjacency.indptr, rows)
        column = adjacency.indices[int(adjacency.indptr[rows.start]) : int(adjacency.indptr[rows.stop])]
        loops += int(np.count_nonzero(row == column))
        if single is not None:
            both_labelled = (single[row] >= 0) & (single[column] >= 0)
            both += int(both_labelled.sum())
            equal += int(((single[row] == single[column]) & both_labelled).sum())
    components, member = connected_components(adjacency, directed=True, connection="weak")
    zero, largest, distinct = _features(graph.features)
    return Facts(
        homophily=equal / both if both else None,
        loops=loops,
        components=int(components),
        largest=int(np.bincount(member).max()),
        zero_rows=zero,
        largest_value=largest,
        distinct=distinct,
    )


def info_rows(graph: Graph, facts: Facts, reader: str) -> list[tuple[str, str]]:
    """Labels and values, as they are printed."""
    degrees = np.diff(graph.adjacency.indptr)
    kind = "dense"
    if not isinstance(graph.features, np.ndarray):
        kind = f"sparse, {100 * graph.features.nnz / (graph.nodes * graph.feature_count):.2g} % filled"
    weights = graph.adjacency.data
    weighted = bool(weights.size) and bool((weights != 1).any())
    return [
        ("graph", f"{graph.name} ({reader})"),
        ("nodes", f"{graph.nodes:,}"),
        ("entries", f"{graph.edges:,} ({'directed' if graph.directed else 'undirected'})"),
        ("weights", f"{weights.min():g} to {weights.max():g}" if weighted else "none"),
        ("degree", f"mean {degrees.mean():.1f}, median {np.median(degrees):g}, max {degrees.max():,}"),
        ("isolated nodes", f"{isolated(graph).sum():,}"),
        ("self-loops", f"{facts.loops:,}"),
        ("components", f"{facts.components:,}, the largest has {_percent(facts.largest, graph.nodes)}"),
        ("features", f"{graph.feature_count:,} ({kind}), {_megabytes(graph.features)}"),
        ("classes", f"{graph.classes}{' (several a node)' if graph.multilabel else ''}"),
        ("nodes a class", _class_sizes(graph)),
        ("homophily", "-" if facts.homophily is None else f"{facts.homophily:.3f}"),
        *(
            (split, f"{int(mask.sum()):,} ({_percent(int(mask.sum()), graph.nodes)})")
            for split, mask in masks_of(graph).items()
        ),
        ("in no split", f"{int((~_any_split(graph)).sum()):,}"),
    ]


def oddities(graph: Graph, facts: Facts) -> list[str]:
    """What looks wrong, one line each."""
    lines = list(graph.origin.notes)
    alone = isolated(graph)
    if alone.sum() > MANY * graph.nodes:
        lines.append(
            f"{_percent(int(alone.sum()), graph.nodes)} of the nodes have no neighbour: are edges missing?"
        )
    if facts.loops > MANY * graph.nodes:
        lines.append(f"{facts.loops:,} self-loops: GCN adds its own where there is none")
    if graph.directed and graph.edges and _mutual_share(graph) > 1 - MANY:
        lines.append("most edges have both directions, some have one: make it undirected, or check the edges")
    if facts.zero_rows > MANY * graph.nodes:
        lines.append(f"{_percent(facts.zero_rows, graph.nodes)} of the nodes have only zero features")
    if not facts.distinct:
        lines.append("all nodes have the same features")
    if facts.largest_value > LARGE_VALUE:
        lines.append(f"features reach {facts.largest_value:g}: scale them, or training may diverge")
    lines += _label_oddities(graph)
    return lines


def _label_oddities(graph: Graph) -> list[str]:
    lines = []
    in_train, anywhere = len(_sizes_of_classes(graph, graph.train_mask)), len(_sizes_of_classes(graph))
    if anywhere < graph.classes:
        lines.append(f"{graph.classes - anywhere} of {graph.classes} classes have no node")
    if in_train < anywhere:
        lines.append(f"{anywhere - in_train} classes have no training node: they cannot be learned")
    for split, mask in masks_of(graph).items():
        alone = int((isolated(graph) & mask).sum())
        if alone > MANY * mask.sum():
            lines.append(f"{_percent(alone, int(mask.sum()))} of the {split} nodes have no neighbour")
    return lines


def masks_of(graph: Graph) -> dict[str, npt.NDArray[np.bool_]]:
    """The three masks by name."""
    return {split: getattr(graph, f"{split}_mask") for split in SPLITS}


def isolated(graph: Graph) -> npt.NDArray[np.bool_]:
    """Nodes without any entry, in their row or in their column, `[N]`."""
    alone = np.diff(graph.adjacency.indptr) == 0
    for rows in csr_pieces(graph.adjacency.indptr):
        pointer = graph.adjacency.indptr
        alone[graph.adjacency.indices[int(pointer[rows.start]) : int(pointer[rows.stop])]] = False
    return np.asarray(alone)


def _any_split(graph: Graph) -> npt.NDArray[np.bool_]:
    return graph.train_mask | graph.val_mask | graph.test_mask


def _features(features: Any) -> tuple[int, float, bool]:
    """Rows that are all 0, the largest absolute value, whether two rows differ."""
    if sp.issparse(features):
        counts = np.diff(features.indptr)
        largest = float(np.abs(features.data).max()) if features.nnz else 0.0
        differ = bool((features[1:] != features[:-1]).nnz) if features.shape[0] > 1 else True
        return int((counts == 0).sum()), largest, differ
    zero, largest, differ = 0, 0.0, False
    for rows in row_pieces(features):
        piece = features[rows]
        zero += int((~piece.any(axis=1)).sum())
        largest = max(largest, float(np.abs(piece).max()))
        differ = differ or bool((piece != features[0]).any())
    return zero, largest, differ


def _mutual_share(graph: Graph) -> float:
    """Share of the entries whose other direction is stored too."""
    pattern = graph.adjacency.astype(bool)
    return float(pattern.multiply(pattern.T.tocsr()).nnz / max(1, pattern.nnz))


def _class_sizes(graph: Graph) -> str:
    sizes = _sizes_of_classes(graph)
    least = sizes.min(initial=graph.nodes) if len(sizes) == graph.classes else 0
    return f"{int(least):,} to {int(sizes.max(initial=0)):,}"


def _sizes_of_classes(graph: Graph, mask: npt.NDArray[np.bool_] | None = None) -> npt.NDArray[np.int64]:
    """Nodes, of a split or all, of each class that has any; a graph may name more classes than fit memory."""
    labels = graph.labels if mask is None else graph.labels[mask]
    if graph.multilabel:
        sizes = labels.sum(axis=0, dtype=np.int64)
        return np.asarray(sizes[sizes > 0])
    return np.unique(labels[labels >= 0], return_counts=True)[1]


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / max(1, whole):.1f} %"


def _megabytes(features: Any) -> str:
    parts = (
        [features] if isinstance(features, np.ndarray) else [features.data, features.indices, features.indptr]
    )
    return f"{sum(part.nbytes for part in parts) / 1e6:,.1f} MB"
