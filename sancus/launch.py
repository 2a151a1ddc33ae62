"""Who am I: a rank of torchrun, of mpirun, of Slurm, of our own launcher, or nobody's.

Reads the environment; starts and watches local ranks. Imports no torch: joining the group is the
transport's affair.
"""

from __future__ import annotations

import ctypes
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sancus.errors import UserError

Launcher = Literal["torchrun", "mpi", "slurm", "local"]
RENDEZVOUS = "SANCUS_RENDEZVOUS"
EXIT_USER = 2
EXIT_FAILED = 1
EXIT_PEER = 70
GRACE_SECONDS = 5.0


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
        rank, size = _int(env, "RANK"), _int(env, "WORLD_SIZE")
        return World(rank, size, rank, size, "local", env[RENDEZVOUS])
    if "RANK" in env and "WORLD_SIZE" in env:
        rank, size = _int(env, "RANK"), _int(env, "WORLD_SIZE")
        local_rank = _int(env, "LOCAL_RANK", rank)
        return World(rank, size, local_rank, _int(env, "LOCAL_WORLD_SIZE", size), "torchrun")
    if "OMPI_COMM_WORLD_RANK" in env:
        rank, size = _int(env, "OMPI_COMM_WORLD_RANK"), _int(env, "OMPI_COMM_WORLD_SIZE")
        local_rank = _int(env, "OMPI_COMM_WORLD_LOCAL_RANK", rank)
        return World(rank, size, local_rank, _int(env, "OMPI_COMM_WORLD_LOCAL_SIZE", size), "mpi")
    if "PMI_RANK" in env:
        rank, size = _int(env, "PMI_RANK"), _int(env, "PMI_SIZE")
        local_rank = _int(env, "MPI_LOCALRANKID", rank)
        return World(rank, size, local_rank, _int(env, "MPI_LOCALNRANKS", size), "mpi")
    if "SLURM_STEP_NUM_TASKS" in env:
        rank, size = _int(env, "SLURM_PROCID"), _int(env, "SLURM_STEP_NUM_TASKS")
        local = env.get("SLURM_STEP_TASKS_PER_NODE", str(size)).split("(")[0].split(",")[0]
        return World(rank, size, _int(env, "SLURM_LOCALID", rank), int(local), "slurm")
    return None


def check_ranks(asked: int | None, world: World | None) -> int:
    """The number of ranks; `--ranks` may not contradict the launcher."""
    if world is None:
        return asked or 1
    if asked is not None and asked != world.size:
        raise UserError(
            f"--ranks {asked}, but {world.launcher} started {world.size} ranks; leave --ranks out or make them equal"
        )
    return world.size


def choose_backend(asked: str, world: World | None, device: str) -> str:
    """The transport to use, checked to be installed here."""
    backend = asked
    if asked == "auto":
        backend = "nccl" if device == "cuda" else "mpi" if world and world.launcher == "mpi" else "gloo"
    if backend == "mpi":
        _check_mpi(world)
    elif world is not None and world.launcher in ("mpi", "slurm") and "MASTER_ADDR" not in os.environ:
        raise UserError(
            f"--backend {backend} under {world.launcher} needs MASTER_ADDR and MASTER_PORT of rank 0; "
            "set them, or use --backend mpi"
        )
    return backend


def spawn(argv: Sequence[str], ranks: int, backend: str) -> int:
    """Run `sancus argv` as local ranks, and return the exit code of the whole.

    Ranks meet through a file in a private directory: no port to be taken. With the first failure
    the others are ended, and the rank that failed is named.
    """
    with tempfile.TemporaryDirectory(prefix="sancus-") as folder:
        if backend == "mpi":
            return _spawn_mpi(argv, ranks)
        return _Local(argv, ranks, Path(folder)).run()


