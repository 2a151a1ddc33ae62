"""`sancus compare`: several presets on the same data, and what it writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sancus.report.seconds import PARTS
from tests.helpers.command import run

DATA = "synthetic:nodes=300,features=12,classes=4,degree=8"
FLAGS = ("--ranks", "2", "--epochs", "6", "--hidden", "8")


def test_compare_runs_and_summarises(tmp_path: Path) -> None:
    out = tmp_path / "compared"
    presets = ("cagnet", "sancus-e:2")
    asked = ("--presets", *presets, "--seeds", "2", "--target", "0.01", "--out", out)
    result = run("compare", DATA, *asked, *FLAGS)
    assert result.code == 0, result
    content = json.loads((out / "compare.json").read_text())
    rows = {row["preset"]: row for row in content["rows"]}
    assert list(rows) == list(presets)
    assert rows["cagnet"]["wire_ratio"] == rows["cagnet"]["all_ratio"] == 1.0
    assert rows["sancus-e:2"]["forward_ratio"] == pytest.approx(2 / 6)
    assert rows["sancus-e:2"]["wire_ratio"] < rows["sancus-e:2"]["all_ratio"] < 1.0
    assert rows["sancus-e:2"]["history_bytes"]["mean"] > 0 and rows["sancus-e:2"]["max_age"]["mean"] == 2
    for row in rows.values():
        assert row["reached"] == 2 and row["epochs_to_target"] >= 1
        assert row["compute_seconds"]["mean"] > 0 and row["comm_seconds"]["mean"] > 0
        assert sum(row[part]["mean"] for part in PARTS) == pytest.approx(row["seconds"]["mean"])
        assert row["codec_error"] is None, "nothing is rounded"
        for seed, directory in enumerate(row["directories"]):
            written = json.loads((Path(directory) / "run.json").read_text())
            assert written["config"]["training"]["seed"] == seed
            assert written["config"]["shape"]["hidden"] == 8
    assert (out / "report.html").stat().st_size > 1_000_000 and f"open {out / 'report.html'}" in result.out
    for preset in presets:
        assert any(line.startswith(preset) and "±" in line for line in result.out.splitlines()), result
    head = next(line for line in result.out.splitlines() if line.startswith("preset"))
    assert head.index("all bytes/epoch") < head.index("fewer") < head.index("payload alone")
    fewer = 1 / rows["sancus-e:2"]["all_ratio"]
    assert any(line.startswith("sancus-e:2") and f"{fewer:.2f} ×" in line for line in result.out.splitlines())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--presets", "cagnet", "sancs-e"), "preset 'sancs-e' does not exist"),
        (("--presets", "sancus-e:9"), "sancus-e:1 to sancus-e:3"),
        (("--presets", "exact", "--seeds", "0"), "--seeds 0"),
        (("--presets", "exact", "--target", "90"), "--target 90"),
        (("--presets", "exact", "--staleness", "epoch-fixed:bound=-1"), "bound"),
        (("--presets", "exact", "--hiden", "8"), "--hidden"),
    ],
)
def test_mistakes_are_one_line_before_anything_runs(
    tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    result = run("compare", DATA, *arguments, "--out", tmp_path / "compared")
    assert result.code == 2, result
    assert words in result.err and len(result.err.splitlines()) == 1, result
    assert not list(tmp_path.iterdir()), result
