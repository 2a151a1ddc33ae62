"""Scripted asynchronous training: ranks of one process, in an order of events that somebody else wrote.

An event is a rank that begins a step (it takes the weights and the histories of that moment) or whose step is
merged. What a step computes depends on nothing else, so it is computed when it begins. A test compares this
with a simulation; the replay of a run takes the events from its log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import torch

from sancus.comm.latest import LatestStore
from sancus.training.free_rank import FreeRank
from sancus.training.merging import Merger, Upload

Event = tuple[Literal["begin", "merge"], int]  # what, and the rank


def first_step(rank: FreeRank, store: LatestStore) -> tuple[Upload, torch.Tensor]:
    """The step that ranks make together, each in a thread of its own, from weights that are the same."""
    return rank.compute(0, rank.weights(), store)


def play(
    ranks: Sequence[FreeRank],
    stores: Sequence[LatestStore],
    merger: Merger,
    begun: Sequence[tuple[Upload, torch.Tensor]],
    events: Iterable[Event],
    after_merge: Callable[[], None] = lambda: None,
) -> None:
    """Event after event; `begun` are the first steps of all ranks, which are not merged yet."""
    under_way = dict(enumerate(begun))
    for what, place in events:
        rank = ranks[place]
        if what == "begin":
            assert place not in under_way, f"rank {place} begins a step before the last one is merged"
            under_way[place] = rank.compute(merger.books.merges, merger.weights, stores[place])
            merger.began(place)
        else:
            merger.merge(*under_way.pop(place))
            rank.finish()
            after_merge()


def lockstep(ranks: int, rounds: int) -> list[Event]:
    """All begin, all are merged, again and again: what `digest` does. The first steps have begun."""
    events: list[Event] = [("merge", rank) for rank in range(ranks)]
    for _ in range(rounds - 1):
        events += [("begin", rank) for rank in range(ranks)]
        events += [("merge", rank) for rank in range(ranks)]
    return events
