"""The cache of shards: what is damaged in it is built again, and nobody waits for ever for who builds."""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import signal
from pathlib import Path
from typing import NoReturn

import pytest

from sancus.errors import UserError
from sancus.graphs.graph import Graph
from sancus.graphs.shards import FORMAT, UnusableShardsError
from sancus.shards import cache, lock
from sancus.shards.cache import Shards, Telling, prepare, prepare_graph
from sancus.watch.proc import condition_of
from tests.faults.record import record
from tests.faults.sessions import GRAPH, assert_same
from tests.faults.test_machine import wait_until
from tests.helpers.command import run, started
from tests.helpers.graphs import awkward_graph, shards_of
from tests.helpers.strike import SOON

BUILT_AGAIN = "is damaged or missing: the shards in the cache are built again"


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SANCUS_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def flip(file: Path) -> None:
    """One bit of the last byte."""
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


# Damage


@pytest.mark.slow
def test_a_run_goes_on_where_its_shards_are_damaged(own_home: Path, tmp_path: Path) -> None:
    """Whichever rank finds it: the line is said once, and the result is that of an undisturbed run."""

    def train(name: str) -> str:
        result = run(
            *("train", GRAPH, "--epochs", "4", "--out", tmp_path / name),
            launcher="local",
            ranks=2,
            env={"SANCUS_HOME": str(own_home)},
        )
        assert (result.code, result.err) == (0, ""), result
        return result.out

    assert BUILT_AGAIN not in train("whole")
    (target,) = (path.parent for path in own_home.glob("shards/*/manifest.json"))
    cases = {
        "first": ["rank-0/labels.npy"],
        "last": ["rank-1/features.npy"],
        "both": ["rank-0/features.npy", "rank-1/nodes.npy"],
        "manifest": ["manifest.json"],
    }
    for case, names in cases.items():
        for name in names:
            flip(target / name)
        told = [line for line in train(case).splitlines() if BUILT_AGAIN in line]
        assert len(told) == 1 and told[0] in [f"sancus: {target / name} {BUILT_AGAIN}" for name in names]
        assert_same(tmp_path / case, tmp_path / "whole")
    assert BUILT_AGAIN not in train("after")
    record("damaged shards in the cache: built again, same result", "gloo", len(cases), len(cases))


def test_every_file_of_the_cache_can_be_damaged(own_home: Path) -> None:
    told: list[str] = []

    def opened() -> Shards:
        shards = prepare_graph(awkward_graph(), "random", 2, telling=Telling(warn=told.append))
        assert [shards.open(part).rank for part in range(2)] == [0, 1]
        return shards

    first = opened()
    files = sorted(path for path in first.directory.rglob("*") if path.is_file())
    assert len(files) > 20 and not told
    for file in files:
        if file.name == "manifest.json":  # a flipped bit that says another version is damage too
            file.write_text(file.read_text().replace(f'"format": {FORMAT}', '"format": 2'))
        else:
            flip(file)
        assert opened().manifest == first.manifest
        file.unlink()
        assert opened().manifest == first.manifest
    assert len(told) == 2 * len(files), "said once each time"
    names = {first.directory.name, f"{first.directory.name}.lock"}
    assert {path.name for path in (own_home / "shards").iterdir()} == names, "nothing is left"


def test_shards_of_the_users_own_are_refused(tmp_path: Path) -> None:
    told: list[str] = []
    directory = shards_of(awkward_graph(), "contiguous", 2, tmp_path)
    shards = prepare(str(directory), "metis", 2, telling=Telling(warn=told.append))
    flip(directory / "rank-1" / "labels.npy")
    with pytest.raises(UnusableShardsError, match=r"labels.npy is damaged or missing; delete .* and make it"):
        shards.open(1)
    assert shards.open(0).rank == 0 and not told


# The lock

STOPS = """
import os, signal

import numpy as np


class Stops:
    \"\"\"Stops its process, once.\"\"\"

    def assign(self, adjacency, parts):
        os.kill(os.getpid(), signal.SIGSTOP)
        return np.arange(adjacency.shape[0]) % parts
"""


