"""A SIGTERM while a process becomes another, or has nobody yet to pass it on to: none is lost."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.helpers.command import Process, Result, environment
from tests.helpers.strike import LONG, SOON

pytestmark = pytest.mark.slow
ALL_ENDED = "sancus: interrupted by SIGTERM; all ranks were ended\n"
NONE_STARTED = "sancus: interrupted by SIGTERM; no rank was started\n"


def meet(window: str, tmp_path: Path, *flags: str) -> Result:
    """Two ranks that would train for ever, and a signal in this window."""
    words = (*LONG, "--ranks", "2", "--out", str(tmp_path / "run"), *flags)
    command = [sys.executable, "-m", "tests.launch.windows", window, "sancus", *words]
    ours = environment({"SANCUS_HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path)})
    process = Process(command, ours, tmp_path, tmp_path)
    try:
        return process.finish(SOON)
    finally:
        process.kill()


@pytest.mark.parametrize("place", [0, 1])
def test_a_signal_while_ranks_are_forked_ends_all(place: int, tmp_path: Path) -> None:
    result = meet(f"fork:{place}", tmp_path)
    assert (result.code, result.err) == (143, ALL_ENDED), result


def test_a_signal_while_ranks_are_forked_again_ends_all(tmp_path: Path) -> None:
    model = ("--model", "tests.launch.plugins:LeavesThenHangs", "--restarts", "1")
    result = meet("fork:2", tmp_path, *model)
    assert result.code == 143, result
    assert result.err.endswith(f"sancus: starting again, 1 of 1\n{ALL_ENDED}"), result


def test_a_signal_to_a_rank_that_has_just_been_forked_ends_it(tmp_path: Path) -> None:
    result = meet("child", tmp_path)
    assert result.code == 1, result
    assert " was killed by SIGTERM; all ranks were ended\n" in result.err, result


@pytest.mark.parametrize("window", ["exec", "launcher:sancus.cli.app", "launcher:sancus.runs.session"])
def test_a_signal_to_a_launcher_without_ranks_yet_ends_it(window: str, tmp_path: Path) -> None:
    result = meet(window, tmp_path)
    assert (result.code, result.err) == (143, NONE_STARTED), result


@pytest.mark.parametrize("window", ["command:sancus.cli.app", "command:sancus.runs.check", "shards"])
def test_a_signal_before_ranks_are_started_is_answered(window: str, tmp_path: Path) -> None:
    result = meet(window, tmp_path)
    assert (result.code, result.err) == (143, "sancus: interrupted by SIGTERM\n"), result
    left = [path.name for path in tmp_path.glob("home/shards/*") if path.suffix != ".lock"]
    assert left == [], "half of the shards are left"
