"""Policy `never`: only the first send."""

from __future__ import annotations

from dataclasses import dataclass

from .base import SKIP, Answer, Replicated, View, check_bound


@dataclass(frozen=True)
class Never(Replicated):
    """Receivers keep the first epoch's payload for ever (or until `max_age`, if it is set lower)."""

    max_age: int = 1_000_000_000

    def __post_init__(self) -> None:
        check_bound("max_age", self.max_age)

    def decide(self, view: View) -> Answer:
        """SKIP."""
        return SKIP
