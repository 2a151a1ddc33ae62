"""One rank fails, is killed, is stopped or is slow: the others end in time, and its name is told.

Under local ranks, torchrun and mpiexec. What is left of a run is nothing but its files.
"""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest

from tests.faults.record import record, tries
from tests.helpers.command import Launcher, Process, Result, metrics, run, started
from tests.helpers.strike import SOON, assert_all_gone, children_of, rank_of

GRAPH = "synthetic:nodes=301,features=12,classes=4,degree=6"
SMALL = ("--layers", "2", "--hidden", "8")
LONG = ("train", GRAPH, *SMALL, "--epochs", "1000000")
# Long enough for ranks to meet on a busy machine; a quarter of it is how long they wait without a word.
IMPATIENT, PATIENT = ("--timeout", "24"), ("--timeout", "60")
EVERYWHERE = [
    ("local", "gloo"),
    ("torchrun", "gloo"),
    pytest.param("local", "mpi", marks=pytest.mark.mpi),
    pytest.param("mpiexec", "mpi", marks=pytest.mark.mpi),
]


def fault(rank: int, epoch: int = 2, **more: str) -> dict[str, str]:
    """The environment of `tests.faults.plugins`."""
    return {"FAULT_RANK": str(rank), "FAULT_EPOCH": str(epoch)} | more


def strike(process: Process, folder: Path, rank: int, number: int) -> float:
    """A signal for one rank in the middle of training; when it was sent."""
    process.wait_for(folder / "metrics.jsonl", '"epoch": 3')
    target = next(pid for pid in children_of(process.pid) if rank_of(pid) == rank)
    os.kill(target, number)
    return time.monotonic()


SAMPLE = {("model", "torchrun", "gloo"), ("codec", "local", "gloo"), ("policy", "mpiexec", "mpi")}
BUGS = {
    "model": (("--model", "tests.faults.plugins:Raises"), r"ZeroDivisionError: I cannot stand this epoch"),
    "codec": (("--codec", "tests.faults.plugins:BadCodec"), r"ZeroDivisionError: I cannot encode"),
    "policy": (
        ("--staleness", "tests.faults.plugins:BadPolicy"),
        r"policy BadPolicy, epoch 2, layer \d, forward: decide raised ZeroDivisionError: I cannot decide",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS)
@pytest.mark.parametrize(("launcher", "backend"), EVERYWHERE)
def test_a_bug_of_a_user_on_one_rank(bug: str, launcher: Launcher, backend: str, tmp_path: Path) -> None:
    flags, says = BUGS[bug]
    count, seconds = tries(int((bug, launcher, backend) in SAMPLE)), []
    for number in range(count):
        rank, out, moment = (number + 1) % 2, tmp_path / str(number), tmp_path / f"{number}.mark"
        asked = (*LONG, *flags, "--backend", backend, "--out", out)
        result = run(*asked, launcher=launcher, ranks=2, env=fault(rank, FAULT_MARK=str(moment)))
        seconds.append(time.time() - float(moment.read_text()))
        assert result.code not in (0, 124), result
        assert re.search(says, result.err), result
        assert bug == "policy" or f"rank {rank}: failed with the error above" in result.err, result
        assert 1 <= len(metrics(out)) <= 2, result
    record(f"exception in a user's {bug}", f"{launcher} {backend}", count, count, seconds)


@pytest.mark.slow
@pytest.mark.parametrize(("launcher", "backend"), EVERYWHERE[:3])
def test_a_killed_rank_is_named(launcher: Launcher, backend: str, tmp_path: Path) -> None:
    count, seconds = tries(int(backend == "mpi")), []
    for number in range(count):
        rank, out = (number + 1) % 2, tmp_path / str(number)
        with started(*LONG, "--backend", backend, "--out", out, launcher=launcher, ranks=2) as process:
            struck = strike(process, out, rank, signal.SIGKILL)
            children = children_of(process.pid)
            result = process.finish(SOON)
            seconds.append(time.monotonic() - struck)
            assert_all_gone(children)
        assert result.code == 1, result
        assert _names_killed(result, launcher, backend, rank), result
    record("kill -9", f"{launcher} {backend}", count, count, seconds)


def _names_killed(result: Result, launcher: str, backend: str, rank: int) -> bool:
    if launcher == "torchrun":
        return "exitcode  : -9 (" in result.err and f"rank      : {rank} (local_rank: {rank})" in result.err
    how = "was killed; it was last " if backend == "mpi" else "was killed by SIGKILL"
    return f"sancus: rank {rank} {how}" in result.err


@pytest.mark.slow
@pytest.mark.parametrize(("launcher", "backend"), EVERYWHERE)
def test_a_stopped_rank_is_named(launcher: Launcher, backend: str, tmp_path: Path) -> None:
    """First as somebody that the others wait for, then as the reason of their end."""
    count, seconds = tries(int((launcher, backend) == ("local", "gloo"))), []
    for number in range(count):
        rank, out = (number + 1) % 2, tmp_path / str(number)
        flags = (*LONG, *IMPATIENT, "--backend", backend, "--out", out)
        with started(*flags, launcher=launcher, ranks=2) as process:
            struck = strike(process, out, rank, signal.SIGSTOP)
            children = children_of(process.pid)
            result = process.finish(SOON)
            seconds.append(time.monotonic() - struck)
            assert_all_gone(children)
        assert result.code not in (0, 124), result
        stopped = rf"rank {rank} does not run \(it is stopped by a signal\): last seen \d+ s ago on \S+, "
        place = r"(computing|waiting) in epoch \d+, (after )?collective \d+, [a-z-]+"
        assert re.search(rf"sancus: waiting for \d+ s in collective \d+: {stopped}{place}", result.out), (
            result
        )
        if (launcher, backend) == ("local", "gloo"):
            assert f"sancus: rank {rank} did not answer the others" in result.err, result
        if rank or (launcher, backend) != ("local", "gloo"):  # whose launcher shows what rank 0 says
            assert re.search(rf"failed after \d+\.\d s: .*; {stopped}{place}", result.err), result
    record("SIGSTOP", f"{launcher} {backend}", count, count, seconds)


@pytest.mark.slow
@pytest.mark.parametrize(("launcher", "backend"), EVERYWHERE)
def test_a_slow_rank_is_waited_for(launcher: Launcher, backend: str, tmp_path: Path) -> None:
    count = tries(int((launcher, backend) == ("local", "gloo")))
    for number in range(count):
        rank, out, go = (number + 1) % 2, tmp_path / str(number), tmp_path / f"{number}.go"
        slow = ("--model", "tests.faults.plugins:Waits", "--backend", backend, "--out", out)
        asked = ("train", GRAPH, *SMALL, "--epochs", "5", *PATIENT, *slow)
        with started(*asked, launcher=launcher, ranks=2, env=fault(rank, FAULT_FILE=str(go))) as process:
            process.wait_for(process.out, f"rank {rank} has been computing in epoch 2")
            go.touch()
            result = process.finish(SOON)
        assert result.code == 0, result
        said = [line for line in result.out.splitlines() if line.startswith("sancus: waiting for ")]
        place = rf": rank {rank} has been computing in epoch 2, after collective \d+, .* for \d+ s$"
        assert len([line for line in said if re.search(place, line)]) == 1, "it is said once"
        assert f"sancus: rank {rank} is back; the run goes on" in result.out, result
        assert len(metrics(out)) == 5
    record("a slow rank", f"{launcher} {backend}", count, count)
