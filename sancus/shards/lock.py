"""The lock of shards that are built: one process of a host builds, the others wait, but not for ever."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from sancus.datasets.home import home
from sancus.errors import UserError
from sancus.watch.proc import condition_of, work_of

NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)  # what a file system without locks answers
POLL_SECONDS = 0.05
TELL_SECONDS = 1.0  # a wait that is shorter is not worth a line


@dataclass(frozen=True)
class Holder:
    """Who has the lock, as far as the lock's file tells."""

    host: str = ""
    pid: int = 0

    @classmethod
    def of(cls, file: IO[bytes]) -> Holder:
        """The holder that signed a lock's file; somebody unknown where nobody did."""
        file.seek(0)
        pid, _, host = file.read(1000).decode(errors="replace").partition(" ")
        return cls(host, int(pid)) if pid.isdecimal() else cls()

    def sign(self, file: IO[bytes]) -> None:
        """Write the name into a lock's file; a full disk costs those who wait the name alone."""
        with contextlib.suppress(OSError):
            file.truncate(0)
            file.write(f"{self.pid} {self.host}".encode())

    def work(self) -> int | None:
        """What it has computed so far; None where that cannot be seen from here."""
        return work_of(self.pid) if self.host == platform.node() else None

    def condition(self) -> str:
        """Why it does not work, where that can be seen from here."""
        reason = condition_of(self.pid) if self.host == platform.node() else None
        return f" ({reason})" if reason else ""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}" if self.pid else "another process"


@contextlib.contextmanager
def locked(target: Path, timeout: float, say: Callable[[str], None]) -> Iterator[bool]:
    """Hold the lock of `target`; False where the file system has no locks, and others may do the same.

    A holder that does nothing for `timeout` seconds is a `UserError`; one that works may take its time.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        file = target.with_suffix(".lock").open("ab+", buffering=0)
    except OSError as error:
        raise unwritable(error) from error
    with file:
        mine = _acquire(file, target, timeout, say)
        if mine:
            Holder(platform.node(), os.getpid()).sign(file)
        yield mine


def unwritable(error: OSError) -> UserError:
    """The error for a user whose cache cannot be written."""
    return UserError(
        f"cannot write to {home()}: {error.strerror}; set SANCUS_HOME to a directory you can write"
    )


def _acquire(file: IO[bytes], target: Path, timeout: float, say: Callable[[str], None]) -> bool:
    begun = last_work = time.monotonic()
    done, told = None, False
    while (mine := _try(file)) is None:
        now, holder = time.monotonic(), Holder.of(file)
        work = holder.work()
        if work != done:
            done, last_work = work, now
        if not told and now - begun >= min(TELL_SECONDS, timeout / 2):
            say(f"waiting for {holder}, which builds {target}")
            told = True
        if now - last_work >= timeout:
            raise UserError(
                f"{holder}, which builds {target}, has done nothing for {timeout:g} s{holder.condition()}; "
                "end it, or wait longer with --timeout"
            )
        time.sleep(POLL_SECONDS)
    return mine


def _try(file: IO[bytes]) -> bool | None:
    """Whether there is a lock, which is ours now; None where another process has it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None
    except OSError as error:
        if error.errno in NO_LOCKS:
            return False
        raise unwritable(error) from error
    return True
