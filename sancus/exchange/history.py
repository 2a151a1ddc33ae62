"""History: what a receiver last got of every stream, with its version: the epoch it was made in.

Two verbs, `push` and `pull`. The store owns its memory: payloads are copied in, so a later receive into
the same buffer cannot overwrite them, and nothing that comes out may be written to. A rank's own rows
never pass through here.

    history.push(Stream(1, "forward", owner=2), payload, version=7)    # owner 2 sent in epoch 7
    history.pull(Stream(1, "forward", owner=2))                        # at a use where owner 2 skips
"""

from __future__ import annotations

import torch

from sancus.comm.ledger import Stream


class History:
    """Decoded payloads of other owners, by stream."""

    def __init__(self) -> None:
        self._payloads: dict[Stream, torch.Tensor] = {}
        self._versions: dict[Stream, int] = {}

    def push(self, stream: Stream, payload: torch.Tensor, version: int) -> None:
        """Remember a copy of `payload [rows, f]`, which was made in epoch `version`."""
        self._versions[stream] = version
        kept = self._payloads.get(stream)
        if kept is None or kept.shape != payload.shape:
            self._payloads[stream] = payload.detach().clone()
        else:
            kept.copy_(payload)

    def pull(self, stream: Stream) -> torch.Tensor:
        """The last payload that was pushed; read only."""
        return self._payloads[stream]

    def holds(self, stream: Stream) -> bool:
        """Whether anything was pushed."""
        return stream in self._payloads

    def version(self, stream: Stream) -> int:
        """The epoch in which what `pull` gives was made."""
        return self._versions[stream]

    def streams(self) -> list[Stream]:
        """Everything that is held."""
        return list(self._payloads)

    @property
    def nbytes(self) -> int:
        """Memory that the store holds."""
        return sum(payload.nbytes for payload in self._payloads.values())
