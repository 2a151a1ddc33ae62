"""Scripted asynchronous training in one process: the code of real ranks, in an order that a test writes."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from sancus.comm.group import Group
from sancus.comm.latest import LatestStore, MemoryStore, Shelf
from sancus.config.settings import Config
from sancus.models.build import Model
from sancus.training.asynchronous import Asynchronous
from sancus.training.free_rank import FreeRank
from sancus.training.joining import make_join
from sancus.training.merging import Books, Merger, Rules, Upload
from sancus.training.script import Event, first_step, play
from sancus.training.trainer import Trainer
from tests.helpers.threads import open_own, results, run_threads, thread_trainer


class Scripted:
    """All ranks of a run, whose first steps have begun."""

    def __init__(self, folder: Path, ranks: int, config: Config, model: Model | None = None) -> None:
        shelves = {rank: Shelf() for rank in range(ranks)}
        self.stores: list[LatestStore] = [
            MemoryStore(rank, shelves, lambda rank, message: message) for rank in range(ranks)
        ]

        def begin(group: Group) -> tuple[Trainer, FreeRank, torch.Tensor, tuple[Upload, torch.Tensor]]:
            trainer = thread_trainer(config, open_own(folder, group), group, model=model)
            assert isinstance(trainer.schedule, Asynchronous)
            rank = trainer.schedule.stretches.rank
            start = rank.weights()
            return trainer, rank, start, first_step(rank, self.stores[group.rank])

        begun: list[Any] = results(run_threads(ranks, begin))
        self.trainers = [trainer for trainer, *_ in begun]
        self.ranks: list[FreeRank] = [rank for _, rank, *_ in begun]
        self.initial: torch.Tensor = begun[0][2]
        self._first = [first for *_, first in begun]
        books = Books(steps=[0] * ranks, losses=[0.0] * ranks)
        settings = config.asynchronous
        join = make_join(self.trainers[0].schedule.stretches.work, config.training, settings.merge)
        self.log: list[dict[str, Any]] = []
        self.merger = Merger(
            self.initial.clone(),
            books,
            Rules(ranks, 1 << 40),
            join,
            lambda: 0.0,
            lambda row, weights, books, ages: self.log.append(row),
        )

    def play(self, events: list[Event], after_merge: Callable[[], None] = lambda: None) -> torch.Tensor:
        """The weights after these events."""
        play(self.ranks, self.stores, self.merger, self._first, events, after_merge)
        return self.merger.weights


def drawn_events(ranks: int, merges: int, seed: int) -> list[Event]:
    """Some order in which ranks of very different speed may act; all have begun."""
    draws = random.Random(seed)
    busy, events = set(range(ranks)), []
    speeds = [draws.choice((1, 3, 10)) for _ in range(ranks)]
    while merges:
        (rank,) = draws.choices(range(ranks), speeds)
        events.append(("merge" if rank in busy else "begin", rank))
        merges -= rank in busy
        busy ^= {rank}
    return events  # type: ignore[return-value]
