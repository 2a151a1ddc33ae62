"""The stopwatch of a rank: every moment of it belongs to exactly one activity, so that parts add up.

    with stopwatch.at("aggregation"):      # inside, whatever is not at something else
        with stopwatch.at("codec"):        # time in here is the codec's, not the aggregation's
            ...

Communication is told apart by what it is for, since ranks that compare their times must compare those of the
same messages. A turn costs two looks at a clock; there are some dozens in an epoch.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from sancus.comm.ledger import Entry
from sancus.comm.overlap import Overlap

Work = Literal["aggregation", "dense", "codec", "other"]
Message = Literal["forward", "backward", "parameter", "agreement", "evaluation", "probe"]
Activity = Work | Message
MESSAGES: tuple[Message, ...] = get_args(Message)


@dataclass(frozen=True)
class Lap:
    """What the time between two readings went to."""

    seconds: Counter[Activity]
    hidden: float  # in which payloads travelled behind other work

    @property
    def total(self) -> float:
        """All seconds."""
        return self.seconds.total()


class Stopwatch:
    """Seconds of one rank by activity, since it started."""

    def __init__(self, now: Callable[[], float] | None = None) -> None:
        """`now` is a clock that never goes back; also that of `Transfer.ended`: `time.perf_counter`."""
        self.now = now = now or time.perf_counter
        self.overlap = Overlap()
        self._seconds: dict[Activity, float] = {}
        self._activity: Activity = "other"
        self._since = now()

    def at(self, activity: Activity) -> At:
        """Inside the `with` block this rank is at `activity`; afterwards again at what it was at before."""
        return At(self, activity)

    def turn_to(self, activity: Activity) -> Activity:
        """From now on this rank is at `activity`; what it was at until now."""
        before, moment = self._activity, self.now()
        self._seconds[before] = self._seconds.get(before, 0.0) + moment - self._since
        if before in MESSAGES:
            self.overlap.communicated(self._since, moment)
        self._activity, self._since = activity, moment
        return before

    def read(self) -> Lap:
        """Everything up to now."""
        self.turn_to(self._activity)
        return Lap(Counter(self._seconds), self.overlap.settle(self._since))

    def since(self, earlier: Lap) -> Lap:
        """What the time since an earlier reading went to."""
        lap = self.read()
        spent = {activity: seconds - earlier.seconds[activity] for activity, seconds in lap.seconds.items()}
        return Lap(Counter(spent), lap.hidden - earlier.hidden)


class At:
    """A block of a program that is at one activity."""

    __slots__ = ("_activity", "_before", "_stopwatch")

    def __init__(self, stopwatch: Stopwatch, activity: Activity) -> None:
        self._stopwatch = stopwatch
        self._activity = activity
        self._before: Activity = "other"

    def __enter__(self) -> None:
        self._before = self._stopwatch.turn_to(self._activity)

    def __exit__(self, *error: object) -> None:
        self._stopwatch.turn_to(self._before)


def message_of(entry: Entry) -> Message:
    """What a message is for, as times are told apart: payloads, and what stages hand on, by direction."""
    if entry.purpose == "topology":
        return "agreement"
    if entry.purpose != "payload" and entry.purpose != "boundary":
        return entry.purpose
    return "forward" if entry.stream is None else entry.stream.direction
