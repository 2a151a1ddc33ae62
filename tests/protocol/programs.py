"""What the ranks of a model run: the real exchange with payloads that say what they are, and real training.

`exchange` moves rows whose every value names owner, layer, direction and epoch, so that a payload that is
used in the wrong place, or too old, or too new, is seen at once. `training` is the trainer with all that
belongs to it: agreement, payloads, sums of gradients, evaluation, consensus, a signal that may come to any
rank in any epoch, and the end of the run; under a pipeline also what stages hand on, and with mini-batches
the rows that ranks pull.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
import xxhash

from sancus.comm.group import Group
from sancus.comm.ledger import DIRECTIONS, Direction, Stream
from sancus.comm.records import gather_json
from sancus.config.settings import Config, FactorSettings
from sancus.exchange.crossing import Crossing
from sancus.exchange.delivery import Delivery
from sancus.exchange.full_graph import FullGraph
from sancus.graphs.shards import Shard, open_shard
from sancus.models.build import make_model
from sancus.models.settings import ModelSettings
from sancus.runs.build import make_trainer
from sancus.runs.layout import chunks_needed, parts_needed
from sancus.sampling.settings import SamplingSettings
from sancus.staleness.base import LATER, SEND, Answer, Replicated, View
from sancus.training.minibatch import MiniBatch
from sancus.training.pipeline import Pipeline
from sancus.training.pipeline_settings import PipelineSettings
from sancus.training.settings import TrainingSettings
from sancus.training.trainer import Trainer
from sancus.training.weights import checksum
from tests.helpers.graphs import awkward_graph, shards_of
from tests.protocol.play import Stage

CPU = torch.device("cpu")
SIGTERM = 15


def tag(owner: int, layer: int, direction: Direction, epoch: int) -> float:
    """The value of every element of a payload; owners drift at different speeds."""
    return 1e6 * (owner + 1) + 1e5 * (layer + 1) + 1e4 * DIRECTIONS.index(direction) + (owner + 1) * epoch


@dataclass(frozen=True)
class Setting:
    """What is explored: how many ranks, over which factors, for how many epochs."""

    name: str
    ranks: int
    epochs: int
    factors: FactorSettings
    layers: int = 1  # that cross, of an exchange; of the model, in training
    signals: bool = False  # whether fate may send one, in training
    eval_every: int = 1
    parameters: Any = "sum"
    fails: Literal["", "policy", "number"] = ""  # what goes wrong on the last rank, in epoch 1
    waits: tuple[bool, ...] = (False, True)  # whether a rank's wait ends early: what is explored of it
    pipeline: PipelineSettings | None = None  # of layers, in training
    sampling: SamplingSettings | None = None  # of mini-batches, in training

    @property
    def due(self) -> str:
        """What the error says that all ranks must end with."""
        return {"": "", "policy": "decide raised KeyError", "number": "holds NaN"}[self.fails]

    def config(self) -> Config:
        """As a run has it."""
        training = TrainingSettings(
            epochs=self.epochs,
            dtype="float64",
            check=1,
            eval_every=self.eval_every,
            optimizer="sgd",
            lr=0.1,
            parameters=self.parameters,
            schedule="full" if self.pipeline is None else "pipeline",
        )
        shape = ModelSettings(layers=max(1, self.layers), hidden=2, dropout=0.0)
        stages, batches = self.pipeline or PipelineSettings(), self.sampling or SamplingSettings()
        return Config(factors=self.factors, shape=shape, training=training, pipeline=stages, sampling=batches)


@dataclass
class Ground:
    """A small graph in shards, read once: plays only compute with it."""

    shards: dict[tuple[int, int], list[Shard]] = field(default_factory=dict)
    nodes: ClassVar[int] = 9

    def of(self, setting: Setting, folder: Path) -> list[Shard]:
        """The shards of a setting's parts, each sorted by its chunks."""
        config, ranks = setting.config(), setting.ranks
        parts, chunks = parts_needed(config, ranks), chunks_needed(config, ranks)
        if (parts, chunks) not in self.shards:
            graph = awkward_graph(self.nodes, features=2, classes=2, directed=False)
            where = shards_of(graph, "random", parts, folder / str(parts), chunks)
            self.shards[parts, chunks] = [open_shard(where, part) for part in range(parts)]
        return self.shards[parts, chunks]


