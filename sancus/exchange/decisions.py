"""Decisions: one policy a direction, asked at every use, logged for `decisions.npz`.

A decision is a pure function of replicated values (epoch, layer, direction, owner, versions), so every rank
computes the same one alone, and no rank ever branches around a collective on a value of its own.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from sancus.comm.ledger import DIRECTIONS, Direction, Stream
from staleness.base import SEND, Policy, View

UNUSED, SKIPPED, SENT = -1, 0, 1


class Decisions:
    """Asks the policies and remembers what was decided, and how old what was used is."""

    def __init__(self, policies: Mapping[Direction, Policy], ranks: int) -> None:
        self._policies = policies
        self._ranks = ranks
        self._version: dict[Stream, int] = {}
        self._log: dict[int, dict[Stream, bool]] = {}
        self._epoch = -1
        self.max_age = 0  # of the oldest history used in the current epoch

    def begin_epoch(self, epoch: int) -> None:
        """Open the log of an epoch."""
        self._epoch = epoch
        self._log[epoch] = {}
        self.max_age = 0

    def keeps_history(self, direction: Direction) -> bool:
        """Whether receivers must remember payloads of this direction."""
        return self._policies[direction].max_age > 0

    def decide(self, layer: int, direction: Direction) -> list[bool]:
        """SEND or SKIP for every owner `[p]`, now."""
        epoch = self._epoch
        assert epoch in self._log, "begin_epoch comes before the first exchange"
        policy = self._policies[direction]
        sends = []
        for owner in range(self._ranks):
            stream = Stream(layer, direction, owner)
            age = epoch - self._version[stream] if stream in self._version else None
            send = age is None or age > policy.max_age
            if age is not None and not send:
                send = policy.decide(View(epoch, layer, direction, owner, self._ranks, age)) is SEND
            if send:
                self._version[stream] = epoch
            elif age is not None:
                self.max_age = max(self.max_age, age)
            self._log[epoch][stream] = send
            sends.append(send)
        return sends

    def counts(self) -> tuple[int, int]:
        """Sends and skips of the current epoch, over all owners."""
        answers = self._log[self._epoch].values()
        return sum(answers), len(answers) - sum(answers)

    def counts_of(self, stream: Stream) -> tuple[int, int]:
        """Sends and skips of a stream over all epochs."""
        answers = [epoch[stream] for epoch in self._log.values() if stream in epoch]
        return sum(answers), len(answers) - sum(answers)

    def streams(self) -> list[Stream]:
        """All streams ever used, ordered."""
        found = {stream for epoch in self._log.values() for stream in epoch}
        return sorted(found, key=lambda s: (s.layer, DIRECTIONS.index(s.direction), s.owner))

    def as_array(self) -> npt.NDArray[np.int8]:
        """`[epochs, layers, 2, p]`: 1 SEND, 0 SKIP, −1 where a stream was not used."""
        layers = 1 + max((stream.layer for stream in self.streams()), default=-1)
        epochs = 1 + max(self._log, default=-1)
        array = np.full((epochs, layers, len(DIRECTIONS), self._ranks), UNUSED, np.int8)
        for epoch, answers in self._log.items():
            for stream, send in answers.items():
                place = (epoch, stream.layer, DIRECTIONS.index(stream.direction), stream.owner)
                array[place] = SENT if send else SKIPPED
        return array

    def restore(self, array: npt.NDArray[np.int8]) -> None:
        """Take over the log of an earlier process. Versions start cold: its histories are gone."""
        for epoch, layer, side, owner in np.argwhere(array != UNUSED).tolist():
            stream = Stream(layer, DIRECTIONS[side], owner)
            self._log.setdefault(epoch, {})[stream] = bool(array[epoch, layer, side, owner] == SENT)
