"""A place of a trial's own: disk, network, shared memory and temporary files, and what is left of them.

Where the kernel and our rights allow it these are namespaces, which nobody else sees: then whatever is found
there after a run is what the run left. Elsewhere the folders alone are the trial's own, disks that are full
and links that are cut cannot be had, and ports and shared memory are not looked at.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from tests.helpers.strike import SOON, children_of

CLONE_NEWNS, CLONE_NEWNET = 0x00020000, 0x40000000
PR_SET_CHILD_SUBREAPER = 36
DISK_BYTES = 8 << 20
SHARED_MEMORY = Path("/dev/shm")
LISTENING = "0A"  # as /proc/net/tcp writes it


class Place:
    """Folders of one trial, made in a process of its own; `private` says whether namespaces are there."""

    def __init__(self, folder: Path) -> None:
        libc = ctypes.CDLL(None)
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # what outlives its parent becomes a child of ours
        self.disk, self.temporary, self.home = folder / "disk", folder / "tmp", folder / "home"
        for path in (self.disk, self.temporary, self.home):
            path.mkdir()
        self.private = libc.unshare(CLONE_NEWNS | CLONE_NEWNET) == 0 and self._furnish()

    def _furnish(self) -> bool:
        """Disks and a loopback device for the new namespaces; whether all could be had."""
        commands = (
            ["mount", "--make-rprivate", "/"],
            ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "sancus-chaos", str(self.disk)],
            ["mount", "-t", "tmpfs", "sancus-chaos", str(SHARED_MEMORY)],
            ["ip", "link", "set", "lo", "up"],
        )
        return all(_done(command) for command in commands)

    @contextlib.contextmanager
    def full_disk(self) -> Iterator[None]:
        """There is no room left on the disk of the runs."""
        filler = self.disk / "filler"
        try:
            with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
                for piece in (1 << 16, 1 << 12, 1):
                    with contextlib.suppress(OSError):
                        while file.write(b"x" * piece):
                            pass
            yield
        finally:
            filler.unlink(missing_ok=True)

    @contextlib.contextmanager
    def read_only(self, folder: Path) -> Iterator[bool]:
        """A folder that cannot be written, for root neither; whether it is there to be protected."""
        protected = folder.is_dir() and _done(["mount", "--bind", str(folder), str(folder)])
        if protected:
            subprocess.run(["mount", "-o", "remount,ro,bind", str(folder)], check=True)
        try:
            yield protected
        finally:
            if protected:
                subprocess.run(["umount", "--lazy", str(folder)], check=True)

    @contextlib.contextmanager
    def link_down(self) -> Iterator[None]:
        """Nothing reaches anybody."""
        subprocess.run(["ip", "link", "set", "lo", "down"], check=True)
        try:
            yield
        finally:
            subprocess.run(["ip", "link", "set", "lo", "up"], check=True)

    @contextlib.contextmanager
    def slow_link(self) -> Iterator[None]:
        """Packets queue."""
        shape = ["root", "tbf", "rate", "10mbit", "burst", "64k", "latency", "200ms"]
        subprocess.run(["tc", "qdisc", "add", "dev", "lo", *shape], check=True)
        try:
            yield
        finally:
            subprocess.run(["tc", "qdisc", "del", "dev", "lo", "root"], check=True)

    def wait_for_the_last(self) -> list[str]:
        """Wait until every process of a command has ended; the names of those that do not."""
        deadline = time.monotonic() + SOON
        while time.monotonic() < deadline:
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                return []
            time.sleep(0.005)
        return sorted(map(_describe, children_of(os.getpid())))

    def leftovers(self) -> list[str]:
        """What commands that have ended have left outside of their own directories."""
        found = [f"temporary {path.name}" for path in self.temporary.iterdir()]
        if self.private:
            found += [f"shared memory {path.name}" for path in SHARED_MEMORY.iterdir()]
            found += [f"port {port}" for port in _listening()]
        return sorted(found)


@functools.cache
def network_reason() -> str | None:
    """Why links cannot be slowed down here; None where they can."""
    shape = "ip link set lo up && tc qdisc add dev lo root tbf rate 1mbit burst 32k latency 50ms"
    done = subprocess.run(["unshare", "--net", "sh", "-c", shape], capture_output=True, check=False)
    return None if done.returncode == 0 else done.stderr.decode(errors="replace").strip()


def _done(command: list[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def _describe(pid: int) -> str:
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
        return f"process {pid} {Path(f'/proc/{pid}/comm').read_text().strip()}: {words}"
    return f"process {pid}"


def _listening() -> Iterator[int]:
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        for line in table.read_text().splitlines()[1:]:
            local, state = line.split()[1], line.split()[3]
            if state == LISTENING:
                yield int(local.rpartition(":")[2], 16)
