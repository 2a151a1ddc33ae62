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
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from sancus.errors import UserError
from sancus.watch.board import WATCH
from sancus.watch.deaths import DeathWatch

Launcher = Literal["torchrun", "mpiexec", "srun", "local"]
RENDEZVOUS = "SANCUS_RENDEZVOUS"  # for local ranks: the file that they meet through
LAUNCHER_PID = "SANCUS_LAUNCHER_PID"  # for local ranks: who started them
EXIT_FAILED = 1
EXIT_USER = 2
EXIT_PEER = 70  # this rank only lost the others
EXIT_INTERRUPTED = 128 + signal.SIGINT
EXIT_PIPE = 128 + signal.SIGPIPE  # nobody reads our output any more
GRACE_SECONDS = 5.0
HOLD_BACK_SECONDS = 2.0
INTERRUPTED = -1  # in the place of a rank: the launcher got a signal


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


def spawn(argv: Sequence[str], ranks: int, backend: str) -> int:
    """Run `sancus argv` as local ranks, and return the exit code of the whole.

    Ranks meet through a file in a private directory: no port to be taken. With the first failure
    the others are ended, and the rank that failed is named. SIGINT and SIGTERM end them all.
    """
    if backend == "mpi":
        return _spawn_mpi(argv, ranks)
    with tempfile.TemporaryDirectory(prefix="sancus-") as folder:
        return _Local(argv, ranks, Path(folder)).run()


def follow_parent(expected: str | None = None, number: int = signal.SIGKILL) -> None:
    """This process dies with its parent, however that ends (Linux); at once if that ended already."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, number)
    if expected is not None and str(os.getppid()) != expected:
        os._exit(EXIT_PEER)


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


class _Local:
    """Local ranks as child processes."""

    def __init__(self, argv: Sequence[str], ranks: int, folder: Path) -> None:
        self._command = [sys.executable, "-m", "sancus", *argv]
        self._ranks = ranks
        self._folder = folder
        self._ended: queue.SimpleQueue[int] = queue.SimpleQueue()  # a signal handler may put
        self._children: list[subprocess.Popen[bytes]] = []
        self._codes: list[int | None] = []  # when the first failure was seen; None: still running

    def run(self) -> int:
        """Start all, wait for all."""
        received = _catch_signals(lambda: self._ended.put(INTERRUPTED))
        try:
            for rank in range(self._ranks):
                self._children.append(self._start(rank))
            failed = self._wait()
        finally:
            self._end()
        if received:
            return _interrupted(received[0])
        return 0 if failed is None else self._explain(failed)

    def _start(self, rank: int) -> subprocess.Popen[bytes]:
        env = os.environ | {
            RENDEZVOUS: str(self._folder / "store"),
            LAUNCHER_PID: str(os.getpid()),
            "RANK": str(rank),
            "WORLD_SIZE": str(self._ranks),
            "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
        }
        stderr = None if rank == 0 else self._log(rank).open("wb")
        child = subprocess.Popen(self._command, env=env, stderr=stderr, stdin=subprocess.DEVNULL)
        if stderr is not None:
            stderr.close()
        threading.Thread(target=self._report_end, args=(rank, child), daemon=True).start()
        return child

    def _report_end(self, rank: int, child: subprocess.Popen[bytes]) -> None:
        child.wait()
        self._ended.put(rank)

    def _wait(self) -> int | None:
        """Until all ended well, or one did not: the rank at fault."""
        for _ in range(self._ranks):
            rank = self._ended.get()
            if rank == INTERRUPTED:
                return None
            if self._children[rank].returncode:
                return self._culprit(rank)
        return None

    def _culprit(self, first: int) -> int:
        """A rank that only lost its peers is not at fault: give the others a moment to say so."""
        suspect = first
        while self._children[suspect].returncode in (0, EXIT_PEER):
            try:
                suspect = self._ended.get(timeout=GRACE_SECONDS)
            except queue.Empty:
                silent = [rank for rank, child in enumerate(self._children) if child.poll() is None]
                return silent[0] if silent else first
            if suspect == INTERRUPTED:
                return first
        return suspect

    def _explain(self, rank: int) -> int:
        """Show what the rank at fault had to say; the exit code of the whole."""
        code = self._codes[rank]
        if rank:
            sys.stderr.write(self._log(rank).read_text(errors="replace"))
        if code in (EXIT_USER, EXIT_PIPE):
            return code
        if code is None:
            how = "did not answer the others"
        elif code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
        else:
            how = f"failed with exit code {code}"
        sys.stderr.write(f"sancus: rank {rank} {how}; all ranks were ended\n")
        return EXIT_FAILED

    def _end(self) -> None:
        """Nobody is left behind."""
        self._codes = [child.poll() for child in self._children]
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
    """Local ranks through mpiexec, which ends all of them when one fails or when it is told to end.

    It gets a process group of its own: Ctrl-C in a terminal reaches it once, from here.
    """
    command = [_mpiexec(), "-n", str(ranks), sys.executable, "-m", "sancus", *argv]
    follow = partial(follow_parent, number=signal.SIGTERM)
    with tempfile.TemporaryDirectory(prefix="sancus-") as folder, DeathWatch(Path(folder), ranks) as deaths:
        env = os.environ | {WATCH: folder}
        child = subprocess.Popen(
            command, env=env, stdin=subprocess.DEVNULL, process_group=0, preexec_fn=follow
        )
        received = _catch_signals(child.terminate)
        code = child.wait()
        failed = deaths.who_failed() or f"mpiexec ended with exit code {code}"
    if received:
        return _interrupted(received[0])
    if code not in (0, EXIT_USER, EXIT_PIPE):
        sys.stderr.write(f"sancus: {failed}; all ranks were ended\n")
        return EXIT_FAILED
    return code


def _catch_signals(react: Callable[[], None]) -> list[int]:
    """React to SIGINT and SIGTERM from now on; the returned list fills with those that came."""
    received: list[int] = []

    def handle(number: int, _: object) -> None:
        received.append(number)
        react()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handle)
    return received


def _interrupted(number: int) -> int:
    sys.stderr.write(f"sancus: interrupted by {signal.Signals(number).name}; all ranks were ended\n")
    return 128 + number


def _check_mpi(world: World | None) -> None:
    from importlib.util import find_spec

    if find_spec("mpi4py") is None:
        raise UserError("--backend mpi needs mpi4py; pip install 'sancus[mpi]', or use --backend gloo")
    if world is None:
        _mpiexec()
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


def _mpiexec() -> str:
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
