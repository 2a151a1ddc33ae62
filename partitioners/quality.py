"""What an assignment costs, counted before anything runs.

A graph with `N` nodes is cut into `p` parts; `V_i` are the rows of part `i`. An entry `(v, u)` of the
adjacency means that `v` aggregates from `u`. It is *cut* when its ends are in different parts, and then
the payload of `u` has to cross. How many rows do cross in one aggregation depends on the plan:

- `block`: every owner sends all its rows to all others, `(p-1) N`;
- `halo`: the owner `j` sends to receiver `i` the distinct `u` in `V_j` with an entry `(v, u)`, `v` in `V_i`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from partitioners.base import Assignment, check_assignment, check_parts


@dataclass(frozen=True)
class Quality:
    """An assignment in numbers; tuples have one entry a part."""

    parts: int
    edge_cut: int  # stored entries whose ends are in different parts
    edge_cut_share: float  # of all stored entries; 0 where there are none
    rows: tuple[int, ...]
    nonzeros: tuple[int, ...]  # stored entries in the rows of a part: its aggregation work
    rows_imbalance: float  # largest part / mean part; 1 is perfect
    nonzeros_imbalance: float
    payload_rows: Mapping[str, int]  # plan -> rows that one aggregation sends, counted once a receiver
    halo_sent: tuple[int, ...]  # rows a part sends under `halo`, as owner
    halo_received: tuple[int, ...]  # rows a part gets under `halo`, as receiver

    def to_dict(self) -> dict[str, Any]:
        """The same, as plain numbers, lists and dictionaries for JSON."""
        return {
            name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()
        }


def quality(adjacency: sp.csr_array, assignment: npt.NDArray[np.integer], parts: int) -> Quality:
    """Measure `assignment [N]` on `adjacency [N, N]`; `ValueError` where they do not fit together."""
    nodes = check_parts(adjacency, parts)
    part = check_assignment(assignment, nodes, parts)
    degrees = np.diff(adjacency.indptr)
    receiver = np.repeat(part, degrees)  # [nnz]
    cut = receiver != part[adjacency.indices]
    sent = _halo_rows(adjacency, part, parts)
    rows = np.bincount(part, minlength=parts)
    nonzeros = np.bincount(receiver, minlength=parts)
    edge_cut = int(np.count_nonzero(cut))
    return Quality(
        parts=parts,
        edge_cut=edge_cut,
        edge_cut_share=edge_cut / max(1, adjacency.nnz),
        rows=_plain(rows),
        nonzeros=_plain(nonzeros),
        rows_imbalance=_imbalance(rows),
        nonzeros_imbalance=_imbalance(nonzeros),
        payload_rows={"block": (parts - 1) * nodes, "halo": int(sent.sum())},
        halo_sent=_plain(sent.sum(axis=0)),
        halo_received=_plain(sent.sum(axis=1)),
    )


def _halo_rows(adjacency: sp.csr_array, part: Assignment, parts: int) -> npt.NDArray[np.int64]:
    """Rows that receiver `i` needs of owner `j` `[p, p]`, zero where `i = j`.

    One receiver at a time, with a mark a node: no sort, and `N` bytes instead of one key a nonzero.
    """
    counts = np.zeros((parts, parts), np.int64)
    for receiver in range(parts):
        own = np.flatnonzero(part == receiver)
        needed = np.zeros(len(part), dtype=bool)
        needed[adjacency[own].indices] = True
        needed[own] = False
        counts[receiver] = np.bincount(part[needed], minlength=parts)
    return counts


def _plain(counts: npt.NDArray[np.integer]) -> tuple[int, ...]:
    return tuple(int(count) for count in counts)


def _imbalance(counts: npt.NDArray[np.integer]) -> float:
    return float(counts.max() / counts.mean()) if counts.any() else 1.0