@pytest.mark.slow
def test_a_builder_that_is_stopped_is_named(own_home: Path, tmp_path: Path) -> None:
    (tmp_path / "stops.py").write_text(STOPS)
    flags = ("train", GRAPH, "--partitioner", f"{tmp_path}/stops.py:Stops", "--epochs", "1", "--out")
    env = {"SANCUS_HOME": str(own_home)}
    with started(*flags, tmp_path / "first", env=env) as builder:
        wait_until(builder, lambda: condition_of(builder.pid), "stop")
        second = run(*flags, tmp_path / "second", "--timeout", "1", env=env, timeout=SOON)
        os.kill(builder.pid, signal.SIGCONT)
        first = builder.finish()
    assert first.code == 0, first
    (manifest,) = own_home.glob("shards/*/manifest.json")
    who = f"process {builder.pid} on {platform.node()}, which builds {manifest.parent}"
    assert f"waiting for {who}\n" in second.out, second
    why = "has done nothing for 1 s (it is stopped by a signal); end it, or wait longer with --timeout"
    assert (second.code, second.err) == (2, f"sancus: {who}, {why}\n"), second
    record("shards that a stopped process builds (--timeout 1)", "alone", 1, 1, [second.seconds])


class Clock:
    """A clock of the test, which goes on by ten seconds when somebody sleeps; `polls` counts that."""

    def __init__(self) -> None:
        self.polls = 0

    def monotonic(self) -> float:
        return 10.0 * self.polls

    def sleep(self, seconds: float) -> None:
        self.polls += 1


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(lock, "time", clock)
    return clock


@pytest.mark.parametrize("host", [platform.node(), "elsewhere"])
def test_a_builder_at_work_may_take_its_time(
    host: str, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has all the time it needs, where we see that it works; then it has --timeout to work again."""
    monkeypatch.setattr(lock, "work_of", lambda pid: min(clock.polls, 20))
    monkeypatch.setattr(lock, "condition_of", lambda pid: None)
    target, said = tmp_path / "target", list[str]()
    with target.with_suffix(".lock").open("wb") as file:
        file.write(f"123 {host}".encode())
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        expected = f"^process 123 on {host}, which builds {target}, has done nothing for 30 s; end it, or"
        with pytest.raises(UserError, match=expected), lock.locked(target, 30.0, said.append):
            pytest.fail("two have the lock")
    assert clock.polls == (23 if host == platform.node() else 3)
    assert said == [f"waiting for process 123 on {host}, which builds {target}"]
    with lock.locked(target, 30.0, said.append) as alone:
        assert alone and target.with_suffix(".lock").read_text() == f"{os.getpid()} {platform.node()}"


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_locks(number: int, own_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes may build at once: the faster one's shards serve both, and neither harms the other."""

    def no_locks(*_: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(lock.fcntl, "flock", no_locks)
    open_graph, loads = cache.open_graph, list[Path]()

    def load(data: str) -> Graph:
        """While the slower one loads its graph, the faster one does everything."""
        if not loads:
            loads.append(Path())
            loads[0] = prepare(data, "random", 2).directory
            (own_home / "shards" / f".{loads[0].name}-partial-of-another").mkdir()
        return open_graph(data)

    monkeypatch.setattr(cache, "open_graph", load)
    shards = prepare("synthetic:nodes=60,features=4,classes=3", "random", 2)
    assert [shards.open(part).rank for part in range(2)] == [0, 1]
    assert loads == [shards.directory]
    flip(shards.directory / "rank-0" / "nodes.npy")
    assert shards.open(0).rank == 0
    name = shards.directory.name
    left = {name, f"{name}.lock", f".{name}-partial-of-another"}
    assert {path.name for path in shards.directory.parent.iterdir()} == left


def test_a_lock_that_fails_is_told_in_one_line(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> NoReturn:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(lock.fcntl, "flock", broken)
    with pytest.raises(UserError, match=f"^cannot write to {own_home}: Input/output error; set SANCUS_HOME"):
        prepare_graph(awkward_graph(), "random", 2)
