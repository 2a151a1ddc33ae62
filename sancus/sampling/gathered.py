"""The topology for samplers, in an order of nodes that no partition changes: whole on every rank, or spread.

Whole, each rank sends its rows of `A` once, before the first epoch; so drawing neighbours needs no message
ever after (FastSample), and only features stay where their owner is. Spread, a rank has the rows of its own
nodes, and the others are empty. Nodes get numbers by the user's ids: those of a training subgraph leave gaps,
which close. A rank knows of each number the user's id, the owner, the row, and the factors of `Â`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import torch

from sancus.comm.group import Group
from sancus.comm.ledger import TOPOLOGY
from sancus.graphs.normalise import Normalisation, scales
from sancus.graphs.shards import Shard
from sancus.kernels.base import index_dtype
from sancus.kernels.topology import Topology

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class GatheredTopology:
    """`Â` of all nodes, and where each of them lives."""

    topology: Topology  # where it is spread, with own rows alone
    ids: torch.Tensor  # [N] the user's id of each number, ascending
    owner: torch.Tensor  # [N] the rank that has its features
    row: torch.Tensor  # [N] its row there
    own: torch.Tensor  # [n_i] the numbers of the own rows
    edges: int  # of all ranks


def gather_topology(
    shard: Shard, kind: Normalisation, group: Group, *, spread: bool = False
) -> GatheredTopology:
    """Every rank's rows of `Â`, in the order of the user's ids; or, `spread`, the own ones. All call it."""
    offsets = shard.offsets
    everyone = _Everyone(group, np.diff(offsets).tolist())
    part_ids = everyone.join(np.asarray(shard.nodes, np.int64))
    order = np.argsort(part_ids)
    number = np.empty_like(order)  # of each node, by its place in the partitioned graph
    number[order] = np.arange(len(order))
    start = int(offsets[shard.rank])
    rows, scaled = _own_rows(shard, kind, number, start)
    lengths = np.diff(rows.indptr).astype(np.int64)
    weighted = everyone.any(bool((rows.data != 1).any()))
    small = np.int32 if index_dtype(len(order)) == torch.int32 else np.int64
    col, weight = rows.indices.astype(small), np.asarray(rows.data, np.float64)
    edges = int(group.all_gather(torch.tensor([len(col)])).sum())
    if spread:
        there = number[start : start + len(lengths)]
    else:
        there, lengths = number, everyone.join(lengths)
        entries = _Everyone(group, [int(part.sum()) for part in np.split(lengths, offsets[1:-1])])
        col, weight = entries.join(col), entries.join(weight) if weighted else weight
    place, crow = _places(lengths, there, len(order))
    left, right, diagonal = scaled
    scales_columns = everyone.any(bool((right != 1).any()))

    def of_nodes(mine: Array) -> torch.Tensor:
        return torch.from_numpy(everyone.join(mine)[order])

    whole = Topology(
        torch.from_numpy(crow),
        _ordered(col, place),
        _ordered(weight, place) if weighted else None,
        of_nodes(left),
        of_nodes(right) if scales_columns else None,
        None if diagonal is None else of_nodes(diagonal),
    )
    owner = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))[order]
    return GatheredTopology(
        whole,
        torch.from_numpy(part_ids[order]),
        torch.from_numpy(owner),
        torch.from_numpy(order - offsets[:-1][owner]),
        torch.from_numpy(number[start : start + len(shard.nodes)]),
        edges,
    )


def gather_numbers(gathered: GatheredTopology, rows: torch.Tensor, group: Group) -> torch.Tensor:
    """The numbers of some rows `[k]` of every rank, ascending; all ranks call it together."""
    counts = group.all_gather(torch.tensor([len(rows)])).flatten().tolist()
    return torch.from_numpy(np.sort(_Everyone(group, counts).join(gathered.own[rows].numpy())))


class _Everyone:
    """Joins what every rank has, where all know how much that is."""

    def __init__(self, group: Group, counts: list[int]) -> None:
        self._group = group
        self._counts = counts

    def join(self, mine: Array) -> Array:
        """Every rank's `[k_i]`, in the order of ranks."""
        parts = []
        for owner, count in enumerate(self._counts):
            own = owner == self._group.rank  # of which a copy is sent, as what a shard maps is read-only
            part = torch.from_numpy(np.array(mine) if own else np.empty(count, mine.dtype))
            if count and self._group.size > 1:
                self._group.broadcast(part, owner, TOPOLOGY).wait()
            parts.append(part)
        return torch.cat(parts).numpy()

    def any(self, mine: bool) -> bool:
        """Whether it holds on any rank."""
        return bool(self._group.all_gather(torch.tensor([mine], dtype=torch.uint8)).any())


def _own_rows(
    shard: Shard, kind: Normalisation, number: Array, start: int
) -> tuple[sp.csr_array, tuple[Array, Array, Array | None]]:
    """Own rows of `A` over numbers, ascending; factors left and right of them, and the diagonal apart."""
    matrix = shard.edges("incoming")
    rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    own = np.arange(start, start + matrix.shape[0])
    loops, left, right = scales(kind, shard.row_sums(own))
    columns, data, diagonal = matrix.indices, np.asarray(matrix.data), None
    if loops:
        on_diagonal = columns == rows + start
        diagonal = np.ones(matrix.shape[0])
        diagonal[rows[on_diagonal]] = data[on_diagonal]
        diagonal *= left * right
        rows, columns, data = rows[~on_diagonal], columns[~on_diagonal], data[~on_diagonal]
    numbered = sp.csr_array((data, (rows, number[columns])), shape=matrix.shape)
    numbered.sort_indices()
    return numbered, (left, right, diagonal)


def _places(lengths: Array, number: Array, nodes: int) -> tuple[torch.Tensor, Array]:
    """Where every entry of rows goes that stand one after another, and the row ends of all `nodes`."""
    sizes = np.zeros(nodes, lengths.dtype)
    sizes[number] = lengths
    crow = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    first = np.concatenate([[0], np.cumsum(lengths)])[:-1]
    shift = np.repeat(crow[number] - first, lengths)
    return torch.from_numpy(shift + np.arange(len(shift))), crow


def _ordered(joined: Array, place: torch.Tensor) -> torch.Tensor:
    out = torch.empty(len(joined), dtype=torch.from_numpy(joined[:0]).dtype)
    out[place] = torch.from_numpy(joined)
    return out
