"""Snippets of README and tutorials, and the notebooks: each is run as a reader runs it, on small data."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.command import TIMEOUT, TOP, environment
from tests.helpers.notebook import contents, kernel, run_cell
from tests.helpers.walk import furnish, walk

pytestmark = pytest.mark.slow

NOTEBOOKS = sorted((TOP / "docs/notebooks").glob("*.ipynb"))


def snippets(page: str) -> str:
    """The Python of a page, in order, with few ranks and epochs; files that it shows are no snippets."""
    blocks = re.findall(r"```python\n(.*?)```", (TOP / page).read_text(), re.S)
    code = "\n".join(block for block in blocks if not re.match(r'"""\w+\.py:', block))
    return re.sub(r"epochs=\d+", "epochs=3", code.replace("ranks=4", "ranks=2"))


@pytest.mark.parametrize("page", ["README.md", "docs/tutorials/pyg.md", "docs/tutorials/tables.md"])
def test_a_page_of_python_and_commands(page: str, tmp_path: Path) -> None:
    if page.endswith("pyg.md"):
        pytest.importorskip("torch_geometric")
    script = tmp_path / "snippets.py"
    script.write_text(snippets(page))
    if page.endswith("tables.md"):
        furnish(tmp_path, page)
    done = subprocess.run(
        [sys.executable, str(script)],
        env=environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    if page == "README.md":
        return
    folder = tmp_path / "commands"
    folder.mkdir()
    if (tmp_path / "runs").exists():
        (folder / "runs").symlink_to(tmp_path / "runs")
        (folder / "snippets.py").symlink_to(script)
    ended = [(str(command), result) for command, result in walk(page, folder)]
    assert ended
    for command, result in ended:
        assert result.code == 0, f"{command}\n{result}"
    if page.endswith("tables.md"):
        lines = (folder / "answers.csv").read_text().splitlines()
        assert len(lines) == 9 and any(line.startswith("hal,") for line in lines)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom(notebook: Path, tmp_path: Path) -> None:
    cells = json.loads(notebook.read_text())["cells"]
    with kernel(tmp_path) as (_manager, client):
        for cell in cells:
            if cell["cell_type"] == "code":
                code = "".join(cell["source"])
                assert cell["outputs"] == [] and cell["execution_count"] is None
                messages = run_cell(client, code)
                assert contents(messages, "error") == [], code


def test_there_are_three_notebooks() -> None:
    assert len(NOTEBOOKS) == 3
