"""Files of the version before: its shards, runs and checkpoints are read, resumed and reported as by itself.

What they are is in `tests/fixtures/before/README.md`. Other processors round differently, so numbers are
compared with a tolerance; decisions and counts are equal. The epochs that a run under drift goes on with are
those of today: what that version decided hung on when it evaluated.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.helpers.command import TOP, losses, metrics, read_run, run

BEFORE = TOP / "tests" / "fixtures" / "before"
TOLERANCE = 1e-9
SMALL = 1_500_000  # bytes
pytestmark = pytest.mark.slow


@pytest.fixture
def before(tmp_path: Path) -> Path:
    """A copy of everything: resuming writes into a run."""
    return Path(shutil.copytree(BEFORE, tmp_path / "before"))


def expected(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((BEFORE / name / "expected.json").read_text())
    today: dict[str, Any] = json.loads((BEFORE / "drift.json").read_text())
    return content | today.get(name, {})


def assert_same_epochs(directory: Path, name: str, but: Mapping[tuple[int, str], int] | None = None) -> None:
    """Everything that was recorded of an epoch, but for clocks; `but` are other figures of some epochs."""
    wanted = expected(name)["epochs"]
    for (epoch, key), value in (but or {}).items():
        wanted[epoch][key] = value
    assert [epoch["epoch"] for epoch in metrics(directory)] == [epoch["epoch"] for epoch in wanted]
    for ours, theirs in zip(metrics(directory), wanted, strict=True):
        for key, value in theirs.items():
            same = value if value is None else pytest.approx(value, rel=TOLERANCE)
            assert ours[key] == same, (ours["epoch"], key)


def test_fixtures_are_small_and_name_no_machine() -> None:
    files = [path for path in BEFORE.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < SMALL
    texts = [path for path in files if path.suffix in (".json", ".jsonl", ".log", ".md")]
    assert not [path for path in texts if "/home/" in path.read_text() or "/tmp/" in path.read_text()]


def test_old_shards_train(before: Path, tmp_path: Path) -> None:
    """With the settings of the run that was killed, and so with its numbers; here the input crosses once."""
    config = ("--config", before / "run-pipelined" / "run.json", "--out", tmp_path / "run")
    result = run("train", before / "shards-2", *config)
    assert result.code == 0, result
    once = expected("run-pipelined")["epochs"][1]
    others = {(4, key): once[key] for key in ("wire_bytes", "raw_bytes")}
    assert_same_epochs(tmp_path / "run", "run-pipelined", others)


@pytest.mark.parametrize("name", ["run-stopped", "run-pipelined"])
def test_a_run_that_was_killed_resumes(name: str, before: Path) -> None:
    result = run("train", before / "shards-2", "--resume", before / name)
    assert result.code == 0 and "resumed from" in result.out, result
    assert "cold" not in result.out, "histories go on where they were"
    assert_same_epochs(before / name, name)
    best = read_run(before / name)["result"]
    assert {key: best[key] for key in expected(name)["result"]} == pytest.approx(expected(name)["result"])
    decisions = np.load(before / name / "decisions.npz")["decisions"]
    assert decisions.tolist() == expected(name)["decisions"]


def test_a_resumed_run_ends_with_the_weights_of_one_that_was_not_killed(before: Path, tmp_path: Path) -> None:
    """From the folder where it was started, as `run.json` names its data; into another directory."""
    settings = ("--config", "run-pipelined/run.json", "--out", tmp_path / "whole")
    for words in (("--resume", "run-pipelined", "--out", tmp_path / "new"), ("shards-2", *settings)):
        result = run("train", *words, cwd=before)
        assert result.code == 0, result
    place = Path("checkpoint") / "epoch-00000006" / "weights.safetensors"
    ours, whole = load_file(tmp_path / "new" / place), load_file(tmp_path / "whole" / place)
    assert ours.keys() == whole.keys()
    for name, weight in whole.items():
        np.testing.assert_allclose(ours[name], weight, rtol=TOLERANCE, atol=1e-12, err_msg=name)
    for file in ("run.json", "metrics.jsonl"):
        left = (before / "run-pipelined" / file).read_bytes()
        assert left == (BEFORE / "run-pipelined" / file).read_bytes(), "what was resumed elsewhere is left"


def test_a_finished_run_goes_on(before: Path, tmp_path: Path) -> None:
    flags = ("--resume", before / "run-finished", "--epochs", "8", "--out", tmp_path / "longer")
    result = run("train", before / "shards-2", *flags)
    assert result.code == 0 and "cold" not in result.out, result
    assert losses(tmp_path / "longer") == pytest.approx(
        expected("run-finished")["longer-loss"], rel=TOLERANCE
    )


@pytest.mark.parametrize(
    ("name", "flags"), [("run-finished", ("--data", "shards-2", "--ranks", "2")), ("run-1rank", ())]
)
def test_a_finished_run_is_evaluated(name: str, flags: tuple[str, ...], before: Path) -> None:
    result = run("evaluate", name, *flags, cwd=before)
    assert result.code == 0, result
    assert result.out.splitlines() == expected(name)["evaluate"], result


def test_a_finished_run_predicts(before: Path, tmp_path: Path) -> None:
    result = run("predict", before / "run-1rank", "--out", tmp_path / "out.npz")
    assert result.code == 0, result
    with (
        np.load(tmp_path / "out.npz") as ours,
        np.load(BEFORE / "run-1rank" / "predictions-expected.npz") as theirs,
    ):
        assert set(ours.files) == set(theirs.files)
        np.testing.assert_array_equal(ours["predictions"], theirs["predictions"])
        for name in ("embeddings", "logits"):  # in single precision
            np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-4, atol=1e-5, err_msg=name)


def test_old_runs_are_reported(before: Path, tmp_path: Path) -> None:
    """A run that ended, one that was killed, one of a single rank, together."""
    runs = [before / name for name in ("run-finished", "run-stopped", "run-1rank")]
    result = run("report", *runs, "--out", tmp_path / "report.html")
    assert result.code == 0, result
    page = (tmp_path / "report.html").read_text()
    assert page.lstrip().lower().startswith("<!doctype html") and "variation-gap" in page
