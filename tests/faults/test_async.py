"""Faults of ranks that wait for nobody: one is killed, one is stopped, one meets what is no number."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.faults.counts import at_most
from tests.helpers.command import run, started
from tests.helpers.strike import assert_all_gone, children_of, ranks_of

RANKS = 3
DEADLINE = 600.0
GRAPH = "synthetic:nodes=120,features=8,classes=3,degree=6,seed=2"
LONG = ("train", GRAPH, "--preset", "digest-a:2", "--hidden", "6", "--epochs", "1000000", "--quiet")


def merges(out: Path) -> list[dict[str, Any]]:
    """The log so far; a line that is being written is left out."""
    path = out / "logs" / "merges.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not true():
        assert time.monotonic() < deadline, "it never comes"
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize("rank", range(at_most(1, RANKS)))
def test_a_killed_rank_is_named_and_the_run_goes_on_from_its_checkpoint(tmp_path: Path, rank: int) -> None:
    """The first one is the one that merges."""
    out = tmp_path / "run"
    for _ in range(at_most(1, 7)):
        flags = (*LONG, "--checkpoint-every", "3", "--eval-every", "3", "--out", out, "--overwrite")
        with started(*flags, launcher="local", ranks=RANKS) as process:
            process.wait_for(out / "metrics.jsonl", '"epoch": 5')
            children = children_of(process.pid)
            os.kill(ranks_of(process.pid)[rank], signal.SIGKILL)
            ended = process.finish(DEADLINE)
            assert_all_gone(children)
        assert ended.code != 0 and f"rank {rank} was killed by SIGKILL" in ended.err, ended
        resumed = run("train", "--resume", out, "--seconds", "0.001", launcher="local", ranks=RANKS)
        assert resumed.code == 0, resumed
        log = merges(out)
        assert [row["merge"] for row in log] == list(range(1, len(log) + 1))
        replayed = run("replay", out)
        assert replayed.code == 0, replayed


@pytest.mark.slow
def test_a_stopped_rank_holds_nobody_up(tmp_path: Path) -> None:
    """The others go on without it; woken up, it goes on too, and a signal ends all of them in good order."""
    out = tmp_path / "run"
    with started(*LONG, "--eval-every", "100000", "--out", out, launcher="local", ranks=RANKS) as process:
        wait_until(lambda: {row["rank"] for row in merges(out)} == set(range(RANKS)))
        stopped = ranks_of(process.pid)[1]
        os.kill(stopped, signal.SIGSTOP)
        before = len(merges(out))  # what it had sent may still be merged
        wait_until(lambda: len(merges(out)) > before + 60)
        others = [row["rank"] for row in merges(out)[before:]]
        assert {0, 2} <= set(others) and others.count(1) <= 1
        os.kill(stopped, signal.SIGCONT)
        after = len(merges(out))
        wait_until(lambda: any(row["rank"] == 1 for row in merges(out)[after:]))
        os.kill(process.pid, signal.SIGTERM)
        ended = process.finish(DEADLINE)
    assert ended.code == 128 + signal.SIGTERM and "go on with" in ended.err, ended
    log = merges(out)
    assert len(log) % RANKS == 0
    resumed = run("train", "--resume", out, "--seconds", "0.001", launcher="local", ranks=RANKS)
    assert resumed.code == 0 and len(merges(out)) >= len(log), resumed


@pytest.mark.slow
def test_a_loss_that_is_no_number_stops_all_ranks_with_one_line(tmp_path: Path) -> None:
    flags = ("--lr", "1e30", "--optimizer", "sgd", "--out", tmp_path / "run")
    ended = run(*LONG, *flags, launcher="local", ranks=RANKS)
    assert ended.code == 2 and "lower --lr" in ended.err, ended
