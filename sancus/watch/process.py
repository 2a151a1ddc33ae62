"""What the operating system knows of a rank's process, on the same host (Linux)."""

from __future__ import annotations

from pathlib import Path

from sancus.watch.status import Status

STOPPED = {"T": "it is stopped by a signal", "t": "a debugger holds it", "D": "it waits for the disk"}


def birth_of(pid: int) -> int:
    """When a process began, in ticks; 0 where that cannot be known."""
    found = _stat(pid)
    return int(found[19]) if found else 0


def state_of(status: Status) -> str | None:
    """The state letter of a rank's process, Z when it has ended; None where that cannot be known."""
    if not Path("/proc/self/stat").exists():
        return None
    found = _stat(status.pid)
    if found is None or int(found[19]) != status.birth:
        return "Z"
    return "Z" if found[0] in "ZX" else found[0]


def _stat(pid: int) -> list[str] | None:
    """The fields of `/proc/PID/stat` from the third on: state first."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
