"""A courier: what carries payloads where ranks wait for nobody (DIGEST-A), in place of collectives.

Every `period` steps of its own an owner leaves its payloads in a store (`sancus.comm.latest`), after the
step; one step later every receiver asks for the latest ones. Whatever has come by the time a layer needs it
is the history of its stream from then on; what has not come yet is used when it is there. The version of a
history is the step of its *owner* that made it. Steps of ranks differ, so nothing here is collective.

Only embeddings cross. Rows of others are constants, so no gradient of them returns (DIGEST eq. 5-6).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import torch

from sancus.comm.group import Group
from sancus.comm.header import Header, Payload, seal
from sancus.comm.latest import LatestStore, Parcel
from sancus.comm.ledger import DIRECTIONS, Direction, Stream
from sancus.errors import UserError
from sancus.exchange.delivery import Outgoing
from sancus.exchange.encoding import EVERYONE, Encoder
from sancus.exchange.health import Health
from sancus.exchange.history import History
from sancus.plans.base import Leg

Versions = dict[tuple[int, int], int]  # layer and owner, to the owner's step


class Courier:
    """Payloads of one rank to a store, and those of others from there."""

    def __init__(
        self, group: Group, encoder: Encoder, history: History, health: Health, period: int | None
    ) -> None:
        """`encoder` is that of embeddings; without a `period` nothing ever crosses, and nothing is used."""
        self._group = group
        self._encoder = encoder
        self._history = history
        self._health = health
        self._period = period
        self._store: LatestStore | None = None
        self._outbox: list[tuple[Stream, int, Parcel]] = []
        self._waiting: dict[Stream, Parcel] = {}  # came before their layer's shape was known
        self.used: Versions = {}  # of the histories at their last use
        self._pushes: Counter[Stream] = Counter()  # how often this rank's streams were sent, and skipped
        self._skips: Counter[Stream] = Counter()

    def begin_step(self, step: int, store: LatestStore) -> None:
        """This rank's step of that number begins; one after a push asks for what others pushed."""
        self._group.begin_epoch(step)
        self._store = store
        if self._period is not None and step > 1 and (step - 1) % self._period == 0:
            for stream in self._history.streams():
                store.ask(stream, max(self._history.version(stream), self._newest(stream)))

    def deliver(
        self, leg: Leg, outgoing: Outgoing, layer: int, direction: Direction
    ) -> Iterator[tuple[int, torch.Tensor]]:
        """Other owners' rows as this rank has them; the own ones are kept for `publish` where it is time."""
        if direction == "backward" or self._period is None:
            return
        assert self._store is not None, "a step begins first"
        self._waiting |= dict(self._store.arrived())
        own, step = self._group.rank, self._group.clock.epoch
        mine = Stream(layer, direction, own)
        if step and step % self._period == 0:
            self._pack(leg, outgoing, mine, step)
            self._pushes[mine] += 1
        else:
            self._skips[mine] += 1
        for owner, row_map in enumerate(leg.add):
            if owner == own or not row_map.rows_in:
                continue
            stream = Stream(layer, direction, owner)
            if stream in self._waiting:
                self._open(self._waiting.pop(stream), stream, row_map.rows_in, outgoing.payloads[0])
            self.used[layer, owner] = self._history.version(stream)
            yield owner, self._history.pull(stream)

    def publish(self) -> None:
        """Leave in the store what this step made for others, after the step has ended."""
        assert self._store is not None, "a step begins first"
        for stream, receiver, parcel in self._outbox:
            self._store.publish(stream, receiver, parcel)
        self._outbox = []

    def answers(self) -> list[list[int]]:
        """JSON-ready: layer, side, owner, pushes, skips of each stream of this rank since the last time."""
        pushes, skips = self._pushes, self._skips
        self._pushes, self._skips = Counter(), Counter()
        return [
            [s.layer, DIRECTIONS.index(s.direction), s.owner, pushes[s], skips[s]] for s in pushes | skips
        ]

    def _newest(self, stream: Stream) -> int:
        return self._waiting[stream].version if stream in self._waiting else -1

    def _pack(self, leg: Leg, outgoing: Outgoing, stream: Stream, step: int) -> None:
        """Seal one message for each receiver; of a broadcast the same content for all."""
        group = self._group
        for receiver in range(group.size):
            if receiver == group.rank:
                continue
            place = 0 if leg.broadcast else receiver
            payload, weight = outgoing.payloads[place], outgoing.weights[place]
            if not len(payload):
                continue
            self._health.check_payload(payload, stream, step)
            to = EVERYONE if leg.broadcast else receiver
            try:
                wire = self._encoder.encode(payload, weight, stream, to, step)
            except UserError as error:
                self._health.note(str(error))
                return
            message = seal([wire], [self._header(stream, wire, step, receiver)], wire.device)
            self._outbox.append((stream, receiver, Parcel(step, message, payload.nbytes)))

    def _open(self, parcel: Parcel, stream: Stream, rows: int, like: torch.Tensor) -> None:
        """A payload that came becomes the history of its stream, if it is whole."""
        version = parcel.version
        expected = self._encoder.wire(rows, like, version)
        header = self._header(stream, expected, version, self._group.rank)
        assert header is not None, "a stream that is used has rows"
        content = header.check(parcel.message, self._group.members[self._group.rank])
        wire = content.view(expected.dtype).view(expected.shape)
        with self._group.stopwatch.at("codec"):
            payload = self._encoder.decode(wire, rows, like, version)
        self._history.push(stream, payload, version)

    def _header(self, stream: Stream, wire: torch.Tensor, version: int, receiver: int) -> Header | None:
        group = self._group
        payload = Payload(version + 1, stream, version, "latest", group.desk.stamp)
        return payload.header(wire, group.members[stream.owner], group.members[receiver])
