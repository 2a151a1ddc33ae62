"""Commands of a trial: forks of a process that has imported everything, disturbed at their moment."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sancus.cli.app import main as command_line
from sancus.launch.process import WARM, follow_parent, fork, run_command
from tests.chaos.drawn import Moment
from tests.helpers.strike import children_of, rank_of

DEADLINE = 600.0  # seconds after which a command hangs, on a machine with other work too
KILLED = 124  # the code of one that had to be killed then
POLL_SECONDS = 0.002


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    command: str
    code: int
    said: str  # what it wrote to stderr

    @property
    def last_line(self) -> str:
        """What a user reads at last."""
        return (self.said.splitlines() or [""])[-1]

    def __str__(self) -> str:
        return f"$ {self.command}\n  exit code {self.code}\n" + "".join(
            f"  | {line}\n" for line in self.said.splitlines()
        )


class Command:
    """`sancus argv`, while it runs, in a session of its own."""

    def __init__(
        self, argv: Sequence[str], env: dict[str, str], folder: Path, metrics: Path, ranks: int
    ) -> None:
        self._line = shlex.join(["sancus", *argv])
        self._error = folder / "stderr"
        self._metrics = metrics
        self._count = ranks
        self._begun = time.monotonic()
        self._code: int | None = None
        parent = str(os.getpid())
        self.pid = fork()
        if not self.pid:
            os.setsid()
            follow_parent(parent)
            os.environ.clear()
            os.environ.update(env | {WARM: "1"})
            tempfile.tempdir = None  # what this process has found is not what the command would
            os.chdir(folder)
            for number, name in ((0, os.devnull), (1, "stdout"), (2, str(self._error))):
                flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC if number else os.O_RDONLY
                os.dup2(os.open(folder / name, flags, 0o600), number)
            run_command(command_line, argv)
        while os.getsid(self.pid) != self.pid:  # what is sent to its session must not be sent to ours
            time.sleep(POLL_SECONDS)

    def alive(self) -> bool:
        """Whether it still runs."""
        if self._code is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if ended else None
        return self._code is None

    def wait_for(self, moment: Moment) -> bool:
        """Wait for a moment; False where the command ended before."""
        while self.alive():
            passed = time.monotonic() - self._begun
            if moment.epochs is None and passed >= moment.seconds:
                return True
            if moment.epochs is not None and self._epochs() > moment.epochs:
                return True
            if passed > DEADLINE:
                return False
            time.sleep(POLL_SECONDS)
        return False

    def pause(self, seconds: float) -> None:
        """How long a disturbance lasts; not longer than the command."""
        end = time.monotonic() + seconds
        while self.alive() and time.monotonic() < end:
            time.sleep(POLL_SECONDS)

    def signal(self, number: int, target: str) -> bool:
        """Send a signal to the launcher, to a rank once there is one, or to all; whether it found one."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if target == "launcher":
                os.kill(self.pid, number)
                return True
            if target == "all":
                for session in {os.getsid(pid) for pid in (self.pid, *self._ranks().values())}:
                    os.killpg(session, number)
                return True
            end = time.monotonic() + DEADLINE
            while self.alive() and time.monotonic() < end:
                rank = self._ranks().get(int(target))
                if rank is not None:
                    os.kill(rank, number)
                    return True
                time.sleep(5 * POLL_SECONDS)
        return False

    def finish(self) -> Ended:
        """Wait until it ends; at the deadline its session is killed."""
        end = time.monotonic() + DEADLINE
        while self.alive():
            if time.monotonic() > end:
                os.killpg(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
                self._code = KILLED
            time.sleep(POLL_SECONDS)
        assert self._code is not None
        return Ended(self._line, self._code, self._error.read_text(errors="replace"))

    def _epochs(self) -> int:
        try:
            return self._metrics.read_bytes().count(b"\n")
        except OSError:
            return 0

    def _ranks(self) -> dict[int, int]:
        """Processes by rank; a run of one rank has no launcher beside it."""
        if self._count == 1:
            return {0: self.pid}
        found = {}
        for pid in children_of(self.pid):
            with contextlib.suppress(OSError):
                if (rank := rank_of(pid)) is not None:
                    found[rank] = pid
        return found
