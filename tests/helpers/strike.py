"""Signals to ranks and launchers in the middle of training, and what is left afterwards."""

from __future__ import annotations

import os
import time
from pathlib import Path

from tests.helpers.command import Launcher, Result, started

LONG = ("train", "synthetic:nodes=301,features=12,classes=4,degree=6", "--epochs", "1000000")
SOON = 120.0  # seconds on an idle machine; what has not ended by then hangs


def children_of(pid: int) -> set[int]:
    """All processes below one."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                status = (entry / "stat").read_text()
            except OSError:
                continue
            parents[int(entry.name)] = int(status.rpartition(")")[2].split()[1])
    found, more = set[int](), {pid}
    while more:
        found |= more
        more = {child for child, parent in parents.items() if parent in more} - found
    return found - {pid}


def ranks_of(pid: int) -> dict[int, int]:
    """Rank and process of what a launcher has started; some may end while we look."""
    found = dict[int, int]()
    for child in children_of(pid):
        try:
            rank = rank_of(child)
        except OSError:
            continue
        if rank is not None:
            found[rank] = child
    return found


def rank_of(pid: int) -> int | None:
    """The rank that a launcher gave a process: forked ranks have it in their name."""
    name = Path(f"/proc/{pid}/comm").read_text().strip()
    if name.startswith("sancus rank "):
        return int(name.rpartition(" ")[2])
    variables = dict(
        item.partition("=")[::2] for item in Path(f"/proc/{pid}/environ").read_text().split("\0")
    )
    rank = variables.get("RANK", variables.get("PMI_RANK"))
    return int(rank) if rank is not None else None


def assert_all_gone(pids: set[int]) -> None:
    deadline = time.monotonic() + SOON
    while left := [pid for pid in pids if Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < deadline, f"still running: {left}"
        time.sleep(0.05)


def strike(
    number: int, tmp_path: Path, *flags: str, rank: int | None = None, launcher: Launcher = "local"
) -> Result:
    """Start two ranks, send a signal to one of them, or to the launcher, in the middle of training."""
    with started(*LONG, *flags, "--out", tmp_path / "run", launcher=launcher, ranks=2) as process:
        process.wait_for(tmp_path / "run" / "metrics.jsonl", '"epoch": 3')
        children = children_of(process.pid)
        target = process.pid if rank is None else next(pid for pid in children if rank_of(pid) == rank)
        os.kill(target, number)
        result = process.finish(SOON)
        assert_all_gone(children)
    return result
