"""A status: what one rank is doing, and since when."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import Literal

Ending = Literal["", "error", "lost", "done"]


@dataclass
class Status:
    """One rank at one moment. Its own clock runs in it; readers compare clocks of one host only."""

    rank: int
    host: str
    pid: int
    birth: int = 0  # ticks of the host's clock at which the process began: tells it from a later one
    beat: int = 0  # how often it was posted
    posted: float = 0.0  # time.time() of that
    epoch: int = -1  # before the first
    number: int = 0  # of the last collective that it started
    what: str = ""  # that collective
    layer: int | None = None  # and the stream that it was for
    direction: str | None = None
    awaited: int | None = None  # the collective for which it waits; None: it computes
    since: float = 0.0  # time.time() when it began to compute, or to wait
    ending: Ending = ""  # error: it failed; lost: it lost the others
    error: str = ""  # why, in a line

    def to_bytes(self) -> bytes:
        """As it is posted."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> Status | None:
        """As it was posted; None for what is none, or is half written."""
        try:
            read = json.loads(content)
            return cls(**{item.name: read[item.name] for item in fields(cls)})
        except (ValueError, TypeError, KeyError):
            return None

    def doing(self) -> str:
        """What it was doing when this was posted: `computing epoch 5 after collective 12: all-to-all (…)`."""
        stage = f"epoch {self.epoch}" if self.epoch >= 0 else "before the first epoch"
        stream = f" ({self.direction}, layer {self.layer})" if self.layer is not None else ""
        last = f"{self.what}{stream}" if self.what else "the start"
        if self.awaited is not None:
            return f"waiting in {stage}, collective {self.awaited}, {last}"
        return f"computing in {stage}, after collective {self.number}, {last}"