def follow_parent() -> None:
    """A local rank dies with its launcher, however that ends (Linux)."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


class _Local:
    """Local ranks as child processes."""

    def __init__(self, argv: Sequence[str], ranks: int, folder: Path) -> None:
        self._command = [sys.executable, "-m", "sancus", *argv]
        self._ranks = ranks
        self._folder = folder
        self._ended: queue.Queue[int] = queue.Queue()
        self._children: list[subprocess.Popen[bytes]] = []

    def run(self) -> int:
        """Start all, wait for all; forward SIGINT and SIGTERM."""
        try:
            for rank in range(self._ranks):
                self._children.append(self._start(rank))
            received = self._forward_signals()
            failed = self._wait()
        finally:
            self._end()
        if received:
            return 128 + received[0]
        return 0 if failed is None else self._explain(failed)

    def _start(self, rank: int) -> subprocess.Popen[bytes]:
        env = os.environ | {
            RENDEZVOUS: str(self._folder / "store"),
            "RANK": str(rank),
            "WORLD_SIZE": str(self._ranks),
            "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
        }
        stderr = None if rank == 0 else self._log(rank).open("wb")
        child = subprocess.Popen(self._command, env=env, stderr=stderr, stdin=subprocess.DEVNULL)
        if stderr is not None:
            stderr.close()
        threading.Thread(target=lambda: (child.wait(), self._ended.put(rank)), daemon=True).start()
        return child

    def _wait(self) -> int | None:
        """Until all ended well, or one did not: the rank at fault."""
        for _ in range(self._ranks):
            rank = self._ended.get()
            if self._children[rank].returncode:
                return self._culprit(rank)
        return None

    def _culprit(self, first: int) -> int:
        """A rank that only lost its peers is not at fault: give the others a moment to say so."""
        suspect, left = first, self._ranks
        while self._children[suspect].returncode == EXIT_PEER and left:
            try:
                suspect = self._ended.get(timeout=GRACE_SECONDS)
            except queue.Empty:
                break
            left -= 1
        return suspect if self._children[suspect].returncode else first

    def _explain(self, rank: int) -> int:
        code = self._children[rank].returncode
        if rank:
            sys.stderr.write(self._log(rank).read_text(errors="replace"))
        if code == EXIT_USER:
            return EXIT_USER
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"failed with exit code {code}"
        sys.stderr.write(f"sancus: rank {rank} {how}; all ranks were ended\n")
        return EXIT_FAILED

    def _forward_signals(self) -> list[int]:
        received: list[int] = []

        def forward(number: int, _: object) -> None:
            received.append(number)
            for child in self._children:
                child.send_signal(number)

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, forward)
        return received

    def _end(self) -> None:
        """Nobody is left behind."""
        for child in self._children:
            child.terminate()
        for child in self._children:
            try:
                child.wait(GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()

    def _log(self, rank: int) -> Path:
        return self._folder / f"rank-{rank}.stderr"


def _spawn_mpi(argv: Sequence[str], ranks: int) -> int:
    command = [_mpiexec(), "-n", str(ranks), sys.executable, "-m", "sancus", *argv]
    return subprocess.run(command, check=False).returncode


def _check_mpi(world: World | None) -> None:
    from importlib.util import find_spec

    if find_spec("mpi4py") is None:
        raise UserError("--backend mpi needs mpi4py and an MPI; pip install 'sancus[mpi]', or use --backend gloo")
    if world is None:
        _mpiexec()
    elif world.launcher in ("torchrun", "local"):
        raise UserError(f"--backend mpi needs ranks that mpiexec started, but {world.launcher} did; use --backend gloo")


def _mpiexec() -> str:
    beside = Path(sys.executable).with_name("mpiexec")
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if found is None:
        raise UserError("--backend mpi needs mpiexec, which is not on the PATH; pip install 'sancus[mpi]'")
    return found


def _int(env: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = env.get(name)
    if text is None and default is not None:
        return default
    try:
        return int(text or "")
    except ValueError:
        raise UserError(f"the launcher set {name}={text!r}, which is not a number") from None
