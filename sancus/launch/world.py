"""Who am I: a rank of torchrun, of mpirun, of Slurm, of our own launcher, or nobody's.

Reads the environment. Imports no torch: joining the group is the transport's affair, starting local ranks
that of `sancus.launch.local`.
"""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NoReturn

from sancus.errors import UserError

Launcher = Literal["torchrun", "mpiexec", "srun", "local"]
RENDEZVOUS = "SANCUS_RENDEZVOUS"  # for local ranks: the file that they meet through
LAUNCHER_PID = "SANCUS_LAUNCHER_PID"  # for local ranks: who started them
RUN = "SANCUS_RUN"  # names a run among all; the same for all its attempts
ATTEMPT = "SANCUS_ATTEMPT"  # how often the run was started before
WARM = "SANCUS_WARM"  # this process was forked by one that has imported what ranks need
EXIT_FAILED = 1
EXIT_USER = 2
EXIT_PEER = 70  # this rank only lost the others
EXIT_INTERRUPTED = 128 + signal.SIGINT
EXIT_TERMINATED = 128 + signal.SIGTERM
EXIT_SAVED = (EXIT_INTERRUPTED, EXIT_TERMINATED)  # a signal ended the run
EXIT_PIPE = 128 + signal.SIGPIPE  # nobody reads our output any more
HOLD_BACK_SECONDS = 2.0


