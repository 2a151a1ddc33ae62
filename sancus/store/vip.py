"""Cache `vip`: rows by the probability that a batch of this rank reads them (SALIENT++, §3.1, eq. 1-2).

The probability that hop `h` reaches node `u` is that of at least one draw: a target `v` that hop `h − 1` has
reached takes each of its `d` neighbours with probability `min(1, k/d)`, so

    p_h(u) = 1 − Π_{v: u ∈ N(v)} (1 − min(1, k_h/d_v) p_{h−1}(v)),    p_0 = the share of seeds in a batch

and a batch reads `u` with `1 − Π_h (1 − p_h(u))`, as if draws were independent. Products are sums of logs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sancus.store.column_sums import Columns
from sancus.store.kept_rows import Reads, check_share


@dataclass(frozen=True)
class Vip:
    """Keeps the rows of other ranks that a rank's own batches are most likely to read."""

    share: float = 0.1

    def __post_init__(self) -> None:
        check_share(self.share)

    def scores(self, reads: Reads) -> torch.Tensor:
        """How often a batch is expected to read each row `[N]`, at most once: its inclusion probability."""
        reached = torch.zeros(len(reads.columns.degrees), dtype=torch.float64)
        reached[reads.seeds] = min(1.0, reads.rate)
        never = torch.log1p(-reached)  # log of the probability that no hop reaches the node
        for fanout in reads.fanouts:
            missed = _missed(reads.columns, reached, fanout)
            never += missed
            reached = -torch.expm1(missed)
        return -torch.expm1(never)


def _missed(columns: Columns, reached: torch.Tensor, fanout: int) -> torch.Tensor:
    """The log of the probability that a hop's draws miss each node `[N]`."""
    degrees = columns.degrees
    drawn = torch.ones_like(reached) if fanout < 0 else (fanout / degrees.clamp(min=1)).clamp(max=1.0)
    return columns.sums(torch.log1p(-drawn * reached))  # of each draw; −inf where it is certain
