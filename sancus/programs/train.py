"""`sancus.train`: one call that trains, in this process, as one rank of a launcher, or on local ranks."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from sancus.advise.settle import settled
from sancus.config.settings import Config
from sancus.config.trust import note_choice
from sancus.console.speaker import Record, Speaker
from sancus.errors import UserError
from sancus.launch.backend import choose_backend
from sancus.launch.exit_codes import EXIT_INTERRUPTED, exit_code
from sancus.launch.interrupt import SIGNALS, Stopped
from sancus.launch.world import ALONE, World, detect
from sancus.models.build import Model
from sancus.models.pyg_model import unwrapped
from sancus.programs.errand import Findings
from sancus.programs.own_ranks import run_ranks
from sancus.programs.ranks_here import follow, speaker_of, watch_here
from sancus.programs.result import Result
from sancus.programs.settings import settings
from sancus.programs.source import shards_of
from sancus.runs import build
from sancus.runs.account import Request
from sancus.runs.check import check_model, check_settings
from sancus.runs.layout import chunks_needed, parts_needed
from sancus.runs.logs import own_logs
from sancus.runs.module import make_module
from sancus.runs.session import Session
from sancus.shards.cache import Shards, Telling, parts_of
from sancus.shards.free_memory import check_memory
from sancus.training.weights import checksum

AfterEpoch = Callable[[Record], None]


def train(
    graph: Any,
    model: Model | None = None,
    config: Config | Mapping[str, Any] | None = None,
    *,
    after_epoch: AfterEpoch = lambda record: None,
    **flags: Any,
) -> Result:
    """Train a model on a whole graph; the flags are those of `sancus train`, with underscores.

        sancus.train("cora", "gat", heads=8, epochs=100)
        sancus.train(data, Net, ranks=4, out="runs/a")

    `graph` is whatever `load` takes, or a directory of shards; `model` a name, `file.py:Net`, a class, or a
    module. Without a launcher `ranks=4` starts four local processes, from a script (with or without a
    `__main__` guard), an interactive session or a notebook; under torchrun, mpiexec or srun the program is
    one of their ranks. `out` is where the files of the run go, as on the command line; without it there are
    none. `after_epoch` is called with the figures of every epoch, in this process. `quiet=True`
    prints nothing.
    """
    if isinstance(model, str):
        flags, model = {**flags, "model": model}, None
    run, launched = settings(config, **flags), detect(os.environ)
    follow(launched)
    ranks = _ranks(run, launched, graph)
    check_settings(run, launched=launched is not None)
    check_model(model if model is not None else run.model)
    backend = choose_backend(run.factors.backend, launched, run.launch.device)
    say = speaker_of(run.output, launched)
    telling = Telling(say, timeout=run.launch.timeout)
    try:
        run = settled(graph, run, ranks, say)
        cut = (parts_needed(run, ranks), telling, chunks_needed(run, ranks))
        name, shards = shards_of(graph, run, *cut)
        shards.tell(say)
        if launched is None or launched.rank == 0:
            note_choice(run.flat() | {"data": name})
        request = Request(name, run, _command(), 'sancus.train(…, resume="{directory}")')
        training = Training(request, backend, shards.directory, shards.manifest, model)
        if launched is None and ranks > 1:
            return training.on_ranks(ranks, say, after_epoch)
        return training.here(launched or ALONE, shards, say, after_epoch)
    finally:
        say.close()


@dataclass(frozen=True)
class Training:
    """One training run, wherever it takes place: the errand of local ranks too."""

    request: Request
    backend: str
    directory: Path  # of the shards
    manifest: dict[str, Any]
    model: Model | None  # stands in for the configuration's: a spec, a class, or a module

    def here(self, world: World, shards: Shards, say: Speaker, after_epoch: AfterEpoch) -> Result:
        """Train as one rank in this process; the same result on all ranks."""
        config = self.request.config
        threads = torch.get_num_threads()
        watch = watch_here(world, config.launch.timeout)
        job = build.Job(config, world, self.backend, shards, watch, self.model)
        if config.launch.threads is None:  # what the program chose for itself stays
            torch.set_num_threads(threads)
        _check_weights(job)
        return Result.of(job, *self._train(job, say, after_epoch, watch))

    def on_ranks(self, ranks: int, say: Speaker, after_epoch: AfterEpoch) -> Result:
        """Train on local ranks; the model of the result is one of this process, with their weights."""
        config, graph = self.request.config, self.manifest["graph"]
        check_memory(self.manifest, config, ranks)
        module = unwrapped(make_module(config, graph, config.model if self.model is None else self.model))
        records: dict[int, Record] = {}

        def note(record: Record) -> None:
            records[int(record["epoch"] or 0)] = record
            after_epoch(record)

        restarts = config.launch.restarts
        how = {"restarts": restarts, "after_epoch": note}
        found = run_ranks(self, self.model, ranks, self.backend, say, **how)  # type: ignore[arg-type]
        return Result.read(found, list(records.values()), module)

    def run(self, world: World, say: Speaker) -> Findings | None:
        """As one local rank; on rank 0, everything that the program's `Result` is made of."""
        shards = Shards(self.directory, self.manifest)
        watch = watch_here(world, self.request.config.launch.timeout)
        job = build.Job(self.request.config, world, self.backend, shards, watch, self.model)
        _check_weights(job)
        result = Result.of(job, *self._train(job, say, lambda record: None, watch))
        job.group.close()
        return result.findings() if world.rank == 0 else None

    def _train(
        self, job: build.Job, say: Speaker, after_epoch: AfterEpoch, watch: Any
    ) -> tuple[list[Record], Path | None]:
        """Every epoch; all records, and where the files of the run are, if it has any."""
        records: list[Record] = []

        def note(record: Record) -> None:
            records.append(record)
            after_epoch(record)

        config = self.request.config
        if config.output.out is not None or config.output.resume is not None:
            session = Session(self.request, job, self.backend, say, watch, note)
            _run(session)
            return records, session.directory
        for record in job.trainer.epochs():
            if job.world.rank == 0:
                say.epoch(record, config.training.epochs)
            note(record)
            job.trainer.exchange.crossing.forget()
        return records, None


