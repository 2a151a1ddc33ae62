"""Who wants to know what a rank communicates: called at every collective, so it must cost next to nothing."""

from __future__ import annotations

from sancus.comm.ledger import Stream


class Observer:
    """Follows a rank through its collectives; this one does not care."""

    def begin_epoch(self, epoch: int) -> None:
        """A training epoch starts."""

    def started(self, number: int, what: str, stream: Stream | None) -> None:
        """This rank starts its collective `number`; or a message, or a collective of some ranks, after it."""

    def waits(self, number: int) -> None:
        """This rank does nothing until that of the same `number` ends."""

    def goes_on(self) -> None:
        """This rank computes again."""

    def explain(self, message: str) -> str:
        """A collective failed: the message, completed by what is known of the other ranks."""
        return message
