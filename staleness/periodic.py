"""Policy `periodic`: pushed every N epochs, used from the next one on (DIGEST §3.2)."""

from __future__ import annotations

from dataclasses import dataclass

from .base import LATER, SKIP, Answer, Replicated, View


@dataclass(frozen=True)
class Periodic(Replicated):
    """Every `period` epochs a payload travels in the background, for the epochs after: ages 1 to `period`.

    DIGEST §3.2: "after the end of a epoch, the newly-computed representations are pushed", once every N
    epochs, and "fetched as stale representations in future epochs"; pushes and pulls are hidden behind
    computation (Figure 2). How we read it:

    - Algorithm 1, taken literally, pulls just before it pushes, so that ages would run from N − 1 to 2N − 2.
      We follow the prose: what epoch `e` made is used in `e + 1 … e + N`.
    - Before the first push there is nothing to pull, and the paper does not say what stands in for it. The
      first use of a stream is fresh, as under every policy.

    With a period of 1 it is `pipelined`. `epoch-fixed:bound=N-1` has the same period without the delay: its
    payloads are used in the epoch in which they are made, which waits for them (ages 0 to N − 1).
    """

    period: int = 10

    def __post_init__(self) -> None:
        if isinstance(self.period, bool) or not isinstance(self.period, int) or self.period < 1:
            raise ValueError(f"period={self.period!r} must be a whole number from 1 on")

    @property
    def max_age(self) -> int:
        """The period itself: the push replaces what is used for the last time."""
        return self.period

    def decide(self, view: View) -> Answer:
        """LATER when the history is a period old, and is used for the last time."""
        return LATER if view.age >= self.period else SKIP