def _run(session: Session) -> None:
    """Run it; where it is a program's own process that a signal stops, as Python says that."""
    world = session.job.world
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        with own_logs():
            session.run()
    except Stopped as stop:
        if world.launcher == "local" and world.rendezvous is not None:
            raise  # a rank of ours, whose launcher knows what to do
        if exit_code(stop.number) == EXIT_INTERRUPTED:
            raise KeyboardInterrupt(str(stop)) from None
        sys.stderr.write(f"sancus: {stop}\n" if world.rank == 0 else "")
        raise SystemExit(exit_code(stop.number)) from None
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():
                signal.signal(number, handler)


def _ranks(config: Config, launched: World | None, graph: Any) -> int:
    """How many ranks train."""
    asked = config.launch.ranks
    if launched is not None:
        if asked not in (None, launched.size):
            raise UserError(
                f"ranks={asked}, but {launched.launcher} started {launched.size}; "
                "leave ranks out, or make them equal"
            )
        return launched.size
    held = parts_of(str(graph)) if isinstance(graph, str | Path) else None
    return asked or held or 1


def _command() -> str:
    """What a user has started, as far as that is known: `run.json` says so."""
    return " ".join(["python", *sys.argv]) if sys.argv and sys.argv[0] else "python"


def _check_weights(job: build.Job) -> None:
    """All ranks must begin with the same weights; a rank that does not is named on all."""
    everyone = job.group.all_gather(torch.tensor([checksum(job.trainer.model) >> 1]))
    differing = torch.nonzero(everyone.flatten() != everyone[0]).flatten().tolist()
    if differing:
        raise UserError(
            f"rank {differing[0]} has other weights than rank 0; seed torch before the model is made, "
            "or give its class instead"
        )
