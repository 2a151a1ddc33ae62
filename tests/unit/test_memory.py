"""What is free here, and what a run needs at least."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sancus.config.settings import Config
from sancus.errors import UserError
from sancus.models.settings import ModelSettings
from sancus.shards import free_memory
from sancus.training.settings import TrainingSettings

GRAPH = {"name": "g", "nodes": 10, "edges": 30, "features": 5, "classes": 3, "sparse_features": False}
SHAPE = ModelSettings(layers=2, hidden=7)


@pytest.mark.parametrize(
    ("graph", "config", "expected"),
    [
        ({}, Config(shape=SHAPE), 30 * 8 + 10 * 5 * 4 + 10 * (7 + 3) * 4),
        ({"sparse_features": True}, Config(shape=SHAPE), 30 * 8 + 10 * (7 + 3) * 4),
        ({}, Config(shape=SHAPE, model="mine.py:Net"), 30 * 8 + 10 * 5 * 4),
        ({}, Config(shape=SHAPE, training=TrainingSettings(inductive=True)), 30 * 8 + 10 * 5 * 4),
        (
            {},
            Config(shape=SHAPE, training=TrainingSettings(dtype="float64")),
            30 * 12 + 10 * 5 * 8 + 10 * 10 * 8,
        ),
    ],
)
def test_least_bytes(graph: dict[str, Any], config: Config, expected: int) -> None:
    assert free_memory.least_bytes({"graph": GRAPH | graph}, config) == expected


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_free_memory_honours_every_cgroup_above(tmp_path: Path) -> None:
    assert free_memory.free_bytes(tmp_path) is None
    write(tmp_path / "proc/meminfo", "MemTotal: 900 kB\nMemAvailable: 500 kB\nSwapFree: 100 kB\n")
    assert free_memory.free_bytes(tmp_path) == 600 * 1024
    write(tmp_path / "proc/self/cgroup", "3:cpu:/\n0::/jobs/mine\n")
    for folder, limit in (("jobs", "50000"), ("jobs/mine", "max")):
        place = tmp_path / "sys/fs/cgroup" / folder
        write(place / "memory.max", limit)
        write(place / "memory.current", "30000")
        write(place / "memory.stat", "anon 1\ninactive_file 7000\n")
    assert free_memory.free_bytes(tmp_path) == 50000 - 30000 + 7000
    write(tmp_path / "proc/self/cgroup", "4:memory:/old\n")
    place = tmp_path / "sys/fs/cgroup/memory/old"
    write(place / "memory.limit_in_bytes", "20000")
    write(place / "memory.usage_in_bytes", "25000")
    write(place / "memory.stat", "total_inactive_file 0\n")
    assert free_memory.free_bytes(tmp_path) == 0
    write(place / "memory.limit_in_bytes", "9223372036854771712")
    assert free_memory.free_bytes(tmp_path) == 600 * 1024


def test_a_run_that_cannot_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config(shape=SHAPE)
    need = free_memory.least_bytes({"graph": GRAPH}, config)
    monkeypatch.setattr(free_memory, "free_bytes", lambda: need)
    free_memory.check_memory({"graph": GRAPH}, config, 2)
    monkeypatch.setattr(free_memory, "free_bytes", lambda: None)
    free_memory.check_memory({"graph": GRAPH}, config, 2)
    monkeypatch.setattr(free_memory, "free_bytes", lambda: need - 1)
    with pytest.raises(UserError, match=r"g on 2 ranks of this host needs at least 0.0 GB of memory, but"):
        free_memory.check_memory({"graph": GRAPH}, config, 2)
