"""Local ranks: started, watched, ended together, and started again after a failure.

`sancus train --ranks N` becomes this process (`launch.spawn`). It imports what every rank needs, once, and
forks the ranks: N ranks start in the time of one, and a restart costs next to nothing. It never computes, so
no thread of its own is lost in a fork. Ranks of MPI are mpiexec's, which is started and watched from here.
"""

from __future__ import annotations

import importlib
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import uuid
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NoReturn, Protocol

from sancus.launch import world as launch
from sancus.watch.board import WATCH
from sancus.watch.deaths import DeathWatch

GRACE_SECONDS = 5.0
INTERRUPTED = -1  # in the place of a rank: the launcher got a signal
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
# What ranks import sooner or later; the last one comes with the first optimiser.
WARM = (
    "sancus.cli.app",
    "sancus.runs.session",
    "sancus.runs.predict",
    "sancus.comm.torch_dist",
    "torch._dynamo",
)


@dataclass(frozen=True)
class Start:
    """What is started: `sancus argv` as ranks, for which time."""

    argv: Sequence[str]
    ranks: int
    run: str  # names this run among all, the same for every attempt
    attempt: int
    folder: Path

    def environment(self) -> dict[str, str]:
        """What a rank of ours learns from its launcher."""
        return {launch.RUN: self.run, launch.ATTEMPT: str(self.attempt)}


class Attempt(Protocol):
    """Ranks that run."""

    def wait(self) -> int:
        """Until all have ended: the exit code of the whole. Says who failed."""

    def signal(self, number: int) -> None:
        """Pass a signal on to all."""

    def kill(self) -> None:
        """End all, now."""


class Signals:
    """SIGINT, SIGTERM and SIGUSR1 go on to the ranks, which save their work; a second SIGINT kills them."""

    def __init__(self) -> None:
        self.received: list[int] = []
        self.attempt: Attempt | None = None
        self.waker, wake = os.pipe()  # readable when a signal came, so that a wait ends
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake)
        for number in SIGNALS:
            signal.signal(number, self._handle)

    def _handle(self, number: int, _: object) -> None:
        at_once = number == signal.SIGINT and signal.SIGINT in self.received
        self.received.append(number)
        if self.attempt is not None:
            if at_once:
                self.attempt.kill()
            else:
                self.attempt.signal(number)


class ForkedRanks:
    """One attempt with ranks as forks of this process, which meet through a file: no port to be taken."""

    def __init__(self, start: Start, waker: int) -> None:
        self._start = start
        self._selector = selectors.DefaultSelector()
        self._selector.register(waker, selectors.EVENT_READ, INTERRUPTED)
        self._children: list[int] = []
        self._wanted = False  # whether the user killed them
        self.codes: dict[int, int] = {}  # of the ranks that ended
        for rank in range(start.ranks):
            child = self._fork(rank)
            self._children.append(child)
            self._selector.register(os.pidfd_open(child), selectors.EVENT_READ, rank)

    def wait(self) -> int:
        """Until all ended well, or one did not: then the others are ended, and that one is named."""
        while len(self.codes) < self._start.ranks:
            rank = self._next()
            if rank is not None and self.codes[rank] not in (0, *launch.EXIT_SAVED):
                failed = self._culprit(rank)
                code = self.codes.get(failed)
                self._end()
                return self._explain(failed, code)
        return max(self.codes.values())

    def signal(self, number: int) -> None:
        """To every rank that still runs."""
        for rank, child in enumerate(self._children):
            if rank not in self.codes:
                os.kill(child, number)

    def kill(self) -> None:
        """Without a word."""
        self._wanted = True
        self.signal(signal.SIGKILL)

    def _fork(self, rank: int) -> int:
        child = fork()
        if not child:
            self._be(rank)
        return child

    def _be(self, rank: int) -> NoReturn:
        """In the fork: be that rank until its end."""
        signal.set_wakeup_fd(-1)
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ.pop(launch.WARM, None)
        os.environ |= self._start.environment() | {
            launch.LAUNCHER_PID: str(os.getppid()),
            launch.RENDEZVOUS: str(self._start.folder / "store"),
            "RANK": str(rank),
            "WORLD_SIZE": str(self._start.ranks),
            "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
        }
        launch.name_process(f"sancus rank {rank}")
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        if rank:
            os.dup2(os.open(self._log(rank), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 2)
        run_command(self._start.argv)

    def _next(self, timeout: float | None = None) -> int | None:
        """A rank that ended; None where a signal came or time ran out."""
        for key, _ in self._selector.select(timeout):
            if key.data == INTERRUPTED:
                os.read(key.fd, 4096)
                continue
            self._selector.unregister(key.fileobj)
            os.close(key.fd)
            self.codes[key.data] = os.waitstatus_to_exitcode(os.waitpid(self._children[key.data], 0)[1])
            return int(key.data)
        return None

    def _culprit(self, first: int) -> int:
        """A rank that only lost its peers is not at fault: give the others a moment to say so."""
        suspect = first
        while self.codes[suspect] in (0, launch.EXIT_PEER):
            found = self._next(GRACE_SECONDS)
            if found is None:
                silent = [rank for rank in range(self._start.ranks) if rank not in self.codes]
                return silent[0] if silent else first
            suspect = found
        return suspect

    def _end(self) -> None:
        """Nobody is left behind."""
        self.signal(signal.SIGKILL)
        while len(self.codes) < self._start.ranks:
            self._next()

    def _explain(self, rank: int, code: int | None) -> int:
        """Show what the rank at fault had to say; the exit code of the whole."""
        if self._wanted:
            return launch.EXIT_FAILED
        if rank and self._log(rank).exists():
            sys.stderr.write(self._log(rank).read_text(errors="replace"))
        if code in (launch.EXIT_USER, launch.EXIT_PIPE):
            return code
        if code is None:
            how = "did not answer the others"
        elif code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
        else:
            how = f"failed with exit code {code}"
        sys.stderr.write(f"sancus: rank {rank} {how}; all ranks were ended\n")
        return launch.EXIT_FAILED

    def _log(self, rank: int) -> Path:
        return self._start.folder / f"rank-{rank}.stderr"


class MpiRanks:
    """One attempt through mpiexec, which ends all ranks when one fails.

    It gets a process group of its own: Ctrl-C in a terminal reaches it once, from here. It passes signals on
    to its ranks, but a second SIGINT kills them.
    """

    def __init__(self, start: Start) -> None:
        command = [launch.mpiexec(), "-n", str(start.ranks), sys.executable, "-m", "sancus", *start.argv]
        self._deaths = DeathWatch(start.folder, start.ranks)
        self._child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            process_group=0,
            preexec_fn=partial(launch.follow_parent, number=signal.SIGTERM),
            env=os.environ | start.environment() | {WATCH: str(start.folder)},
        )

    def wait(self) -> int:
        """Until mpiexec ends. It does not say which rank was killed, so that is watched apart."""
        with self._deaths as deaths:
            code = self._child.wait()
            failed = deaths.who_failed() or f"mpiexec ended with exit code {code}"
        if code not in (0, launch.EXIT_USER, launch.EXIT_PIPE, *launch.EXIT_SAVED):
            sys.stderr.write(f"sancus: {failed}; all ranks were ended\n")
            return launch.EXIT_FAILED
        return code

    def signal(self, number: int) -> None:
        """Through mpiexec."""
        self._child.send_signal(number)

    def kill(self) -> None:
        """The second SIGINT that mpiexec gets."""
        self._child.send_signal(signal.SIGINT)


