"""Cache `degree`: rows that many nodes have as a neighbour (PaGraph; DistDGL's users do the same by hand)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sancus.store.kept_rows import Reads, check_share


@dataclass(frozen=True)
class Degree:
    """Keeps the rows of other ranks that most nodes have as a neighbour, the same ones on every rank."""

    share: float = 0.1

    def __post_init__(self) -> None:
        check_share(self.share)

    def scores(self, reads: Reads) -> torch.Tensor:
        """In how many rows of `Â` each node is `[N]`."""
        return reads.columns.sums(torch.ones_like(reads.columns.degrees, dtype=torch.float64))
