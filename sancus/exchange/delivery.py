"""Delivery: payloads cross, one use of a stream at a time.

Encodes what this rank sends, seals it, moves it, checks and decodes what arrives, and falls back on history
where an owner skips. Knows the codec and the group, and nothing of where payloads come from or go to.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from sancus.comm.group import Group
from sancus.comm.handle import Handle
from sancus.comm.header import PAYLOAD_WORDS, Header, Payload, blank, messages, overhead, seal, size_of
from sancus.comm.ledger import Direction, Entry, Purpose, Stream
from sancus.comm.stamp import EVERYONE as TO_ALL
from sancus.errors import UserError
from sancus.exchange.codec_error import ErrorGauge, Origin, Sent, look, receiver_to_look_at
from sancus.exchange.encoding import EVERYONE, Encoder
from sancus.exchange.health import Health
from sancus.exchange.history import History

Arrivals = Iterator[tuple[int, torch.Tensor]]


@dataclass(frozen=True)
class Outgoing:
    """What this rank would send: one payload for all (`broadcast`), or one for each receiver `[p]`."""

    payloads: Sequence[torch.Tensor]
    weights: Sequence[torch.Tensor]  # of each payload's rows, for codecs that choose
    origin: Origin | None = None  # of embeddings: what they are for, to judge a codec's errors by

    def joined(self) -> torch.Tensor:
        """All rows, receiver after receiver."""
        return torch.cat(list(self.payloads))


@dataclass(frozen=True)
class Recall:
    """What receivers go on with where an owner does not send."""

    history: History | None = None  # where they remember; None where nothing is ever stale
    absent: bool = False  # with nothing: remote rows count as zero
    max_age: int = 0  # of what may be recalled


@dataclass(frozen=True)
class Use:
    """One use of the streams of a layer and direction: who sends, and what it is counted as."""

    layer: int
    direction: Direction
    sends: Sequence[bool]  # [p] whose payload crosses in this transfer; the same on all ranks
    sequence: int  # number of this use, the same on all ranks, from 1
    epoch: int
    recall: Recall = Recall()
    purpose: Purpose = "payload"
    background: bool = False  # travels while the caller computes; nothing is recalled

    def entry(self, owner: int) -> Entry:
        """The ledger's entry for what `owner` sends."""
        return Entry(self.purpose, self.stream(owner))

    def stream(self, owner: int) -> Stream:
        """The stream of an owner."""
        return Stream(self.layer, self.direction, owner)

    def recalls(self, owner: int) -> bool:
        """Whether receivers go on with their history of `owner`."""
        return not (self.sends[owner] or self.recall.absent or self.background)


