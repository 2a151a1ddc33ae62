"""One rank's run from start to end: train, print progress, checkpoint, leave the run's files behind."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, TypeVar

import torch

from sancus.comm.records import broadcast_bytes, gather_json
from sancus.config.resolve import changed_on_resume
from sancus.config.settings import Config
from sancus.console.speaker import SILENT, Speaker
from sancus.errors import UserError
from sancus.exchange.figures import run_log
from sancus.launch.interrupt import Interrupt, Stopped
from sancus.launch.world import RUN, World, attempt_of, run_name
from sancus.metrics.drift_log import join_drift
from sancus.metrics.writer import MetricsWriter
from sancus.report.page import write_report
from sancus.runs import directory as runfiles
from sancus.runs.account import Account, Request
from sancus.runs.build import Job
from sancus.runs.checkpoints import contents as checkpoint
from sancus.runs.checkpoints.store import Checkpoints, Found
from sancus.runs.logs import RankLog, note_end, open_log
from sancus.runs.stream_log import StreamLog
from sancus.trackers.base import Guarded
from sancus.training.consensus import Record
from sancus.watch.watch import Watch, patience_of

T = TypeVar("T")


class Session:
    """Runs a job; rank 0 speaks and writes."""

    def __init__(self, request: Request, job: Job, backend: str, say: Speaker, watch: Watch) -> None:
        self.request = request
        self.job = job
        self.watch = watch
        self.backend = backend
        self.say = say if job.world.rank == 0 else SILENT
        self.log = RankLog(job.group.ledger)
        self.directory = Path()  # of the run, on all ranks
        self.out: Path | None = None  # the same, where it is written: on rank 0
        self.claim: IO[str] | None = None  # keeps other runs out of the directory
        self.writer: MetricsWriter | None = None
        self.account = Account(request, job, backend)

    def run(self) -> dict[str, Any] | None:
        """Train; the contents of `run.json` on rank 0. A signal raises `Stopped`, with the work saved."""
        try:
            return self._run()
        finally:
            if self.claim is not None:
                self.claim.close()

    def _run(self) -> dict[str, Any] | None:
        output, trainer = self.request.config.output, self.job.trainer
        interrupt = Interrupt()
        trainer.stop_signal = lambda: interrupt.received
        self._open()
        self._open_log()
        streams = self._open_stream_log()
        self.tracker = Guarded(output.track, self.out, self.account.settings(), self.say)
        every = output.checkpoint_every
        for record in trainer.epochs():
            self.account.tally.add(record)
            self._write_metrics(record)
            if streams is not None:
                streams.write(trainer)
            self._progress(record)
            if every and trainer.next_epoch % every == 0 and trainer.next_epoch < trainer.settings.epochs:
                self._checkpoint()
        if trainer.stopped_by and trainer.next_epoch < trainer.settings.epochs:
            raise self._stopped(trainer.stopped_by)
        done = self._finish()
        interrupt.restore()
        return done

    def _open(self) -> None:
        """Find the run to go on with, if any, and the directory to write to; the same on all ranks."""
        config, environment = self.request.config, os.environ
        run, attempt = run_name(environment), attempt_of(environment)

        def open_directory() -> list[str | None]:
            source = runfiles.source_of(config.output, run, attempt)
            if source is None and (config.output.automatic or attempt):
                self.say("no checkpoint yet: the run starts at the beginning")
            named = (self.request.data, config.preset)
            opened, self.claim = runfiles.open_directory(config.output, *named, source, run)
            return [str(opened), None if source is None else str(source)]

        opened = json.dumps(self._on_rank_zero(open_directory)).encode()
        told = json.loads(broadcast_bytes(self.job.group, opened, self.job.device))
        self.directory, source = Path(told[0]), told[1]
        if source is not None:
            self._resume(Path(source))
        self._on_rank_zero(self._begin_files)

    def _begin_files(self) -> None:
        self.out = self.directory
        try:
            self.writer = MetricsWriter(self.out / runfiles.METRICS_FILE, self.job.trainer.next_epoch)
            if not (self.out / runfiles.RUN_FILE).exists():
                runfiles.write_json(self.out / runfiles.RUN_FILE, self.account.beginning())
        except OSError as error:
            raise runfiles.unwritable(self.out, error.strerror or str(error)) from error

    def _stopped(self, number: int) -> Stopped:
        """Save the work; what to tell the user."""
        epoch, name = self.job.trainer.next_epoch, signal.Signals(number).name
        saved = self._checkpoint()
        self.job.group.close()
        resume = f"go on with: sancus train --resume {shlex.quote(str(self.directory))}"
        if self.job.world.launcher != "local" and RUN not in os.environ:
            resume += f", started by {self.job.world.launcher} as before"
        how = resume if saved else "nothing was saved"
        return Stopped(number, f"stopped by {name} after epoch {epoch}; {how}")

    def _write_metrics(self, record: Record) -> None:
        if self.writer is None:
            return
        before = self.writer.trouble
        self.writer.write(record)
        if self.writer.trouble and not before:
            self.warn(f"metrics cannot be written ({self.writer.trouble}); they are kept in memory")

    def warn(self, line: str) -> None:
        """Rank 0 tells the user of trouble that the run survives."""
        if self.job.world.rank == 0:
            sys.stderr.write(f"sancus: {line}\n")
            sys.stderr.flush()

    def _on_rank_zero(self, action: Callable[[], T]) -> T | None:
        """What `action` gives on rank 0, None elsewhere; a mistake that it meets is raised on all ranks."""
        result, mistake = None, ""
        if self.job.world.rank == 0:
            try:
                result = action()
            except UserError as error:
                mistake = str(error)
        told = broadcast_bytes(self.job.group, mistake.encode(), self.job.device).decode()
        if told:
            raise UserError(told)
        return result

    def _open_log(self) -> None:
        """Every rank's own, in the directory that rank 0 chose."""
        job = self.job
        threads = job.world.threads(self.request.config.launch.threads)
        facts = f"{self.backend}, {threads} threads, {len(job.shard.nodes)} rows; {self.request.command}"
        open_log(self.directory.absolute(), job.world.rank, job.world.size, facts)

    def _open_stream_log(self) -> StreamLog | None:
        """What this rank decides, in the run's directory; None where this host cannot write there."""
        folder = self.directory.absolute() / runfiles.LOGS
        try:
            log = StreamLog(folder, self.job.world.rank, self.job.trainer.next_epoch)
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
        bill = self.account.bill()
        memory = gather_json(job.group, self.account.memory(), job.device)
        measured = gather_json(job.group, run_log(trainer.exchange.crossing).measured, job.device)
        if self.out is None or logits is None:
            return None
        run = self.account.describe(bill, memory)
        try:
            self._write_files(self.out, run, logits, measured)
        except OSError as error:
            raise UserError(
                f"cannot write the run's last files to {self.out}: {error.strerror}; free space, then finish "
                f"with: sancus train --resume {shlex.quote(str(self.out))}"
            ) from error
        return run

    def _write_files(self, out: Path, run: dict[str, Any], logits: torch.Tensor, measured: list[Any]) -> None:
        """What rank 0 leaves at the end."""
        trainer = self.job.trainer
        decisions = run_log(trainer.exchange.crossing).decisions
        drift = join_drift(measured, decisions.shape)
        runfiles.write_arrays(out / "decisions.npz", decisions=decisions, drift=drift)
        prediction = trainer.task.predictions(logits)
        runfiles.write_arrays(out / "predictions.npz", prediction=prediction.cpu().numpy())
        runfiles.write_json(out / runfiles.RUN_FILE, run)
        assert self.writer is not None
        self.writer.close()
        self.tracker.finish(run)
        write_report(out)

    def _checkpoint(self) -> bool:
        """Write the state of the run; where that fails, say so and go on: the last one is still there."""
        trainer, output = self.job.trainer, self.request.config.output
        carried = self.account.carried()
        shared = checkpoint.pack(trainer, carried) if self.job.world.rank == 0 else None
        folder = self.directory / runfiles.CHECKPOINTS
        checkpoints = Checkpoints(folder, self.job.group, self.job.device, output.keep)
        reason = checkpoints.write(trainer.next_epoch, shared, checkpoint.pack_rank(trainer))
        if reason is not None:
            self.warn(f"no checkpoint of epoch {trainer.next_epoch} ({reason}); the one before is kept")
        return reason is None

    def _resume(self, source: Path) -> None:
        """Go on from the newest whole checkpoint: bit for bit where ranks, parts and settings are equal."""
        trainer, job = self.job.trainer, self.job
        folder = source / runfiles.CHECKPOINTS
        found = Checkpoints(folder, job.group, job.device).newest()
        if found is None:
            raise UserError(f"no whole checkpoint in {folder}; start again without --resume")
        carried = checkpoint.unpack(found.shared, trainer)
        self.say(found.describe())
        if carried["graph"] != job.shard.manifest["graph"]:
            raise UserError(
                f"{source} was trained on another graph; give its data to --resume, or start anew"
            )
        reason = self._why_cold(carried, found)
        if reason is None:
            assert found.own is not None
            checkpoint.unpack_rank(found.own, trainer)
        else:
            self.say(f"{reason}: weights and optimizer are taken over, histories start cold")
        if not self.account.restore(carried):
            self.say(f"the bill starts anew: it was that of {carried['ranks']} ranks")

    def _why_cold(self, carried: Mapping[str, Any], found: Found) -> str | None:
        """Why the histories of a checkpoint cannot be used; None where they can."""
        if carried["ranks"] != self.job.world.size:
            return f"the checkpoint was made by {carried['ranks']} ranks"
        if carried["shards"] != self.job.shard.digest():
            return "the parts or the data are others"
        matters = changed_on_resume(carried["config"], self.account.settings())
        if matters:
            return f"--{matters[0].replace('_', '-')} is another"
        return None if found.own is not None else "a rank's own file is missing or damaged"

    def _progress(self, record: Record) -> None:
        self.say.epoch(record, self.job.trainer.settings.epochs)
        self.log.epoch(record)
        self.tracker.epoch(record)


def run_rank(
    request: Request, world: World, backend: str, shard_directory: Path, say: Speaker
) -> tuple[dict[str, Any], Path] | None:
    """Join, train, write, leave; on rank 0 the contents of `run.json` and the directory it is in.

    After an exception the caller ends the process at once (`os._exit`), which the others notice.
    """
    with watch_of(world, request.config) as watch:
        job = Job(request.config, world, backend, shard_directory, watch)
        session = Session(request, job, backend, say, watch)
        try:
            run = session.run()
        finally:
            say.close()
        note_end("done", failed=False)
        job.group.close()
    return None if run is None or session.out is None else (run, session.out)


def watch_of(world: World, config: Config) -> Watch:
    """The watch of a rank. Any rank may be the one that waits and speaks, so its lines go to stdout."""

    def say(line: str) -> None:
        if not config.output.quiet:
            print(f"sancus: {line}", flush=True)

    return Watch(world.rank, world.size, patience_of(config.launch.timeout), say)
