"""One rank's run from start to end: train, print progress, checkpoint, leave the run's files behind."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from sancus.comm.records import broadcast_bytes, on_rank_zero
from sancus.config.settings import Config
from sancus.console.speaker import SILENT, Speaker
from sancus.errors import UserError
from sancus.launch.interrupt import Interrupt, Stopped
from sancus.launch.world import GO_ON, RUN, World, attempt_of, run_name
from sancus.metrics.writer import MetricsWriter
from sancus.report.page import write_report
from sancus.runs import directory
from sancus.runs.account import Account, Request
from sancus.runs.belongings import LOGS, METRICS_FILE, RUN_FILE, Belongings
from sancus.runs.build import Job
from sancus.runs.codec_warning import CodecWarning
from sancus.runs.logs import RankLog, note_end, open_log
from sancus.runs.outcome import Outcome, gather_outcome
from sancus.runs.saved_work import SavedWork
from sancus.runs.stream_log import StreamLog
from sancus.shards.cache import Shards
from sancus.trackers.base import Guarded
from sancus.training.consensus import Record
from sancus.watch.board import FileNotes
from sancus.watch.watch import Watch, patience_of


class Session:
    """Trains one rank's job to its end; rank 0 also prints progress and writes the files of the run."""

    def __init__(
        self,
        request: Request,
        job: Job,
        backend: str,
        say: Speaker,
        watch: Watch,
        after_epoch: Callable[[Record], None] = lambda record: None,
    ) -> None:
        """`after_epoch` is called with the figures of every epoch, on every rank."""
        self.request = request
        self.after_epoch = after_epoch
        self.job = job
        self.watch = watch
        self.backend = backend
        self.say = say if job.world.rank == 0 else SILENT
        self.log = RankLog(job.group.desk)
        self.directory = Path()  # of the run, on all ranks
        self.out: Path | None = None  # the same, where it is written: on rank 0
        self.claim: IO[str] | None = None  # keeps other runs out of the directory
        self.writer: MetricsWriter | None = None
        self.streams: StreamLog | None = None  # None where this host cannot write it
        self.source: Path | None = None  # the directory of the run that is resumed
        self.account = Account(request, job, backend)
        self.saved_work = SavedWork(job, self.account, self.say, self.warn)

    def run(self) -> dict[str, Any] | None:
        """Train; the contents of `run.json` on rank 0. A signal raises `Stopped`, with the work saved."""
        try:
            return self._run()
        finally:
            if self.claim is not None:
                self.claim.close()

    def _run(self) -> dict[str, Any] | None:
        output, trainer = self.request.config.output, self.job.trainer
        interrupt = Interrupt(patient=RUN in os.environ)
        trainer.stop_signal = lambda: interrupt.received
        self._open()
        self._open_logs()
        with contextlib.nullcontext() if self.out is None else self.belongings.tracker():
            self.tracker = Guarded(output.track, self.out, self.account.settings(), self.say)
        codec_warning = CodecWarning(self.request.config.factors.codec, self.warn)
        every = output.checkpoint_every
        for record in trainer.epochs():
            self.account.tally.add(record)
            self._write_metrics(record)
            codec_warning.epoch(record)
            if self.streams is not None:
                self.streams.write(trainer)
            self._progress(record)
            if every and trainer.next_epoch % every == 0 and trainer.next_epoch < trainer.settings.epochs:
                self._save()
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
            source = directory.source_of(config.output, run, attempt)
            if source is None and (config.output.automatic or attempt):
                self.say("no checkpoint yet: the run starts at the beginning")
            named = (self.request.data, config.preset)
            opened, self.claim = directory.open_directory(config.output, *named, source, run)
            return [str(opened), None if source is None else str(source)]

        opened = json.dumps(on_rank_zero(self.job.group, open_directory, self.job.device)).encode()
        place, source = json.loads(broadcast_bytes(self.job.group, opened, self.job.device))
        self.directory = Path(place)
        if source is not None:
            self.source = Path(source)
            self.saved_work.resume(self.source)
            if source == place:
                self._note_go_on()
        on_rank_zero(self.job.group, self._begin_files, self.job.device)

    def _begin_files(self) -> None:
        self.out = self.directory
        self.belongings = Belongings.of(self.out)
        try:
            trainer = self.job.trainer
            path = self.out / METRICS_FILE
            self.writer = MetricsWriter(path, trainer.next_epoch, trainer.schedule.measures)
            if self.writer.left_out:
                lines = (
                    "1 damaged line is"
                    if self.writer.left_out == 1
                    else f"{self.writer.left_out} damaged lines are"
                )
                self.warn(f"{METRICS_FILE}: {lines} left out")
            if not (self.out / RUN_FILE).exists():
                beginning = self.account.beginning()
                directory.write_json(self.out / RUN_FILE, beginning, self.belongings.publish)
        except OSError as error:
            raise directory.unwritable(self.out, error.strerror or str(error)) from error

    def _stopped(self, number: int) -> Stopped:
        """Save the work when a signal ends the run; the exception that tells the user how to go on."""
        epoch, name = self.job.trainer.next_epoch, signal.Signals(number).name
        saved = self._save()
        self.job.group.close()
        resume = f"go on with: {self._go_on()}"
        if self.job.world.launcher != "local" and RUN not in os.environ:
            resume += f", started by {self.job.world.launcher} as before"
        how = resume if saved else "nothing was saved"
        return Stopped(number, f"stopped by {name} after epoch {epoch}; {how}")

    def _go_on(self) -> str:
        """The command that goes on with this run."""
        return self.request.go_on.format(directory=shlex.quote(str(self.directory)))

    def _note_go_on(self) -> None:
        """Tell our launcher of that command: a signal may end ranks before they can say it themselves."""
        if self.job.world.rank == 0 and GO_ON in os.environ:
            FileNotes(Path(os.environ[GO_ON])).put(GO_ON, self._go_on().encode())

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

    def _open_logs(self) -> None:
        """Open this rank's log for people, and that of its decisions, in the directory of the run."""
        job, place = self.job, self.directory.absolute()
        threads = job.world.threads(self.request.config.launch.threads)
        facts = f"{self.backend}, {threads} threads, {len(job.shard.nodes)} rows; {self.request.command}"
        open_log(place, job.world.rank, job.world.size, facts)
        source = None if self.source is None else self.source.absolute() / LOGS
        try:
            self.streams = StreamLog(place / LOGS, job.world.rank, job.trainer, source)
            self.watch.use_folder(place / LOGS)
            job.trainer.schedule.keep_log(place / LOGS, job.trainer.next_epoch, source)
        except OSError as error:
            self.streams = None
            line = f"rank {job.world.rank}: no log in {place / LOGS}: {error.strerror}"
            print(f"sancus: {line}", file=sys.stderr)

    def _save(self, carried: dict[str, Any] | None = None) -> bool:
        """Write a checkpoint; what it leaves to the logs is on the disk first."""
        for lines in (self.streams, self.writer):
            if lines is not None:
                lines.sync()
        saved = self.saved_work.write(self.directory, carried)
        if saved:
            self._note_go_on()
        return saved

    def _finish(self) -> dict[str, Any] | None:
        """The results, then the last checkpoint, then the report: none of them can cost what comes before."""
        carried = self.account.carried()
        outcome = gather_outcome(self.job, self.account, self.streams)
        trouble = _attempt(self.out, lambda out: self._write_results(out, outcome))
        saved = self._save(carried)
        trouble = trouble or _attempt(
            self.out, lambda out: write_report(out, publish=self.belongings.publish)
        )
        if trouble is not None:
            resumes = saved or directory.has_checkpoint(self.directory)
            raise _unfinished(self.directory, trouble, self._go_on() if resumes else "")
        return None if outcome is None else outcome.run

    def _write_results(self, out: Path, outcome: Outcome | None) -> None:
        writer = self.writer
        assert outcome is not None and writer is not None
        outcome.write(out, self.belongings.publish)
        self.writer = None
        writer.close()
        with self.belongings.tracker():
            self.tracker.finish(outcome.run)

    def _progress(self, record: Record) -> None:
        self.say.epoch(record, self.job.trainer.settings.epochs)
        self.log.epoch(record)
        self.tracker.epoch(record)
        self.after_epoch(record)


