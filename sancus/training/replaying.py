"""The replay of asynchronous training: from the log of merges the same weights, bit for bit, in one process.

A step depends on the version of the weights that it began with and on the versions of the histories that it
used, and on nothing else that is not in the settings. The log has both for every merge. An owner shows what a
step made only after its merge, so merge after merge, in the order of the log, everything that a step needs
has been made when its turn comes. Of old weights and payloads only those are kept that a later line names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from sancus.comm.latest import Parcel
from sancus.comm.ledger import Ledger, Stream
from sancus.comm.stamp import Stamp
from sancus.errors import UserError
from sancus.training.free_rank import FreeRank
from sancus.training.merging import Merger, Row, Upload, digest_of

Begun = tuple[Upload, torch.Tensor]


@dataclass(frozen=True)
class Difference:
    """The first merge after which the weights are others than they were."""

    row: Row
    weights: str  # digest of those of the replay

    def __str__(self) -> str:
        row = self.row
        return (
            f"merge {row['merge']} is the first that differs: step {row['step']} of rank {row['rank']}, from "
            f"version {row['base']}, gave weights {row['weights']} in the run and {self.weights} here"
        )


class Archive:
    """Payloads that a later step of a receiver will use, by its log."""

    def __init__(self, log: Sequence[Row]) -> None:
        self._wanted = Counter(
            (Stream(layer, "forward", owner), row["rank"], version)
            for row in log
            for layer, owner, version in row["used"]
        )
        self._parcels: dict[tuple[Stream, int, int], Parcel] = {}

    def put(self, stream: Stream, receiver: int, parcel: Parcel) -> None:
        """Keep it, if anybody will ask."""
        if self._wanted[stream, receiver, parcel.version]:
            self._parcels[stream, receiver, parcel.version] = parcel

    def take(self, stream: Stream, receiver: int, version: int) -> Parcel | None:
        """Once; None where the receiver has it already."""
        return self._parcels.pop((stream, receiver, version), None)

    def __len__(self) -> int:
        return len(self._parcels)


class ReplayStore:
    """One rank's store, in which what arrives is what the log says."""

    def __init__(self, rank: int, archive: Archive) -> None:
        self._rank = rank
        self._archive = archive
        self._due: list[tuple[Stream, Parcel]] = []

    def turn(self, row: Row) -> None:
        """The rank's step of this line comes next."""
        for layer, owner, version in row["used"]:
            stream = Stream(layer, "forward", owner)
            parcel = self._archive.take(stream, self._rank, version)
            if parcel is not None:
                self._due.append((stream, parcel))

    def publish(self, stream: Stream, receiver: int, parcel: Parcel) -> None:
        """For the steps that will use it."""
        self._archive.put(stream, receiver, parcel)

    def ask(self, stream: Stream, newer_than: int) -> None:
        """What comes is in the log."""

    def arrived(self) -> list[tuple[Stream, Parcel]]:
        """What the step uses that it did not use before."""
        due, self._due = self._due, []
        return due

    def call(self, message: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError("a replay merges by itself")

    def settle(self, ledger: Ledger, stamp: Stamp) -> None:
        """Nothing is handed over."""

    def close(self) -> None:
        """Nothing to leave."""


def check_log(log: Sequence[Row], ranks: int) -> None:
    """Refuse a log that does not tell the whole run."""
    steps = [0] * ranks
    for number, row in enumerate(log, 1):
        rank = row["rank"]
        if row["merge"] != number:
            raise UserError(f"the log of merges has no line of merge {number}: it cannot be replayed")
        if not 0 <= rank < ranks or row["step"] != steps[rank]:
            raise UserError(
                f"merge {number} is step {row['step']} of rank {rank}, whose next one was {steps[rank]}: "
                "a run that was resumed on other parts, or from weights alone, cannot be replayed"
            )
        if row["step"] and not row["base"]:
            raise UserError(
                f"merge {number} began with the first weights, and is no first step: it is damaged"
            )
        steps[rank] += 1


def replay(
    log: Sequence[Row],
    ranks: Sequence[FreeRank],
    stores: Sequence[ReplayStore],
    merger: Merger,
    begun: Sequence[Begun],
    after_merge: Callable[[int], None] = lambda merge: None,
) -> Difference | None:
    """Every merge of the log; where the weights first differ. `begun` are the first steps of all ranks."""
    left = Counter(row["base"] for row in log if row["step"])
    bases: dict[int, torch.Tensor] = {}
    for row in log:
        place, base = row["rank"], row["base"]
        if row["step"]:
            stores[place].turn(row)
            upload, change = ranks[place].compute(base, bases[base], stores[place])
            left[base] -= 1
            if not left[base]:
                del bases[base]
        else:
            upload, change = begun[place]
        merger.merge(upload, change)
        ranks[place].finish()
        if row["weights"] != digest_of(merger.weights):
            return Difference(row, digest_of(merger.weights))
        if left[row["merge"]]:
            bases[row["merge"]] = merger.weights.clone()
        after_merge(row["merge"])
    return None
