"""What the operating system knows of a process on this host (Linux)."""

from __future__ import annotations

from pathlib import Path

from sancus.watch.status import Status

STATES = {"T": "it is stopped by a signal", "t": "a debugger holds it", "D": "it waits for the disk"}


def birth_of(pid: int) -> int:
    """When a process began, in ticks; 0 where that cannot be known."""
    stat = _stat(pid)
    return int(stat[19]) if stat else 0


def state_of(status: Status) -> str | None:
    """The state letter of a rank's process, Z when it has ended; None where that cannot be known."""
    if not Path("/proc/self/stat").exists():
        return None
    stat = _stat(status.pid)
    if stat is None or int(stat[19]) != status.birth:
        return "Z"
    return "Z" if stat[0] in "ZX" else stat[0]


def work_of(pid: int) -> int | None:
    """The processor time that a process has used, in ticks; None where that cannot be known."""
    stat = _stat(pid)
    return int(stat[11]) + int(stat[12]) if stat else None


def condition_of(pid: int) -> str | None:
    """Why a process does not run, where it is something that it does not do by itself; else None."""
    stat = _stat(pid)
    return STATES.get(stat[0]) if stat else None


def name_of(pid: int) -> str:
    """What a process is called, in 15 letters at most; empty where there is none."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def parent_of(pid: int) -> int:
    """The process that started another; 0 where there is none."""
    stat = _stat(pid)
    return int(stat[1]) if stat else 0


def children_of(pid: int) -> list[int]:
    """The processes that one has started, and that have not ended; empty where that cannot be known."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _stat(pid: int) -> list[str] | None:
    """The fields of `/proc/PID/stat` from the third on: state first."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
