"""The epoch loop: forward, backward, one flat all-reduce, update; fresh exact evaluation.

Everything that decides what happens next (scores, early stop) comes out of one fixed-shape gather that every
rank makes in every epoch, so all ranks always take the same branch. It also tells whether all ranks stand at
the same place, and whether a number is not finite (`sancus.exchange.health`).
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from sancus.comm.errors import DisagreementError
from sancus.exchange.exchange import Exchange
from sancus.exchange.gather import RankZero
from sancus.exchange.health import ADVICE, finite
from sancus.metrics.declared import METRICS
from sancus.training.objective import SPLITS, Task
from sancus.training.settings import TrainingSettings
from sancus.training.weights import checksum, compare

Record = dict[str, float | int | None]
LOCAL = (
    "loss",
    "seconds",
    "comm_seconds",
    "hidden_seconds",
    "agreement_seconds",
    "wire_bytes",
    "raw_bytes",
    "agreement_bytes",
    "parameter_bytes",
    "evaluation_bytes",
    "saved_bytes",
    "history_bytes",
    "max_drift",
)
# What must be the same on all ranks: 64-bit numbers go as two halves, which a float64 holds exactly.
AGREED = ("agreements", "epoch", "configuration", "weights")
UNMEASURED = -1.0
HALF = 1 << 32


@dataclass
class Best:
    """The best validation epoch so far, and the weights it had."""

    epoch: int = -1
    val: float = -1.0
    test: float = -1.0
    weights: dict[str, torch.Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Evaluation:
    """The graph that scores are taken on, and its labels: with `--inductive` the whole one."""

    exchange: Exchange
    task: Task


class Trainer:
    """Trains one replica of a model on this rank's rows."""

    def __init__(
        self,
        model: nn.Module,
        exchange: Exchange,
        task: Task,
        settings: TrainingSettings,
        evaluation: Evaluation | None = None,
    ) -> None:
        """`evaluation` is what scores are taken on, where that is another graph than the training's."""
        self.model = model
        self.exchange = exchange
        self.task = task
        self.evaluation = evaluation or Evaluation(exchange, task)
        self.settings = settings
        self.optimizer = _optimizer(model, settings)
        self.next_epoch = 0
        self.best = Best()
        self.stop_signal: Callable[[], int] = lambda: 0  # of this rank: a signal that asks for the end
        self.stopped_by = 0  # the signal that any rank got: the same on all
        self.figures: dict[str, float] = {}  # of this rank alone, in the last epoch
        self._counted = dict.fromkeys(LOCAL, 0.0)
        self._train_score: torch.Tensor | None = None  # of the last epoch, where labels are input

    def run(self, after_epoch: Callable[[Record], None] = lambda record: None) -> None:
        """Train until the last epoch, or until validation has stopped improving."""
        for record in self.epochs():
            after_epoch(record)

    def epochs(self) -> Iterator[Record]:
        """The figures of each epoch as it ends, equal on all ranks; until a rank is asked to stop."""
        while self.next_epoch < self.settings.epochs and not self._out_of_patience() and not self.stopped_by:
            epoch = self.next_epoch
            started, waited = time.perf_counter(), self._waited()
            loss = self.train_epoch(epoch)
            seconds, waits = time.perf_counter() - started, self._waited() - waited
            last = epoch + 1 == self.settings.epochs
            evaluated = last or (epoch + 1) % self.settings.eval_every == 0
            score = self.evaluate() if evaluated else torch.zeros(len(SPLITS), 2, dtype=torch.float64)
            local = self._local_figures(loss) | {"seconds": seconds, "comm_seconds": waits.total()}
            local["agreement_seconds"] = waits["agreement"]
            self.figures = local
            record = self._gather(epoch, local, score, evaluated=evaluated)
            self._keep_best(epoch, record)
            self.next_epoch = epoch + 1
            yield record
        self.exchange.crossing.drain()

    def train_epoch(self, epoch: int) -> float:
        """One forward and backward pass and one update; this rank's share of the loss."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.learning_rate(epoch)
        self.exchange.begin_epoch(epoch)
        self.model.train()
        self.optimizer.zero_grad()
        logits = self.model(self.exchange.input, self.exchange)
        task = self._task_of_epoch()
        loss = task.loss(logits)
        self._check_loss(epoch, loss.item())
        loss.backward()
        sum_gradients(self.model, self.exchange)
        self.optimizer.step()
        if task is not self.task:
            self._train_score = task.score(logits.detach())[0]
        return loss.item()

    def _check_loss(self, epoch: int, loss: float) -> None:
        if not math.isfinite(loss):
            rank = self.exchange.group.rank
            self.exchange.crossing.health.note(
                f"the loss of rank {rank} is {loss} in epoch {epoch}; {ADVICE}"
            )

    def evaluate(self) -> torch.Tensor:
        """This rank's score fractions `[3, 2]` of a fresh, exact pass.

        Where labels are input, every training node shows its own; their score is the training pass's, of
        those that did not.
        """
        evaluation = self.evaluation
        score = evaluation.task.score(self.logits(), RankZero(evaluation.exchange.group))
        if self._train_score is not None:
            score[0] = self._train_score
        return score

    def logits(self) -> torch.Tensor:
        """Logits `[n_i, C]` of the own rows from a fresh, exact, full-precision pass."""
        self.model.eval()
        exchange = self.evaluation.exchange
        with torch.no_grad(), exchange.exact():
            logits: torch.Tensor = self.model(exchange.input, exchange)
        return logits

    def _task_of_epoch(self) -> Task:
        """Where labels are input, the loss is taken of the training nodes that do not show theirs.

        Their number is taken as expected, so that no rank need ask the others.
        """
        rate = self.settings.label_rate
        if not rate:
            return self.task
        rows = self.task.rows["train"]
        shown = self.exchange.label_draw(rate).chosen(self.exchange.nodes[rows])
        left = {**self.task.rows, "train": rows[~shown]}
        return replace(self.task, rows=left, train_count=self.task.train_count * (1.0 - rate))

    def _waited(self) -> Counter[str]:
        """Seconds that this rank has spent in the transport so far, by purpose."""
        return Counter(self.exchange.group.ledger.seconds)

    def _local_figures(self, loss: float) -> dict[str, float]:
        """What only this rank knows of the epoch that just ended."""
        ledger = self.exchange.group.ledger
        totals = {
            "wire_bytes": ledger.wire_of("payload"),
            "raw_bytes": sum(ledger.raw.values()),
            "agreement_bytes": ledger.wire_of("agreement"),
            "parameter_bytes": ledger.wire_of("parameter"),
            "evaluation_bytes": ledger.wire_of("evaluation"),
            "saved_bytes": sum(ledger.saved.values()),
            "hidden_seconds": ledger.hidden_seconds,
        }
        figures = {name: total - self._counted[name] for name, total in totals.items()}
        self._counted |= totals
        crossed = self.exchange.crossing.figures()
        return figures | {
            "loss": loss,
            "history_bytes": crossed.history_bytes,
            "max_drift": UNMEASURED if crossed.max_drift is None else crossed.max_drift,
        }

    def _gather(self, epoch: int, local: dict[str, float], score: torch.Tensor, *, evaluated: bool) -> Record:
        """Combine every rank's figures; the same record on all ranks."""
        figures = torch.tensor([local[name] for name in LOCAL], dtype=torch.float64)
        health = self.exchange.crossing.health
        agreed = torch.tensor(
            [half for number in self._agreed(epoch) for half in divmod(number, HALF)], dtype=torch.float64
        )
        flags = torch.tensor([float(self.stop_signal()), float(health.bad)], dtype=torch.float64)
        mine = torch.cat([figures, score.reshape(-1), flags, agreed]).to(self._device)
        everyone = self.exchange.group.all_gather(mine).cpu()
        everyone, told, places = everyone.tensor_split([-2 - len(agreed), -len(agreed)], dim=1)
        self.stopped_by = int(told[:, 0].max())
        if told[:, 1].any():
            health.stop("", self._device)
        self._compare(places.to(torch.int64).tolist(), epoch)
        columns = dict(zip(LOCAL, everyone.T, strict=False))
        fractions = everyone[:, len(LOCAL) :].sum(dim=0).view(len(SPLITS), 2)
        crossed = self.exchange.crossing.figures()
        compute = columns["seconds"] - columns["comm_seconds"]
        record: Record = {name: _combine(name, columns[name]) for name in LOCAL}
        for split, (top, bottom) in zip(SPLITS, fractions.tolist(), strict=True):
            record[split] = (top / bottom if bottom else 0.0) if evaluated else None
        record |= {"epoch": epoch, "compute_seconds": float(compute.mean())}
        communicated = columns["comm_seconds"]
        record["waiting_seconds"] = float((communicated - communicated.min()).mean())
        record |= {"sends": crossed.sends, "skips": crossed.skips, "max_age": crossed.max_age}
        if record["max_drift"] == UNMEASURED:
            record["max_drift"] = None
        return {name: record[name] for name in METRICS}

    def _agreed(self, epoch: int) -> list[int]:
        """What must be the same on all ranks."""
        checks = self.settings.check and (epoch + 1) % self.settings.check == 0
        return [*self.exchange.crossing.figures().place, checksum(self.model) if checks else 0]

    def _compare(self, halves: list[list[int]], epoch: int) -> None:
        """A rank that stands elsewhere, or has other weights, is named on all."""
        rows = [[high * HALF + low for high, low in zip(row[::2], row[1::2], strict=True)] for row in halves]
        for name, values in zip(AGREED, zip(*rows, strict=True), strict=True):
            if name == "weights":
                compare(list(values), epoch)
                continue
            for rank, value in enumerate(values):
                if value != values[0]:
                    raise DisagreementError(
                        f"rank {rank} disagrees with rank 0 in epoch {epoch}: "
                        f"its {name} is {value}, not {values[0]}"
                    )

    @property
    def _device(self) -> torch.device:
        return next(self.model.parameters()).device

    def _keep_best(self, epoch: int, record: Record) -> None:
        val, test = record["val"], record["test"]
        if val is not None and test is not None and val > self.best.val:
            weights = {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}
            self.best = Best(epoch, val, test, weights)

    def _out_of_patience(self) -> bool:
        """Whether the last epoch was evaluated, and the best is too long ago."""
        evaluated = self.next_epoch % self.settings.eval_every == 0
        since_best = self.next_epoch - 1 - self.best.epoch
        return bool(self.settings.patience) and evaluated and since_best >= self.settings.patience


