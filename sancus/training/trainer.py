"""The trainer of one rank: epoch after epoch by a schedule, scored exactly, agreed by all ranks.

Composed of small parts: a *schedule* says which rows and layers run when, a *step* updates the weights,
*parameter sync* keeps replicas of the model equal, an *evaluation* scores, and a *consensus* lets all ranks
take the same branch after every epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import nn

from sancus.comm.layout import Layout
from sancus.comm.mesh import Mesh
from sancus.exchange.full_graph import FullGraph
from sancus.exchange.health import ADVICE, finite
from sancus.metrics.declared import METRICS
from sancus.training.consensus import UNMEASURED, Consensus, Record, Statement, combine
from sancus.training.evaluation import Best, Evaluation
from sancus.training.full import FullBatch
from sancus.training.optimizer import make_optimizer, set_learning_rate
from sancus.training.parameter_sync import SYNCS, make_parameter_codec
from sancus.training.schedule import Schedule, Site, Work
from sancus.training.settings import TrainingSettings
from sancus.training.step import Step
from sancus.training.task import SPLITS, Task
from sancus.training.times import measured, split_of_rank
from sancus.training.weights import checksum


class Trainer:
    """Trains one replica of a model on this rank's rows."""

    def __init__(
        self,
        model: nn.Module,
        exchange: FullGraph,
        task: Task,
        settings: TrainingSettings,
        evaluation: Evaluation | None = None,
        *,
        schedule: Schedule | None = None,
        mesh: Mesh | None = None,
        site: Site | None = None,
    ) -> None:
        """`evaluation` is what scores are taken on, where that is another graph than the training's.

        `schedule` is the full batch where none is given; `mesh` says which ranks are parts, replicas and all:
        without one they are the ranks of the exchange. `site` is for schedules that need more than those.
        """
        self.model = model
        self.exchange = exchange
        self.task = task
        self.settings = settings
        self.optimizer = make_optimizer(model, settings)
        self.next_epoch = 0
        self.best = Best()
        self.stop_signal: Callable[[], int] = lambda: 0  # of this rank: a signal that asks for the end
        self.stopped_by = 0  # the signal that any rank got: the same on all
        self.figures: dict[str, float] = {}  # of this rank alone, in the last epoch
        mesh = mesh or Mesh(exchange.group, Layout(parts=exchange.group.size))
        health = exchange.crossing.health
        codec = make_parameter_codec(settings.parameter_codec)
        self.sync = SYNCS[settings.parameters](mesh.group("replicas"), health, codec, settings.seed)
        step = Step(model, self.optimizer, self.sync, exchange.group, health)
        self.schedule = schedule or FullBatch()
        whole = evaluation or Evaluation(exchange, task)
        self._work = Work(exchange, task, step, mesh, whole, site, lambda: self.stop_signal())
        self.evaluation = self.schedule.prepare(self._work)
        device = next(model.parameters()).device
        self._consensus = Consensus(
            mesh.group("all"), health, device, self.schedule.measures, mesh.layout.sets("replicas")
        )
        self._totals: dict[str, float] = {}  # of the ledger when the last epoch ended

    def run(self, after_epoch: Callable[[Record], None] = lambda record: None) -> None:
        """Train until the last epoch, or until validation has stopped improving."""
        for record in self.epochs():
            after_epoch(record)

    def epochs(self) -> Iterator[Record]:
        """The figures of each epoch as it ends, equal on all ranks; until a rank is asked to stop."""
        stopwatch = self.exchange.group.stopwatch
        while self._goes_on():
            epoch = self.next_epoch
            start = stopwatch.read()
            loss = self.train_epoch(epoch)
            lap = stopwatch.since(start)
            last = epoch + 1 == self.settings.epochs or self._ended_after(epoch)
            evaluated = last or (epoch + 1) % self.settings.eval_every == 0
            score = self.evaluate() if evaluated else torch.zeros(len(SPLITS), 2, dtype=torch.float64)
            self.figures = self._figures_of_epoch(loss) | measured(lap) | self.schedule.figures()
            record = self._agree(epoch, score, evaluated=evaluated)
            if evaluated:
                self.best = self.best.better(epoch, record["val"], record["test"], self.model)
            self.next_epoch = epoch + 1
            yield record
        self.exchange.crossing.drain()

    def train_epoch(self, epoch: int) -> float:
        """All updates of one epoch; this rank's share of the loss."""
        set_learning_rate(self.optimizer, self.settings.learning_rate(epoch))
        return self.schedule.train_epoch(epoch, self._work)

    def evaluate(self) -> torch.Tensor:
        """This rank's score fractions `[3, 2]` of a fresh, exact pass.

        Logits that are not finite are noted: on one rank no payload shows them, and they would get a score.
        """
        logits = self.logits()
        if not finite(logits):
            group = self.exchange.group
            where = f"rank {group.rank}, evaluation, epoch {group.clock.epoch}"
            self.exchange.crossing.health.note(f"{where}: logits hold NaN or infinity; {ADVICE}")
        return self.evaluation.score(logits)

    def logits(self) -> torch.Tensor:
        """Logits `[n_i, C]` of the own rows from a fresh, exact, full-precision pass."""
        return self.evaluation.logits(self.model)

    def _agree(self, epoch: int, score: torch.Tensor, *, evaluated: bool) -> Record:
        """Tell all ranks of this one's epoch, hear theirs; the record of the run, the same on all ranks."""
        crossing = self.exchange.crossing
        checks = self.settings.check and (epoch + 1) % self.settings.check == 0
        crossed = crossing.figures()
        self.exchange.group.desk.checks.read()  # what came in the evaluation
        place = (*crossed.place, checksum(self.model) if checks else 0)
        mine = Statement(self.figures, score, self.stop_signal(), crossing.health.bad, place)
        statements = self._consensus.reach(mine)
        self.figures |= split_of_rank(self.figures, [one.figures for one in statements])
        self.stopped_by = max(one.signal for one in statements)
        measures = self.schedule.measures
        record = combine(statements, evaluated=evaluated, measures=measures) | {
            "epoch": epoch,
            "sends": crossed.sends,
            "skips": crossed.skips,
        }
        return {name: record[name] for name in (*METRICS, *(metric.name for metric in measures))}

    def _figures_of_epoch(self, loss: float) -> dict[str, float]:
        """What only this rank knows of the epoch that just ended."""
        ledger, crossed = self.exchange.group.ledger, self.exchange.crossing.figures()
        totals: dict[str, float] = {
            "wire_bytes": ledger.wire_of("payload"),
            "raw_bytes": sum(ledger.raw.values()),
            "boundary_bytes": ledger.wire_of("boundary"),
            "topology_bytes": ledger.wire_of("topology"),
            "agreement_bytes": ledger.wire_of("agreement"),
            "parameter_bytes": ledger.wire_of("parameter"),
            "raw_parameter_bytes": ledger.raw_parameters,
            "evaluation_bytes": ledger.wire_of("evaluation"),
            "saved_bytes": sum(ledger.saved.values()),
        }
        figures = {name: total - self._totals.get(name, 0.0) for name, total in totals.items()}
        self._totals = totals
        return figures | {
            "loss": loss,
            "history_bytes": crossed.history_bytes,
            "max_age": crossed.max_age,
            "max_drift": _or_unmeasured(crossed.max_drift),
            "codec_error": _or_unmeasured(crossed.codec_error),
            "codec_noise": _or_unmeasured(crossed.codec_noise),
        }

    def _goes_on(self) -> bool:
        """Whether there is another epoch; one that was trained ahead is still to be scored."""
        epoch, schedule = self.next_epoch, self.schedule
        if epoch >= self.settings.epochs or self._out_of_patience():
            return False
        return schedule.trained(epoch) or not (self.stopped_by or schedule.over)

    def _ended_after(self, epoch: int) -> bool:
        """Whether the schedule ended by itself with this epoch."""
        return self.schedule.over and not self.schedule.trained(epoch + 1)

    def _out_of_patience(self) -> bool:
        """Whether the last epoch was evaluated, and the best is too long ago."""
        evaluated = self.next_epoch % self.settings.eval_every == 0
        since_best = self.next_epoch - 1 - self.best.epoch
        return bool(self.settings.patience) and evaluated and since_best >= self.settings.patience


def _or_unmeasured(value: float | None) -> float:
    return UNMEASURED if value is None else value
