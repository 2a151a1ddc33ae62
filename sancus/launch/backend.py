"""Which transport ranks use, checked to be installed and reachable here before anything starts."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from sancus.errors import UserError
from sancus.launch.world import World, int_of


def choose_backend(flag: str, world: World | None, device: str) -> str:
    """The transport to use, checked to be installed here."""
    backend = flag
    if flag == "auto":
        backend = "nccl" if device == "cuda" else "mpi" if world and world.launcher == "mpiexec" else "gloo"
    if backend == "mpi":
        _check_mpi(world)
    elif world is not None and world.launcher != "local":
        _check_address(os.environ, backend, world)
    return backend


def mpiexec() -> str:
    """The mpiexec beside this Python, or on the PATH."""
    beside = Path(sys.executable).with_name("mpiexec")
    program = str(beside) if beside.exists() else shutil.which("mpiexec")
    if program is None:
        raise UserError("--backend mpi needs mpiexec, which is not on the PATH; pip install 'sancus[mpi]'")
    return program


def _check_mpi(world: World | None) -> None:
    if find_spec("mpi4py") is None:
        raise UserError("--backend mpi needs mpi4py; pip install 'sancus[mpi]', or use --backend gloo")
    if world is None:
        mpiexec()
    elif world.launcher in ("torchrun", "local"):
        raise UserError(
            f"--backend mpi needs ranks that mpiexec started, but {world.launcher} did; use --backend gloo"
        )


def _check_address(env: Mapping[str, str], backend: str, world: World) -> None:
    """torch.distributed meets at rank 0's address, which only torchrun sets by itself."""
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not env.get(name)]
    if missing:
        other = ", or use --backend mpi" if world.launcher in ("mpiexec", "srun") else ""
        raise UserError(
            f"--backend {backend} under {world.launcher} needs {' and '.join(missing)} of rank 0; "
            f"set {'it' if len(missing) == 1 else 'them'}{other}"
        )
    if not 0 < int_of(env, "MASTER_PORT") < 2**16:
        raise UserError(f"MASTER_PORT={env['MASTER_PORT']} is not a port; use 1 to {2**16 - 1}")
