"""The walk of one command (docs/design.md): from `sancus train` to the model no module is visited twice."""

from __future__ import annotations

from itertools import groupby

import pytest

from tests.helpers.command import run

pytestmark = pytest.mark.slow
GRAPH = "synthetic:nodes=120,features=8,classes=3,degree=4"


def test_the_walk_returns_to_no_module() -> None:
    """A module that calls another is not called again below it, nor is a room that was left entered again.

    A rank runs the same command that was typed, as under torchrun: the launcher's frames below it are not its
    own walk.
    """
    flags = ["--ranks", "2", "--epochs", "1", "--model", "tests.launch.plugins:NamesItsCallers"]
    result = run("train", GRAPH, *flags, fresh=True)
    assert result.code == 0, result
    (line,) = [line for line in result.out.splitlines() if line.startswith("callers ")]
    calls = [module for module in line.split()[1:] if module.startswith("sancus.")]
    calls = calls[calls.index("sancus.cli.app") :]
    walk = [module for module, _ in groupby(calls)]
    assert "sancus.training.step" in walk, walk
    assert len(set(walk)) == len(walk), walk
    rooms = [room for room, _ in groupby(module.split(".")[1] for module in walk)]
    assert len(set(rooms)) == len(rooms), rooms
