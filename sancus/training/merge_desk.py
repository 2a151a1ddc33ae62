"""The desk where rank 0 merges, and how the others talk to it: letters with tickets, weights and changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from sancus.comm.latest import OWNER, LatestStore
from sancus.comm.letters import Route, read_letter, write_letter
from sancus.comm.stamp import Stamp
from sancus.comm.stopwatch import Stopwatch
from sancus.training.merging import Merger, Upload

Facts = dict[str, Any]


class MergeDesk:
    """Answers letters, one at a time."""

    def __init__(self, merger: Merger, stamp: Stamp) -> None:
        self.merger = merger
        self._stamp = stamp
        self._numbers: dict[int, int] = {}  # of the last letter of each rank

    def answer(self, rank: int, letter: torch.Tensor) -> torch.Tensor:
        """Merge what a letter brings, if anything; a ticket, and the weights of now where it says go."""
        merger = self.merger
        number = self._numbers.get(rank, 0) + 1
        facts, change = read_letter(Route(rank, OWNER, self._stamp), number, letter, merger.weights.dtype)
        self._numbers[rank] = number
        if facts:
            merger.merge(Upload(**facts), change)
        ticket = merger.ticket(rank)
        told = vars(ticket) | {"merges": merger.books.merges}
        weights = merger.weights if ticket.go else None
        return write_letter(Route(OWNER, rank, self._stamp), number, told, weights)


class Caller:
    """One rank's letters to the desk."""

    def __init__(
        self, store: LatestStore, rank: int, dtype: torch.dtype, stamp: Stamp, stopwatch: Stopwatch
    ) -> None:
        self._store = store
        self._there = Route(rank, OWNER, stamp)
        self._back = Route(OWNER, rank, stamp)
        self._dtype = dtype
        self._stopwatch = stopwatch
        self._number = 0

    def ask(self) -> tuple[Facts, torch.Tensor]:
        """A ticket, and the weights `[k]` that come with it."""
        return self._call({}, None)

    def bring(self, facts: Mapping[str, Any], change: torch.Tensor) -> tuple[Facts, torch.Tensor]:
        """The same, for a step that was made."""
        return self._call(facts, change)

    def _call(self, facts: Mapping[str, Any], change: torch.Tensor | None) -> tuple[Facts, torch.Tensor]:
        self._number += 1
        with self._stopwatch.at("parameter"):
            answer = self._store.call(write_letter(self._there, self._number, facts, change))
            return read_letter(self._back, self._number, answer, self._dtype)
