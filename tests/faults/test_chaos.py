"""A sample of `make chaos`: disturbed runs end as if nothing had been, and a seed is a trial."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sancus.codecs import CODECS
from sancus.config.presets import PRESETS
from sancus.models import MODELS
from sancus.parameters import EXACT, PARAMETER_CODECS
from sancus.training import SCHEDULES
from tests.chaos.__main__ import passed
from tests.chaos.drawn import KINDS, NETWORK, SIGNALS, draw
from tests.chaos.table import summary
from tests.faults.counts import everything
from tests.helpers.command import TOP

SEEDS = range(1, 501)
# Short ones, with few ranks and without mpiexec, whose ranks import torch.
SAMPLE = [8, 9, 12, 18, 25, 27, 31, 41, 44, 49, 55, 57, 58, 65, 71, 77, 98, 101, 122, 131]


def test_a_seed_is_a_trial() -> None:
    for seed in SEEDS[:20]:
        assert draw(seed) == draw(seed) != draw(seed + 1)


def test_what_can_be_drawn_is_drawn() -> None:
    """Every entry of the tables, every signal and every kind of disturbance, within 500 seeds."""
    trials = [draw(seed) for seed in SEEDS]
    words = {word.partition(":")[0] for trial in trials for word in trial.flags}
    presets = {name for name in PRESETS if "batch_size" not in PRESETS[name].settings}
    assert {*presets, *MODELS, *CODECS, *PARAMETER_CODECS} - {"auto", EXACT, "digest-a"} <= words
    assert words >= {"full", "--batch-size", "gnnpipe"} and len(SCHEDULES) == 4  # all but async
    assert words >= {"--boundary-codec", "--stale-gradients", "labor"}
    assert {trial.backend for trial in trials if "--batch-size" in trial.flags} == {"gloo", "mpi"}
    assert {trial.backend for trial in trials if "--chunks" in trial.flags} == {"gloo", "mpi"}
    disturbances = [one for trial in trials for one in trial.disturbances]
    assert {one.kind for one in disturbances} == set(KINDS)
    assert {one.number for one in disturbances} == {0, *SIGNALS}
    assert {(trial.backend, trial.ranks) for trial in trials} >= {("gloo", 1), ("gloo", 4), ("mpi", 2)}
    assert {trial.cold for trial in trials} == {True, False}


@pytest.mark.slow
@pytest.mark.timeout(1600)
@pytest.mark.skipif(everything(), reason="make chaos runs all of it")
def test_disturbed_runs_end_as_if_nothing_had_been(tmp_path: Path) -> None:
    record = tmp_path / "record"
    command = [sys.executable, "-m", "tests.chaos", "--seeds", *map(str, SAMPLE), "--record", str(record)]
    done = subprocess.run(
        command,
        cwd=TOP,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        start_new_session=True,  # trials send signals to sessions
        timeout=1500,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = record.read_text().splitlines()
    reports = [json.loads(line) for line in lines]
    assert [report["seed"] for report in reports] == SAMPLE
    assert {report["outcome"] for report in reports} <= {"same", "unavailable"}, done.stdout
    met = [name for report in reports for name, reached in report["disturbances"] if reached]
    assert len(met) >= len(SAMPLE) // 2, done.stdout
    assert "20 trials, seeds 8-9, 12, 18, 25, " in "".join(summary(lines))


def test_a_record_says_which_seeds_are_left(tmp_path: Path) -> None:
    record = tmp_path / "record"
    assert passed(None) == passed(record) == set()
    lines = [(1, "same"), (2, "failed"), (3, "failed"), (3, "same"), (4, "same"), (4, "failed")]
    record.write_text("".join(json.dumps({"seed": seed, "outcome": how}) + "\n" for seed, how in lines))
    assert passed(record) == {1, 3}


def test_a_table_counts_the_last_try_of_a_seed() -> None:
    def line(seed: int, outcome: str, *disturbances: tuple[str, bool]) -> str:
        report = {"seed": seed, "outcome": outcome, "backend": "gloo", "ranks": 2, "processor_seconds": 1.0}
        return json.dumps(report | {"disturbances": disturbances})

    wrong, late, right = ("SIGTERM to all", True), (NETWORK[0], False), ("SIGTERM to all", True)
    lines = [line(1, "failed", wrong), line(2, "same", wrong, late), line(4, "unavailable", late)]
    head, _, *table = summary(lines)
    assert "3 trials, seeds 1-2, 4: **1 the same bit for bit, 1 not** (seeds 1), 0 refused" in head
    assert "1 not possible on this machine" in head and "2 × gloo (2)" in head
    assert table[2:] == ["| SIGTERM to all | 2 | 2 | 1 |", f"| {NETWORK[0]} | 1 | 0 | 1 |"]
    head, _, *table = summary([*lines, line(1, "same", right)])
    assert "**2 the same bit for bit, 0 not**, " in head and table[2] == "| SIGTERM to all | 2 | 2 | 2 |"
