"""Delivery: payloads cross, one use of a stream at a time.

Encodes what this rank sends, moves it, decodes what arrives, and falls back on history where an owner
skips. Knows the codec and the transport, and nothing of where payloads come from or go to.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from sancus.codecs.base import Codec
from sancus.comm.base import Handle, Transport
from sancus.comm.ledger import Direction, Entry, Purpose, Stream
from sancus.exchange.history import History


@dataclass(frozen=True)
class Use:
    """One use of the streams of a layer and direction: who sends, and what it is counted as."""

    layer: int
    direction: Direction
    sends: Sequence[bool]  # [p], the same on all ranks
    history: History | None = None  # where receivers remember; None where nothing is ever skipped
    purpose: Purpose = "payload"

    def entry(self, owner: int) -> Entry:
        """The ledger's entry for what `owner` sends."""
        return Entry(self.purpose, self.stream(owner))

    def stream(self, owner: int) -> Stream:
        """The stream of an owner."""
        return Stream(self.layer, self.direction, owner)


class Delivery:
    """Moves payloads between ranks; yields `(owner, payload)` of the other ranks."""

    def __init__(self, transport: Transport, codec: Codec) -> None:
        self._transport = transport
        self._codec = codec

    def broadcast(
        self, payload: torch.Tensor, rows: Sequence[int], use: Use
    ) -> Iterator[tuple[int, torch.Tensor]]:
        """One payload for everyone, owner after owner (Algorithm 3, lines 5-14).

        `rows[j]` is the number of rows of owner `j`. The first broadcast starts here; the broadcast of
        the next owner is under way while the caller works on the current one.
        """
        transport, own = self._transport, self._transport.rank
        owners = [rank for rank in range(transport.size) if use.sends[rank] and rows[rank]]
        started: dict[int, tuple[torch.Tensor, Handle]] = {}

        def start(place: int) -> None:
            if place < len(owners):
                owner = owners[place]
                wire = self._wire(payload, rows[owner], own=owner == own)
                started[owner] = wire, transport.broadcast(wire, owner, use.entry(owner))

        def arrivals() -> Iterator[tuple[int, torch.Tensor]]:
            for owner in range(transport.size):
                if owner in owners:
                    start(owners.index(owner) + 1)
                    wire, handle = started.pop(owner)
                    handle.wait()
                    if owner != own:
                        yield owner, self._remember(wire, payload, owner, use)
                elif owner != own and rows[owner]:
                    yield owner, self._recall(owner, use)

        if own in owners:
            self._count_raw(payload, use, receivers=transport.size - 1)
        start(0)
        return arrivals()

    def all_to_all(
        self, payloads: Sequence[torch.Tensor], rows: Sequence[int], use: Use
    ) -> Iterator[tuple[int, torch.Tensor]]:
        """One payload for each receiver, all at once; `rows[j]` arrive from owner `j`.

        The transfer starts here; the first `next` of the returned iterator waits for it.
        """
        transport, own = self._transport, self._transport.rank
        out = [len(payload) if rank != own else 0 for rank, payload in enumerate(payloads)]
        if not use.sends[own]:
            out = [0] * transport.size
        coming = [rows[rank] if use.sends[rank] and rank != own else 0 for rank in range(transport.size)]
        parts = [payload for rank, payload in enumerate(payloads) if out[rank]]
        sample = payloads[own]
        joined = torch.cat(parts) if parts else sample[:0]
        wire = self._codec.encode(joined).contiguous()
        received = self._codec.wire(sum(coming), sample.shape[1], sample.dtype, sample.device)
        handle = transport.all_to_all(wire, out, received, coming, use.entry(own))
        self._count_raw(joined, use, receivers=1)
        return self._arrivals(handle, received, coming, rows, sample, use)

    def _arrivals(
        self,
        handle: Handle,
        received: torch.Tensor,
        coming: Sequence[int],
        rows: Sequence[int],
        sample: torch.Tensor,
        use: Use,
    ) -> Iterator[tuple[int, torch.Tensor]]:
        handle.wait()
        for owner, wire in enumerate(received.split(list(coming))):
            if owner == self._transport.rank or not rows[owner]:
                continue
            if use.sends[owner]:
                yield owner, self._remember(wire, sample, owner, use)
            else:
                yield owner, self._recall(owner, use)

    def _wire(self, payload: torch.Tensor, rows: int, *, own: bool) -> torch.Tensor:
        if own:
            return self._codec.encode(payload).contiguous()
        return self._codec.wire(rows, payload.shape[1], payload.dtype, payload.device)

    def _remember(self, wire: torch.Tensor, like: torch.Tensor, owner: int, use: Use) -> torch.Tensor:
        payload = self._codec.decode(wire, like.shape[1], like.dtype)
        if use.history is not None:
            use.history.push(use.stream(owner), payload)
        return payload

    def _recall(self, owner: int, use: Use) -> torch.Tensor:
        assert use.history is not None, "a policy that skips keeps history"
        return use.history.pull(use.stream(owner))

    def _count_raw(self, payload: torch.Tensor, use: Use, receivers: int) -> None:
        if use.purpose == "payload":
            self._transport.ledger.count_raw(use.stream(self._transport.rank), payload.nbytes * receivers)
