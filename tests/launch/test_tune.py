"""`sancus tune` for real, on a tiny graph: it ends in a command that trains, and goes on where it was."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

import sancus
from sancus.advise import candidates
from tests.helpers.command import metrics, run

GRAPH = "synthetic:nodes=200,features=8,classes=3,degree=6"
FLAGS = ("--hidden", "4", "--epochs", "6", "--ranks", "2", "--seeds", "1", "--objective", "bytes")
pytestmark = pytest.mark.slow


def test_a_search_ends_in_a_command_and_finds_its_own_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "tuned"
    searched = run("tune", GRAPH, *FLAGS, "--within", "100", "--out", out, cwd=tmp_path)
    assert searched.code == 0, searched
    assert "chosen" in searched.out and (out / "report.html").stat().st_size > 100_000
    record = json.loads((out / "tune.json").read_text())
    (best,) = [row for row in record["candidates"] if row["name"] == record["chosen"]]
    assert best["bytes"] == min(row["bytes"] for row in record["candidates"]), "any score was good enough"
    assert len(metrics(out / f"{best['name']}-seed0")) == 6
    command = shlex.split(searched.out.strip().splitlines()[-1].partition("train with: ")[2])
    done = run(*command[1:], "--out", tmp_path / "run", cwd=tmp_path)
    assert done.code == 0, done
    monkeypatch.setattr(candidates, "PRESETS", ("partition-only",))
    monkeypatch.setattr(candidates, "CODECS", {})
    monkeypatch.setattr(candidates, "AGES", {})
    flags = {"hidden": 4, "epochs": 6, "quiet": True}
    found = sancus.tune(GRAPH, 2, out, within=100, objective="bytes", seeds=1, **flags)
    assert found.settings == record["settings"] == {"preset": "partition-only"}


def test_what_the_search_sets_itself_is_refused(tmp_path: Path) -> None:
    for flags, said in (
        (("--preset", "lean"), "--preset: sancus tune sets it itself"),
        ((), "--out is missing"),
    ):
        out = ("--out", str(tmp_path / "x")) if flags else ()
        result = run("tune", GRAPH, "--ranks", "2", *flags, *out, cwd=tmp_path)
        assert result.code == 2 and said in result.err, result
