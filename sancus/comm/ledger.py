"""The ledger: every byte that this rank hands over to be moved, once per receiver.

Bytes are entered by the group at the moment of the hand-over, so they are measured, never
estimated. An entry has a *purpose*; payloads also have a stream (layer, direction, owner) and a
receiver. What stages of a pipeline hand on is `boundary`: its stream is (boundary, direction, chunk).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal, get_args

Direction = Literal["forward", "backward"]
DIRECTIONS: tuple[Direction, Direction] = ("forward", "backward")
Purpose = Literal["payload", "agreement", "parameter", "evaluation", "probe", "boundary", "topology"]
PURPOSES: tuple[Purpose, ...] = get_args(Purpose)


@dataclass(frozen=True)
class Stream:
    """What a policy decides about: one owner's payload of one layer in one direction."""

    layer: int
    direction: Direction
    owner: int


@dataclass(frozen=True)
class Entry:
    """What bytes were for."""

    purpose: Purpose
    stream: Stream | None = None


PARAMETER = Entry("parameter")
AGREEMENT = Entry("agreement")
TOPOLOGY = Entry("topology")


class Ledger:
    """Bytes of one rank since it started; differences give an epoch's share."""

    def __init__(self) -> None:
        self.wire: Counter[tuple[Entry, int]] = Counter()
        self.raw: Counter[Stream] = Counter()
        self.saved: Counter[Stream] = Counter()
        self.raw_parameters = 0

    def count(self, entry: Entry, receiver: int, wire: int, overhead: int = 0) -> None:
        """`wire` bytes were handed over for one receiver; `overhead` of them are a header: agreement."""
        if wire > overhead:
            self.wire[entry, receiver] += wire - overhead
        if overhead:
            self.wire[AGREEMENT, receiver] += overhead

    def count_raw(self, stream: Stream, raw: int) -> None:
        """The same payload would have been `raw` bytes without a codec, over all receivers."""
        self.raw[stream] += raw

    def count_saved(self, stream: Stream, wire: int) -> None:
        """A payload that `always` would have sent was skipped: its wire bytes, over all receivers."""
        self.saved[stream] += wire

    def count_raw_parameters(self, raw: int) -> None:
        """A sum of parameters would have been `raw` bytes without a codec, over all receivers."""
        self.raw_parameters += raw

    def wire_of(self, purpose: Purpose) -> int:
        """All bytes of a purpose so far."""
        return sum(wire for (entry, _), wire in self.wire.items() if entry.purpose == purpose)

    def record(self) -> dict[str, object]:
        """JSON-ready contents, for the bill that rank 0 joins."""
        return {
            "payloads": [
                [entry.stream.layer, entry.stream.direction, entry.stream.owner, receiver, wire]
                for (entry, receiver), wire in self.wire.items()
                if entry.purpose == "payload" and entry.stream is not None
            ],
            "raw": [[s.layer, s.direction, s.owner, raw] for s, raw in self.raw.items()],
            "saved": [[s.layer, s.direction, s.owner, wire] for s, wire in self.saved.items()],
            "totals": {
                f"{purpose}_bytes": self.wire_of(purpose)
                for purpose in ("agreement", "parameter", "evaluation", "probe", "boundary", "topology")
            }
            | {"raw_parameter_bytes": self.raw_parameters},
        }
