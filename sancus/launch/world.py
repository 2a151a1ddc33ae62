"""Who am I: a rank of torchrun, of mpirun, of Slurm, of our own launcher, or nobody's.

Reads the environment; joining the group is the transport's affair, starting local ranks that of
`sancus.launch.local`.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sancus.errors import UserError

Launcher = Literal["torchrun", "mpiexec", "srun", "local"]
RENDEZVOUS = "SANCUS_RENDEZVOUS"  # for local ranks: the file that they meet through
LAUNCHER_PID = "SANCUS_LAUNCHER_PID"  # for local ranks: who started them
RUN = "SANCUS_RUN"  # names a run among all; the same for all its attempts
ATTEMPT = "SANCUS_ATTEMPT"  # how often the run was started before
GO_ON = "SANCUS_GO_ON"  # the folder in which a run notes the command that goes on with it, under this name


@dataclass(frozen=True)
class World:
    """This process among the others: its rank, how many there are, and how many of them on this host."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    launcher: Launcher
    rendezvous: str | None = None  # a file that local ranks meet through

    def threads(self, flag: int | None) -> int:
        """Threads for this rank: those of `--threads`, or its share of this host's cores."""
        return flag or max(1, cores() // self.local_size)


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
        local_rank = int_of(env, "LOCAL_RANK", rank)
        return World(rank, size, local_rank, int_of(env, "LOCAL_WORLD_SIZE", size), "torchrun")
    if "OMPI_COMM_WORLD_RANK" in env:
        rank, size = _rank_and_size(env, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
        local_rank = int_of(env, "OMPI_COMM_WORLD_LOCAL_RANK", rank)
        return World(rank, size, local_rank, int_of(env, "OMPI_COMM_WORLD_LOCAL_SIZE", size), "mpiexec")
    if "PMI_RANK" in env:
        rank, size = _rank_and_size(env, "PMI_RANK", "PMI_SIZE")
        if "MPI_LOCALRANKID" not in env and int_of(env, "SLURM_PROCID", -1) == rank:  # srun --mpi=pmi2
            return World(rank, size, *_of_node(env, rank, size), "mpiexec")
        local_rank = int_of(env, "MPI_LOCALRANKID", rank)
        return World(rank, size, local_rank, int_of(env, "MPI_LOCALNRANKS", size), "mpiexec")
    if "SLURM_STEP_NUM_TASKS" in env:
        rank, size = _rank_and_size(env, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS")
        return World(rank, size, *_of_node(env, rank, size), "srun")
    return None


def _of_node(env: Mapping[str, str], rank: int, size: int) -> tuple[int, int]:
    """This rank's number on its node of Slurm, and how many are there: `2(x3),1` is 2, 2, 2 and 1 a node."""
    tasks = list[int]()
    for item in env.get("SLURM_STEP_TASKS_PER_NODE", "").split(","):
        if match := re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", item):
            tasks += [int(match[1])] * int(match[2] or 1)
    node = int_of(env, "SLURM_NODEID", 0)
    return int_of(env, "SLURM_LOCALID", rank), tasks[node] if node < len(tasks) else size


def check_ranks(flag: int | None, world: World | None) -> int:
    """The number of ranks; `--ranks` may not contradict the launcher."""
    if world is None:
        return flag or 1
    if flag is not None and flag != world.size:
        raise UserError(
            f"--ranks {flag}, but {world.launcher} started {world.size} ranks; "
            "leave --ranks out, or make them equal"
        )
    return world.size


def attempt_of(env: Mapping[str, str]) -> int:
    """How often the launcher has started this run before."""
    return int_of(env, ATTEMPT, int_of(env, "TORCHELASTIC_RESTART_COUNT", 0))


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


def _rank_and_size(env: Mapping[str, str], rank_name: str, size_name: str) -> tuple[int, int]:
    rank, size = int_of(env, rank_name), int_of(env, size_name)
    if not 0 <= rank < size:
        raise UserError(
            f"the launcher set {rank_name}={rank} and {size_name}={size}; ranks go from 0 to size-1"
        )
    return rank, size


def int_of(env: Mapping[str, str], name: str, default: int | None = None) -> int:
    """The whole number in a variable of the environment; `default` where it is unset."""
    text = env.get(name)
    if text is None and default is not None:
        return default
    if text is None:
        raise UserError(f"the launcher left {name} unset; set it, or unset its other variables to run alone")
    try:
        return int(text)
    except ValueError:
        raise UserError(f"the launcher set {name}={text!r}, which is not a whole number") from None
