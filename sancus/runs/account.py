"""The account of a run: everything that becomes `run.json`, and what of it a checkpoint carries along."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from sancus.comm.records import gather_json
from sancus.config.settings import Config
from sancus.exchange.figures import run_log
from sancus.exchange.full_graph import FullGraph
from sancus.exchange.state import State
from sancus.exchange.volume import history_bytes, stream_columns
from sancus.metrics.bill import Bill, StreamKey, join_ledgers
from sancus.metrics.measurements import Measurements, means_by_stream
from sancus.models.contract import traits_of
from sancus.runs import directory
from sancus.runs.build import Job
from sancus.runs.model_source import describe_model
from sancus.runs.tally import Tally


@dataclass(frozen=True)
class Request:
    """What the user wants of a run: the data, the settings, and the command line that said so."""

    data: str
    config: Config
    command: str
    go_on: str = "sancus train --resume {directory}"  # how a run there is gone on with


class Account:
    """Sums over the epochs of this process and of those before it, and facts of the run."""

    def __init__(self, request: Request, job: Job, backend: str) -> None:
        self.request = request
        self.job = job
        self.backend = backend
        self.tally = Tally()
        self._earlier = Bill()
        self._seconds_before = 0.0
        self.bill_from = 0  # the first epoch that the bill covers
        self._started = time.perf_counter()

    def beginning(self) -> dict[str, Any]:
        """What `run.json` holds from the start, so that a killed run can be shown and repeated."""
        job, manifest = self.job, self.job.shard.manifest
        threads = job.world.threads(self.request.config.launch.threads)
        transport = (self.backend, broadcast_of(job.trainer.exchange))
        return {
            "config": self.settings(),
            "command": self.request.command,
            "model": describe_model(self.request.config.model, job.given_model),
            "versions": directory.versions(),
            "hardware": directory.hardware(job.world.size, threads, *transport, job.device),
            "graph": manifest["graph"],
            "partition": manifest["partition"],
        }

    def describe(
        self,
        bill: Bill,
        memory: list[dict[str, Any]],
        errors: Mapping[str, Measurements],
        schedule: Mapping[str, Any],
    ) -> dict[str, Any]:
        """The contents of `run.json`; `errors` are `codec_error` and `codec_noise`."""
        job, trainer = self.job, self.job.trainer
        means = {name: means_by_stream(values) for name, values in errors.items()}
        epochs = trainer.next_epoch
        return self.beginning() | {
            "result": {
                "best_epoch": trainer.best.epoch,
                "val": trainer.best.val,
                "test": trainer.best.test,
                "metric": trainer.task.metric,
                "epochs": epochs,
                "seconds_total": self._seconds_before + time.perf_counter() - self._started,
            }
            | self.tally.per_epoch(epochs),
            "communication": bill.to_dict(epochs - self.bill_from, job.world.size, means)
            | {name: max(of_stream.values(), default=None) for name, of_stream in means.items()}
            | {
                "max_age": self.tally.max_age,
                "max_drift": self.tally.max_drift,
                "policies": self._policies(),
            },
            "cache": {
                "history_bytes": [row["history"] for row in memory],
                "predicted_bytes": [row["predicted"] for row in memory],
                "drift_bytes": [row["drift"] for row in memory],
                "residual_bytes": [row["residual"] for row in memory],
                "share_of_peak": [row["history"] / row["peak"] for row in memory],
            },
            "memory": {"peak_bytes": [row["peak"] for row in memory]},
            "schedule": dict(schedule) | self._measures(),
        }

    def _measures(self) -> dict[str, Any]:
        """Means of what only the schedule measures."""
        means = self.tally.measures_per_epoch()
        return {"per_epoch": means} if means else {}

    def _policies(self) -> dict[str, Any]:
        """What the report draws beside ages and drift: the bounds, by direction."""
        return {
            side: {"max_age": policy.max_age, "norm": policy.drift_norm, "gap": getattr(policy, "gap", None)}
            for side, policy in self.job.trainer.exchange.crossing.policies.items()
        }

    def memory(self) -> dict[str, int | None]:
        """What this rank holds: peak, histories (measured and predicted), copies for drift and feedback."""
        exchange, config = self.job.trainer.exchange, self.request.config
        predicted = None
        widths = traits_of(self.job.trainer.model).widths
        if widths is not None:
            policies = exchange.crossing.policies
            labels = exchange.labels is not None
            columns = stream_columns(widths, exchange.savings, policies, labels=labels)
            itemsize = getattr(torch, config.training.dtype).itemsize
            plan, rank = exchange.plan, exchange.group.rank
            predicted = history_bytes(plan, rank, columns, policies, itemsize)
        figures = exchange.crossing.figures()
        return {
            "peak": directory.peak_memory(self.job.device),
            "history": int(self.job.trainer.figures.get("history_bytes", figures.history_bytes)),
            "predicted": predicted,
            "drift": figures.drift_bytes,
            "residual": figures.residual_bytes + _nbytes(self.job.trainer.sync.codec.state()),
        }

    def settings(self) -> dict[str, Any]:
        """The data and all settings of the run, as `--config` and `--resume` read them to repeat it."""
        return {"data": self.request.data} | self.request.config.to_dict()

    def bill(self) -> Bill:
        """What all ranks communicated since the run began, earlier processes included."""
        job, counts = self.job, run_log(self.job.trainer.exchange.crossing).counts
        members = list(job.trainer.exchange.group.members)
        records = gather_json(job.group, job.group.ledger.record() | {"members": members}, job.device)
        decided: dict[StreamKey, tuple[int, int]] = {}
        decided |= {(s.layer, s.direction, s.owner): count for s, count in counts.items()}
        bill = join_ledgers(records, decided)
        bill.merge(self._earlier)
        return bill

    def carried(self) -> dict[str, Any]:
        """What a checkpoint keeps of this account; all ranks call it: the bill is gathered from them."""
        bill, job, trainer = self.bill(), self.job, self.job.trainer
        return {
            "communication": bill.to_dict(trainer.next_epoch - self.bill_from, job.world.size),
            "bill_from": self.bill_from,
            "seconds_total": self._seconds_before + time.perf_counter() - self._started,
            "tally": self.tally.to_dict(),
            "ranks": job.world.size,
            "shards": job.shard.digest(),
            "graph": job.shard.manifest["graph"],
            "config": self.settings(),
        }

    def restore(self, carried: Mapping[str, Any]) -> bool:
        """Go on with the account of a checkpoint; False where its bill is left out.

        A bill counts bytes by rank, so that of another number of ranks cannot be continued.
        """
        self._seconds_before = carried["seconds_total"]
        self.tally = Tally.from_dict(carried["tally"])
        if carried["ranks"] != self.job.world.size:
            self.bill_from = self.job.trainer.next_epoch
            return False
        communication = carried["communication"]
        if "decisions" in carried:  # of an older checkpoint: all of them
            decisions = np.array(carried["decisions"], np.int8)
            self.job.trainer.exchange.crossing.restore(State(decisions=decisions))
            communication = _without_decisions(communication)
        self._earlier = Bill.from_dict(communication)
        self.bill_from = carried["bill_from"]
        return True


def _nbytes(tensors: Mapping[str, torch.Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors.values())


def broadcast_of(exchange: FullGraph) -> str | None:
    """How blocks reach all ranks, as `--broadcast auto` or the user chose; None where none are broadcast."""
    if exchange.group.size == 1 or not exchange.plan.forward.broadcast:
        return None
    return "ring" if exchange.group.ring else "library"


def _without_decisions(communication: Mapping[str, Any]) -> dict[str, Any]:
    """An earlier bill without sends and skips: the restored decisions count those themselves."""
    streams = [row | {"sends": 0, "skips": 0} for row in communication["streams"]]
    return dict(communication) | {"streams": streams}
