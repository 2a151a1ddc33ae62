"""The ring-based pipelined broadcast: owner → owner + 1 → … in chunks (SANCUS §4.3.2, Figure 13)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sancus.comm.header import as_bytes
from sancus.comm.transport import Transfer, Transport

CHUNK = 1 << 19
TAGS = 1 << 14  # of the rounds; MPI promises tags up to 2¹⁵ − 1


class Ring:
    """Broadcasts around the ring of members, by messages from one to the next.

    A rank passes a chunk on as soon as it has it, so all links are busy at once and a long block takes the
    time of one transfer plus a chunk per hop. The tag keeps rounds that overlap apart.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._rounds = 0

    def broadcast(self, tensor: torch.Tensor, owner: int) -> Transfer:
        """Start a round; every rank must finish it, as that is when it passes chunks on."""
        self._rounds += 1
        transport, tag = self._transport, self._rounds % TAGS
        rank, size = transport.rank, transport.size
        place = (rank - owner) % size
        before, after = (rank - 1) % size, (rank + 1) % size
        chunks = as_bytes(tensor).split(CHUNK)
        passes_on = place < size - 1
        if transport.in_order:
            return self._in_steps(chunks, before if place else None, after if passes_on else None)
        receives = [transport.receive(chunk, before, tag) for chunk in chunks] if place else []
        sends = [] if place else [transport.send(chunk, after, tag) for chunk in chunks]

        def finish() -> None:
            for chunk, receive in zip(chunks, receives, strict=False):
                receive.finish()
                if passes_on:
                    sends.append(transport.send(chunk, after, tag))
            for send in sends:
                send.finish()

        return Transfer(finish, lambda: None)

    def _in_steps(self, chunks: Sequence[torch.Tensor], before: int | None, after: int | None) -> Transfer:
        """Everything is started at once: in every step a chunk arrives, and the one before it goes on."""
        steps = []
        for step in range(len(chunks) + (before is not None)):
            coming = None if before is None or step == len(chunks) else chunks[step]
            place = step if before is None else step - 1
            going = None if after is None or place < 0 else chunks[place]
            if coming is not None or going is not None:
                steps.append(self._transport.pass_on(coming, before or 0, going, after or 0))

        def finish() -> None:
            for one in steps:
                one.finish()

        return Transfer(finish, lambda: None)