class ExchangeProgram:
    """Payloads that say what they are, forward and backward, epoch after epoch."""

    def __init__(self, setting: Setting, shards: list[Shard]) -> None:
        self.setting = setting
        self._shards = shards

    def __call__(self, group: Group, stage: Stage) -> str:
        config, shard = self.setting.config(), self._shards[group.rank]
        exchange = make_trainer(config, shard, group, CPU).exchange
        stage.open(lambda: _histories(exchange.crossing))
        held: dict[Stream, int] = {}  # what receivers hold, by the answers that all agreed on
        for epoch in range(self.setting.epochs):
            exchange.begin_epoch(epoch)
            for direction in DIRECTIONS:
                for layer in range(self.setting.layers):
                    self._use(exchange, stage, layer, direction, held)
        exchange.crossing.drain()
        for stream, version in held.items():
            history = exchange.crossing.memory.history
            if stream.owner != group.rank and history.holds(stream):
                assert history.version(stream) == version, f"{stream} has version {history.version(stream)}"
                _check(history.pull(stream), stream, version)
        group.close()
        return "end"

    def _use(
        self, exchange: FullGraph, stage: Stage, layer: int, direction: Direction, held: dict[Stream, int]
    ) -> None:
        """One use of a layer's streams; every payload must be what the answers say that it is."""
        group, epoch = exchange.group, exchange.group.clock.epoch
        leg = exchange.plan.forward  # that picks rows, and sums none up: what arrives says what it is
        mine = tag(group.rank, layer, direction, epoch)
        rows = torch.full((len(exchange.nodes), 2), mine, dtype=torch.float64)
        outgoing = exchange.mover._outgoing(leg, rows)
        arrivals = exchange.crossing.deliver(leg, outgoing, layer, direction)
        answers = exchange.crossing.decisions._now
        versions: dict[int, int] = {}
        for owner in range(group.size):
            stream = Stream(layer, direction, owner)
            answer = answers[stream]
            stage.note(("decision", epoch, layer, direction, owner, Answer(answer).name))
            versions[owner] = epoch if answer == SEND else held[stream]
            if answer in (SEND, LATER):
                held[stream] = epoch
        for owner, payload in arrivals:
            _check(payload, Stream(layer, direction, owner), versions[owner])
            stage.note(("used", epoch, layer, direction, owner, payload[0, 0].item()))


class WrongTensorError(AssertionError):
    """A payload is not what it was used as."""


def _check(payload: torch.Tensor, stream: Stream, version: int) -> None:
    expected = tag(stream.owner, stream.layer, stream.direction, version)
    if not bool((payload == expected).all()):
        raise WrongTensorError(f"{stream}: {payload.unique().tolist()} was used where {expected} was due")


class TrainingProgram:
    """The trainer, and how a run ends: what is under way is drained, results are gathered, ranks leave."""

    def __init__(self, setting: Setting, shards: list[Shard]) -> None:
        self.setting = setting
        self._shards = shards
        graph, config = shards[0].manifest["graph"], setting.config()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self._model = make_model("gcn", graph["features"], graph["classes"], config.shape).double()

    def __call__(self, group: Group, stage: Stage) -> tuple[Any, int, list[Any]]:
        config, shard = self.setting.config(), self._shards[group.rank % len(self._shards)]
        trainer = make_trainer(config, shard, group, CPU, copy.deepcopy(self._model))
        crossing = trainer.exchange.crossing
        opened = crossing._deliveries["forward"], crossing._deliveries["backward"], crossing._exact_delivery
        for delivery in opened:
            _watch(delivery, stage)
        _watch_schedule(trainer, stage)
        if group.rank == group.size - 1 and self.setting.fails:
            _spoil(trainer, self.setting.fails)
        if self.setting.signals:
            trainer.stop_signal = _signal(stage)
        stage.open(lambda: _histories(crossing) + _state_of(trainer))
        for record in trainer.epochs():
            stage.note(("epoch", record["epoch"], record["loss"], record["val"], record["sends"]))
        crossing.state()
        ended = [trainer.next_epoch, trainer.stopped_by]
        weights: Any = checksum(trainer.model)
        if self.setting.pipeline is not None:  # each stage has its own
            weights = gather_json(group, weights, CPU)
        everyone = gather_json(group, ended, CPU)
        group.close()
        return weights, trainer.next_epoch, everyone


