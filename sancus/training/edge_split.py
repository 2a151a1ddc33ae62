"""Which edges train, validate and test, and which pairs they are told apart from: hashes of node ids.

So neither depends on ranks, parts or the order of edges, and nothing of it is stored. An edge and its reverse
are in the same split; loops are in none.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from sancus.graphs.derive import Total, shard_without
from sancus.graphs.shards import Shard
from sancus.kernels.hashing import MASK64, signed, splitmix, splitmix_scalar
from sancus.store.features import Places
from sancus.training.task import Split

_SALT = 0x11_4B5_0000_0007  # no key of a pair is one of a sample, or of a mask
_SPLIT, _SHOWN, _DRAW = 1, 2, 3
SCORED = -1  # in place of an epoch: the pairs of all evaluations


@dataclass(frozen=True, eq=False)
class EdgeSplit:
    """Own edges of every split, source and target by their ids; an undirected edge once."""

    edges: dict[Split, torch.Tensor]  # [m, 2]
    shown: torch.Tensor  # [k, 2] of the training edges those that scores look at
    places: Places  # where the row of each id is


def split_edges(shard: Shard, total: Total, seed: int, held_out: float) -> tuple[Shard, EdgeSplit]:
    """The shard without validation and test edges, and the edges of this rank's rows."""
    offsets, start = shard.offsets, int(shard.offsets[shard.rank])
    own = np.zeros(int(offsets[-1]))
    own[start : start + len(shard.nodes)] = shard.nodes
    ids = total(own).astype(np.int64)  # of each place

    def fraction(row: npt.NDArray[np.integer], column: npt.NDArray[np.integer]) -> torch.Tensor:
        pairs = torch.from_numpy(np.stack([ids[column], ids[row]], axis=1))
        return torch.where(pairs[:, 0] == pairs[:, 1], 1.0, _fraction(pairs, _key(seed, _SPLIT)))

    def held(row: npt.NDArray[np.integer], column: npt.NDArray[np.integer]) -> npt.NDArray[np.bool_]:
        return (fraction(row, column) < 2 * held_out).numpy()

    matrix = shard.edges("incoming")
    row = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr)) + start
    pairs = torch.from_numpy(np.stack([ids[matrix.indices], ids[row]], axis=1))
    lot = fraction(row, matrix.indices)
    once = pairs[:, 0] != pairs[:, 1] if shard.manifest["graph"]["directed"] else pairs[:, 0] < pairs[:, 1]
    chosen: dict[Split, torch.Tensor] = {
        "train": pairs[once & (lot >= 2 * held_out)],
        "val": pairs[once & (lot < held_out)],
        "test": pairs[once & (lot >= held_out) & (lot < 2 * held_out)],
    }
    seen = _fraction(chosen["train"], _key(seed, _SHOWN)) < held_out / (1 - 2 * held_out)
    place = np.empty_like(ids)
    place[ids] = np.arange(len(ids))
    owner = np.searchsorted(offsets, place, side="right") - 1
    places = Places(torch.from_numpy(owner), torch.from_numpy(place - offsets[owner]))
    return shard_without(shard, held, total), EdgeSplit(chosen, chosen["train"][seen], places)


def drawn_pairs(edges: torch.Tensor, count: int, nodes: int, seed: int, epoch: int) -> torch.Tensor:
    """`[m, count, 2]`: of every edge one end, and any node in place of the other.

    A pair may be an edge, as rarely as any two nodes have one.
    """
    state = splitmix(edges[:, 0] ^ signed(_key(seed, _DRAW, epoch & MASK64)))
    state = splitmix(state ^ edges[:, 1])
    kept = torch.where(state & 1 == 0, edges[:, 0], edges[:, 1])
    noise = splitmix(state[:, None] + torch.arange(1, count + 1))
    other = ((noise >> 32) & 0xFFFFFFFF) * nodes >> 32
    return torch.stack([kept[:, None].expand(-1, count), other], dim=2)


def order_of(edges: torch.Tensor, key: int) -> torch.Tensor:
    """The edges `[m, 2]` in the order of a hash of each."""
    state = splitmix(splitmix(edges[:, 0] ^ signed(key)) ^ edges[:, 1])
    return edges[torch.argsort(state, stable=True)]


def _key(*values: int) -> int:
    state = _SALT
    for value in values:
        state = splitmix_scalar((state ^ value) & MASK64)
    return state


def _fraction(pairs: torch.Tensor, key: int) -> torch.Tensor:
    """At least 0 and below 1, the same for both directions of a pair `[m, 2]`."""
    low, high = pairs.min(dim=1).values, pairs.max(dim=1).values
    bits = splitmix(splitmix(low ^ signed(key)) ^ high)
    return ((bits >> 11) & ((1 << 53) - 1)).double() * 2.0**-53
