"""Dropout of attention weights, whose mask is a function of the edge, not of the rank that holds it.

An edge is known by the user's ids of both ends. So a rank must know the ids of the rows that it receives:
they cross once, when they are first needed, and are counted as agreement.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from sancus.comm.group import Group
from sancus.comm.ledger import Entry
from sancus.exchange.dropout import DropoutKey, edge_mask
from sancus.exchange.fused_attention import ALL, EdgeMasks
from sancus.kernels.masks import EdgeMask
from sancus.plans.base import Leg
from sancus.plans.maps import Pick

Present = Callable[[torch.Tensor], torch.Tensor]  # own and all received rows -> those of this pass


class EdgeDropout:
    """The nodes behind the columns of own rows."""

    def __init__(self, nodes: torch.Tensor, leg: Leg, group: Group) -> None:
        """`nodes [n_i]` are the user's ids of the own rows."""
        self._own = nodes
        own, ranks = group.rank, range(group.size)
        maps = [row_map for rank, row_map in enumerate(leg.make) if rank != own]
        send = [nodes[row_map.index] if isinstance(row_map, Pick) else nodes for row_map in maps]
        out = [0 if rank == own else leg.make[rank].rows_out for rank in ranks]
        coming = [0 if rank == own else leg.add[rank].rows_in for rank in ranks]
        received = nodes.new_empty(sum(coming))
        if group.size > 1:
            group.all_to_all(torch.cat(send), out, received, coming, Entry("agreement")).wait()
        self._received = received.split(coming)
        self._rank = own

    def columns(self) -> torch.Tensor:
        """The user's ids of own and received rows, `[n_i + r_i]`."""
        return torch.cat([self._own, *self._received])

    def thinned(self, heads: int, share: float, key: DropoutKey, present: Present) -> EdgeMasks:
        """The masks of own rows over an owner's columns or all.

        `present` keeps, of own and received rows, those that take part in this pass.
        """

        def mask(owner: int) -> EdgeMask:
            sources = present(self.columns()) if owner == ALL else self._of(owner)
            return edge_mask(self._own, sources, heads, share, key)

        return mask

    def _of(self, owner: int) -> torch.Tensor:
        """The user's ids of an owner's rows."""
        return self._own if owner == self._rank else self._received[owner]