def _signal(stage: Stage) -> Any:
    """A signal that comes at most once, at any time, to any rank: asked for as the trainer asks."""
    received = 0

    def stop_signal() -> int:
        nonlocal received
        received = received or SIGTERM * stage.ask(2)
        return received

    return stop_signal


def _spoil(trainer: Trainer, what: str) -> None:
    """From epoch 1 on something is wrong on this rank alone."""
    crossing, model = trainer.exchange.crossing, trainer.model
    if what == "policy":
        policies = dict.fromkeys(DIRECTIONS, Failing())
        crossing.policies = crossing.agreement.policies = policies
        return

    def spoil(*_: object) -> None:
        if crossing.clock.epoch == 1:
            with torch.no_grad():
                next(iter(model.parameters())).fill_(torch.nan)

    model.register_forward_pre_hook(spoil)


class Failing(Replicated):
    """Answers as `epoch-fixed` does, until it cannot any more."""

    max_age: ClassVar[int] = 1

    def decide(self, view: View) -> bool:
        raise KeyError(view.epoch)


def _watch(delivery: Delivery, stage: Stage) -> None:
    """Note every payload that is used."""
    opened, recalled = delivery._open, delivery._recall

    def open_(*arguments: Any) -> torch.Tensor:
        payload = opened(*arguments)
        _, _, _, _, owner, use = arguments
        stage.note(("opened", use.epoch, use.layer, use.direction, owner, checksum_of(payload)))
        return payload

    def recall(owner: int, use: Any) -> torch.Tensor:
        payload = recalled(owner, use)
        stage.note(("recalled", use.epoch, use.layer, use.direction, owner, checksum_of(payload)))
        return payload

    delivery._open = open_  # type: ignore[method-assign]
    delivery._recall = recall  # type: ignore[method-assign]


def _watch_schedule(trainer: Trainer, stage: Stage) -> None:
    """Note what stages receive of each other, and the rows that mini-batches pull."""
    schedule, clock = trainer.schedule, trainer.exchange.group.clock
    if isinstance(schedule, Pipeline):
        assert schedule._stage is not None
        link = schedule._stage.link
        received = link.receive

        def receive(direction: Direction, chunk: int, *more: Any) -> list[torch.Tensor]:
            rows = received(direction, chunk, *more)
            stage.note(("received", clock.epoch, direction, chunk, *map(checksum_of, rows)))
            return rows

        link.receive = receive  # type: ignore[method-assign]
    if isinstance(schedule, MiniBatch):
        step = trainer._work.step
        descended = step.descend

        def descend(batch: Any, *arguments: Any) -> float:
            rows = checksum_of(batch._rows.to_rows())
            stage.note(("pulled", clock.epoch, clock.step, batch.ids.tolist(), rows))
            return descended(batch, *arguments)

        step.descend = descend  # type: ignore[method-assign]


def _state_of(trainer: Trainer) -> bytes:
    """A digest of what a schedule remembers from epoch to epoch."""
    digest = xxhash.xxh3_128()
    for name, value in sorted(trainer.schedule.state().items()):
        digest.update(name.encode() + value.numpy().tobytes())
    return digest.digest()


def _histories(crossing: Crossing) -> bytes:
    """A digest of all histories of a rank, and of their versions."""
    history, digest = crossing.memory.history, xxhash.xxh3_128()
    for stream in crossing.decisions.streams():
        if history.holds(stream):
            digest.update(history.pull(stream).numpy().tobytes())
            digest.update(b"%d" % history.version(stream))
    return digest.digest()


def checksum_of(payload: torch.Tensor) -> int:
    """Of the values of a payload."""
    return hash(payload.contiguous().numpy().tobytes())
