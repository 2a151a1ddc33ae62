"""The contract of a cache: which rows of other ranks a rank keeps, chosen once, before the first epoch.

Features are constant, so what is kept is never stale, and nothing but speed depends on the choice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from sancus.store.column_sums import Columns


@dataclass(frozen=True, eq=False)
class Reads:
    """What is known beforehand of the rows that the batches of one rank will read."""

    columns: Columns  # of `Â`
    seeds: torch.Tensor  # [t_i] numbers of the rank's training nodes
    rate: float  # the share of the training nodes that a batch has
    fanouts: tuple[int, ...]  # from the seeds outward; −1: all


class Cache(Protocol):
    """Chooses rows to keep; a class of one's own has `share` and `scores`."""

    share: float  # of the rows of other ranks, how many are kept at most

    def scores(self, reads: Reads) -> torch.Tensor:
        """How much each row is wanted `[N]`, 0 and above; one of 0 is not kept. All ranks call it."""
        ...


def check_share(share: float) -> None:
    """Refuse a share that is none."""
    if not 0 < share <= 1:
        raise ValueError(f"share={share:g} must be above 0 and at most 1: of the rows of other ranks")


def rows_to_keep(cache: Cache, reads: Reads, remote: torch.Tensor) -> torch.Tensor:
    """The numbers of the rows to keep, of those of other ranks `remote [N]` bool; the most wanted ones."""
    nodes = torch.nonzero(remote).flatten()
    wanted = cache.scores(reads)[nodes]
    room = min(int(cache.share * len(nodes)), int((wanted > 0).sum()))
    return nodes[torch.argsort(wanted, descending=True, stable=True)[:room]].sort().values
