"""A transfer on its way, as the caller of a group sees it: waited for, checked, and its time accounted."""

from __future__ import annotations

import time
from collections.abc import Callable

from sancus.comm.desk import Desk
from sancus.comm.errors import CommError
from sancus.comm.ledger import Entry
from sancus.comm.transport import Transfer


class Handle:
    """A message or collective on its way."""

    def __init__(
        self,
        transfer: Transfer,
        desk: Desk,
        entry: Entry,
        describe: str,
        unseal: Callable[[], None] | None = None,
    ) -> None:
        """`unseal` checks what has arrived, and puts it where the caller expects it."""
        self._transfer = transfer
        self._ledger = desk.ledger
        self._observer = desk.observer
        self._number = desk.number
        self._entry = entry
        self._describe = describe
        self._unseal = unseal
        self._begun = time.perf_counter()

    def wait(self) -> None:
        """Block until the tensors are ours again; a failure or timeout is a `CommError`.

        Only this time is exposed; what passed since the start of the transfer, until here or until the
        transfer ended, was hidden behind other work.
        """
        started = time.perf_counter()
        self._observer.waits(self._number)
        try:
            self._transfer.finish()
        except RuntimeError as error:
            waited = time.perf_counter() - started
            failed = f"{self._describe} failed after {waited:.1f} s: {reason(error)}"
            raise CommError(self._observer.explain(failed)) from error
        self._observer.goes_on()
        if self._unseal is not None:
            self._unseal()
        self._ledger.wait(self._entry.purpose, time.perf_counter() - started)
        if self._entry.purpose == "payload":
            self._ledger.hide(min(started, self._transfer.ended() or started) - self._begun)


def reason(error: Exception) -> str:
    """What an error says, in one line."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
