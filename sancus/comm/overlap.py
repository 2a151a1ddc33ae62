"""Overlap: how long payloads travelled while their rank did something else.

Transfers overlap each other, so their times are not added up: what counts is the *union* of the intervals in
which anything was under way, without those in which the rank did nothing but communicate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

Interval = tuple[float, float]


@dataclass
class Journey:
    """One payload transfer, from its start until it ended, or until its rank began to wait for it."""

    begun: float
    ended: Callable[[], float | None]  # when it was seen to have ended; a library may never tell
    awaited: float | None = None  # when the rank began to wait for it; None: it does not yet

    def until(self, now: float) -> float:
        """The last moment, up to `now`, at which it travelled unattended, as far as is known."""
        latest = now if self.awaited is None else min(now, self.awaited)
        ended = self.ended()
        return latest if ended is None else min(latest, ended)

    def under_way(self) -> bool:
        """Whether it may go on behind the rank's back."""
        return self.awaited is None and self.ended() is None


class Overlap:
    """Seconds in which something travelled behind the work of one rank, since it started."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._journeys: list[Journey] = []
        self._busy: list[Interval] = []  # in which the rank did nothing but communicate
        self._settled = float("-inf")  # what lies before is in `seconds`

    def begin(self, begun: float, ended: Callable[[], float | None]) -> Journey:
        """A payload is under way; a library may have ended its transfer before this is known."""
        journey = Journey(begun, ended)
        self._journeys.append(journey)
        return journey

    def communicated(self, start: float, stop: float) -> None:
        """The rank did nothing but communicate between two moments."""
        if self._journeys:
            self._busy.append((start, stop))

    def settle(self, now: float) -> float:
        """`seconds` up to `now`; what is under way goes on from here, so that every epoch gets its own."""
        travelled = ((max(one.begun, self._settled), one.until(now)) for one in self._journeys)
        busy = [(max(start, self._settled), stop) for start, stop in self._busy]
        self.seconds += uncovered(travelled, busy)
        self._journeys = [one for one in self._journeys if one.under_way()]
        self._busy = []
        self._settled = now
        return self.seconds


def uncovered(intervals: Iterable[Interval], covers: Iterable[Interval]) -> float:
    """The length of the union of `intervals` outside the union of `covers`; empty ones may be backwards."""
    total, covers = 0.0, disjoint(covers)
    for start, stop in disjoint(intervals):
        total += stop - start
        for cover_start, cover_stop in covers:
            total -= max(0.0, min(stop, cover_stop) - max(start, cover_start))
    return max(0.0, total)


def disjoint(intervals: Iterable[Interval]) -> list[Interval]:
    """The same points as disjoint intervals in ascending order."""
    union: list[Interval] = []
    for start, stop in sorted(interval for interval in intervals if interval[0] < interval[1]):
        if union and start <= union[-1][1]:
            union[-1] = union[-1][0], max(stop, union[-1][1])
        else:
            union.append((start, stop))
    return union
