"""One attempt at a run: what is started, and what a launcher may ask of its ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sancus.launch.world import ATTEMPT, GO_ON, RUN


@dataclass(frozen=True)
class Start:
    """What is started: `sancus argv` as so many ranks, and whether it is the first attempt or a later one."""

    main: Callable[[], None]  # the command line, which reads `sys.argv`: what a forked rank runs
    argv: Sequence[str]
    ranks: int
    run: str  # names this run among all, the same for every attempt
    attempt: int
    folder: Path  # of this attempt, where its ranks meet
    module: str  # the same command line as `python -m module`: what mpiexec starts
    go_on: Path  # the folder in which the ranks of any attempt note the command that goes on with the run

    def environment(self) -> dict[str, str]:
        """What a rank of ours learns from its launcher."""
        return {RUN: self.run, ATTEMPT: str(self.attempt), GO_ON: str(self.go_on)}


class Attempt(Protocol):
    """The ranks of one attempt, while they run."""

    def wait(self) -> int:
        """Wait until all have ended, and print who failed; the exit code of the whole run."""

    def signal(self, number: int) -> None:
        """Pass a signal on to all ranks."""

    def kill(self) -> None:
        """End all ranks at once."""
