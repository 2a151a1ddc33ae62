"""Rows of all ranks in the order of the user's nodes: `N` nodes, of which a rank has `n_i`."""

from __future__ import annotations

import numpy as np
import torch

from sancus.comm.group import Group
from sancus.comm.ledger import Entry
from sancus.exchange.gather import to_rank_zero
from sancus.graphs.shards import Shard


def in_user_order(shard: Shard, group: Group, rows: torch.Tensor) -> torch.Tensor | None:
    """Own rows `[n_i, …]` of all ranks in the user's node order `[N, …]`, on rank 0."""
    sizes = np.diff(shard.offsets).tolist()
    ids = torch.from_numpy(np.array(shard.nodes)).to(rows.device)
    gathered_ids = to_rank_zero(group, ids, sizes)
    gathered = to_rank_zero(group, rows, sizes)
    if gathered is None or gathered_ids is None:
        return None
    ordered = torch.empty_like(gathered)
    ordered[gathered_ids] = gathered
    return ordered


def everywhere(shard: Shard, group: Group, rows: torch.Tensor) -> torch.Tensor:
    """Own rows `[n_i, …]` of all ranks in the user's node order `[N, …]`, on every rank."""
    ordered = in_user_order(shard, group, rows)
    if group.size == 1:
        assert ordered is not None, "a single rank is rank 0"
        return ordered
    if ordered is None:
        ordered = rows.new_empty(int(shard.offsets[-1]), *rows.shape[1:])
    group.broadcast(ordered, 0, Entry("evaluation")).wait()
    return ordered
