"""The batches of an epoch on their way: some are drawn, asked for and moved while an earlier one is trained.

A batch goes through stages (ByteGNN §4.2's operators, as far as a rank has them): *draw* its neighbours and
look up where their rows are, *ask* their owners, *pack* what others asked for, *move* rows, *unpack* them.
Draw and pack are local work, done by a thread beside training; ask and move are collectives, which the main
thread alone makes, in a fixed order: before batch `s` is trained, all ranks ask for the rows of `s + 2`, and
start to move those of `s + 1`. No clock and no queue decides when: so ranks never disagree, and nothing but
speed depends on how far ahead batches are made.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

from sancus.kernels.picked import PickedRows
from sancus.kernels.topology import Sampled
from sancus.sampling.base import SampleKey
from sancus.store.features import FeatureStore, Pull
from sancus.store.parcel import Step
from sancus.training.asker import Asker, Loss

T = TypeVar("T")

ASKED_AHEAD, SENT_AHEAD = 2, 1  # batches beyond the one that is trained, where so many are made ahead


@dataclass
class StageSeconds:
    """Where the time of batches went; measured, and nothing else."""

    draw: float = 0.0
    pack: float = 0.0
    stall: float = 0.0  # of the main thread, for draws and packs


@dataclass(frozen=True, eq=False)
class ReadyBatch:
    """A batch whose rows are here."""

    batch: Any
    loss: Loss  # of the logits of the seeds
    sampled: Sampled
    rows: PickedRows
    pulled_rows: int
    cached_rows: int


class BatchLine:
    """Makes the batches of an epoch, up to `ahead` of them before they are needed."""

    def __init__(self, source: Asker, store: FeatureStore, seed: int, ahead: int) -> None:
        self.source = source
        self.store = store
        self.seed = seed
        self.seconds = StageSeconds()
        self.ahead = ahead

    def of_epoch(self, epoch: int) -> Iterator[ReadyBatch]:
        """Every batch when it is its turn; all ranks go through them together."""
        self.seconds = StageSeconds()
        clock, batches = self.store.group.clock, self.source.of_epoch(epoch)
        with ThreadPoolExecutor(1, "batches") if self.ahead else nullcontext() as thread:
            line = [
                _OnItsWay(self, batch, SampleKey(self.seed, epoch, step), thread)
                for step, batch in enumerate(batches)
            ]
            for step, item in enumerate(line):
                clock.begin_step(step)
                for later in line[step : step + 1 + self.ahead]:
                    later.draw()
                for later in line[step : step + 1 + min(ASKED_AHEAD, self.ahead)]:
                    later.ask()
                for later in line[step : step + 1 + min(SENT_AHEAD, self.ahead)]:
                    later.send()
                yield item.arrive()

    def timed(self, stage: str, work: Callable[[], T]) -> T:
        """What `work` gives; its seconds are those of a stage."""
        start = time.perf_counter()
        result = work()
        setattr(self.seconds, stage, getattr(self.seconds, stage) + time.perf_counter() - start)
        return result


@dataclass(frozen=True, eq=False)
class _Drawn:
    """What is known of a batch once it is drawn."""

    loss: Loss
    sampled: Sampled
    pull: Pull


class _OnItsWay:
    """One batch; every stage is done once, however often it is called for."""

    def __init__(self, line: BatchLine, batch: Any, key: SampleKey, thread: Executor | None) -> None:
        self._line = line
        self._batch = batch
        self._key = key
        self._thread = thread
        self._drawn: Future[_Drawn] | None = None
        self._packed: Future[None] | None = None
        self._sent = False

    def draw(self) -> None:
        """Begin to draw; at once, by the main thread, where drawing needs messages."""
        if self._drawn is None:
            thread = None if self._line.source.collective else self._thread
            self._drawn = _start(thread, lambda: self._line.timed("draw", self._draw))

    def ask(self) -> None:
        """Ask the owners of rows, and begin to pack what others asked for."""
        if self._packed is None:
            fetching = self._done(self._drawn).pull.fetching
            fetching.ask()
            self._packed = _start(self._thread, lambda: self._line.timed("pack", fetching.pack))

    def send(self) -> None:
        """Start to move rows."""
        if not self._sent:
            self._done(self._packed)
            self._done(self._drawn).pull.fetching.send()
            self._sent = True

    def arrive(self) -> ReadyBatch:
        """The batch, when its rows have come; nothing of it is kept here."""
        drawn = self._done(self._drawn)
        self._drawn = self._packed = None
        drawn.pull.fetching.receive()
        rows = self._line.timed("pack", drawn.pull.rows)
        counts = drawn.pull.pulled_rows, drawn.pull.cached_rows
        return ReadyBatch(self._batch, drawn.loss, drawn.sampled, rows, *counts)

    def _draw(self) -> _Drawn:
        line = self._line
        sampled, loss = line.source.sample(self._batch, self._key)
        step = Step(self._key.epoch, self._key.step)
        return _Drawn(loss, sampled, Pull(line.store, sampled.nodes, step, background=line.ahead > 0))

    def _done(self, task: Future[T] | None) -> T:
        assert task is not None, "stages come one after another"
        return task.result() if task.done() else self._line.timed("stall", task.result)


def _start(thread: Executor | None, work: Callable[[], T]) -> Future[T]:
    """`work`, by a thread; at once where there is none."""
    if thread is not None:
        return thread.submit(work)
    done: Future[T] = Future()
    done.set_result(work())
    return done
