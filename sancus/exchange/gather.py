"""Rows of all ranks on rank 0, for what is written or scored there."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sancus.comm.group import Group
from sancus.comm.ledger import Entry


def to_rank_zero(group: Group, rows: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor | None:
    """Rows `[n_i, …]` joined on rank 0 in the order of ranks, where rank `i` has `sizes[i]`; evaluation."""
    if group.size == 1:
        return rows
    send = rows.contiguous() if group.rank else rows[:0].contiguous()
    out = [len(send), *[0] * (group.size - 1)]
    coming = [0, *sizes[1:]] if group.rank == 0 else [0] * group.size
    received = rows.new_empty(sum(coming), *rows.shape[1:])
    group.all_to_all(send, out, received, coming, Entry("evaluation")).wait()
    return torch.cat([rows, received]) if group.rank == 0 else None


def all_sizes(group: Group, rows: int, device: torch.device) -> list[int]:
    """Every rank's number of rows `[p]`, on all ranks."""
    mine = torch.tensor([rows], dtype=torch.int64, device=device)
    sizes: list[int] = group.all_gather(mine, Entry("evaluation")).flatten().tolist()
    return sizes


class RankZero:
    """Joins rows of all ranks, of which nobody knows how many another has."""

    def __init__(self, group: Group) -> None:
        self._group = group

    def join(self, rows: torch.Tensor) -> torch.Tensor | None:
        """Every rank's rows `[·, f]` on rank 0; None elsewhere."""
        return to_rank_zero(self._group, rows, all_sizes(self._group, len(rows), rows.device))
