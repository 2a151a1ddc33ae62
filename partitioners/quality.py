"""Measures an assignment before anything runs: cut edges, balance, and the rows that each plan sends.

A graph with `N` nodes is cut into `p` parts; `V_i` are the rows of part `i`. An entry `(v, u)` of the
adjacency means that `v` aggregates from `u`. It is *cut* when its ends are in different parts, and then
the payload of `u` has to cross. How many rows do cross in one aggregation depends on the plan:

- `block`: every owner sends all its rows to all others, `(p-1) N`;
- `halo`: the owner `j` sends to receiver `i` the distinct `u` in `V_j` with an entry `(v, u)`, `v` in `V_i`;
- `prepost`: rows as they are or summed, a minimum vertex cover of the entries between `i` and `j`. By König's
  theorem it has as many rows as a maximum matching has edges. Finding one takes about 2 µs an entry, so it is
  left out where the cut is larger than `cover_limit`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.sparse.csgraph import maximum_bipartite_matching

from .base import Assignment, check_assignment, check_parts
from .pieces import csr_pieces, rows_of_entries

COVER_LIMIT = 4_000_000  # cut entries: a few seconds


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


def quality(
    adjacency: sp.csr_array,
    assignment: npt.NDArray[np.integer],
    parts: int,
    cover_limit: int = COVER_LIMIT,
) -> Quality:
    """Measure `assignment [N]` on `adjacency [N, N]`; `ValueError` where they do not fit together."""
    nodes = check_parts(adjacency, parts)
    part = check_assignment(assignment, nodes, parts)
    rows = np.bincount(part, minlength=parts)
    nonzeros = np.bincount(part, weights=np.diff(adjacency.indptr), minlength=parts).astype(np.int64)
    edge_cut = _count_cut(adjacency, part)
    halo_rows, cover_rows = _crossing_rows(adjacency, part, parts, covers=edge_cut <= cover_limit)
    payload = {"block": (parts - 1) * nodes, "halo": int(halo_rows.sum())}
    if cover_rows is not None:
        payload["prepost"] = int(cover_rows.sum())
    return Quality(
        parts=parts,
        edge_cut=edge_cut,
        edge_cut_share=edge_cut / max(1, adjacency.nnz),
        rows=_plain(rows),
        nonzeros=_plain(nonzeros),
        rows_imbalance=_imbalance(rows),
        nonzeros_imbalance=_imbalance(nonzeros),
        payload_rows=payload,
        halo_sent=_plain(halo_rows.sum(axis=0)),
        halo_received=_plain(halo_rows.sum(axis=1)),
    )


def payload_matrix(
    adjacency: sp.csr_array, assignment: Assignment, parts: int, plan: str
) -> npt.NDArray[np.int64]:
    """Rows that owner `j` sends to receiver `i` in one aggregation `[p, p]`, zero where `i = j`."""
    if plan == "block":
        rows = np.bincount(assignment, minlength=parts)
        return np.where(np.eye(parts, dtype=bool), 0, rows[None, :])
    halo, cover = _crossing_rows(adjacency, assignment, parts, covers=plan == "prepost")
    if plan == "prepost":
        assert cover is not None, "asked for"
        return cover
    if plan != "halo":
        raise ValueError(f"plan {plan!r} is not one of block, halo, prepost")
    return halo


def _count_cut(adjacency: sp.csr_array, part: Assignment) -> int:
    total = 0
    for rows in csr_pieces(adjacency.indptr):
        entries = slice(int(adjacency.indptr[rows.start]), int(adjacency.indptr[rows.stop]))
        receiver = part[rows_of_entries(adjacency.indptr, rows)]
        total += int(np.count_nonzero(receiver != part[adjacency.indices[entries]]))
    return total


def _crossing_rows(
    adjacency: sp.csr_array, part: Assignment, parts: int, *, covers: bool
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64] | None]:
    """Rows that receiver `i` needs of owner `j` `[p, p]`, zero where `i = j`; and the rows of covers.

    One receiver at a time, with a mark a node: no sort, and `N` bytes instead of one key a nonzero.
    """
    halo_rows = np.zeros((parts, parts), np.int64)
    cover_rows = np.zeros((parts, parts), np.int64)
    for receiver in range(parts):
        own = np.flatnonzero(part == receiver)
        halo = np.zeros(len(part), dtype=bool)
        pointer = np.concatenate([[0], np.cumsum(np.diff(adjacency.indptr)[own], dtype=np.int64)])
        cut_entries: list[npt.NDArray[np.int64]] = []
        for rows in csr_pieces(pointer):
            columns = adjacency[own[rows]].indices
            halo[columns] = True
            if covers:
                pairs = np.stack([rows_of_entries(pointer, rows), columns])
                cut_entries.append(pairs[:, part[columns] != receiver])
        halo[own] = False
        halo_rows[receiver] = np.bincount(part[halo], minlength=parts)
        if cut_entries:
            cover_rows[receiver] = _cover_rows(np.concatenate(cut_entries, axis=1), part, parts)
    return halo_rows, cover_rows if covers else None


def _cover_rows(cut_entries: npt.NDArray[np.int64], part: Assignment, parts: int) -> npt.NDArray[np.int64]:
    """Rows of a minimum vertex cover of a receiver's cut entries `[2, E]`, for each owner `[p]`."""
    total, owner = np.zeros(parts, np.int64), part[cut_entries[1]]
    for other in range(parts):
        rows, columns = cut_entries[:, owner == other]
        if not len(rows):
            continue
        row, column = np.unique(rows, return_inverse=True)[1], np.unique(columns, return_inverse=True)[1]
        block = sp.csr_array((np.ones(len(row), np.int8), (row, column)))
        total[other] = int(np.count_nonzero(maximum_bipartite_matching(sp.csr_matrix(block)) >= 0))
    return total


def _plain(counts: npt.NDArray[np.integer]) -> tuple[int, ...]:
    return tuple(int(count) for count in counts)


def _imbalance(counts: npt.NDArray[np.integer]) -> float:
    return float(counts.max() / counts.mean()) if counts.any() else 1.0
