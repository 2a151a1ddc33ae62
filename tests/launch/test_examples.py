"""The examples of the documentation, as a person starts them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.helpers.command import TIMEOUT, TOP, environment, home, program, read_run, run

EXAMPLES = TOP / "examples"
SMALL = ("synthetic:nodes=200", "--epochs", "3", "--hidden", "8", "--quiet")


def test_a_model_of_ones_own(tmp_path: Path) -> None:
    spec = f"{EXAMPLES / 'my_model.py'}:Net"
    result = run("train", *SMALL, "--model", spec, "--out", tmp_path / "run", launcher="local", ranks=2)
    assert result.code == 0, result
    assert read_run(tmp_path / "run")["config"]["model"] == spec


def test_pyg_layers(tmp_path: Path) -> None:
    pytest.importorskip("torch_geometric")
    spec = f"{EXAMPLES / 'pyg_model.py'}:Net"
    result = run("train", *SMALL, "--model", spec, "--out", tmp_path / "run", launcher="local", ranks=2)
    assert result.code == 0, result


def test_a_loop_of_ones_own() -> None:
    command = [program("torchrun"), "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    command += ["--nproc-per-node", "2", str(EXAMPLES / "own_loop.py"), "synthetic:nodes=200"]
    done = subprocess.run(
        command, env=environment(), cwd=home(), capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"2 ranks: accuracy on test 0\.\d+", done.stdout), done.stdout


def test_the_documentation_shows_these_files() -> None:
    page = (TOP / "docs" / "models.md").read_text()
    for name in ("my_model.py", "pyg_model.py", "own_loop.py"):
        assert (EXAMPLES / name).read_text().split('"""\n', 1)[1].strip() in page, name