class Delivery:
    """Moves payloads between ranks; yields `(owner, payload)` of the other ranks."""

    def __init__(
        self, group: Group, encoder: Encoder, health: Health, gauge: ErrorGauge | None = None
    ) -> None:
        """`gauge` measures the errors of a lossy codec."""
        self._group = group
        self.encoder = encoder
        self._health = health
        self._gauge = None if encoder.codec.lossless else gauge

    def broadcast(
        self, outgoing: Outgoing, rows: Sequence[int], use: Use, echo: list[torch.Tensor] | None = None
    ) -> Arrivals:
        """One payload for everyone, owner after owner (Algorithm 3, lines 5-14).

        `rows[j]` is the number of rows of owner `j`. The first broadcast starts here; the broadcast of
        the next owner is under way while the caller works on the current one. In the background all start
        here. An owner that skips makes no round, and receives in the rounds of the others (Figure 13).
        `echo` takes what this rank sends, as receivers will see it.
        """
        group, own, payload = self._group, self._group.rank, outgoing.payloads[0]
        owners = [rank for rank in range(group.size) if use.sends[rank] and rows[rank]]
        mine = self._encode(payload, outgoing.weights[0], EVERYONE, use, echo) if own in owners else None
        started: dict[int, tuple[Header | None, torch.Tensor, Handle]] = {}

        def start(place: int) -> None:
            if place < len(owners):
                owner = owners[place]
                if mine is not None and owner == own:
                    header = self._header(own, mine, use)
                    message = seal([mine], [header], group.transport.device)
                else:
                    header = self._header(owner, self.encoder.wire(rows[owner], payload, use.epoch), use)
                    message = blank([header], group.transport.device)
                handle = group.broadcast(
                    message, owner, use.entry(owner), overhead=self._overhead, background=use.background
                )
                started[owner] = header, message, handle

        def arrivals() -> Arrivals:
            for owner in range(group.size):
                if owner in owners:
                    if not use.background:
                        start(owners.index(owner) + 1)
                    header, message, handle = started.pop(owner)
                    handle.wait()
                    if header is not None and owner != own:
                        yield owner, self._open(message, header, payload, rows[owner], owner, use)
                elif owner != own and rows[owner] and use.recalls(owner):
                    yield owner, self._recall(owner, use)

        if mine is not None:
            self._look(outgoing, 0, mine, use)
        self._count_raw([payload] * (group.size - 1), use)
        for place in range(len(owners) if use.background else 1):
            start(place)
        return arrivals()

    def all_to_all(
        self, outgoing: Outgoing, rows: Sequence[int], use: Use, echo: list[torch.Tensor] | None = None
    ) -> Arrivals:
        """One payload for each receiver, all at once; `rows[j]` arrive from owner `j`.

        The transfer starts here; the first `next` of the returned iterator waits for it.
        """
        group, own = self._group, self._group.rank
        others = [rank for rank in range(group.size) if rank != own]
        sample = outgoing.payloads[own]
        self._count_raw([outgoing.payloads[rank] for rank in others], use)
        if not any(use.sends):
            return self._remembered(rows, use)
        wires: list[torch.Tensor] = []
        going: list[Header | None] = [None] * group.size
        coming: list[Header | None] = [None] * group.size
        for rank in others:
            if use.sends[own]:
                payload, weight = outgoing.payloads[rank], outgoing.weights[rank]
                wires.append(self._encode(payload, weight, rank, use, echo))
                going[rank] = self._header(own, wires[-1], use, rank)
            if use.sends[rank] and rows[rank]:
                like = self.encoder.wire(rows[rank], sample, use.epoch)
                coming[rank] = self._header(rank, like, use, own)
        watched = receiver_to_look_at(outgoing.payloads, use.epoch)
        if use.sends[own] and watched is not None:
            self._look(outgoing, watched, wires[others.index(watched)], use)
        sealed = seal(wires, [going[rank] for rank in others if use.sends[own]], group.transport.device)
        received = blank(coming, group.transport.device)
        handle = group.all_to_all(
            sealed,
            [size_of(header) for header in going],
            received,
            [size_of(header) for header in coming],
            use.entry(own),
            overhead=self._overhead,
            background=use.background,
        )

        def arrivals() -> Arrivals:
            handle.wait()
            for owner, message in enumerate(messages(received, coming)):
                header = coming[owner]
                if header is not None:
                    yield owner, self._open(message, header, sample, rows[owner], owner, use)
                elif owner != own and rows[owner] and use.recalls(owner):
                    yield owner, self._recall(owner, use)

        return arrivals()

    def count_saved(self, outgoing: Outgoing, stream: Stream, epoch: int, receivers: int) -> None:
        """This rank skips: the wire bytes of what `always` would have sent, to `receivers` each payload."""
        wires = [self.encoder.wire(len(payload), payload, epoch) for payload in outgoing.payloads]
        saved = sum(
            wire.nbytes for wire, payload in zip(wires, outgoing.payloads, strict=True) if len(payload)
        )
        self._group.ledger.count_saved(stream, saved * receivers)

    def _remembered(self, rows: Sequence[int], use: Use) -> Arrivals:
        for owner, count in enumerate(rows):
            if owner != self._group.rank and count and use.recalls(owner):
                yield owner, self._recall(owner, use)

    @property
    def _overhead(self) -> int:
        """Bytes of a payload's header."""
        return overhead(PAYLOAD_WORDS, self._group.desk.stamp)

    def _header(self, owner: int, wire: torch.Tensor, use: Use, receiver: int | None = None) -> Header | None:
        """What a payload of `owner`, encoded like `wire`, must say of itself; to one receiver, or to all."""
        group = self._group
        stream, stamp = use.stream(owner), group.desk.stamp
        payload = Payload(use.sequence, stream, use.epoch, group.description, stamp)
        to = TO_ALL if receiver is None else group.members[receiver]
        return payload.header(wire, group.members[owner], to)

    def _encode(
        self,
        payload: torch.Tensor,
        weight: torch.Tensor,
        receiver: int,
        use: Use,
        echo: list[torch.Tensor] | None,
    ) -> torch.Tensor:
        """What crosses for a payload, which is looked at before."""
        if not len(payload):
            return self.encoder.wire(0, payload, use.epoch)
        stream = use.stream(self._group.rank)
        on_host = payload.device.type == "cpu"
        if self.encoder.codec.lossless or not on_host:  # else codecs look at every value, and refuse some
            self._health.check_payload(payload, stream, use.epoch)
        try:
            with self._group.stopwatch.at("codec"):
                wire = self.encoder.encode(payload, weight, stream, receiver, use.epoch)
        except UserError as error:  # zeros cross, as the others wait; the epoch ends with this error
            self._health.note(str(error))
            wire = self.encoder.encode(torch.zeros_like(payload), weight, stream, receiver, use.epoch)
        if echo is not None:
            echo.append(self.encoder.decode(wire, len(payload), payload, use.epoch))
        return wire

    def _look(self, outgoing: Outgoing, place: int, wire: torch.Tensor, use: Use) -> None:
        """Measure the error of the payload at `place`, encoded as `wire`, where it is time to."""
        stream, payload = use.stream(self._group.rank), outgoing.payloads[place]
        if self._gauge is not None and len(payload) and self._gauge.due(stream, use.epoch):
            with self._group.stopwatch.at("other"):
                rows = sum(map(len, outgoing.payloads))
                sent = Sent(payload, wire, outgoing.weights[place], rows, outgoing.origin)
                self._gauge.note(stream, use.epoch, look(sent, self.encoder, use.epoch))

    def _open(
        self, message: torch.Tensor, header: Header, like: torch.Tensor, rows: int, owner: int, use: Use
    ) -> torch.Tensor:
        """The payload of a message, as receivers see it and remember it."""
        stopwatch = self._group.stopwatch
        with stopwatch.at("other"):
            expected = self.encoder.wire(rows, like, use.epoch)
            group = self._group
            content = header.check(message, group.members[group.rank], group.desk.checks)
            wire = content.view(expected.dtype).view(expected.shape).to(like.device, non_blocking=True)
            with stopwatch.at("codec"):
                payload = self.encoder.decode(wire, rows, like, use.epoch)
            if use.recall.history is not None:
                use.recall.history.push(use.stream(owner), payload, use.epoch)
        return payload

    def _recall(self, owner: int, use: Use) -> torch.Tensor:
        history, stream = use.recall.history, use.stream(owner)
        assert history is not None, "a policy that skips keeps history"
        assert use.epoch - history.version(stream) <= use.recall.max_age, "older than the bound"
        return history.pull(stream)

    def _count_raw(self, payloads: Sequence[torch.Tensor], use: Use) -> None:
        """Bytes of what is sent, before the codec."""
        own = self._group.rank
        if use.purpose == "payload" and use.sends[own]:
            raw = sum(payload.nbytes for payload in payloads)
            self._group.ledger.count_raw(use.stream(own), raw)
