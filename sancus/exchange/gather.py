"""Rows of all ranks on rank 0, for what is written or scored there."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sancus.comm.base import Transport
from sancus.comm.ledger import Entry


def to_rank_zero(transport: Transport, rows: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor | None:
    """Rows `[n_i, …]` joined on rank 0 in the order of ranks, where rank `i` has `sizes[i]`; evaluation."""
    if transport.size == 1:
        return rows
    send = rows.contiguous() if transport.rank else rows[:0].contiguous()
    out = [len(send), *[0] * (transport.size - 1)]
    coming = [0, *sizes[1:]] if transport.rank == 0 else [0] * transport.size
    received = rows.new_empty(sum(coming), *rows.shape[1:])
    transport.all_to_all(send, out, received, coming, Entry("evaluation")).wait()
    return torch.cat([rows, received]) if transport.rank == 0 else None


def all_sizes(transport: Transport, rows: int, device: torch.device) -> list[int]:
    """Every rank's number of rows `[p]`, on all ranks."""
    mine = torch.tensor([rows], dtype=torch.int64, device=device)
    sizes: list[int] = transport.all_gather(mine, Entry("evaluation")).flatten().tolist()
    return sizes


class RankZero:
    """Joins rows of all ranks, of which nobody knows how many another has."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def join(self, rows: torch.Tensor) -> torch.Tensor | None:
        """Every rank's rows `[·, f]` on rank 0; None elsewhere."""
        return to_rank_zero(self._transport, rows, all_sizes(self._transport, len(rows), rows.device))
