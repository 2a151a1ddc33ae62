"""Local ranks of a real script, a real interactive session and a real notebook's kernel."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import command
from tests.helpers.notebook import kernel, read_cell, run_cell
from tests.helpers.strike import children_of

pytestmark = pytest.mark.slow

CLASS = """
import os, torch, sancus
class Net(torch.nn.Module):
    def __init__(self, features, hidden, classes):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(features, classes) * 0.1)
    def forward(self, x, exchange):
        return exchange.propagate(x, 0, self.weight)

"""
LONG = "sancus.train('synthetic:nodes=120', Net, ranks=2, epochs=10**7, out={out!r})"


@pytest.fixture(scope="module")
def script(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Path, subprocess.CompletedProcess[str]]]:
    out = tmp_path_factory.mktemp("script") / "run"
    file = Path(__file__).with_name("program_script.py")
    done = subprocess.run(
        [sys.executable, str(file), str(out)],
        env=command.environment(),
        cwd=command.home(),
        capture_output=True,
        text=True,
        timeout=command.TIMEOUT,
    )
    return out, done


def facts_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    lines = [line for line in done.stdout.splitlines() if line.startswith("FACTS ")]
    assert lines, done.stdout + done.stderr
    facts: dict[str, Any] = json.loads(lines[0].removeprefix("FACTS "))
    return facts


def test_a_script_trains_on_local_ranks(script: tuple[Path, Any]) -> None:
    _out, done = script
    facts = facts_of(done)
    assert facts["logits"] == [120, 4] and facts["agree"] and facts["trained"]
    assert facts["epochs"] == [0, 1, 2] and len(facts["records"]) == 3
    assert facts["repr"].startswith("Result(accuracy") and len(facts["repr"]) < 200
    lines = [line for line in done.stdout.splitlines() if line.startswith("epoch ")]
    assert len(lines) == 3, "the quiet ones say nothing"


def test_it_leaves_the_files_of_a_run(script: tuple[Path, Any]) -> None:
    out, done = script
    run = command.read_run(out)
    assert run["hardware"]["ranks"] == 2 and run["config"]["preset"] == "lean", "as on the command line"
    assert command.losses(out) == facts_of(done)["records"]
    for file in ("report.html", "predictions.npz", "decisions.npz", "checkpoint"):
        assert (out / file).exists()


def test_an_error_on_a_rank_names_it(script: tuple[Path, Any]) -> None:
    said = facts_of(script[1])["said"]
    end = "all ranks were ended"
    assert said["Raises"] == ["RankError", f"rank 1: ValueError: boom (its traceback is above); {end}"]
    assert said["Killed"] == ["RankError", f"rank 1 was killed by SIGKILL; {end}"]
    assert "Traceback" in script[1].stderr


def test_a_model_that_is_too_wide_trains_nothing(script: tuple[Path, Any]) -> None:
    assert facts_of(script[1])["said"]["Wide"] == [
        "UserError",
        "the model's output has 5 columns for 4 classes; make its last layer 4 wide, "
        "the third argument of its constructor",
    ]


def wait_for(path: Path, process: Any) -> None:
    """Wait until a run has written its first epochs."""
    deadline = time.monotonic() + command.TIMEOUT
    while not (path.exists() and path.read_text()):
        assert process() and time.monotonic() < deadline
        time.sleep(0.05)


def wait_for_end(pid: int) -> None:
    """Wait until a process has no children any more."""
    deadline = time.monotonic() + command.TIMEOUT
    while children_of(pid):
        assert time.monotonic() < deadline, children_of(pid)
        time.sleep(0.05)


def test_an_interactive_session(tmp_path: Path) -> None:
    """A class that was typed trains; Ctrl-C ends the ranks, saves, and leaves the session as it was."""
    out = tmp_path / "run"
    with subprocess.Popen(
        [sys.executable, "-i", "-q"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=command.environment(),
        cwd=command.home(),
        text=True,
        preexec_fn=command._prepare_child,
    ) as session:
        assert session.stdin is not None
        session.stdin.write(CLASS + LONG.format(out=str(out)) + "\n")
        session.stdin.flush()
        wait_for(out / "metrics.jsonl", lambda: session.poll() is None)
        session.send_signal(signal.SIGINT)
        wait_for_end(session.pid)
        said, _ = session.communicate("print('still', 6 * 7)\n", timeout=command.TIMEOUT)
    assert "still 42" in said and session.returncode == 0, said
    assert "KeyboardInterrupt: stopped by SIGINT after epoch" in said, said
    assert f'go on with: sancus.train(…, resume="{out}")' in said
    assert (out / "checkpoint").is_dir()


def test_a_notebook(tmp_path: Path) -> None:
    """Classes of cells train, with a bar; interrupting the kernel ends the ranks, and it goes on."""
    with kernel(tmp_path) as (manager, client):
        run_cell(client, CLASS)
        messages = run_cell(client, "sancus.train('synthetic:nodes=120', Net, ranks=2, epochs=3)")
        shown = [one["content"]["data"] for one in messages if "display_data" in one["msg_type"]]
        assert any("<progress" in data["text/html"] and "epoch 3/3" in data["text/plain"] for data in shown)
        values = [
            one["content"]["data"]["text/plain"] for one in messages if one["msg_type"] == "execute_result"
        ]
        assert len(values) == 1 and values[0].startswith("Result(accuracy")
        out = tmp_path / "run"
        client.execute(LONG.format(out=str(out)))
        wait_for(out / "metrics.jsonl", manager.is_alive)
        manager.interrupt_kernel()
        errors = [one["content"] for one in read_cell(client) if one["msg_type"] == "error"]
        assert [error["ename"] for error in errors] == ["KeyboardInterrupt"]
        stream = [one for one in run_cell(client, "print(6 * 7)") if one["msg_type"] == "stream"]
        assert stream[-1]["content"]["text"] == "42\n"
        wait_for_end(manager.provisioner.pid)
