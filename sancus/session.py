"""One rank's run from start to end: train, print progress, checkpoint, leave the run's files behind."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from sancus import runfiles
from sancus.comm.records import broadcast_bytes, gather_json
from sancus.config import Config
from sancus.errors import UserError
from sancus.exchange.predict import history_bytes, stream_columns
from sancus.launch import World
from sancus.metrics.bill import Bill, StreamKey, join_ledgers
from sancus.metrics.writer import MetricsWriter
from sancus.report.page import write_report
from sancus.run import Job
from sancus.training import checkpoint
from sancus.training.ranklog import RankLog
from sancus.training.trainer import Record
from sancus.watch.watch import Watch, patience_of

PROGRESS_LINES = 20
T = TypeVar("T")


@dataclass(frozen=True)
class Request:
    """What was asked for, as the command line had it."""

    data: str
    config: Config
    command: str


@dataclass
class Tally:
    """Sums and maxima of the epochs so far, earlier processes of a resumed run included."""

    seconds: float = 0.0
    compute_seconds: float = 0.0
    comm_seconds: float = 0.0
    agreement_seconds: float = 0.0
    hidden_seconds: float = 0.0
    max_age: int = 0
    max_drift: float | None = None

    def add(self, record: Record) -> None:
        """One more epoch."""
        self.seconds += record["seconds"] or 0.0
        self.compute_seconds += record["compute_seconds"] or 0.0
        self.comm_seconds += record["comm_seconds"] or 0.0
        self.agreement_seconds += record["agreement_seconds"] or 0.0
        self.hidden_seconds += record["hidden_seconds"] or 0.0
        self.max_age = max(self.max_age, int(record["max_age"] or 0))
        if record["max_drift"] is not None:
            self.max_drift = max(self.max_drift or 0.0, record["max_drift"])


class Session:
    """Runs a job; rank 0 speaks and writes."""

    def __init__(
        self, request: Request, job: Job, backend: str, say: Callable[[str], None], watch: Watch
    ) -> None:
        self.request = request
        self.job = job
        self.watch = watch
        self.backend = backend
        self.say = say if job.world.rank == 0 else lambda line: None
        self.out: Path | None = None
        self.writer: MetricsWriter | None = None
        self.earlier = Bill()
        self.seconds_before = 0.0
        self.tally = Tally()
        self.bill_from = 0  # the first epoch that the bill covers
        self.started = time.perf_counter()

    def run(self) -> dict[str, Any] | None:
        """Train; the contents of `run.json` on rank 0."""
        output, trainer = self.request.config.output, self.job.trainer
        if output.resume is not None:
            self._resume(output.resume / runfiles.CHECKPOINTS)
        self.out = self._on_rank_zero(self._open_directory)
        if self.out is not None:
            self.writer = MetricsWriter(self.out / runfiles.METRICS_FILE, trainer.next_epoch)
        log = self._open_log()
        every = output.checkpoint_every
        for record in trainer.epochs():
            self.tally.add(record)
            if self.writer is not None:
                self.writer.write(record)
            if log is not None:
                log.write(trainer)
            self._progress(record)
            if every and trainer.next_epoch % every == 0 and trainer.next_epoch < trainer.settings.epochs:
                self._checkpoint()
        return self._finish()

    def _on_rank_zero(self, action: Callable[[], T]) -> T | None:
        """What `action` gives on rank 0, None elsewhere; a mistake that it meets is raised on all ranks."""
        result, mistake = None, ""
        if self.job.world.rank == 0:
            try:
                result = action()
            except UserError as error:
                mistake = str(error)
        told = broadcast_bytes(self.job.transport, mistake.encode(), self.job.device).decode()
        if told:
            raise UserError(told)
        return result

    def _open_directory(self) -> Path:
        config = self.request.config
        return runfiles.open_directory(config.output, self.request.data, config.preset)

    def _open_log(self) -> RankLog | None:
        """This rank's log in the run's directory, which rank 0 made; None where this host cannot see it."""
        mine = str(self.out.resolve()).encode() if self.out is not None else None
        told = Path(broadcast_bytes(self.job.transport, mine, self.job.device).decode())
        folder = told / runfiles.LOGS
        try:
            log = RankLog(folder, self.job.world.rank, self.job.trainer.next_epoch)
            self.watch.use_folder(folder)
        except OSError as error:
            print(
                f"sancus: rank {self.job.world.rank}: no log in {folder}: {error.strerror}", file=sys.stderr
            )
            return None
        return log

    def _finish(self) -> dict[str, Any] | None:
        trainer, job = self.job.trainer, self.job
        self._checkpoint()
        if trainer.best.weights:
            trainer.model.load_state_dict(trainer.best.weights)
        logits = job.gather_rows(trainer.logits())
        bill = self._bill()
        memory = gather_json(job.transport, self._memory(), job.device)
        if self.out is None or logits is None:
            return None
        run = self._describe(bill, memory)
        runfiles.write_arrays(
            self.out / "decisions.npz", decisions=trainer.exchange.crossing.decisions.as_array()
        )
        prediction = (logits > 0) if trainer.task.labels.dim() == 2 else logits.argmax(dim=1)
        runfiles.write_arrays(self.out / "predictions.npz", prediction=prediction.cpu().numpy())
        runfiles.write_json(self.out / runfiles.RUN_FILE, run)
        assert self.writer is not None
        self.writer.close()
        write_report(self.out)
        return run

    def _describe(self, bill: Bill, memory: list[dict[str, Any]]) -> dict[str, Any]:
        """The contents of `run.json`."""
        config, job, trainer = self.request.config, self.job, self.job.trainer
        manifest, epochs = job.shard.manifest, trainer.next_epoch
        threads = job.world.threads(config.launch.threads)
        return {
            "config": self._settings(),
            "command": self.request.command,
            "versions": runfiles.versions(),
            "hardware": runfiles.hardware(job.world.size, threads, self.backend, job.device),
            "graph": manifest["graph"],
            "partition": manifest["partition"],
            "result": {
                "best_epoch": trainer.best.epoch,
                "val": trainer.best.val,
                "test": trainer.best.test,
                "metric": trainer.task.metric,
                "epochs": epochs,
                "seconds_total": self.seconds_before + time.perf_counter() - self.started,
                "seconds_per_epoch": self.tally.seconds / max(1, epochs),
                "compute_seconds_per_epoch": self.tally.compute_seconds / max(1, epochs),
                "comm_seconds_per_epoch": self.tally.comm_seconds / max(1, epochs),
                "agreement_seconds_per_epoch": self.tally.agreement_seconds / max(1, epochs),
                "hidden_seconds_per_epoch": self.tally.hidden_seconds / max(1, epochs),
            },
            "communication": bill.to_dict(epochs - self.bill_from, job.world.size)
            | {"max_age": self.tally.max_age, "max_drift": self.tally.max_drift},
            "cache": {
                "history_bytes": [row["history"] for row in memory],
                "predicted_bytes": [row["predicted"] for row in memory],
                "drift_bytes": [row["drift"] for row in memory],
                "residual_bytes": [row["residual"] for row in memory],
                "share_of_peak": [row["history"] / row["peak"] for row in memory],
            },
            "memory": {"peak_bytes": [row["peak"] for row in memory]},
        }

    def _memory(self) -> dict[str, int | None]:
        """What this rank holds: peak, histories (measured and predicted), copies for drift and feedback."""
        exchange, config = self.job.trainer.exchange, self.request.config
        predicted = None
        widths = getattr(self.job.trainer.model, "widths", None)
        if widths is not None:
            columns = stream_columns(widths, exchange.savings)
            itemsize = getattr(torch, config.training.dtype).itemsize
            plan, rank = exchange.plan, self.job.world.rank
            predicted = history_bytes(plan, rank, columns, exchange.crossing.policies, itemsize)
        return {
            "peak": runfiles.peak_memory(),
            "history": exchange.crossing.history.nbytes,
            "predicted": predicted,
            "drift": exchange.crossing.drift.nbytes,
            "residual": exchange.crossing.residual_bytes,
        }

    def _settings(self) -> dict[str, Any]:
        """What `--config` and `--resume` need to repeat the run."""
        return {"data": self.request.data} | self.request.config.to_dict()

    def _bill(self) -> Bill:
        """What all ranks communicated since the run began, earlier processes included."""
        job, decisions = self.job, self.job.trainer.exchange.crossing.decisions
        records = gather_json(job.transport, job.transport.ledger.record(), job.device)
        decided: dict[StreamKey, tuple[int, int]] = {}
        decided |= {(s.layer, s.direction, s.owner): decisions.counts_of(s) for s in decisions.streams()}
        bill = join_ledgers(records, decided)
        bill.merge(self.earlier)
        return bill

    def _checkpoint(self) -> None:
        bill, trainer = self._bill(), self.job.trainer
        if self.out is None:
            return
        carried = {
            "decisions": trainer.exchange.crossing.decisions.as_array().tolist(),
            "communication": bill.to_dict(trainer.next_epoch - self.bill_from, self.job.world.size),
            "bill_from": self.bill_from,
            "seconds_total": self.seconds_before + time.perf_counter() - self.started,
            "tally": asdict(self.tally),
            "ranks": self.job.world.size,
            "config": self._settings(),
        }
        files = checkpoint.pack(trainer, carried)
        checkpoint.write(self.out / runfiles.CHECKPOINTS, trainer.next_epoch, files)

    def _resume(self, folder: Path) -> None:
        """Rank 0 reads the newest whole checkpoint; everyone gets the same bytes."""
        newest = self._on_rank_zero(lambda: checkpoint.read_newest(folder))
        files, line = newest or (None, "")
        self.say(line)
        names = ("weights.safetensors", "best.safetensors", "optimizer.safetensors", "state.json")
        transport, device = self.job.transport, self.job.device
        shared = {name: broadcast_bytes(transport, files[name] if files else None, device) for name in names}
        carried = checkpoint.unpack(shared, self.job.trainer)
        self.seconds_before = carried["seconds_total"]
        self.tally = Tally(**carried["tally"])
        if any(policy.max_age for policy in self.job.trainer.exchange.crossing.policies.values()):
            self.say("histories start cold: every stream sends at its first use")
        if carried["ranks"] == self.job.world.size:
            self.job.trainer.exchange.crossing.decisions.restore(np.array(carried["decisions"], np.int8))
            self.earlier = Bill.from_dict(_without_decisions(carried["communication"]))
            self.bill_from = carried["bill_from"]
        else:
            self.bill_from = self.job.trainer.next_epoch
            self.say(
                f"the checkpoint was made by {carried['ranks']} ranks: weights and optimizer are taken over, "
                "the bill starts anew"
            )

    def _progress(self, record: Record) -> None:
        epoch, epochs = int(record["epoch"] or 0), self.job.trainer.settings.epochs
        step = max(1, epochs // PROGRESS_LINES)
        if (epoch + 1) % step and epoch + 1 != epochs:
            return
        scores = "  ".join(f"{s} {record[s]:.4f}" for s in ("val", "test") if record[s] is not None)
        self.say(
            f"epoch {epoch + 1:>{len(str(epochs))}}/{epochs}  loss {record['loss']:.4f}  {scores}  "
            f"{(record['wire_bytes'] or 0) / 1e6:.3f} MB  {record['seconds']:.3f} s"
        )


def _without_decisions(communication: Mapping[str, Any]) -> dict[str, Any]:
    """An earlier bill without sends and skips: the restored decisions count those themselves."""
    streams = [row | {"sends": 0, "skips": 0} for row in communication["streams"]]
    return dict(communication) | {"streams": streams}


def run_rank(
    request: Request, world: World, backend: str, shard_directory: Path, say: Callable[[str], None]
) -> tuple[dict[str, Any], Path] | None:
    """Join, train, write, leave; on rank 0 the contents of `run.json` and the directory it is in.

    After an exception the caller ends the process at once (`os._exit`), which the others notice.
    """
    with watch_of(world, request.config) as watch:
        job = Job(request.config, world, backend, shard_directory, watch)
        session = Session(request, job, backend, say, watch)
        run = session.run()
        job.transport.close()
    return None if run is None or session.out is None else (run, session.out)


def watch_of(world: World, config: Config) -> Watch:
    """The watch of a rank. Any rank may be the one that waits and speaks, so its lines go to stdout."""

    def say(line: str) -> None:
        if not config.output.quiet:
            print(f"sancus: {line}", flush=True)

    return Watch(world.rank, world.size, patience_of(config.launch.timeout), say)
