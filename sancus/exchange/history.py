"""History: what a receiver last got of every stream, with its version: the epoch it was made in.

Two verbs, `push` and `pull`, over a store (`sancus.exchange.store`), which owns its memory: payloads are
copied in, so a later receive into the same buffer cannot overwrite them, and nothing that comes out may be
written to. A rank's own rows never pass through here.

    history.push(Stream(1, "forward", owner=2), payload, version=7)    # owner 2 sent in epoch 7
    history.pull(Stream(1, "forward", owner=2))                        # at a use where owner 2 skips
"""

from __future__ import annotations

import torch

from sancus.comm.ledger import Stream
from sancus.exchange.store import LocalStore, Store


class History:
    """Decoded payloads of other owners, by stream."""

    def __init__(self, store: Store | None = None) -> None:
        """By default a store of its own, in the memory of this process."""
        self._store = LocalStore() if store is None else store

    def push(self, stream: Stream, payload: torch.Tensor, version: int) -> None:
        """Remember a copy of `payload [rows, f]`, which was made in epoch `version`."""
        self._store.push(stream, payload, version)

    def pull(self, stream: Stream) -> torch.Tensor:
        """The last payload that was pushed; read only."""
        return self._store.pull(stream)

    def holds(self, stream: Stream) -> bool:
        """Whether anything was pushed."""
        return self._store.holds(stream)

    def version(self, stream: Stream) -> int:
        """The epoch in which what `pull` gives was made."""
        return self._store.version(stream)

    def streams(self) -> list[Stream]:
        """Everything that is held."""
        return self._store.streams()

    @property
    def nbytes(self) -> int:
        """Memory that the store holds."""
        return self._store.nbytes
