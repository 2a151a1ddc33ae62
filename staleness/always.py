"""Policy `always`: no staleness."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .base import SEND, Answer, Replicated, View


@dataclass(frozen=True)
class Always(Replicated):
    """Every payload crosses at every use (CAGNET; SANCUS Algorithm 3 with every flag ACTIVE)."""

    max_age: ClassVar[int] = 0

    def decide(self, view: View) -> Answer:
        """SEND."""
        return SEND
