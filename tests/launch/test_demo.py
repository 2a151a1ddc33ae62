"""`sancus demo`, and the completion of a shell."""

from __future__ import annotations

from pathlib import Path

import pytest

from sancus.cli import demo
from tests.helpers.command import run

ROW = {"preset": "cagnet", "all_bytes": {"mean": 100.0}, "test": {"mean": 0.8}}


def test_a_conclusion_is_held_against_the_first_row() -> None:
    lines = demo.conclusion([ROW, {"preset": "lean", "all_bytes": {"mean": 4.0}, "test": {"mean": 0.795}}])
    assert lines[0] == (
        "lean sent 25.0 times fewer bytes in all than cagnet, and is -0.5 points of test accuracy from it"
    )


@pytest.mark.slow
def test_the_demo_ends_with_one_page(tmp_path: Path) -> None:
    (tmp_path / "runs/demo").mkdir(parents=True)  # the name is taken: the next one is
    result = run("demo", cwd=tmp_path)
    assert result.code == 0, result
    assert (tmp_path / "runs/demo-2/report.html").stat().st_size > 1_000_000
    assert "times fewer bytes in all than cagnet" in result.out and not list(
        (tmp_path / "runs/demo").iterdir()
    )


def test_completion_knows_verbs_and_flags(tmp_path: Path) -> None:
    result = run("--install-completion", env={"HOME": str(tmp_path), "SHELL": "/bin/bash"})
    assert result.code == 0, result
    (script,) = (tmp_path / ".local/share/bash-completion/completions").iterdir()
    text = script.read_text()
    assert "train" in text and "--staleness" in text