def _attempt(out: Path | None, action: Callable[[Path], object]) -> OSError | None:
    """Let rank 0, which has `out`, write something into the run's directory; why it could not."""
    try:
        if out is not None:
            action(out)
    except OSError as error:
        return error
    return None


def _unfinished(place: Path, trouble: OSError, go_on: str) -> UserError:
    """The error of a run whose last files cannot be written, with what can be done about it."""
    advice = f"finish with: {go_on}" if go_on else "start it again"
    reason = trouble.strerror or str(trouble)
    return UserError(f"cannot write the run's last files to {place}: {reason}; free space, then {advice}")


def run_rank(
    request: Request, world: World, backend: str, shards: Shards, say: Speaker
) -> tuple[dict[str, Any], Path] | None:
    """Join, train, write, leave; on rank 0 the contents of `run.json` and the directory it is in.

    After an exception the caller ends the process at once (`os._exit`), which the others notice.
    """
    with watch_of(world, request.config) as watch:
        job = Job(request.config, world, backend, shards, watch)
        session = Session(request, job, backend, say, watch)
        try:
            run = session.run()
        finally:
            say.close()
        note_end("done", failed=False)
        job.group.close()
    return None if run is None or session.out is None else (run, session.out)


def watch_of(world: World, config: Config) -> Watch:
    """The watch of a rank; it prints to stdout on every rank, since any rank may be the one that waits."""

    def say(line: str) -> None:
        if not config.output.quiet:
            print(f"sancus: {line}", flush=True)

    return Watch(world.rank, world.size, patience_of(config.launch.timeout), say)
