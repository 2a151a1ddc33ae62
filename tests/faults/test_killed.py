"""kill -9 of any rank at any moment: the run goes on from its last checkpoint, and ends as if nothing was."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from sancus.comm.group import Group
from tests.faults.counts import at_most, only_in_full
from tests.faults.record import record
from tests.faults.sessions import GRAPH, assert_same, train
from tests.helpers.command import Launcher, Process, started
from tests.helpers.processes import run_ranks
from tests.helpers.strike import assert_all_gone, children_of, ranks_of

EPOCHS = 120
FACTORS = ("--preset", "pipegcn", "--codec", "int8", "--error-feedback")
WORK = (GRAPH, "--hidden", "8", "--threads", "1", "--checkpoint-every", "10", *FACTORS)
STALE = (*WORK, "--epochs", str(EPOCHS))
LATEST = 2.0  # seconds after its start until which a rank is left alone at most, if it is killed early
DEADLINE = 900.0


def undisturbed(group: Group, out: Path) -> None:
    train(group, *STALE, "--out", out)


def kill_often(
    process: Process, metrics: Path, kills: int, ranks: int, seed: int
) -> tuple[list[float], set[int]]:
    """Kill random ranks at random moments until there were so many, or the run is about to end.

    Every other time a rank is killed soon after its start, else in the middle of training. Gives the seconds
    from each kill until all ranks were started anew, and all processes that were seen.
    """
    draws, seconds, seen = random.Random(seed), list[float](), set[int]()
    deadline = time.monotonic() + DEADLINE
    before, killed, moment = dict[int, int](), 0.0, None
    while process.alive():
        assert time.monotonic() < deadline, process.finish(0)
        time.sleep(0.05)
        now = ranks_of(process.pid)
        if len(now) < ranks or set(now.values()) & set(before.values()):
            continue
        seen |= children_of(process.pid)
        if killed:
            seconds.append(time.monotonic() - killed)
            killed, moment = 0.0, None
        if len(seconds) == kills:
            continue
        epochs = len(metrics.read_text().splitlines()) if metrics.exists() else 0
        if moment is None:
            early = len(seconds) % 2
            moment = (
                time.monotonic() + draws.uniform(0, LATEST),
                0 if early else epochs + draws.randint(1, 30),
            )
        if epochs < EPOCHS - 10 and time.monotonic() > moment[0] and epochs >= moment[1]:
            target = now[draws.randrange(ranks)]
            if target in children_of(process.pid):
                os.kill(target, signal.SIGKILL)
                killed, before = time.monotonic(), now
    return seconds, seen


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("launcher", "backend", "ranks", "sample", "full"),
    [
        ("local", "gloo", 3, 2, 50),
        ("torchrun", "gloo", 2, 1, 20),
        pytest.param("local", "mpi", 2, 1, 50, marks=[pytest.mark.mpi, only_in_full()]),
    ],
    ids=["gloo", "torchrun", "mpi"],
)
def test_killed_ranks_do_no_harm(
    launcher: Launcher, backend: str, ranks: int, sample: int, full: int, tmp_path: Path
) -> None:
    run_ranks(f"{__name__}:undisturbed", ranks, backend=backend, out=tmp_path / "undisturbed")
    flags = ("train", *STALE, "--backend", backend)
    restarts = ["--restarts", "100"] if launcher == "local" else []
    seconds: list[float] = []
    for number in range(1000):
        out, wanted = tmp_path / str(number), min(5, at_most(sample, full) - len(seconds))
        if wanted <= 0:
            break
        options = ("--max-restarts", "100") if launcher == "torchrun" else ()
        command = (*flags, *restarts, "--out", out)
        with started(*command, launcher=launcher, ranks=ranks, options=options) as process:
            took, seen = kill_often(process, out / "metrics.jsonl", wanted, ranks, seed=number)
            result = process.finish(DEADLINE)
        assert result.code == 0, result
        assert_same(out, tmp_path / "undisturbed")
        assert_all_gone(seen)
        if launcher == "local":
            assert result.err.count("sancus: starting again") == len(took), result
        if launcher == "local" and backend == "gloo":
            assert result.err.count(" was killed by SIGKILL; all ranks were ended") == len(took), result
        seconds += took
    assert len(seconds) >= at_most(1, full)
    record(f"kill -9 of a rank at a random moment ({launcher})", backend, len(seconds), len(seconds), seconds)
