"""Consensus: at the end of every epoch all ranks tell each other where they stand, and take the same branch.

Everything that decides what happens next (scores, early stop, signals, a number that is not finite) comes out
of one fixed-shape gather that every rank makes in every epoch. So no rank ever branches on a value that
the others do not know, and a rank that stands elsewhere, or holds other weights, is named on all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from sancus.comm.errors import DisagreementError
from sancus.comm.group import Group
from sancus.exchange.health import Health
from sancus.metrics.declared import METRICS, Metric
from sancus.training.task import SPLITS
from sancus.training.times import MEASURED, communicated, split_of_run
from sancus.training.weights import compare

Record = dict[str, float | int | None]  # the figures of an epoch by name, as in metrics.jsonl
FIGURES = (
    "loss",
    "seconds",
    "hidden_seconds",
    *MEASURED,
    "wire_bytes",
    "raw_bytes",
    "boundary_bytes",
    "topology_bytes",
    "agreement_bytes",
    "parameter_bytes",
    "raw_parameter_bytes",
    "evaluation_bytes",
    "saved_bytes",
    "history_bytes",
    "max_age",
    "max_drift",
    "codec_error",
    "codec_noise",
)
WHOLE = ("B", "epochs")  # units of figures that are whole numbers
PLACE = ("collectives", "epoch", "configuration", "weights")  # what must be the same on all ranks
STATEMENT = len(FIGURES) + 2 * len(SPLITS) + 2 + 2 * len(PLACE)  # numbers of a statement
HALF = 1 << 32  # 64-bit numbers go as two halves, each of which a float64 holds exactly
UNMEASURED = -1.0  # in the place of a drift or an error


@dataclass(frozen=True)
class Statement:
    """What one rank says at the end of an epoch."""

    figures: Mapping[str, float]  # FIGURES: what the epoch was like for this rank
    score: torch.Tensor  # [3, 2] numerators and denominators of its scores; zeros where it was not evaluated
    signal: int  # the number of a signal that asks for the end; 0: none
    unhealthy: bool  # it met a number that is not finite
    place: tuple[int, ...]  # PLACE: where it believes to be

    def pack(self, names: Sequence[str] = FIGURES) -> torch.Tensor:
        """As a vector of float64, whose length is the same on all ranks; `names` are those of figures."""
        halves = [half for number in self.place for half in divmod(number, HALF)]
        numbers = [self.figures[name] for name in names]
        flags = [float(self.signal), float(self.unhealthy)]
        return torch.tensor(
            [*numbers, *self.score.reshape(-1).tolist(), *flags, *halves], dtype=torch.float64
        )

    @classmethod
    def unpack(cls, vector: Sequence[float], names: Sequence[str] = FIGURES) -> Statement:
        """The statement that `pack` wrote."""
        values = iter(vector)
        figures = {name: next(values) for name in names}
        score = torch.tensor([next(values) for _ in range(2 * len(SPLITS))], dtype=torch.float64)
        signal, unhealthy = int(next(values)), bool(next(values))
        place = tuple(int(next(values)) * HALF + int(next(values)) for _ in PLACE)
        return cls(figures, score.view(len(SPLITS), 2), signal, unhealthy, place)


class Consensus:
    """Gathers statements over all ranks, and checks that they agree."""

    def __init__(
        self,
        everyone: Group,
        health: Health,
        device: torch.device,
        measures: Sequence[Metric] = (),
        replicas: Sequence[Sequence[int]] = (),
    ) -> None:
        """`measures` are figures that statements have beside `FIGURES`.

        `replicas` are the sets of ranks that hold the same parameters: all of them, where it is empty.
        """
        self._replicas = replicas or [range(everyone.size)]
        self._names = (*FIGURES, *(metric.name for metric in measures))
        self._everyone = everyone
        self._health = health
        self._device = device

    def reach(self, statement: Statement) -> list[Statement]:
        """Every rank's statement `[p]`, in the order of ranks, the same list on all of them."""
        gathered = self._everyone.all_gather(statement.pack(self._names))
        statements = [Statement.unpack(row, self._names) for row in gathered.tolist()]
        if any(one.unhealthy for one in statements):
            self._health.stop("", self._device)
        for ranks in self._replicas:
            _check_places({rank: statements[rank].place for rank in ranks}, self._everyone.clock.epoch)
        return statements


def combine(statements: Sequence[Statement], *, evaluated: bool, measures: Sequence[Metric] = ()) -> Record:
    """The figures of all ranks as those of the run, each as its metric says: sum, mean or largest."""
    metrics = [METRICS[name] for name in FIGURES if name in METRICS] + list(measures)
    columns = {
        metric.name: torch.tensor([one.figures[metric.name] for one in statements], dtype=torch.float64)
        for metric in metrics
    }
    record: Record = {metric.name: _over_ranks(metric, columns[metric.name]) for metric in metrics}
    fractions = torch.stack([one.score for one in statements]).sum(dim=0)
    for split, (top, bottom) in zip(SPLITS, fractions.tolist(), strict=True):
        record[split] = top / bottom if evaluated and bottom else None
    figures = [one.figures for one in statements]
    in_transport = torch.tensor([communicated(times) for times in figures], dtype=torch.float64)
    record["comm_seconds"] = float(in_transport.mean())
    record["compute_seconds"] = float((columns["seconds"] - in_transport).mean())
    record |= split_of_run(figures)
    for name in ("max_drift", "codec_error", "codec_noise"):
        if record[name] == UNMEASURED:
            record[name] = None
    return record


def _over_ranks(metric: Metric, column: torch.Tensor) -> float | int:
    how = metric.over_ranks
    value = float(column.max() if how == "max" else column.mean() if how == "mean" else sum(column.tolist()))
    return int(value) if metric.unit in WHOLE else value


def _check_places(places: Mapping[int, tuple[int, ...]], epoch: int) -> None:
    """A rank that stands elsewhere than others with its parameters, or has other weights, is named on all."""
    first = min(places)
    for name, values in zip(PLACE, zip(*places.values(), strict=True), strict=True):
        if name == "weights":
            compare(dict(zip(places, values, strict=True)), epoch)
            continue
        for rank, value in zip(places, values, strict=True):
            if value != values[0]:
                raise DisagreementError(
                    f"rank {rank} disagrees with rank {first} in epoch {epoch}: "
                    f"its {name} is {value}, not {values[0]}"
                )
