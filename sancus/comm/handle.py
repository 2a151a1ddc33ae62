"""A transfer on its way, as the caller of a group sees it: waited for, checked, and its time accounted."""

from __future__ import annotations

from collections.abc import Callable

from sancus.comm.desk import Desk
from sancus.comm.errors import CommError
from sancus.comm.ledger import Entry
from sancus.comm.stopwatch import message_of
from sancus.comm.transport import Transfer


class Handle:
    """A message or collective on its way."""

    def __init__(
        self,
        transfer: Transfer,
        desk: Desk,
        entry: Entry,
        describe: str,
        on_arrival: Callable[[], None] | None = None,
    ) -> None:
        """`on_arrival` checks what has arrived, and puts it where the caller expects it."""
        self._transfer = transfer
        self._stopwatch = desk.stopwatch
        self._observer = desk.observer
        self._number = desk.number
        self._entry = entry
        self._describe = describe
        self._on_arrival = on_arrival
        self._journey = None
        if entry.purpose == "payload":
            self._journey = self._stopwatch.overlap.begin(self._stopwatch.now(), transfer.ended)

    def wait(self) -> None:
        """Block until the tensors are ours again; a failure or timeout is a `CommError`.

        Only this time is exposed; what passed since the start of the transfer, until here or until the
        transfer ended, was hidden behind other work.
        """
        with self._stopwatch.at(message_of(self._entry)):
            started = self._stopwatch.now()
            if self._journey is not None:
                self._journey.awaited = started
            self._observer.waits(self._number)
            try:
                self._transfer.finish()
            except RuntimeError as error:
                waited = self._stopwatch.now() - started
                failed = f"{self._describe} failed after {waited:.1f} s: {reason(error)}"
                raise CommError(self._observer.explain(failed)) from error
            self._observer.goes_on()
            if self._on_arrival is not None:
                self._on_arrival()


def reason(error: Exception) -> str:
    """What an error says, in one line."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
