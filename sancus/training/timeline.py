"""What a stage did when, in the last epoch: the Gantt chart of a pipeline, and its bubble.

Time begins for every rank as the ranks have agreed on the order of the chunks, which they leave together, and
ends as they have agreed that all is well. So the clocks of several hosts need not agree.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

from sancus.comm.ledger import Direction

Doing = Literal["wait", "work", "send"]
DOINGS: tuple[Doing, ...] = get_args(Doing)
DIGITS = 6  # of the seconds that are told: microseconds


def bubble_formula(stages: int, chunks: int) -> float:
    """The share of a pass in which stages of equal work wait: `(S − 1) / (K + S − 1)` (GNNPipe §3.2)."""
    return (stages - 1) / (chunks + stages - 1)


@dataclass(frozen=True)
class Span:
    """Some time with one chunk, in seconds since the epoch began."""

    doing: Doing
    direction: Direction
    chunk: int
    begun: float
    ended: float


class Timeline:
    """The spans of one epoch on one rank."""

    def __init__(self, now: Callable[[], float]) -> None:
        """`now` is a clock that never goes back."""
        self._now = now
        self._zero = self._end = 0.0
        self.spans: list[Span] = []

    def begin(self) -> None:
        """All ranks are here: the epoch before is forgotten."""
        self._zero = self._end = self._now()
        self.spans = []

    def end(self) -> None:
        """All ranks are here again: nothing is left to do."""
        self._end = self._now()

    @contextlib.contextmanager
    def at(self, doing: Doing, direction: Direction, chunk: int) -> Iterator[None]:
        """Inside the `with` block this rank does that."""
        begun = self._now()
        yield
        self.spans.append(Span(doing, direction, chunk, begun - self._zero, self._now() - self._zero))

    @property
    def seconds(self) -> float:
        """From the beginning to the end."""
        return self._end - self._zero

    @property
    def bubble(self) -> float:
        """The share of them in which this rank neither worked nor sent."""
        busy = sum(span.ended - span.begun for span in self.spans if span.doing != "wait")
        return max(0.0, 1.0 - busy / self.seconds) if self.seconds else 0.0

    def to_plain(self) -> dict[str, Any]:
        """JSON-ready: what is long, a list a column."""
        return {
            "seconds": round(self.seconds, DIGITS),
            "doing": [DOINGS.index(span.doing) for span in self.spans],
            "backward": [int(span.direction == "backward") for span in self.spans],
            "chunk": [span.chunk for span in self.spans],
            "begun": [round(span.begun, DIGITS) for span in self.spans],
            "ended": [round(span.ended, DIGITS) for span in self.spans],
        }
