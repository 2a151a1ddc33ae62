"""Local ranks as forks of the launcher, watched and ended together."""

from __future__ import annotations

import os
import selectors
import signal
import sys
from pathlib import Path
from typing import NoReturn

from sancus.launch.arrivals import Arrivals
from sancus.launch.attempt import Start
from sancus.launch.exit_codes import EXIT_FAILED, EXIT_PEER, EXIT_PIPE, EXIT_SAVED, EXIT_USER, signal_name
from sancus.launch.interrupt import heed_signals
from sancus.launch.process import WARM, fork, name_process, run_command
from sancus.launch.world import LAUNCHER_PID, RENDEZVOUS

GRACE_SECONDS = 5.0


class ForkedRanks:
    """One attempt with ranks as forks of this process, which meet through a file: no port to be taken."""

    def __init__(self, start: Start, arrivals: Arrivals) -> None:
        self._start = start
        self._arrivals = arrivals
        self._selector = selectors.DefaultSelector()
        arrivals.wake(self._selector)
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
            assert rank is not None, "a wait without a limit ends with a rank"
            if self.codes[rank] not in (0, *EXIT_SAVED):
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
        heed_signals()
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
        """Wait for the next rank that ends, and pass on what arrives meanwhile; None where time ran out."""
        while True:
            self._arrivals.pass_on(self)
            events = self._selector.select(timeout)
            if not events:
                return None
            for key, _ in events:
                if key.data is not None:
                    self._selector.unregister(key.fileobj)
                    os.close(key.fd)
                    status = os.waitpid(self._children[key.data], 0)[1]
                    self.codes[key.data] = os.waitstatus_to_exitcode(status)
                    return int(key.data)

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
        if self._wanted or (code is not None and -code in self._arrivals.received):
            return EXIT_FAILED  # it had nothing to save yet when it heard of the signal
        if rank and self._log(rank).exists():
            sys.stderr.write(self._log(rank).read_text(errors="replace"))
        if code in (EXIT_USER, EXIT_PIPE):
            return code
        if code is None:
            how = "did not answer the others"
        elif code < 0:
            how = f"was killed by {signal_name(-code)}"
        else:
            how = f"failed with exit code {code}"
        sys.stderr.write(f"sancus: rank {rank} {how}; all ranks were ended\n")
        return EXIT_FAILED

    def _log(self, rank: int) -> Path:
        return self._start.folder / f"rank-{rank}.stderr"
