"""`--schedule async` from the command line: what it leaves, going on, what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import sancus
from sancus.config.resolve import make_config
from sancus.errors import UserError
from sancus.runs.layout import parts_needed
from tests.helpers.command import run

GRAPH = "synthetic:nodes=120,features=8,classes=3,degree=6,seed=2"
RANKS, EPOCHS = 3, 8
FLAGS = (GRAPH, "--preset", "digest-a:2", "--hidden", "6", "--quiet")


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def check_log(out: Path, merges: int) -> None:
    """Merges are numbered, every rank's steps too, and no base is younger than its merge."""
    log = lines(out / "logs" / "merges.jsonl")
    assert [row["merge"] for row in log] == list(range(1, merges + 1))
    for rank in range(RANKS):
        own = [row for row in log if row["rank"] == rank]
        assert [row["step"] for row in own] == list(range(len(own)))
    assert all(row["base"] < row["merge"] for row in log)


@pytest.mark.slow
def test_a_run_leaves_its_files_and_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "run"
    flags = (*FLAGS, "--checkpoint-every", "3", "--eval-every", "2")
    begun = run("train", *flags, "--epochs", "5", "--out", out, launcher="local", ranks=RANKS)
    assert begun.code == 0, begun
    check_log(out, 5 * RANKS)
    resumed = run("train", "--resume", out, "--epochs", str(EPOCHS), launcher="local", ranks=RANKS)
    assert resumed.code == 0 and "cold" not in resumed.out, resumed
    check_log(out, EPOCHS * RANKS)
    records = lines(out / "metrics.jsonl")
    assert [record["epoch"] for record in records] == list(range(EPOCHS))
    assert [record["val"] is None for record in records] == [epoch in (0, 2, 6) for epoch in range(EPOCHS)]
    times = [record["trained_seconds"] for record in records]
    assert times == sorted(times)
    schedule = json.loads((out / "run.json").read_text())["schedule"]
    assert schedule["merges"] == sum(schedule["steps"]) == EPOCHS * RANKS
    assert sum(count for _, count in schedule["weight_delays"]) == EPOCHS * RANKS
    bill = json.loads((out / "run.json").read_text())["communication"]
    assert bill["total"]["parameter_bytes"] > 0


@pytest.mark.slow
def test_time_ends_a_run_with_a_whole_epoch(tmp_path: Path) -> None:
    out = tmp_path / "run"
    limits = ("--seconds", "0.001", "--epochs", "500", "--merge", "gradient", "--max-delay", "1")
    done = run("train", *FLAGS, *limits, "--out", out, launcher="local", ranks=RANKS)
    assert done.code == 0, done
    log = lines(out / "logs" / "merges.jsonl")
    assert len(log) % RANKS == 0 and 0 < len(log) < 500 * RANKS
    records = lines(out / "metrics.jsonl")
    assert len(records) == len(log) // RANKS and records[-1]["test"] is not None


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"parameters": "sum"}, "--parameters sum: ranks of --schedule async step for themselves"),
    ({"staleness": "always"}, "--staleness always: ranks of --schedule async have no epoch in common"),
    ({"backward": "always"}, "--backward always: nobody waits for gradients"),
    ({"label_rate": 0.5}, "--label-rate 0.5"),
    ({"patience": 5}, "--patience 5"),
    ({"norm": "batch"}, "--norm batch"),
]


@pytest.mark.parametrize("flags, message", REFUSED, ids=str)
def test_what_has_no_meaning_without_a_barrier_is_refused(flags: dict[str, Any], message: str) -> None:
    config = make_config(preset="digest-a:3", **flags)
    with pytest.raises(UserError, match=message) as refusal:
        parts_needed(config, 2)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "flags, message",
    [
        ({"max_delay": -1}, "--max-delay -1: must not be negative"),
        ({"seconds": -2.0}, "--seconds -2: must be a number"),
        ({"seconds": float("nan")}, "--seconds nan: must be a number"),
        ({"preset": "digest", "merge": "gradient"}, "--merge gradient: only --schedule async has it"),
        ({"max_delay": 3}, "--max-delay 3: only --schedule async has it"),
        ({"preset": "digest-a:0"}, "preset 'digest-a:0' does not exist"),
    ],
    ids=str,
)
def test_numbers_that_are_none_are_refused(flags: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_config(**flags)


def test_zeromq_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sancus.training.asynchronous.importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pyzmq is not installed; pip install 'sancus\[async\]'"):
        parts_needed(make_config(preset="digest-a"), 2)
    assert parts_needed(make_config(preset="digest-a"), 1) == 1


def test_a_refusal_comes_before_any_rank_starts() -> None:
    refused = run("train", GRAPH, "--schedule", "async", "--ranks", "2")
    assert (refused.code, refused.err.count("\n")) == (2, 1), refused


@pytest.fixture(scope="module", params=["delta", "gradient"])
def finished(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with dropout, attention, a codec that draws, and a stop in between."""
    out = tmp_path_factory.mktemp("replayed") / "run"
    model = ("--model", "gat", "--heads", "2", "--attention-dropout", "0.3", "--codec", "int4")
    how = (*FLAGS, *model, "--merge", request.param, "--checkpoint-every", "3")
    done = run("train", *how, "--epochs", "4", "--out", out, launcher="local", ranks=RANKS)
    resumed = run("train", "--resume", out, "--epochs", "6", launcher="local", ranks=RANKS)
    assert (done.code, resumed.code) == (0, 0), (done, resumed)
    return out


@pytest.mark.slow
def test_a_replay_gives_the_same_weights_bit_for_bit(finished: Path) -> None:
    replayed = run("replay", finished)
    assert replayed.code == 0, replayed
    line = f"{6 * RANKS} merges of {RANKS} ranks: the same weights after each, bit for bit"
    assert replayed.out.strip() == f"{line}; the checkpoint holds them", replayed
    found = sancus.replay(finished)
    assert found.same and found.merges == 6 * RANKS and found.weights


@pytest.mark.slow
def test_the_first_merge_that_differs_is_named(finished: Path, tmp_path: Path) -> None:
    other = tmp_path / "run"
    shutil.copytree(finished, other)
    path = other / "logs" / "merges.jsonl"
    rows = lines(path)
    rows[-2]["base"] -= 1  # other weights than the step began with
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    told = run("replay", other)
    assert told.code == 1 and f"merge {len(rows) - 1} is the first that differs" in told.out, told


@pytest.mark.slow
def test_what_cannot_be_replayed_is_refused(finished: Path, tmp_path: Path) -> None:
    other = tmp_path / "run"
    shutil.copytree(finished, other)
    path = other / "logs" / "merges.jsonl"
    whole = path.read_text().splitlines(keepends=True)
    for content, message in (
        ("".join([*whole[:4], "{nonsense\n", *whole[5:]]), "line 5 is damaged"),
        ("".join(whole[:4] + whole[5:]), "has no line of merge 5"),
        ("", "has no merges"),
    ):
        path.write_text(content)
        told = run("replay", other)
        assert (told.code, told.err.count("\n")) == (2, 1) and message in told.err, told
    path.unlink()
    told = run("replay", other)
    assert told.code == 2 and "give the --out directory of an async run" in told.err, told
