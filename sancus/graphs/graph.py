"""A whole graph in memory, as the user has it: before any partition.

Notation: `N` nodes, `E` stored edges, `F` features, `C` classes. Row `v` of the adjacency lists the
nodes that `v` aggregates from: an edge `u -> v` of an `edge_index [2, E]` is the entry `(v, u)`, as
in PyG (source to target). Nothing here knows of ranks or torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from sancus.errors import UserError
from sancus.graphs.bounded import first_not_finite, index_type, is_symmetric
from sancus.graphs.origin import Origin

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Graph:
    """A graph with features, labels and a split; checked when made, never edited afterwards."""

    adjacency: sp.csr_array  # [N, N] float32 edge weights (1 where the user gave none)
    features: npt.NDArray[np.float32] | sp.csr_array  # [N, F]; sparse stays sparse, mapped stays mapped
    labels: npt.NDArray[np.int64] | npt.NDArray[np.bool_]  # [N], -1 = unlabelled; or [N, C]
    train_mask: Mask  # [N]
    val_mask: Mask  # [N]
    test_mask: Mask  # [N]
    classes: int
    name: str = "graph"
    origin: Origin = field(default_factory=Origin)

    def __post_init__(self) -> None:
        nodes = self.adjacency.shape[0]
        if nodes == 0:
            raise UserError(f"{self.name}: the graph has no nodes")
        if self.adjacency.shape != (nodes, nodes):
            raise UserError(f"{self.name}: adjacency is {self.adjacency.shape}, it must be square")
        self._check_lengths(nodes)
        self._check_edges()
        self._check_features()
        self._check_labels()
        for array in (self.labels, self.train_mask, self.val_mask, self.test_mask):
            array.setflags(write=False)

    @property
    def nodes(self) -> int:
        """`N`, the number of nodes."""
        return int(self.adjacency.shape[0])

    @property
    def edges(self) -> int:
        """Stored entries of the adjacency: an undirected edge counts twice."""
        return int(self.adjacency.nnz)

    @property
    def feature_count(self) -> int:
        """`F`, the number of features a node."""
        return int(self.features.shape[1])

    @property
    def multilabel(self) -> bool:
        """Whether a node may have several labels at once."""
        return self.labels.ndim == 2

    @cached_property
    def directed(self) -> bool:
        """Whether the adjacency differs from its transpose, in pattern or in weight."""
        canonical = self.adjacency if self.adjacency.has_sorted_indices else self.adjacency.sorted_indices()
        return not is_symmetric(canonical)

    def _check_lengths(self, nodes: int) -> None:
        for name in ("features", "labels", "train_mask", "val_mask", "test_mask"):
            rows = getattr(self, name).shape[0]
            if rows != nodes:
                raise UserError(f"{self.name}: {name} has {rows} rows, the graph has {nodes} nodes")

    def _check_edges(self) -> None:
        if not np.isfinite(self.adjacency.data).all():
            raise UserError(f"{self.name}: an edge weight is NaN or infinite")

    def _check_features(self) -> None:
        values = self.features if isinstance(self.features, np.ndarray) else self.features.data
        place = first_not_finite(values)
        if place is not None:
            row = self._row_of_value(place)
            raise UserError(
                f"{self.name}: features of node {row} hold NaN or infinity; clean the features and try again"
            )

    def _row_of_value(self, place: int) -> int:
        if isinstance(self.features, np.ndarray):
            return place // self.feature_count
        return int(np.searchsorted(self.features.indptr, place, side="right") - 1)

    def _check_labels(self) -> None:
        masks = {"train_mask": self.train_mask, "val_mask": self.val_mask, "test_mask": self.test_mask}
        for name, mask in masks.items():
            if not mask.any():
                raise UserError(f"{self.name}: {name} selects no node; every split needs at least one")
        for (name, mask), (other, overlapping) in combinations(masks.items(), 2):
            both = np.flatnonzero(mask & overlapping)
            if both.size:
                raise UserError(
                    f"{self.name}: {name} and {other} both select node {both[0]}; splits must not overlap"
                )
        if self.multilabel:
            if self.labels.shape[1] != self.classes:
                raise UserError(
                    f"{self.name}: labels have {self.labels.shape[1]} columns for {self.classes} classes"
                )
            return
        bad = np.flatnonzero((self.labels < -1) | (self.labels >= self.classes))
        if bad.size:
            raise UserError(
                f"{self.name}: label {self.labels[bad[0]]} of node {bad[0]} is out of range; "
                f"labels are 0 to {self.classes - 1}, or -1 for none"
            )
        for name, mask in masks.items():
            unlabelled = np.flatnonzero(mask & (self.labels < 0))
            if unlabelled.size:
                raise UserError(f"{self.name}: {name} selects node {unlabelled[0]}, which has no label")


def from_edges(
    edge_index: npt.NDArray[np.integer], nodes: int, weights: npt.NDArray[np.floating] | None = None
) -> sp.csr_array:
    """`edge_index [2, E]` (source, target) to the adjacency; equal edges are merged.

    Unweighted edges that are given twice count once; weighted ones add up.
    """
    source, target = edge_index.astype(index_type(nodes), copy=False)
    data = np.ones(len(source), np.float32) if weights is None else np.asarray(weights, np.float32)
    adjacency = sp.csr_array((data, (target, source)), shape=(nodes, nodes))
    adjacency.sum_duplicates()
    if weights is None:
        adjacency.data[:] = 1.0
    return adjacency
