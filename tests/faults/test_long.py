"""Thousands of epochs: no growth of memory, files, threads or open files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sancus.comm.group import Group
from tests.faults.counts import everything, only_in_full
from tests.faults.record import record
from tests.faults.sessions import train
from tests.faults.test_killed import WORK
from tests.helpers.processes import run_ranks

GROWTH = 4 << 20  # bytes a thousand epochs that are no leak: pools of the allocator
WARM = 5  # the first of so many parts of a run


def figures(out: Path) -> dict[str, int]:
    """Of this process, and of the run's directory."""
    status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {
        "memory": int(status["VmRSS"].split()[0]) * 1024,
        "threads": int(status["Threads"]),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "files": sum(1 for _ in out.rglob("*")),
    }


def watch(group: Group, out: Path, epochs: int) -> list[dict[str, int]]:
    """Figures after the warm-up and before the last epoch."""
    seen: list[dict[str, int]] = []

    def look(epoch: int) -> None:
        if epoch in (epochs // WARM + 5, epochs - 5):  # in the middle between two checkpoints
            seen.append(figures(out))

    train(group, *WORK, "--epochs", str(epochs), "--out", out, before_epoch=look)
    return seen


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("backend", ["gloo", pytest.param("mpi", marks=[pytest.mark.mpi, only_in_full()])])
def test_nothing_grows(backend: str, tmp_path: Path) -> None:
    epochs = 5000 if everything() else 400
    arguments = {"backend": backend, "timeout": 1500, "out": tmp_path / "run", "epochs": epochs}
    for early, late in run_ranks(f"{__name__}:watch", 2, **arguments):
        for name in ("threads", "descriptors", "files"):
            assert late[name] <= early[name], (name, early, late)
        assert late["memory"] - early["memory"] < GROWTH * max(1, epochs // 1000), (early, late)
    record(f"{epochs} epochs: no growth", backend, 1, 1)
