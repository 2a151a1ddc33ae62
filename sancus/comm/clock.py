"""The clock of a run: where training stands, the same on all ranks at the same collective.

One object holds it, and everything that depends on time reads it there: headers of messages, dropout masks,
versions and ages of histories. An *epoch* is one pass over the training set, a *step* one update of the
weights inside it (a full batch has one step an epoch, number 0), and a *pass* is what the ranks are doing:
training; an exact evaluation that leaves all that training remembers alone; or a measurement, in which every
rank runs the model by itself on what it holds, and nothing crosses.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

Pass = Literal["training", "evaluation", "measurement"]


@dataclass
class Clock:
    """Epoch, step and pass of this rank."""

    epoch: int = -1  # before the first one
    step: int = 0
    current_pass: Pass = "training"

    def begin_epoch(self, epoch: int) -> None:
        """A training epoch starts with its first step."""
        self.epoch, self.step = epoch, 0

    def begin_step(self, step: int) -> None:
        """An update of the weights inside the epoch starts; the first one of an epoch is 0."""
        self.step = step

    @property
    def exact(self) -> bool:
        """Whether everything is fresh and in full precision now, as evaluation needs it."""
        return self.current_pass == "evaluation"

    @property
    def silent(self) -> bool:
        """Whether nothing may cross now, as a rank runs the model by itself to measure."""
        return self.current_pass == "measurement"

    @contextmanager
    def during(self, now: Pass) -> Iterator[None]:
        """Inside, the ranks do what `now` says; afterwards they do again what they did before."""
        before, self.current_pass = self.current_pass, now
        try:
            yield
        finally:
            self.current_pass = before