@dataclass(frozen=True)
class World:
    """This process among the others."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    launcher: Launcher
    rendezvous: str | None = None  # a file that local ranks meet through

    def threads(self, asked: int | None) -> int:
        """Threads for this rank: what was asked, or its share of this host's cores."""
        return asked or max(1, cores() // self.local_size)


ALONE = World(0, 1, 0, 1, "local")


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def detect(env: Mapping[str, str]) -> World | None:
    """The world that a launcher announced in the environment; None when there is no launcher."""
    if RENDEZVOUS in env:
        rank, size = _rank_and_size(env, "RANK", "WORLD_SIZE")
        return World(rank, size, rank, size, "local", env[RENDEZVOUS])
    if "RANK" in env or "WORLD_SIZE" in env:
        rank, size = _rank_and_size(env, "RANK", "WORLD_SIZE")
        local_rank = _int(env, "LOCAL_RANK", rank)
        return World(rank, size, local_rank, _int(env, "LOCAL_WORLD_SIZE", size), "torchrun")
    if "OMPI_COMM_WORLD_RANK" in env:
        rank, size = _rank_and_size(env, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
        local_rank = _int(env, "OMPI_COMM_WORLD_LOCAL_RANK", rank)
        return World(rank, size, local_rank, _int(env, "OMPI_COMM_WORLD_LOCAL_SIZE", size), "mpiexec")
    if "PMI_RANK" in env:
        rank, size = _rank_and_size(env, "PMI_RANK", "PMI_SIZE")
        local_rank = _int(env, "MPI_LOCALRANKID", rank)
        return World(rank, size, local_rank, _int(env, "MPI_LOCALNRANKS", size), "mpiexec")
    if "SLURM_STEP_NUM_TASKS" in env:
        rank, size = _rank_and_size(env, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS")
        local = env.get("SLURM_STEP_TASKS_PER_NODE", str(size)).split("(")[0].split(",")[0]
        local_size = int(local) if local.isdigit() else size
        return World(rank, size, _int(env, "SLURM_LOCALID", rank), local_size, "srun")
    return None


def check_ranks(asked: int | None, world: World | None) -> int:
    """The number of ranks; `--ranks` may not contradict the launcher."""
    if world is None:
        return asked or 1
    if asked is not None and asked != world.size:
        raise UserError(
            f"--ranks {asked}, but {world.launcher} started {world.size} ranks; "
            "leave --ranks out, or make them equal"
        )
    return world.size


def choose_backend(asked: str, world: World | None, device: str) -> str:
    """The transport to use, checked to be installed here."""
    backend = asked
    if asked == "auto":
        backend = "nccl" if device == "cuda" else "mpi" if world and world.launcher == "mpiexec" else "gloo"
    if backend == "mpi":
        _check_mpi(world)
    elif world is not None and world.launcher != "local":
        _check_address(os.environ, backend, world)
    return backend


def spawn(argv: Sequence[str], ranks: int, backend: str, restarts: int = 0) -> NoReturn:
    """Become the launcher of `sancus argv` as local ranks (`sancus.launch.local`), in a clean process.

    What was loaded and computed here is gone then, threads included, so that the launcher can fork. A process
    that was forked for this command alone is the launcher itself.
    """
    if WARM in os.environ:
        from sancus.launch import local

        sys.exit(local.run(backend, ranks, restarts, argv))
    sys.stdout.flush()
    sys.stderr.flush()
    command = [sys.executable, "-m", "sancus.launch.local", backend, str(ranks), str(restarts), *argv]
    os.execv(sys.executable, command)


def exit_code(number: int) -> int:
    """The exit code of a run that a signal ended; SIGUSR1 is how Slurm announces SIGTERM."""
    return EXIT_INTERRUPTED if number == signal.SIGINT else EXIT_TERMINATED


def attempt(env: Mapping[str, str]) -> int:
    """How often the launcher has started this run before."""
    return _int(env, ATTEMPT, _int(env, "TORCHELASTIC_RESTART_COUNT", 0))


def run_name(env: Mapping[str, str]) -> str:
    """Names the run that this process belongs to: equal for all attempts of a launcher, and only for those.

    torchrun's agent stays while its ranks come and go: it is known by process number and start.
    """
    if RUN in env:
        return env[RUN]
    parent = os.getppid()
    try:
        started = Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        started = ""
    return f"{platform.node()}-{parent}-{started}"


def follow_parent(expected: str | None = None, number: int = signal.SIGKILL) -> None:
    """This process dies with its parent, however that ends (Linux); at once if that ended already."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, number)
    if expected is not None and str(os.getppid()) != expected:
        os._exit(EXIT_PEER)


def name_process(name: str) -> None:
    """What `top` and `ps -o comm` call this process (Linux; 15 letters)."""
    pr_set_name = 15
    ctypes.CDLL(None).prctl(pr_set_name, name.encode()[:15], 0, 0, 0)


def may_speak(world: World | None, *, lost_peers: bool) -> bool:
    """Whether this rank reports its failure; waits where another rank is likely to report it better.

    Most mistakes are met by all ranks at once: the first rank of each host speaks at once, and its end
    makes most launchers end the others, so that nothing is said twice. mpiexec does not, if it ended
    before it joined MPI: then the others stay silent. A rank that only lost its peers lets the one that
    failed end first, so that the launcher names that one.
    """
    if world is None or (world.local_rank == 0 and not lost_peers):
        return True
    time.sleep(HOLD_BACK_SECONDS)
    return world.launcher != "mpiexec" or not _one_has_left(world)


def _one_has_left(world: World) -> bool:
    """Whether a rank of this host ended before this one did (Linux; no where it cannot be known)."""
    parent = os.getppid()
    try:
        siblings = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    except OSError:
        return False
    return str(os.getpid()) in siblings and len(siblings) < world.local_size


def _check_mpi(world: World | None) -> None:
    from importlib.util import find_spec

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
    if not 0 < _int(env, "MASTER_PORT") < 2**16:
        raise UserError(f"MASTER_PORT={env['MASTER_PORT']} is not a port; use 1 to {2**16 - 1}")


def mpiexec() -> str:
    """The mpiexec beside this Python, or on the PATH."""
    beside = Path(sys.executable).with_name("mpiexec")
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if found is None:
        raise UserError("--backend mpi needs mpiexec, which is not on the PATH; pip install 'sancus[mpi]'")
    return found


def _rank_and_size(env: Mapping[str, str], rank_name: str, size_name: str) -> tuple[int, int]:
    rank, size = _int(env, rank_name), _int(env, size_name)
    if not 0 <= rank < size:
        raise UserError(
            f"the launcher set {rank_name}={rank} and {size_name}={size}; ranks go from 0 to size-1"
        )
    return rank, size


def _int(env: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = env.get(name)
    if text is None and default is not None:
        return default
    if text is None:
        raise UserError(f"the launcher left {name} unset; set it, or unset its other variables to run alone")
    try:
        return int(text)
    except ValueError:
        raise UserError(f"the launcher set {name}={text!r}, which is not a whole number") from None
