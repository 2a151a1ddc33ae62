"""One rank's run from start to end: train, print progress, checkpoint, leave the run's files behind."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sancus import runfiles
from sancus.comm.records import broadcast_bytes, gather_json
from sancus.config import Config
from sancus.launch import World
from sancus.metrics.bill import Bill, join_ledgers
from sancus.metrics.writer import MetricsWriter
from sancus.report.page import write_report
from sancus.run import Job
from sancus.training import checkpoint
from sancus.training.trainer import Record

PROGRESS_LINES = 20


@dataclass(frozen=True)
class Request:
    """What was asked for, as the command line had it."""

    data: str
    config: Config
    command: str


class Session:
    """Runs a job; rank 0 speaks and writes."""

    def __init__(self, request: Request, job: Job, backend: str, say: Callable[[str], None]) -> None:
        self.request = request
        self.job = job
        self.backend = backend
        self.say = say if job.world.rank == 0 else lambda line: None
        self.out: Path | None = None
        self.writer: MetricsWriter | None = None
        self.earlier = Bill()
        self.seconds_before = 0.0
        self.epoch_seconds = 0.0
        self.started = time.perf_counter()

    def run(self) -> dict[str, Any] | None:
        """Train; the contents of `run.json` on rank 0."""
        output, trainer = self.request.config.output, self.job.trainer
        if output.resume is not None:
            self._resume(output.resume / "checkpoint")
        if self.job.world.rank == 0:
            preferred = output.out or output.resume
            self.out = runfiles.choose_directory(preferred, self.request.data, self.request.config.preset)
            self.writer = MetricsWriter(self.out / "metrics.jsonl", trainer.next_epoch)
        every = output.checkpoint_every
        for record in trainer.epochs():
            self.epoch_seconds += record["seconds"] or 0.0
            if self.writer is not None:
                self.writer.write(record)
            self._progress(record)
            if every and trainer.next_epoch % every == 0 and trainer.next_epoch < trainer.settings.epochs:
                self._checkpoint()
        return self._finish()

    def _finish(self) -> dict[str, Any] | None:
        trainer, job = self.job.trainer, self.job
        self._checkpoint()
        trainer.model.load_state_dict(trainer.best.weights)
        logits = job.gather_rows(trainer.logits())
        bill = self._bill()
        memory = gather_json(
            job.transport,
            {"peak": runfiles.peak_memory(), "history": trainer.exchange.history.nbytes},
            job.device,
        )
        if self.out is None or logits is None:
            return None
        run = self._describe(bill, memory)
        runfiles.write_arrays(self.out / "decisions.npz", decisions=trainer.exchange.decisions.as_array())
        multilabel = logits.shape[1] > 1 and trainer.task.labels.dim() == 2
        prediction = (logits > 0) if multilabel else logits.argmax(dim=1)
        runfiles.write_arrays(self.out / "predictions.npz", prediction=prediction.cpu().numpy())
        runfiles.write_json(self.out / runfiles.RUN_FILE, run)
        assert self.writer is not None
        self.writer.close()
        write_report(self.out)
        return run

    def _describe(self, bill: Bill, memory: list[dict[str, int]]) -> dict[str, Any]:
        """The contents of `run.json`."""
        config, job, trainer = self.request.config, self.job, self.job.trainer
        manifest, epochs = job.shard.manifest, trainer.next_epoch
        threads = job.world.threads(config.launch.threads)
        return {
            "config": {"data": self.request.data} | config.to_dict(),
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
                "seconds_per_epoch": self.epoch_seconds / max(1, epochs),
            },
            "communication": bill.to_dict(epochs, job.world.size),
            "cache": {
                "history_bytes": [row["history"] for row in memory],
                "share_of_peak": [row["history"] / row["peak"] for row in memory],
            },
            "memory": {"peak_bytes": [row["peak"] for row in memory]},
        }

    def _bill(self) -> Bill:
        """What all ranks communicated since the run began, earlier processes included."""
        job, decisions = self.job, self.job.trainer.exchange.decisions
        records = gather_json(job.transport, job.transport.ledger.record(), job.device)
        decided = {(s.layer, s.direction, s.owner): decisions.counts_of(s) for s in decisions.streams()}
        bill = join_ledgers(records, decided)
        bill.merge(self.earlier)
        return bill

    def _checkpoint(self) -> None:
        bill, trainer = self._bill(), self.job.trainer
        if self.out is None:
            return
        carried = {
            "decisions": trainer.exchange.decisions.as_array().tolist(),
            "communication": bill.to_dict(trainer.next_epoch, self.job.world.size),
            "seconds_total": self.seconds_before + time.perf_counter() - self.started,
            "epoch_seconds": self.epoch_seconds,
            "ranks": self.job.world.size,
        }
        checkpoint.write(self.out / "checkpoint", trainer.next_epoch, checkpoint.pack(trainer, carried))

    def _resume(self, folder: Path) -> None:
        """Rank 0 reads the newest whole checkpoint; everyone gets the same bytes."""
        files: checkpoint.Files | None = None
        if self.job.world.rank == 0:
            files, line = checkpoint.read_newest(folder)
            self.say(line)
        names = ("weights.safetensors", "best.safetensors", "optimizer.safetensors", "state.json")
        transport, device = self.job.transport, self.job.device
        shared = {name: broadcast_bytes(transport, files[name] if files else None, device) for name in names}
        carried = checkpoint.unpack(shared, self.job.trainer)
        self.seconds_before = carried["seconds_total"]
        self.epoch_seconds = carried["epoch_seconds"]
        if carried["ranks"] == self.job.world.size:
            self.job.trainer.exchange.decisions.restore(np.array(carried["decisions"], np.int8))
            self.earlier = Bill.from_dict(carried["communication"])
        else:
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


def run_rank(request: Request, world: World, backend: str, shard_directory: Path, say: Callable[[str], None]) -> dict[str, Any] | None:
    """Join, train, write, leave. A failure leaves without waiting for the others."""
    job = Job(request.config, world, backend, shard_directory)
    try:
        run = Session(request, job, backend, say).run()
    except BaseException:
        job.transport.abort()
        raise
    job.transport.close()
    return run
