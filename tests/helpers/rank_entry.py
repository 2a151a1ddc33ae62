"""What each rank of `tests.helpers.processes.run_ranks` runs: join, call the function, leave the result."""

from __future__ import annotations

import importlib
import os
import pickle
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import torch

from sancus.launch.world import World, detect
from sancus.runs.build import connect


def _leave(code: int) -> NoReturn:
    os._exit(code)  # looked up now: a measurement of coverage has put its own there


def work(
    function: str, folder: Path, backend: str, timeout: float, leave: Callable[[int], NoReturn] = _leave
) -> None:
    """Ends the process by `leave`, but for a rank of MPI that is done."""
    torch.set_num_threads(1)
    found = detect(os.environ)
    assert found is not None
    world = World(found.rank, found.size, found.rank, found.size, found.launcher, str(folder / "store"))
    module, _, name = function.partition(":")
    call = getattr(importlib.import_module(module), name)
    arguments = pickle.loads((folder / "arguments").read_bytes())
    group = connect(backend, world, timeout)
    try:
        result = call(group, **arguments)
    except BaseException:
        traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        group.abort()
        leave(1)
    (folder / f"result-{world.rank}").write_bytes(pickle.dumps(result))
    group.close()
    sys.stdout.flush()
    sys.stderr.flush()
    if backend != "mpi":
        leave(0)
