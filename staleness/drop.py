"""Policy `drop`: partition-only training, the honest baseline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .base import SKIP, Answer, Norm, View


@dataclass(frozen=True)
class Drop:
    """Nothing is ever sent; remote rows count as absent (LLCG without its correction).

    Where `drop` is as accurate as `always`, a graph proves nothing about staleness. Backward, it is
    DIGEST's setting: histories are constants, and no gradient crosses.
    """

    max_age: ClassVar[int] = 0
    drift_norm: ClassVar[Norm | None] = None
    absent: ClassVar[bool] = True

    def decide(self, view: View) -> Answer:
        """SKIP; not called, since with `absent` there is nothing to decide."""
        return SKIP