def sum_gradients(model: nn.Module, exchange: Exchange) -> None:
    """Add up every parameter's gradient over the ranks, in one flat all-reduce.

    The loss is already divided by the global count. It comes between `backward()` and the update. If a number
    of this epoch is not finite on any rank, all ranks stop here.
    """
    parameters = list(model.parameters())
    gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in parameters]
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    group, crossing = exchange.group, exchange.crossing
    if not finite(flat):
        where = f"rank {group.rank}, backward, epoch {crossing.clock.epoch}"
        crossing.health.note(f"{where}: the gradient of {_not_finite(model)} holds NaN or infinity; {ADVICE}")
    if crossing.health.bad:
        flat.fill_(math.nan)
    group.all_reduce(flat)
    if not finite(flat):
        crossing.health.stop(
            f"epoch {crossing.clock.epoch}: a sum of gradients is infinite; {ADVICE}", flat.device
        )
    for parameter, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        parameter.grad = part.view_as(parameter)


def _combine(name: str, column: torch.Tensor) -> float | int:
    how = METRICS[name].over_ranks
    value = float(column.max() if how == "max" else column.mean() if how == "mean" else sum(column.tolist()))
    return int(value) if METRICS[name].unit == "B" else value


def _not_finite(model: nn.Module) -> str:
    """The first parameter whose gradient is not finite."""
    return next(name for name, p in model.named_parameters() if p.grad is not None and not finite(p.grad))


def _optimizer(model: nn.Module, settings: TrainingSettings) -> torch.optim.Optimizer:
    decay, layer_decay = settings.weight_decay, settings.layer_weight_decay
    named = list(model.named_parameters())
    apart = {name for name, _ in named if layer_decay is not None and ".layers." in f".{name}"}
    groups = [
        {"params": [p for name, p in named if name not in apart], "weight_decay": decay},
        {"params": [p for name, p in named if name in apart], "weight_decay": layer_decay or 0.0},
    ]
    parameters = [group for group in groups if group["params"]]
    if settings.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=settings.lr, momentum=settings.momentum, weight_decay=decay)
    return torch.optim.Adam(parameters, lr=settings.lr, weight_decay=decay)
