"""Policy `pipelined`: last epoch's payload now, this epoch's in the background (PipeGCN; Sylvie-A)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .base import LATER, SEND, SKIP, Answer, Replicated, View, check_bound


@dataclass(frozen=True)
class Pipelined(Replicated):
    """Receivers compute on last epoch's payload while this epoch's travels.

    With `sync_every=S`, every S-th epoch is synchronous (Sylvie §3.3, the Bounded Staleness Adaptor with
    interval ε_s = S): the payload is used in the epoch it is made in. 0 is PipeGCN: never after the first.
    PipeGCN's Algorithm 1 has nothing to use in the first either, and goes on with zeros; ours waits.
    What the epoch before a synchronous one makes would be used by nobody, so it is not sent.
    """

    max_age: ClassVar[int] = 1
    sync_every: int = 0

    def __post_init__(self) -> None:
        check_bound("sync_every", self.sync_every)

    def decide(self, view: View) -> Answer:
        """LATER, but for the synchronous epochs and those before them."""
        if self.sync_every and view.since_first % self.sync_every == 0:
            return SEND
        if self.sync_every and (view.since_first + 1) % self.sync_every == 0:
            return SKIP
        return LATER
