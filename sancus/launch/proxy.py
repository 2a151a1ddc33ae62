"""The end of hydra's proxy: the process of MPICH that starts the ranks of a host and passes their output on.

mpiexec does not notice that its proxy was killed. The ranks would train on, with nobody to hear or to end
them, and mpiexec would wait for ever. So every rank watches the proxy that started it, and our launcher
watches for ranks that cannot yet.
"""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from sancus.launch.exit_codes import EXIT_PEER
from sancus.watch.board import FileNotes, Notes, folder_of
from sancus.watch.proc import children_of, name_of, parent_of

PROXY = "hydra_pmi_proxy"
KILLED = f"{PROXY}, by which mpiexec starts ranks, was killed"
NOTE = "proxy"  # under which that is told to our launcher
HOLD_BACK_SECONDS = 2.0  # until another rank than the first of its host does what that one should have done
LOOK_SECONDS = 0.2  # between looks for a proxy that mpiexec has not started yet
GRACE_SECONDS = 30.0  # that mpiexec has to end after its proxy, before our launcher ends it


def follow_proxy(local_rank: int, env: Mapping[str, str]) -> None:
    """From now on this rank ends with the proxy that started it, if one did, and so does mpiexec (Linux)."""
    parent = os.getppid()
    if name_of(parent) != PROXY:
        return
    try:
        proxy, mpiexec = os.pidfd_open(parent), os.pidfd_open(parent_of(parent))
    except (OSError, AttributeError):
        return
    notes = FileNotes(folder) if (folder := folder_of(env)) else None
    stderr = Path(f"/proc/{parent_of(parent)}/fd/2")
    _watch(_end_rank, proxy, mpiexec, local_rank, notes, stderr)


def end_without_proxy(mpiexec: int, notes: Notes) -> None:
    """From now on mpiexec ends at most so many seconds after its proxy, with a note of that (Linux)."""
    with suppress(OSError, AttributeError):
        _watch(_end_mpiexec, os.pidfd_open(mpiexec), mpiexec, notes)


def who_was_killed(notes: Notes) -> str | None:
    """What to say of a proxy that was killed; None where none was."""
    return KILLED if notes.get(NOTE) is not None else None


def proxies_of(mpiexec: int) -> list[int]:
    """The proxies of this host."""
    return [child for child in children_of(mpiexec) if name_of(child) == PROXY]


def _watch(action: Callable[..., None], *arguments: object) -> None:
    threading.Thread(target=action, args=arguments, name="sancus-proxy", daemon=True).start()


def _end_rank(proxy: int, mpiexec: int, local_rank: int, notes: Notes | None, stderr: Path) -> NoReturn:
    """Wait for the end of the proxy; say so where a user sees it, and end mpiexec and this rank."""
    _ended(proxy, None)
    if not _ended(mpiexec, HOLD_BACK_SECONDS if local_rank else 0.0):
        if notes is not None:
            notes.put(NOTE, b"")
        else:
            with suppress(OSError), stderr.open("ab") as file:
                file.write(f"sancus: {KILLED}; all ranks were ended\n".encode())
        with suppress(OSError):
            signal.pidfd_send_signal(mpiexec, signal.SIGKILL)
    os._exit(EXIT_PEER)


def _end_mpiexec(process: int, mpiexec: int, notes: Notes) -> None:
    """Wait for the proxy's end, then for that of mpiexec; end it where it does not come."""
    while not (proxies := proxies_of(mpiexec)):
        if _ended(process, LOOK_SECONDS):
            break
    for proxy in proxies[:1]:
        with suppress(OSError):
            _ended(number := os.pidfd_open(proxy), None)
            os.close(number)
        if not _ended(process, GRACE_SECONDS):
            notes.put(NOTE, b"")
            signal.pidfd_send_signal(process, signal.SIGKILL)
    os.close(process)


def _ended(process: int, seconds: float | None) -> bool:
    poll = select.poll()
    poll.register(process, select.POLLIN)
    return bool(poll.poll(None if seconds is None else 1000 * seconds))
