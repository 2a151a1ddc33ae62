"""Delivery: payloads cross, one use of a stream at a time.

Encodes what this rank sends, seals it, moves it, checks and decodes what arrives, and falls back on history
where an owner skips. Knows the codec and the transport, and nothing of where payloads come from or go to.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from sancus.codecs.base import Codec
from sancus.comm.base import Handle, Transport
from sancus.comm.ledger import Direction, Entry, Purpose, Stream
from sancus.exchange.envelope import HEADER, Label, blank, seal, size_of, unseal
from sancus.exchange.history import History

Arrivals = Iterator[tuple[int, torch.Tensor]]


@dataclass(frozen=True)
class Use:
    """One use of the streams of a layer and direction: who sends, and what it is counted as."""

    layer: int
    direction: Direction
    sends: Sequence[bool]  # [p], the same on all ranks
    sequence: int  # number of this use, the same on all ranks
    epoch: int
    history: History | None = None  # where receivers remember; None where nothing is ever stale
    absent: bool = False  # remote rows count as zero
    max_age: int = 0  # of what may be recalled
    purpose: Purpose = "payload"

    def entry(self, owner: int) -> Entry:
        """The ledger's entry for what `owner` sends."""
        return Entry(self.purpose, self.stream(owner))

    def stream(self, owner: int) -> Stream:
        """The stream of an owner."""
        return Stream(self.layer, self.direction, owner)

    def label(self, owner: int) -> Label:
        """What a payload of `owner` must say of itself."""
        return Label(self.sequence, self.stream(owner), self.epoch)


class Delivery:
    """Moves payloads between ranks; yields `(owner, payload)` of the other ranks."""

    def __init__(self, transport: Transport, codec: Codec) -> None:
        self._transport = transport
        self._codec = codec

    def broadcast(self, payload: torch.Tensor, rows: Sequence[int], use: Use) -> Arrivals:
        """One payload for everyone, owner after owner (Algorithm 3, lines 5-14).

        `rows[j]` is the number of rows of owner `j`. The first broadcast starts here; the broadcast of
        the next owner is under way while the caller works on the current one. An owner that skips makes
        no round, and receives in the rounds of the others (Figure 13).
        """
        transport, own = self._transport, self._transport.rank
        owners = [rank for rank in range(transport.size) if use.sends[rank] and rows[rank]]
        started: dict[int, tuple[torch.Tensor, Handle]] = {}

        def start(place: int) -> None:
            if place < len(owners):
                owner = owners[place]
                wire = self._wire(payload, rows[owner]) if owner != own else self._codec.encode(payload)
                envelope = (
                    seal([wire], use.label(own)) if owner == own else blank([size_of(wire)], payload.device)
                )
                handle = transport.broadcast(envelope, owner, use.entry(owner), overhead=HEADER)
                started[owner] = envelope, handle

        def arrivals() -> Arrivals:
            for owner in range(transport.size):
                if owner in owners:
                    start(owners.index(owner) + 1)
                    envelope, handle = started.pop(owner)
                    handle.wait()
                    if owner != own:
                        yield owner, self._open(envelope, payload, rows[owner], owner, use)
                elif owner != own and rows[owner] and not use.absent:
                    yield owner, self._recall(owner, use)

        self._count([payload] * (transport.size - 1), use)
        start(0)
        return arrivals()

    def all_to_all(self, payloads: Sequence[torch.Tensor], rows: Sequence[int], use: Use) -> Arrivals:
        """One payload for each receiver, all at once; `rows[j]` arrive from owner `j`.

        The transfer starts here; the first `next` of the returned iterator waits for it.
        """
        transport, own = self._transport, self._transport.rank
        sample = payloads[own]
        others = [payload for rank, payload in enumerate(payloads) if rank != own]
        self._count(others, use)
        if not any(use.sends):
            return self._remembered(rows, use)
        wires = [self._codec.encode(payload if use.sends[own] else sample[:0]) for payload in payloads]
        out = [0 if rank == own else size_of(wire) for rank, wire in enumerate(wires)]
        coming = [
            size_of(self._wire(sample, rows[rank])) if use.sends[rank] and rank != own else 0
            for rank in range(transport.size)
        ]
        sealed = seal([wire for rank, wire in enumerate(wires) if rank != own], use.label(own))
        received = blank(coming, sample.device)
        handle = transport.all_to_all(sealed, out, received, coming, use.entry(own), overhead=HEADER)

        def arrivals() -> Arrivals:
            handle.wait()
            for owner, envelope in enumerate(received.split(coming)):
                if len(envelope):
                    yield owner, self._open(envelope, sample, rows[owner], owner, use)
                elif owner != own and rows[owner] and not use.absent:
                    yield owner, self._recall(owner, use)

        return arrivals()

    def _remembered(self, rows: Sequence[int], use: Use) -> Arrivals:
        for owner, count in enumerate(rows):
            if owner != self._transport.rank and count and not use.absent:
                yield owner, self._recall(owner, use)

    def _wire(self, like: torch.Tensor, rows: int) -> torch.Tensor:
        """The shape of what crosses for `rows` rows; holds no memory."""
        return self._codec.wire(rows, like.shape[1], like.dtype, torch.device("meta"))

    def _open(
        self, envelope: torch.Tensor, like: torch.Tensor, rows: int, owner: int, use: Use
    ) -> torch.Tensor:
        wire = unseal(envelope, self._wire(like, rows), use.label(owner), self._transport.rank)
        payload = self._codec.decode(wire, like.shape[1], like.dtype)
        if use.history is not None:
            use.history.push(use.stream(owner), payload, use.epoch)
        return payload

    def _recall(self, owner: int, use: Use) -> torch.Tensor:
        assert use.history is not None, "a policy that skips keeps history"
        assert use.epoch - use.history.version(use.stream(owner)) <= use.max_age, "older than the bound"
        return use.history.pull(use.stream(owner))

    def _count(self, payloads: Sequence[torch.Tensor], use: Use) -> None:
        """Raw bytes of what is sent; wire bytes of what would have been, had the policy not skipped it."""
        if use.purpose != "payload":
            return
        own, ledger = self._transport.rank, self._transport.ledger
        if use.sends[own]:
            ledger.count_raw(use.stream(own), sum(payload.nbytes for payload in payloads))
        else:
            saved = sum(self._wire(payload, len(payload)).nbytes for payload in payloads)
            ledger.count_saved(use.stream(own), saved)
