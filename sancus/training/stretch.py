"""Stretches: a rank trains by itself until the next checkpoint, then takes up epoch after epoch of it.

At the beginning every rank opens its store; rank 0 also answers who asks for weights or brings what a step
changed. At the end ranks come together once: they hear of the merges, and leave the stores. The epochs that
went by are then evaluated one after another, as any other epoch is.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from sancus.comm.latest import OWNER, LatestStore, MemoryStore, Shelf
from sancus.comm.ledger import DIRECTIONS, Entry, Ledger, Stream
from sancus.comm.records import broadcast_bytes, gather_json
from sancus.comm.stopwatch import Lap
from sancus.exchange.decisions import count_answers
from sancus.training.async_settings import AsyncSettings
from sancus.training.chronicle import Chronicle
from sancus.training.free_rank import FreeRank
from sancus.training.joining import make_join
from sancus.training.merge_desk import Caller, MergeDesk
from sancus.training.merging import Books, Merger, Rules
from sancus.training.schedule import Work
from sancus.training.settings import TrainingSettings
from sancus.training.times import MEASURED, measured

PAUSE = 0.005  # seconds between two questions of a rank that is too far ahead
CPU = torch.device("cpu")


class Stretches:
    """One rank's way through all stretches of a run."""

    def __init__(self, work: Work, training: TrainingSettings, settings: AsyncSettings, every: int) -> None:
        """`every` is how many epochs a stretch has; 0: all."""
        self.work = work
        self._training = training
        self._settings = settings
        self._every = every
        self.group = work.step.group
        self.rank = FreeRank(work, training, settings.merge)
        self.books = Books(steps=[0] * self.group.size, losses=[0.0] * self.group.size)
        self.facts: dict[int, dict[str, Any]] = {}  # of epochs that are trained, and not taken up yet
        self.figures: dict[str, float] = {}
        self.over = False
        self._chronicle = Chronicle(self.group.size, lambda epoch: (epoch + 1) % training.eval_every == 0)
        self._ledgers: dict[int, Ledger] = {}
        self._shelf = Shelf()
        self._restored = False
        self._lap: dict[str, float] = {}  # of the last stretch, a second of it

    def keep_log(self, folder: Path, first_epoch: int, source: Path | None) -> None:
        """Rank 0 logs every merge."""
        if self.group.rank == OWNER:
            self._chronicle.open(folder, first_epoch, source)

    def train_epoch(self, epoch: int) -> float:
        """This rank's share of the loss of an epoch, whose weights the model has afterwards."""
        if epoch not in self.facts:
            self._train(epoch)
        facts = self.facts.pop(epoch)
        if facts["snapshot"]:
            self.rank.load(self._snapshot(epoch))
        self.group.begin_epoch(epoch)
        crossing = self.work.neighbourhood.crossing
        if epoch:
            crossing.decisions.begin_epoch()
        crossing.decisions.max_age = facts["max_age"]
        self._take_bytes(epoch)
        spent = facts["trained_seconds"] - facts["began"]
        names = ("trained_seconds", "weight_delay", "largest_delay")
        self.figures = {name: float(facts[name]) for name in names} | {"seconds": spent}
        self.figures |= {name: share * spent for name, share in self._lap.items()}
        return float(facts["loss"]) if self.group.rank == OWNER else 0.0

    def state(self) -> dict[str, torch.Tensor]:
        """Steps of this rank; the books."""
        books = json.dumps(self.books.to_dict()).encode()
        return {
            "step": torch.tensor(self.rank.step),
            "books": torch.frombuffer(bytearray(books), dtype=torch.uint8),
        }

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        """Go on where another process stopped."""
        self.rank.step = int(state["step"])
        self.books = Books.from_dict(json.loads(state["books"].numpy().tobytes()))
        self._restored = True

    def describe(self) -> dict[str, Any]:
        """Facts of the run, the same on all ranks."""
        books = self.books
        seconds = max(books.seconds, 1e-9)
        return {
            "merge": self._settings.merge,
            "merges": books.merges,
            "steps": books.steps,
            "steps_per_second": [steps / seconds for steps in books.steps],
            "trained_seconds": books.seconds,
            "weight_delays": sorted(books.delays.items()),
            "history_ages": sorted(books.ages.items()),
            "waits": books.waits,
        }

    def _train(self, epoch: int) -> None:
        """One stretch, from the beginning of an epoch."""
        group, ranks = self.group, self.group.size
        start = group.stopwatch.read()
        if self.books.merges != epoch * ranks:  # weights of another run, or of other parts
            self.books = replace(self.books, merges=epoch * ranks)
        if self._restored:
            self._prime()
        desk = (
            self._desk(end_of_stretch(epoch, self._every, self._training.epochs) * ranks)
            if group.rank == OWNER
            else None
        )
        store = self._store(desk)
        try:
            self._walk(store, epoch)
            group.begin_epoch(epoch)  # where all ranks are again
            self._come_together(desk, epoch, group.stopwatch.since(start))
        finally:
            store.close()
        health = self.work.step.health
        if any(gather_json(group, health.bad, CPU)):
            health.stop("", CPU)

    def _desk(self, target: int) -> MergeDesk:
        """Where rank 0 merges."""
        join = make_join(self.work, self._training, self._settings.merge)
        rules = Rules(self.group.size, target, self._settings.max_delay, self._settings.seconds)
        books = Books.from_dict(self.books.to_dict())
        merger = Merger(self.rank.weights(), books, rules, join, time.monotonic, self._chronicle.note)
        return MergeDesk(merger, self.group.desk.stamp)

    def _store(self, desk: MergeDesk | None) -> LatestStore:
        """Among processes over ZeroMQ; one rank needs none."""
        if desk is not None and self.group.size == 1:
            return MemoryStore(0, {0: self._shelf}, desk.answer)
        from sancus.comm.zmq_store import ZmqStore

        return ZmqStore(self.group, None if desk is None else desk.answer, self._shelf)

    def _walk(self, store: LatestStore, epoch: int) -> None:
        """Step after step, as long as there are tickets."""
        group = self.group
        caller = Caller(store, group.rank, self.rank.weights().dtype, group.desk.stamp, group.stopwatch)
        facts, weights = caller.ask()
        if not self.rank.step:
            group.all_gather(torch.zeros(1))  # nobody's first step is merged before all have their weights
        while facts["go"] or facts["wait"]:
            if facts["wait"]:
                time.sleep(PAUSE)
                facts, weights = caller.ask()
                continue
            upload, change = self.rank.compute(facts["version"], weights, store)
            facts, weights = caller.bring(upload.facts(), change)
            self.rank.finish()
            now = max(epoch, (facts["merges"] - 1) // self.group.size)
            store.settle(self._ledgers.setdefault(now, Ledger()), self.group.desk.stamp)
        self.rank.rest()

    def _come_together(self, desk: MergeDesk | None, epoch: int, lap: Lap) -> None:
        """All ranks hear what happened; the only collective of a stretch."""
        group = self.group
        graph = self.work.neighbourhood
        heard_of_all = gather_json(group, [bool(graph.orders), self.rank.courier.answers()], CPU)
        everyone = [answers for _, answers in heard_of_all]  # by now every step is merged
        if not all(trained for trained, _ in heard_of_all):  # a rank that came to no step of its own
            graph.orders.clear()  # all choose the order of products alike
        told = None
        if desk is not None:
            desk.merger.join.keep(self.work.step.optimizer)
            self._chronicle.end(desk.merger.weights)
            told = json.dumps(
                {"books": desk.merger.books.to_dict(), "facts": list(self._chronicle.facts.items())}
            ).encode()
            self._chronicle.facts = {}
        before = self.books.seconds
        heard = json.loads(broadcast_bytes(group, told, CPU))
        self.books = Books.from_dict(heard["books"])
        for number, facts in heard["facts"]:
            self.facts[number] = facts | {"began": before}
            before = facts["trained_seconds"]
        last = max(self.facts)
        self.over = bool(self._settings.seconds) and self.books.seconds >= self._settings.seconds
        decisions = graph.crossing.decisions
        for layer, side, owner, pushes, skips in itertools.chain(*everyone):
            count_answers(decisions, Stream(layer, DIRECTIONS[side], owner), pushes, skips)
        seconds = max(lap.total, 1e-9)
        figures = measured(lap)
        self._lap = {name: figures[name] / seconds for name in (*MEASURED, "comm_seconds")}
        late = [number for number in self._ledgers if number > last]
        for number in late:
            _pour(self._ledgers.pop(number), self._ledgers.setdefault(last, Ledger()))

    def _prime(self) -> None:
        """What crosses once crosses now, while ranks are together: a resumed process has it not yet."""
        graph, model = self.work.neighbourhood, self.work.step.model
        model.eval()
        with torch.no_grad(), graph.exact():
            model(graph.input, graph)
        if graph.plan.picks_rows:
            graph.noise.columns()
        self._restored = False

    def _snapshot(self, epoch: int) -> torch.Tensor:
        """The weights after an epoch, from rank 0."""
        weights = self.rank.weights()
        if self.group.rank == OWNER:
            weights = self._chronicle.snapshot(epoch, weights)
        if self.group.size > 1:
            self.group.broadcast(weights, OWNER, Entry("evaluation")).wait()
        return weights

    def _take_bytes(self, epoch: int) -> None:
        """Enter what this rank handed over in that epoch."""
        for number in [number for number in self._ledgers if number <= epoch]:
            _pour(self._ledgers.pop(number), self.group.ledger)


def end_of_stretch(epoch: int, every: int, last: int) -> int:
    """The epoch before which ranks come together."""
    return min(last, (epoch // every + 1) * every) if every else last


def _pour(ledger: Ledger, into: Ledger) -> None:
    """Everything in one ledger goes into another."""
    into.wire.update(ledger.wire)
    into.raw.update(ledger.raw)
    into.raw_parameters += ledger.raw_parameters
