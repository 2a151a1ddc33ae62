"""Small notes that ranks leave for each other outside all collectives, by name; the last one counts."""

from __future__ import annotations

import contextlib
from typing import Protocol

import torch.distributed as dist


class Notes(Protocol):
    """What ranks can write and read at any time, whatever the others do."""

    def put(self, name: str, content: bytes) -> None:
        """Leave a note; the one before of the same name is gone."""
        ...

    def get(self, name: str) -> bytes | None:
        """The last note of a name; None where there is none, or where it cannot be read any more."""
        ...


class StoreNotes:
    """Notes in the store where ranks met."""

    def __init__(self, store: dist.Store) -> None:
        """`store` is a connection of its own: nobody else may wait on it."""
        self._store = store

    def put(self, name: str, content: bytes) -> None:
        """Lost where the store has gone with its host."""
        with contextlib.suppress(RuntimeError):
            self._store.set(f"note/{name}", content.decode())

    def get(self, name: str) -> bytes | None:
        """Asks first: a store waits for what is not there."""
        key = f"note/{name}"
        try:
            return bytes(self._store.get(key)) if self._store.check([key]) else None
        except RuntimeError:
            return None
