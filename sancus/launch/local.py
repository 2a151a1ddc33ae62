"""Local ranks: started, watched, ended together, and started again after a failure.

`sancus train --ranks N` becomes this process (`sancus.launch.spawn`). It has imported what every rank needs,
and forks the ranks: N ranks start in the time of one, and a restart costs next to nothing. It never computes,
so no thread of its own is lost in a fork. Ranks of MPI are mpiexec's, which is started and watched from here.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NoReturn, Protocol

from sancus.launch.backend import mpiexec
from sancus.launch.exit_codes import EXIT_FAILED, EXIT_PEER, EXIT_PIPE, EXIT_SAVED, EXIT_USER, exit_code
from sancus.launch.interrupt import SIGNALS
from sancus.launch.process import WARM, follow_parent, fork, name_process, run_command
from sancus.launch.space import is_full, no_space
from sancus.launch.world import ATTEMPT, LAUNCHER_PID, RENDEZVOUS, RUN
from sancus.watch.board import WATCH
from sancus.watch.deaths import DeathWatch

GRACE_SECONDS = 5.0
INTERRUPTED = -1  # in the place of a rank: the launcher got a signal


@dataclass(frozen=True)
class Start:
    """What is started: `sancus argv` as so many ranks, and whether it is the first attempt or a later one."""

    main: Callable[[], None]  # the command line, which reads `sys.argv`: what a forked rank runs
    argv: Sequence[str]
    ranks: int
    run: str  # names this run among all, the same for every attempt
    attempt: int
    folder: Path  # of this attempt, where its ranks meet

    def environment(self) -> dict[str, str]:
        """What a rank of ours learns from its launcher."""
        return {RUN: self.run, ATTEMPT: str(self.attempt)}


class Attempt(Protocol):
    """The ranks of one attempt, while they run."""

    def wait(self) -> int:
        """Wait until all have ended, and print who failed; the exit code of the whole run."""

    def signal(self, number: int) -> None:
        """Pass a signal on to all ranks."""

    def kill(self) -> None:
        """End all ranks at once."""


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
        """Wait until all ended well, or one did not: then the others are ended, and that one is named."""
        while len(self.codes) < self._start.ranks:
            rank = self._next()
            if rank is not None and self.codes[rank] not in (0, *EXIT_SAVED):
                failed = self._culprit(rank)
                code = self.codes.get(failed)
                self._end()
                return self._explain(failed, code)
        return max(self.codes.values())

    def signal(self, number: int) -> None:
        """Send a signal to every rank that still runs."""
        for rank, child in enumerate(self._children):
            if rank not in self.codes:
                os.kill(child, number)

    def kill(self) -> None:
        """End all now, because the user wants it: none of them is reported as failed."""
        self._wanted = True
        self.signal(signal.SIGKILL)

    def _fork(self, rank: int) -> int:
        child = fork()
        if not child:
            self._be(rank)
        return child

    def _be(self, rank: int) -> NoReturn:
        """Run the command line as this rank, in the fork, and leave the process with its exit code."""
        signal.set_wakeup_fd(-1)
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ.pop(WARM, None)
        os.environ |= self._start.environment() | {
            LAUNCHER_PID: str(os.getppid()),
            RENDEZVOUS: str(self._start.folder / "store"),
            "RANK": str(rank),
            "WORLD_SIZE": str(self._start.ranks),
            "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
        }
        name_process(f"sancus rank {rank}")
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        if rank:
            os.dup2(os.open(self._log(rank), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 2)
        run_command(self._start.main, self._start.argv)

    def _next(self, timeout: float | None = None) -> int | None:
        """Wait for the next rank that ends; None where a signal came or time ran out."""
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
        """The rank that caused the end, out of those that fail at about the same time.

        One that only lost its peers is not at fault, so the others get a moment to end with their own error.
        """
        suspect = first
        while self.codes[suspect] in (0, EXIT_PEER):
            ended = self._next(GRACE_SECONDS)
            if ended is None:
                silent = [rank for rank in range(self._start.ranks) if rank not in self.codes]
                return silent[0] if silent else first
            suspect = ended
        return suspect

    def _end(self) -> None:
        """Kill the ranks that still run, and wait until all have ended."""
        self.signal(signal.SIGKILL)
        while len(self.codes) < self._start.ranks:
            self._next()

    def _explain(self, rank: int, code: int | None) -> int:
        """Print what is known of the rank at fault; the exit code of the whole run."""
        if self._wanted:
            return EXIT_FAILED
        if rank and self._log(rank).exists():
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

    def _log(self, rank: int) -> Path:
        return self._start.folder / f"rank-{rank}.stderr"


class MpiRanks:
    """One attempt through mpiexec, which ends all ranks when one fails.

    It gets a process group of its own: Ctrl-C in a terminal reaches it once, from here. It passes signals on
    to its ranks, but a second SIGINT kills them.
    """

    def __init__(self, start: Start) -> None:
        command = [mpiexec(), "-n", str(start.ranks), sys.executable, "-m", "sancus", *start.argv]
        self._deaths = DeathWatch(start.folder, start.ranks)
        self._child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            process_group=0,
            preexec_fn=partial(follow_parent, number=signal.SIGTERM),
            env=os.environ | start.environment() | {WATCH: str(start.folder)},
        )

    def wait(self) -> int:
        """Wait until mpiexec ends. It does not say which rank was killed, so that is watched apart."""
        with self._deaths as deaths:
            code = self._child.wait()
            failed = deaths.who_failed() or f"mpiexec ended with exit code {code}"
        if code not in (0, EXIT_USER, EXIT_PIPE, *EXIT_SAVED):
            sys.stderr.write(f"sancus: {failed}; all ranks were ended\n")
            return EXIT_FAILED
        return code

    def signal(self, number: int) -> None:
        """Send a signal to mpiexec, which passes it on."""
        self._child.send_signal(number)

    def kill(self) -> None:
        """Kill all ranks by the second SIGINT that mpiexec gets."""
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
        if code != EXIT_FAILED or attempt == restarts:
            return code
        sys.stderr.write(f"sancus: starting again, {attempt + 1} of {restarts}\n")
    number = signals.received[0]
    sys.stderr.write(f"sancus: interrupted by {signal.Signals(number).name}; all ranks were ended\n")
    return exit_code(number)


def run(main: Callable[[], None], argv: Sequence[str], ranks: int, backend: str, restarts: int) -> int:
    """`sancus argv` as local ranks until its end; the exit code. `main` is what a forked rank runs."""
    signals = Signals()
    name = uuid.uuid4().hex
    try:
        with tempfile.TemporaryDirectory(prefix="sancus-") as folder:

            def begin(attempt: int) -> Attempt:
                own = Path(folder) / str(attempt)
                own.mkdir()
                start = Start(main, argv, ranks, name, attempt, own)
                return MpiRanks(start) if backend == "mpi" else ForkedRanks(start, signals.waker)

            return supervise(begin, restarts, signals)
    except OSError as error:
        if not is_full(error):
            raise
        sys.stderr.write(f"sancus: {no_space(error)}\n")
        return EXIT_USER
