"""The verbs `shards push` and `shards pull`: parts from host to host, where no disk is shared."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from cyclopts import App

from sancus.cli.printing import print_line
from sancus.errors import UserError
from sancus.launch.backend import choose_backend
from sancus.launch.world import detect


def push(directory: Path, /, *, backend: str = "auto", timeout: float = 120.0) -> None:
    """Give every rank its part of the shards that rank 0 has: started as the run is, one rank a part.

    Parameters
    ----------
    directory
        Where rank 0 has what sancus partition wrote, and where it goes on every host.
    backend
        Transport: auto, gloo or mpi.
    timeout
        Seconds after which a rank that does not answer is an error.
    """
    _move("push", directory, backend, timeout)


def pull(directory: Path, /, *, backend: str = "auto", timeout: float = 120.0) -> None:
    """Bring every rank's part to rank 0, so that the shards there are whole again.

    Parameters
    ----------
    directory
        Where every host has its parts.
    backend
        Transport: auto, gloo or mpi.
    timeout
        Seconds after which a rank that does not answer is an error.
    """
    _move("pull", directory, backend, timeout)


def shards_verbs() -> App:
    """The verb with its kinds."""
    app = App(name="shards", help="Bring shards from host to host, where no disk is shared.")
    app.command(push)
    app.command(pull)
    return app


def _move(how: Literal["push", "pull"], directory: Path, backend: str, timeout: float) -> None:
    world = detect(os.environ)
    if world is None:
        raise UserError(
            f"sancus shards {how} {directory}: start it as the run is started, with one rank a part, "
            f"e.g. torchrun --nproc-per-node 4 -m sancus shards {how} {directory}"
        )
    chosen = choose_backend(backend, world, "cpu")
    from sancus.runs.build import connect
    from sancus.shards.travel import pull_shards, push_shards

    group = connect(chosen, world, timeout)
    moved = (push_shards if how == "push" else pull_shards)(group, directory)
    if group.rank == 0:
        print_line(f"{moved:,} bytes crossed; every file is as it was written")
    group.close()