def supervise(start: Callable[[int], Attempt], restarts: int, signals: Signals) -> int:
    """Attempts until one ends well, or a mistake or a signal ends it all; the exit code."""
    for attempt in range(restarts + 1):
        if signals.received:
            break
        signals.attempt = start(attempt)
        code = signals.attempt.wait()
        if signals.received:
            break
        if code != launch.EXIT_FAILED or attempt == restarts:
            return code
        sys.stderr.write(f"sancus: starting again, {attempt + 1} of {restarts}\n")
    number = signals.received[0]
    sys.stderr.write(f"sancus: interrupted by {signal.Signals(number).name}; all ranks were ended\n")
    return launch.exit_code(number)


def run(backend: str, ranks: int, restarts: int, argv: Sequence[str]) -> int:
    """`sancus argv` as local ranks until its end; the exit code."""
    signals = Signals()
    name = uuid.uuid4().hex
    with tempfile.TemporaryDirectory(prefix="sancus-") as folder:

        def begin(attempt: int) -> Attempt:
            own = Path(folder) / str(attempt)
            own.mkdir()
            start = Start(argv, ranks, name, attempt, own)
            return MpiRanks(start) if backend == "mpi" else ForkedRanks(start, signals.waker)

        return supervise(begin, restarts, signals)


def warm_up() -> None:
    """Import what ranks need, so that forks have it."""
    for name in WARM:
        importlib.import_module(name)


def fork_command(argv: Sequence[str]) -> int:
    """`sancus argv` in a fork of this process, whose imports its ranks get too; the exit code."""
    warm_up()
    parent = str(os.getpid())
    child = fork()
    if not child:
        launch.follow_parent(parent)
        os.environ[launch.WARM] = "1"
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        run_command(argv)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def fork() -> int:
    """`os.fork`, with nothing left to be printed twice."""
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of OpenBLAS's idle threads: it knows forks
        return os.fork()


def run_command(argv: Sequence[str]) -> NoReturn:
    """The command line, as a process of its own would run it."""
    from sancus.cli import app as cli

    sys.argv = ["sancus", *argv]
    code = launch.EXIT_FAILED
    try:
        cli.main()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else code
    finally:
        os._exit(code)


def main() -> None:
    """`python -m sancus.launch.local BACKEND RANKS RESTARTS ARGV…`, as `launch.spawn` writes it."""
    backend, ranks, restarts, *argv = sys.argv[1:]
    if backend != "mpi":
        warm_up()
    code = run(backend, int(ranks), int(restarts), argv)
    sys.stderr.flush()
    os._exit(code)  # without taking Python apart, in which one more Ctrl-C would be deadly


if __name__ == "__main__":
    main()
