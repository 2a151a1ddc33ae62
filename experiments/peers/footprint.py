"""Peak memory of a program with all its processes: what they share is counted once.

The sum of resident sizes counts a page as often as it is mapped: libraries, and what forked ranks inherit.
The kernel's proportional set size (`Pss` of `/proc/PID/smaps_rollup`) splits it among those that map it, so
its sum over processes is what the machine gives. It has no high-water mark; it is sampled.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

PROC = Path("/proc")
INTERVAL = 0.05  # seconds


class Footprint:
    """Samples a process and its descendants until the block ends: `with Footprint(pid) as footprint`."""

    def __init__(self, pid: int) -> None:
        self.peak_bytes = 0
        self._pid = pid
        self._end = threading.Event()
        self._sampler = threading.Thread(target=self._sample, name="footprint", daemon=True)

    def __enter__(self) -> Footprint:
        self._sampler.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._sampler.join()

    def _sample(self) -> None:
        while not self._end.wait(INTERVAL):
            self.peak_bytes = max(self.peak_bytes, sum(map(pss_bytes, family(self._pid))))


def family(pid: int) -> Iterator[int]:
    """A process and all its descendants that live now."""
    yield pid
    for task in _texts(PROC / str(pid) / "task", "children"):
        for child in task.split():
            yield from family(int(child))


def pss_bytes(pid: int) -> int:
    """Proportional set size of a process; 0 once it has ended."""
    try:
        lines = (PROC / str(pid) / "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def _texts(folder: Path, name: str) -> Iterator[str]:
    """The file of that name of every entry that has it."""
    try:
        entries = list(folder.iterdir())
    except OSError:
        return
    for entry in entries:
        try:
            yield (entry / name).read_text()
        except OSError:
            continue
