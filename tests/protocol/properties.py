"""What must hold at every end, whatever the order of things was, and whoever crashed.

- Every rank ends; a rank that stands for ever is found by the explorer itself.
- No two ranks act on different decisions, or take different figures for those of an epoch.
- No rank uses a payload that an undisturbed run would not have used at that place.
- Nobody crashed: all ranks reach the same end, with the same weights; or all stop with the same error, where
  one is due.
- A rank crashed: each of the others ends with an error, or reaches the end of training as all do, and that
  only if every rank had trained to its last epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sancus.comm.errors import CommError
from sancus.errors import UserError
from tests.protocol.play import Seat

SHARED = ("decision", "epoch")  # notes that must be the same on all ranks
OWN = ("used", "opened", "recalled", "received", "pulled")  # notes that must be those of an undisturbed run


class Judge:
    """Says what is wrong with an end; it remembers what ends before looked like."""

    def __init__(self, undisturbed: Sequence[Seat], due: str = "") -> None:
        """`undisturbed` are ranks that nothing happened to; `due` is in the error that all must end with."""
        self._due = due
        self._shared = max((_of(seat, SHARED) for seat in undisturbed), key=len)
        self._own = [_of(seat, OWN) for seat in undisturbed]
        self._weights: dict[int, Any] = {}  # their checksum at the end, by the epochs that there were

    def __call__(self, seats: Sequence[Seat]) -> str | None:
        """None where all is well."""
        crashed = any(seat.status == "crashed" for seat in seats)
        told = any(self._is_due(seat.result) for seat in seats)  # that rank has left, as one that crashed
        for rank, seat in enumerate(seats):
            if not _begins(self._shared, _of(seat, SHARED)):
                return f"rank {rank} acts on other decisions: {_of(seat, SHARED)}"
            if not _begins(self._own[rank], _of(seat, OWN)):
                return f"rank {rank} used a wrong tensor: {_of(seat, OWN)}"
            if seat.status == "error" and not self._expected(seat.result, lost=crashed or told):
                return f"rank {rank} ended with {seat.result!r}"
        done = [seat for seat in seats if seat.status == "done"]
        if not crashed and len(done) != (0 if self._due else len(seats)):
            return "some ranks reached the end, and others did not"
        return self._ends(done, seats)

    def _is_due(self, result: object) -> bool:
        return bool(self._due) and isinstance(result, UserError) and self._due in str(result)

    def _expected(self, error: Exception, *, lost: bool) -> bool:
        """Whether a rank may end with this error; `lost` says that another one was there no more."""
        return self._is_due(error) or (lost and isinstance(error, CommError))

    def _ends(self, done: Sequence[Seat], seats: Sequence[Seat]) -> str | None:
        """All that are done have the same result, after as many epochs as everybody trained."""
        for seat in done:
            epochs = len(_of(seat, ("epoch",)))
            if any(len(_of(other, ("epoch",))) != epochs for other in seats):
                return "a rank reached the end before all had trained their last epoch"
            if seat.result != done[0].result:
                return f"one rank ends with {done[0].result}, another with {seat.result}"
            weights = seat.result[0]
            if self._weights.setdefault(epochs, weights) != weights:
                return f"weights {self._weights[epochs]} in one order of things, {weights} in another"
        return None


def _of(seat: Seat, kinds: Sequence[str]) -> list[Any]:
    return [note for note in seat.notes if note[0] in kinds]


def _begins(whole: list[Any], part: list[Any]) -> bool:
    return whole[: len(part)] == part
