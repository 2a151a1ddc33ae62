"""The verb `train`, and what its flags mean to the verbs that repeat or foresee a run."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from sancus.cli.command import make_app
from sancus.cli.printing import print_result
from sancus.config.resolve import modern_arguments
from sancus.config.settings import Config
from sancus.console.speaker import SILENT, speaker
from sancus.launch.backend import choose_backend
from sancus.launch.process import follow_parent
from sancus.launch.proxy import follow_proxy
from sancus.launch.spawn import RanksNeeded
from sancus.launch.world import ALONE, LAUNCHER_PID, check_ranks, detect


def train(
    data: str = "synthetic",
    /,
    *,
    settings: Annotated[Config, Parameter(name="*")] = Config(),  # noqa: B008
    config: Path | None = None,
    trust: bool = False,
) -> None:
    """Train a model on a whole graph, with several ranks, and print the bill.

    Parameters
    ----------
    data
        Graph: synthetic, synthetic:reddit@0.05, a file, a folder, a name, or what sancus partition wrote.
    settings
        Everything else.
    config
        Repeat an earlier run: take graph and settings from its run.json; flags override them.
    trust
        Run code that is no part of Sancus where --config or --resume names it, from now on without asking.
    """
    from sancus.advise.settle import settled
    from sancus.config.trust import note_choice
    from sancus.runs.check import check
    from sancus.runs.layout import chunks_needed, parts_needed
    from sancus.shards.cache import Telling, parts_of, prepare, print_warning
    from sancus.shards.free_memory import check_memory

    world = detect(os.environ)
    if world is not None and world.launcher == "local":
        follow_parent(os.environ.get(LAUNCHER_PID))
    if world is not None and world.launcher == "mpiexec":
        follow_proxy(world.local_rank, os.environ)
    ranks = check_ranks(settings.launch.ranks or (parts_of(data) if world is None else None), world)
    backend = choose_backend(settings.factors.backend, world, settings.launch.device)
    speaks = not settings.output.quiet and (world is None or world.rank == 0)
    say = speaker(quiet=not speaks, verbose=settings.output.verbose)
    check(data, settings, launched=world is not None)
    if world is None or world.rank == 0:
        note_choice(settings.flat() | {"data": data})
    with closing(say):
        settings = settled(data, settings, ranks, say)
        parts = parts_needed(settings, ranks)
        warn = SILENT if settings.output.quiet else print_warning
        telling = Telling(say, warn, settings.launch.timeout)
        factors, chunks = settings.factors, chunks_needed(settings, ranks)
        shards = prepare(data, factors.partitioner, parts, factors.row_order, telling, chunks)
        if world is None or world.launcher != "local":  # else the process that started the ranks has said it
            shards.tell(say)
    if world is None:
        check_memory(shards.manifest, settings, ranks)
    if world is None and ranks > 1:
        raise RanksNeeded(ranks, backend, settings.launch.restarts)
    from sancus.runs.session import Request, run_rank

    command = shlex.join(["sancus", *sys.argv[1:]])
    done = run_rank(Request(data, settings, command), world or ALONE, backend, shards, say)
    if done is not None and speaks:
        print_result(*done, verbose=settings.output.verbose)


def train_alone() -> App:
    """A command line with the verb `train` alone, for verbs that start runs or ask what flags mean."""
    app = make_app()
    app.command(train)
    return app


def read_flags(arguments: Sequence[str]) -> tuple[str, Config]:
    """Graph and settings of `sancus train arguments`; nothing is trained."""
    command = ["train", *modern_arguments(arguments)]
    _, bound, *_ = train_alone().parse_args(command, exit_on_error=False, print_error=False)
    bound.apply_defaults()
    return bound.arguments["data"], bound.arguments["settings"]
