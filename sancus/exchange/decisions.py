"""The log of decisions: versions, ages, and what becomes `decisions.npz` (the paper's Figure 24)."""

from __future__ import annotations

from array import array

import numpy as np
import numpy.typing as npt

from sancus.comm.clock import Clock
from sancus.comm.ledger import DIRECTIONS, Stream
from sancus.errors import UserError
from sancus.staleness.base import SEND, SKIP, Answer

UNUSED = -1  # in `decisions.npz`, beside the numbers of the answers


class Decisions:
    """The answer for every stream in every epoch, the same on all ranks.

    The log of epochs is kept until `forget`; versions and counts always.
    """

    def __init__(self, ranks: int, clock: Clock) -> None:
        self._ranks = ranks
        self._clock = clock
        self._log: dict[Stream, array[int]] = {}  # a byte an epoch, until the last use
        self._log_from = 0  # the epoch that the log begins with
        self._now: dict[Stream, Answer] = {}  # of the current epoch
        self._epochs = 0  # that began, those of earlier processes included
        self._first: dict[Stream, int] = {}
        self._version: dict[Stream, int] = {}
        self._ages: dict[Stream, int | None] = {}  # in the current epoch, when the answer was given
        self._counts: dict[Stream, list[int]] = {}  # skips and sends of each stream so far
        self.max_age = 0  # of the oldest history used in the current epoch

    def begin_epoch(self) -> None:
        """Open the log of the clock's epoch."""
        self._epochs = self._clock.epoch + 1
        self._now = {}
        self._ages = {}
        self.max_age = 0

    def age(self, stream: Stream) -> int | None:
        """Age of what receivers hold; None before the first send."""
        return self._clock.epoch - self._version[stream] if stream in self._version else None

    def since_first(self, stream: Stream) -> int:
        """Epochs since the stream's first send."""
        return self._clock.epoch - self._first[stream]

    def note(self, stream: Stream, answer: Answer, *, needed: bool = True) -> None:
        """The agreed answer of a use; the age of a history that nobody needs does not count.

        After LATER the version is this epoch's, but this epoch goes on with the one before.
        """
        assert self._clock.epoch >= 0, "begin_epoch comes before the first exchange"
        if stream in self._now:
            raise UserError(
                f"layer {stream.layer} was exchanged twice in one {stream.direction} pass; "
                "a model must give every propagate and rows a layer number of its own"
            )
        age = self._ages[stream] = self.age(stream)
        if answer != SEND and needed and age is not None:
            self.max_age = max(self.max_age, age)
        if answer != SKIP:
            self._version[stream] = self._clock.epoch
            self._first.setdefault(stream, self._clock.epoch)
        self._now[stream] = answer
        self._enter(self._clock.epoch, stream, answer)

    def sent(self) -> dict[Stream, tuple[int, int]]:
        """First and last send of every stream."""
        return {stream: (self._first[stream], version) for stream, version in self._version.items()}

    def restore_sent(self, stream: Stream, first: int, version: int) -> None:
        """Take over what the histories of an earlier process hold."""
        self._first[stream], self._version[stream] = first, version

    def of_epoch(self, owner: int) -> list[tuple[Stream, Answer, int | None]]:
        """An owner's streams in the current epoch: the answer, and the age of what receivers held."""
        answers = self._now.items()
        return [(stream, answer, self._ages[stream]) for stream, answer in answers if stream.owner == owner]

    def counts(self) -> tuple[int, int]:
        """Sends and skips of the current epoch, over all owners."""
        answers = self._now.values()
        sends = sum(answer != SKIP for answer in answers)
        return sends, len(answers) - sends

    def counts_of(self, stream: Stream) -> tuple[int, int]:
        """Sends and skips of a stream over all epochs."""
        skips, sends = self._counts.get(stream, (0, 0))
        return sends, skips

    def streams(self) -> list[Stream]:
        """All streams ever used, ordered; of earlier processes those that were ever sent."""
        used = self._counts.keys() | self._version.keys()
        return sorted(used, key=lambda s: (s.layer, DIRECTIONS.index(s.direction), s.owner))

    def as_array(self) -> npt.NDArray[np.int8]:
        """`[epochs, layers, 2, p]`: 1 SEND, 0 SKIP, 2 LATER, −1 where unused, or forgotten."""
        layers = 1 + max((stream.layer for stream in self.streams()), default=-1)
        log = np.full((self._epochs, layers, len(DIRECTIONS), self._ranks), UNUSED, np.int8)
        for stream, answers in self._log.items():
            epochs = slice(self._log_from, self._log_from + len(answers))
            log[epochs, stream.layer, DIRECTIONS.index(stream.direction), stream.owner] = answers
        return log

    def forget(self) -> None:
        """The log of all epochs so far is somewhere else now."""
        self._log, self._log_from = {}, self._epochs

    def restore(self, log: npt.NDArray[np.int8]) -> None:
        """Take over the log that older checkpoints hold; versions come with the histories."""
        self._epochs = len(log)
        for epoch, layer, side, owner in np.argwhere(log != UNUSED).tolist():
            stream = Stream(layer, DIRECTIONS[side], owner)
            self._enter(epoch, stream, Answer(log[epoch, layer, side, owner]))

    def _enter(self, epoch: int, stream: Stream, answer: Answer) -> None:
        answers = self._log.setdefault(stream, array("b"))
        answers.extend([UNUSED] * (epoch - self._log_from - len(answers)))
        answers.append(answer)
        self._counts.setdefault(stream, [0, 0])[answer != SKIP] += 1


def count_answers(decisions: Decisions, stream: Stream, sends: int, skips: int) -> None:
    """So many answers were given where ranks do not share epochs: they are in no log of epochs."""
    held = decisions._counts.setdefault(stream, [0, 0])
    held[0] += skips
    held[1] += sends
