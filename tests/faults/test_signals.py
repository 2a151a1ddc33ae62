"""Signals that ask a run to end: one checkpoint, the right exit code, and a command that really goes on."""

from __future__ import annotations

import os
import shlex
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sancus.comm.alone import Alone
from sancus.comm.group import Group
from tests.faults.counts import everything, only_in_full
from tests.faults.greedy import MARK
from tests.faults.record import record
from tests.faults.sessions import GRAPH, assert_same, newest
from tests.faults.test_killed import EPOCHS, STALE, undisturbed
from tests.helpers.command import Launcher, Process, losses, run, started
from tests.helpers.processes import run_ranks
from tests.helpers.strike import SOON, assert_all_gone, children_of, ranks_of

pytestmark = pytest.mark.slow
TERM, INT, USR1, HUP = signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP
CODES = {TERM: 143, INT: 130, USR1: 143, HUP: 129}
HOW: dict[str, tuple[Launcher | None, str, int]] = {
    "gloo": ("local", "gloo", 2),
    "mpi": ("local", "mpi", 2),
    "torchrun": ("torchrun", "gloo", 2),
    "alone": (None, "auto", 1),
}
SAMPLE = [("gloo", USR1), ("gloo", HUP)]
ALL = [*((how, number) for how in ("gloo", "mpi", "alone") for number in CODES), ("torchrun", TERM)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs that nobody stopped."""
    folder = tmp_path_factory.mktemp("whole")
    run_ranks("tests.faults.test_killed:undisturbed", 2, out=folder / "two")
    undisturbed(Group(Alone()), folder / "one")
    return {how: folder / ("one" if how == "alone" else "two") for how in HOW}


def cases() -> Iterator[object]:
    for how, number in ALL if everything() else SAMPLE:
        marks = [pytest.mark.mpi] if how == "mpi" else []
        yield pytest.param(how, number, marks=marks, id=f"{how}-{number.name}")


@pytest.mark.usefixtures("hangups_count")
@pytest.mark.parametrize(("how", "number"), list(cases()))
def test_a_signal_saves_the_work(
    how: str, number: signal.Signals, whole: dict[str, Path], tmp_path: Path
) -> None:
    launcher, backend, ranks = HOW[how]
    out = tmp_path / "my run"
    flags = ("train", *STALE, "--backend", backend, "--out", out)
    with started(*flags, launcher=launcher, ranks=ranks) as process:
        process.wait_for(out / "metrics.jsonl", '"epoch": 13')
        processes = children_of(process.pid)
        os.kill(process.pid, number)
        struck = time.monotonic()
        result = process.finish(SOON)
        seconds = time.monotonic() - struck
        assert_all_gone(processes)
    assert "Traceback" not in result.err or launcher == "torchrun", result
    (line,) = [line for line in result.err.splitlines() if line.startswith("sancus: stopped by ")]
    done = len(losses(out))
    assert 13 < done < EPOCHS and newest(out).name == f"epoch-{done:08d}", result
    command = f"sancus train --resume {shlex.quote(str(out))}"
    as_before = ", started by torchrun as before" if launcher == "torchrun" else ""
    assert line == f"sancus: stopped by {number.name} after epoch {done}; go on with: {command}{as_before}"
    if launcher != "torchrun":  # which has an exit code of its own
        assert result.code == CODES[number], result
    again = run(*shlex.split(command)[1:], launcher="torchrun" if as_before else None, ranks=ranks)
    assert again.code == 0 and "histories start cold" not in again.out, again
    assert_same(out, whole[how])
    record(f"{number.name} to the launcher, then the printed command", how, 1, 1, [seconds])


def test_a_second_interrupt_ends_ranks_that_cannot_stop(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with started("train", *STALE, "--out", out, launcher="local", ranks=2) as process:
        process.wait_for(out / "metrics.jsonl", '"epoch": 3')
        processes = children_of(process.pid)
        os.kill(ranks_of(process.pid)[1], signal.SIGSTOP)
        seconds = interrupt_until_it_ends(process)
        result = process.finish(SOON)
        assert_all_gone(processes)
    assert result.code == 130, result
    assert result.err == "sancus: interrupted by SIGINT; all ranks were ended\n", result
    record("a second SIGINT while a rank hangs", "gloo", 1, 1, [seconds])


@only_in_full()
def test_a_second_interrupt_ends_a_single_process(tmp_path: Path) -> None:
    model = ("--model", "tests.faults.greedy:Hangs")
    mark = tmp_path / "mark"
    with started("train", GRAPH, *model, "--out", tmp_path / "run", env={MARK: str(mark)}) as process:
        process.wait_for(mark, "I hang")
        seconds = interrupt_until_it_ends(process)
        result = process.finish(SOON)
    assert result.code == 130, result
    record("a second SIGINT while a rank hangs", "alone", 1, 1, [seconds])


def interrupt_until_it_ends(process: Process) -> float:
    """As an impatient user does; the seconds that it took."""
    begun = time.monotonic()
    while process.alive() and time.monotonic() < begun + SOON:
        os.kill(process.pid, signal.SIGINT)
        time.sleep(0.4)
    return time.monotonic() - begun
