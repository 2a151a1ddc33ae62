"""Policy `epoch-fixed`: a period (SANCUS Definition 1, Algorithm 4; DIGEST's period; SkipG backward)."""

from __future__ import annotations

from dataclasses import dataclass

from .base import Bounded, View


@dataclass(frozen=True)
class EpochFixed(Bounded):
    """All owners send together, every `bound + 1` epochs.

    Algorithm 4: `Ver − Ver(j) > ε_E` makes the owner ACTIVE, with `Ver(j)` the epoch of the last
    broadcast. Definition 1 says both `|ẽ − e| ≤ ε_E` and "broadcast after every ε_E epochs"; we read the
    inequality: with ε_E = 1 an epoch sends, the next skips at age 1, the next sends (Figure 14a, "every other
    epoch"). DIGEST's period N is `bound = N − 1`.
    """

    def decide(self, view: View) -> bool:
        """SEND when the history is older than the bound."""
        return view.age > self.bound
