"""The examples of the documentation, as a person starts them."""

from __future__ import annotations

import re
import subprocess
import sys
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


TORCHRUN = ("torchrun", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "--nproc-per-node", "2")
MPIEXEC = ("mpiexec", "-n", "2", sys.executable)


@pytest.mark.parametrize(
    "launcher", [TORCHRUN, pytest.param(MPIEXEC, marks=pytest.mark.mpi)], ids=lambda way: way[0]
)
def test_a_loop_of_ones_own(launcher: tuple[str, ...]) -> None:
    command = [program(launcher[0]), *launcher[1:], str(EXAMPLES / "own_loop.py"), "synthetic:nodes=200"]
    done = subprocess.run(
        command, env=environment(), cwd=home(), capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"2 ranks: accuracy on test 0\.\d+", done.stdout), done.stdout


LEAVES = """
import atexit
from sancus import api

group = api.join()
atexit.register(print, "in order\\n", end="", flush=True)
api.leave(group)
"""


@pytest.mark.mpi
def test_a_rank_of_mpi_that_leaves_is_not_lost(tmp_path: Path) -> None:
    """MPICH takes leave at a process's ordinary end; mpiexec kills the others with signal 9 without it."""
    (tmp_path / "leaves.py").write_text(LEAVES)
    command = [program("mpiexec"), "-n", "2", sys.executable, str(tmp_path / "leaves.py")]
    done = subprocess.run(
        command, env=environment(), cwd=home(), capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    assert (done.returncode, done.stdout) == (0, 2 * "in order\n"), done.stdout + done.stderr


def test_the_documentation_shows_these_files() -> None:
    page = (TOP / "docs" / "models.md").read_text()
    for name in ("my_model.py", "pyg_model.py", "own_loop.py"):
        assert (EXAMPLES / name).read_text().split('"""\n', 1)[1].strip() in page, name
