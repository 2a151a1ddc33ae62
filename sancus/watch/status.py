"""A status: what one rank is doing, and since when."""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass, fields
from mmap import mmap as Buffer
from typing import Literal

Ending = Literal["", "error", "lost", "done"]
LIVE = struct.Struct("<qq48sq16sqd")  # epoch, number, what, layer, direction, awaited, since
NONE = -1


@dataclass
class Status:
    """What one rank does at one moment. Times are of its host's monotonic clock, which all
    processes there share and nobody sets: only readers there compare them."""

    rank: int
    host: str
    pid: int
    birth: int = 0  # ticks of the host's clock at which the process began: tells it from a later one
    beat: int = 0  # how often it was posted
    posted: float = 0.0  # time.monotonic() of that
    epoch: int = -1  # before the first
    number: int = 0  # of the last collective that it started
    what: str = ""  # that collective
    layer: int | None = None  # and the stream that it was for
    direction: str | None = None
    awaited: int | None = None  # the collective for which it waits; None: it computes
    since: float = 0.0  # time.monotonic() when it began to compute, or to wait
    ending: Ending = ""  # error: it failed; lost: it lost the others
    error: str = ""  # why, in a line

    def to_bytes(self) -> bytes:
        """The JSON that is posted."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> Status | None:
        """The inverse of `to_bytes`; None where the bytes are no status, or half of one."""
        try:
            values = json.loads(content)
            return cls(**{item.name: values[item.name] for item in fields(cls)})
        except (ValueError, TypeError, KeyError):
            return None

    def write_live(self, slot: Buffer) -> None:
        """The part that changes with every collective, into shared memory; takes a microsecond or two."""
        layer, awaited = (NONE if value is None else value for value in (self.layer, self.awaited))
        what, direction = self.what.encode(), (self.direction or "").encode()
        LIVE.pack_into(slot, 0, self.epoch, self.number, what, layer, direction, awaited, self.since)

    def read_live(self, slot: bytes) -> None:
        """Take over what another process wrote with `write_live`; a torn read is wrong for a moment only."""
        epoch, number, what, layer, direction, awaited, since = LIVE.unpack(slot)
        self.epoch, self.number, self.since = epoch, number, since
        self.what = what.rstrip(b"\0").decode(errors="replace")
        self.direction = direction.rstrip(b"\0").decode(errors="replace") or None
        self.layer = None if layer == NONE else layer
        self.awaited = None if awaited == NONE else awaited

    def doing(self) -> str:
        """What it was doing: `computing in epoch 5, after collective 12, all-to-all (forward, layer 1)`."""
        stage = f"in epoch {self.epoch}" if self.epoch >= 0 else "before the first epoch"
        stream = f" ({self.direction}, layer {self.layer})" if self.layer is not None else ""
        last = f"{self.what}{stream}" if self.what else "the start"
        if self.awaited is not None:
            return f"waiting {stage}, collective {self.awaited}, {last}"
        return f"computing {stage}, after collective {self.number}, {last}"
