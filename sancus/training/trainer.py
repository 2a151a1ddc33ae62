"""The epoch loop: forward, backward, one flat all-reduce, update; fresh exact evaluation.

Everything that decides what happens next (scores, early stop, a loss that is not finite) comes out of one
fixed-shape gather that every rank makes in every epoch, so all ranks always take the same branch.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import nn

from sancus.errors import UserError
from sancus.exchange.exchange import Exchange
from sancus.metrics.declared import METRICS
from sancus.training.objective import SPLITS, Task
from sancus.training.settings import TrainingSettings

Record = dict[str, float | int | None]
LOCAL = (
    "loss",
    "seconds",
    "comm_seconds",
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
UNMEASURED = -1.0


@dataclass
class Best:
    """The best validation epoch so far, and the weights it had."""

    epoch: int = -1
    val: float = -1.0
    test: float = -1.0
    weights: dict[str, torch.Tensor] = field(default_factory=dict)


class Trainer:
    """Trains one replica of a model on this rank's rows."""

    def __init__(self, model: nn.Module, exchange: Exchange, task: Task, settings: TrainingSettings) -> None:
        self.model = model
        self.exchange = exchange
        self.task = task
        self.settings = settings
        self.optimizer = _optimizer(model, settings)
        self.next_epoch = 0
        self.best = Best()
        self._counted = dict.fromkeys(LOCAL, 0.0)

    def run(self, after_epoch: Callable[[Record], None] = lambda record: None) -> None:
        """Train until the last epoch, or until validation has stopped improving."""
        for record in self.epochs():
            after_epoch(record)

    def epochs(self) -> Iterator[Record]:
        """The figures of each epoch as it ends, equal on all ranks."""
        while self.next_epoch < self.settings.epochs and not self._out_of_patience():
            epoch = self.next_epoch
            started, waited = time.perf_counter(), self._waited()
            loss = self.train_epoch(epoch)
            seconds, waits = time.perf_counter() - started, self._waited() - waited
            last = epoch + 1 == self.settings.epochs
            evaluated = last or (epoch + 1) % self.settings.eval_every == 0
            score = self.evaluate() if evaluated else torch.zeros(len(SPLITS), 2, dtype=torch.float64)
            local = self._local_figures(loss) | {"seconds": seconds, "comm_seconds": waits.total()}
            local["agreement_seconds"] = waits["agreement"]
            record = self._gather(epoch, local, score, evaluated=evaluated)
            self._keep_best(epoch, record)
            self.next_epoch = epoch + 1
            yield record

    def train_epoch(self, epoch: int) -> float:
        """One forward and backward pass and one update; this rank's share of the loss."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.learning_rate(epoch)
        self.exchange.begin_epoch(epoch)
        self.model.train()
        self.optimizer.zero_grad()
        loss = self.task.loss(self.model(self.exchange.input, self.exchange))
        loss.backward()
        self._sum_gradients()
        self.optimizer.step()
        return loss.item()

    def evaluate(self) -> torch.Tensor:
        """This rank's score fractions `[3, 2]` of a fresh, exact pass."""
        return self.task.score(self.logits())

    def logits(self) -> torch.Tensor:
        """Logits `[n_i, C]` of the own rows from a fresh, exact, full-precision pass."""
        self.model.eval()
        with torch.no_grad(), self.exchange.exact():
            logits: torch.Tensor = self.model(self.exchange.input, self.exchange)
        return logits

    def _sum_gradients(self) -> None:
        """One flat all-reduce; the loss is already divided by the global count."""
        parameters = list(self.model.parameters())
        gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in parameters]
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        self.exchange.transport.all_reduce(flat)
        for parameter, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
            parameter.grad = part.view_as(parameter)

    def _waited(self) -> Counter[str]:
        """Seconds that this rank has spent in the transport so far, by purpose."""
        return Counter(self.exchange.transport.ledger.seconds)

    def _local_figures(self, loss: float) -> dict[str, float]:
        """What only this rank knows of the epoch that just ended."""
        ledger = self.exchange.transport.ledger
        totals = {
            "wire_bytes": ledger.wire_of("payload"),
            "raw_bytes": sum(ledger.raw.values()),
            "agreement_bytes": ledger.wire_of("agreement"),
            "parameter_bytes": ledger.wire_of("parameter"),
            "evaluation_bytes": ledger.wire_of("evaluation"),
            "saved_bytes": sum(ledger.saved.values()),
        }
        figures = {name: total - self._counted[name] for name, total in totals.items()}
        self._counted |= totals
        drift = self.exchange.agreement.max_drift
        return figures | {
            "loss": loss,
            "history_bytes": self.exchange.history.nbytes,
            "max_drift": UNMEASURED if drift is None else drift,
        }

    def _gather(self, epoch: int, local: dict[str, float], score: torch.Tensor, *, evaluated: bool) -> Record:
        """Combine every rank's figures; the same record on all ranks."""
        figures = torch.tensor([local[name] for name in LOCAL], dtype=torch.float64)
        mine = torch.cat([figures, score.reshape(-1)]).to(self._device)
        everyone = self.exchange.transport.all_gather(mine).cpu()
        columns = dict(zip(LOCAL, everyone.T, strict=False))
        _check_finite(epoch, columns["loss"])
        fractions = everyone[:, len(LOCAL) :].sum(dim=0).view(len(SPLITS), 2)
        sends, skips = self.exchange.decisions.counts()
        compute = columns["seconds"] - columns["comm_seconds"]
        record: Record = {name: _combine(name, columns[name]) for name in LOCAL}
        for split, (top, bottom) in zip(SPLITS, fractions.tolist(), strict=True):
            record[split] = (top / bottom if bottom else 0.0) if evaluated else None
        record |= {"epoch": epoch, "compute_seconds": float(compute.mean())}
        record |= {"sends": sends, "skips": skips, "max_age": self.exchange.decisions.max_age}
        if record["max_drift"] == UNMEASURED:
            record["max_drift"] = None
        return {name: record[name] for name in METRICS}

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


def _combine(name: str, column: torch.Tensor) -> float | int:
    how = METRICS[name].over_ranks
    value = float(column.max() if how == "max" else column.mean() if how == "mean" else sum(column.tolist()))
    return int(value) if METRICS[name].unit == "B" else value


def _check_finite(epoch: int, losses: torch.Tensor) -> None:
    bad = torch.nonzero(~torch.isfinite(losses)).flatten().tolist()
    if bad:
        raise UserError(
            f"the loss of rank {bad[0]} is {losses[bad[0]].item()} in epoch {epoch}; "
            "lower --lr, or look at the features"
        )


def _optimizer(model: nn.Module, settings: TrainingSettings) -> torch.optim.Optimizer:
    parameters, decay = model.parameters(), settings.weight_decay
    if settings.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=settings.lr, momentum=settings.momentum, weight_decay=decay)
    return torch.optim.Adam(parameters, lr=settings.lr, weight_decay=decay)
