"""Local ranks of MPI: mpiexec starts them, and is watched from here."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
from contextlib import suppress
from functools import partial

from sancus.launch.arrivals import Arrivals
from sancus.launch.attempt import Start
from sancus.launch.backend import mpiexec
from sancus.launch.exit_codes import EXIT_FAILED, EXIT_PIPE, EXIT_SAVED, EXIT_USER
from sancus.launch.process import follow_parent
from sancus.launch.proxy import end_without_proxy, proxies_of, who_was_killed
from sancus.watch.board import WATCH, FileNotes
from sancus.watch.deaths import DeathWatch
from sancus.watch.leftovers import remove_leftovers
from sancus.watch.proc import children_of


class MpiRanks:
    """One attempt through mpiexec, which ends all ranks when one fails.

    It gets a process group of its own: Ctrl-C in a terminal reaches it once, from here. It passes signals on
    to its ranks, but a second SIGINT kills them.
    """

    def __init__(self, start: Start, arrivals: Arrivals) -> None:
        self._arrivals = arrivals
        command = [mpiexec(), "-n", str(start.ranks), sys.executable, "-m", start.module, *start.argv]
        self._deaths = DeathWatch(start.folder, start.ranks)
        self._notes = FileNotes(start.folder)
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
            code = self._wait_for_mpiexec()
            failed = who_was_killed(self._notes) or deaths.who_failed()
        remove_leftovers()
        if code in (0, EXIT_USER, EXIT_PIPE, *EXIT_SAVED):
            return code
        if not self._arrivals.received:  # else some rank had nothing to save yet when it heard of the signal
            how = failed or f"mpiexec ended with exit code {code}"
            sys.stderr.write(f"sancus: {how}; all ranks were ended\n")
        return EXIT_FAILED

    def _wait_for_mpiexec(self) -> int:
        """Pass on what arrives until mpiexec ends; its exit code."""
        end_without_proxy(self._child.pid, self._notes)
        with selectors.DefaultSelector() as selector:
            self._arrivals.wake(selector)
            process = os.pidfd_open(self._child.pid)
            selector.register(process, selectors.EVENT_READ, self._child)
            ended = False
            while not ended:
                self._arrivals.pass_on(self)
                ended = any(key.data is self._child for key, _ in selector.select())
            os.close(process)
        return self._child.wait()

    def signal(self, number: int) -> None:
        """Send a signal to mpiexec, which passes it on; one of SIGHUP would be its end, so ranks get that."""
        ranks = [rank for proxy in proxies_of(self._child.pid) for rank in children_of(proxy)]
        if number != signal.SIGHUP or not ranks:
            self._child.send_signal(signal.SIGTERM if number == signal.SIGHUP else number)
        else:
            for rank in ranks:
                with suppress(ProcessLookupError):
                    os.kill(rank, number)

    def kill(self) -> None:
        """Kill all ranks by the second SIGINT that mpiexec gets."""
        self._child.send_signal(signal.SIGINT)
