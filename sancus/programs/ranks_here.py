"""This process as a rank: whom it follows, who watches it, and who speaks for it."""

from __future__ import annotations

import os

from sancus.config.settings import OutputSettings
from sancus.console.speaker import Speaker, speaker
from sancus.launch.proxy import follow_proxy
from sancus.launch.world import World
from sancus.watch.watch import Watch, patience_of


def follow(world: World | None) -> None:
    """A rank of mpiexec does not outlive the process that started it."""
    if world is not None and world.launcher == "mpiexec":
        follow_proxy(world.local_rank, os.environ)


def watch_here(world: World, timeout: float) -> Watch:
    """The watch of this rank, whose lines are printed."""

    def say(line: str) -> None:
        print(f"sancus: {line}", flush=True)

    return Watch(world.rank, world.size, patience_of(timeout), say)


def speaker_of(output: OutputSettings, world: World | None) -> Speaker:
    """Who tells the user what happens; of the ranks of a launcher only the first one speaks."""
    silent = output.quiet or (world is not None and world.rank > 0)
    return speaker(quiet=silent, verbose=output.verbose)
