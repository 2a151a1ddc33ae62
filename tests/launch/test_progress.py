"""What a person sees and keeps: lines, a live bar on a terminal, a log a rank, a tracker."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sancus.report.seconds import PARTS
from tests.helpers.command import TIMEOUT, environment, home, metrics, read_run, run

DATA = "synthetic:nodes=300,features=12,classes=4,degree=8"
FLAGS = ("--ranks", "2", "--epochs", "40", "--hidden", "8", "--preset", "sancus-e:1")


def on_a_terminal(*args: str | Path, env: dict[str, str]) -> tuple[int, str]:
    """`sancus args` with a terminal of 100 columns as its output."""
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "sancus", *map(str, args)]
    whole = environment({"TERM": "xterm-256color", "COLUMNS": "100", "LINES": "24"} | env)
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=slave, stderr=slave, env=whole, cwd=home()
    ) as child:
        os.close(slave)
        pieces = []
        try:
            while piece := os.read(master, 65536):
                pieces.append(piece)
        except OSError:  # the other end is closed
            pass
        code = child.wait(TIMEOUT)
    os.close(master)
    return code, b"".join(pieces).decode()


def test_plain_lines_where_there_is_no_terminal(tmp_path: Path) -> None:
    result = run("train", DATA, *FLAGS, "--out", tmp_path / "run")
    assert result.code == 0, result
    lines = [line for line in result.out.splitlines() if line.startswith("epoch ")]
    assert len(lines) == 20 and "\x1b" not in result.out, result
    words = r"epoch 38/40  loss \S+  val \S+  test \S+  .*B  skipped \d+ %  age 1  .*s: compute .*\| comm"
    assert any(re.match(words, line) for line in lines), result
    assert len(result.out[result.out.index("the bill") :].splitlines()) <= 22, "the summary fits one screen"
    for rank in range(2):
        log = (tmp_path / "run" / "logs" / f"rank-{rank}.log").read_text()
        assert f"rank {rank} of 2" in log and "epoch 39: loss" in log and "INFO done" in log


def test_a_terminal_has_a_live_bar(tmp_path: Path) -> None:
    code, shown = on_a_terminal("train", DATA, *FLAGS, "--out", tmp_path / "run", env={})
    assert code == 0, shown
    assert "━" in shown and "epoch 40/40" in shown and "skipped" in shown and "the bill" in shown
    assert shown.rindex("\x1b[?25h") > shown.rfind("\x1b[?25l"), "the cursor is left visible"
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown)
    assert max(map(len, plain[plain.index("the bill") :].splitlines())) < 200


@pytest.mark.slow
def test_no_color_and_quiet_are_heeded(tmp_path: Path) -> None:
    code, shown = on_a_terminal("train", DATA, *FLAGS, "--out", tmp_path / "run", env={"NO_COLOR": "1"})
    assert code == 0 and "epoch 40/40" in shown, shown
    assert not re.search(r"\x1b\[[0-9;]*(3[0-7]|38|9[0-7])[0-9;]*m", shown), "a colour"
    quiet = ("--out", tmp_path / "quiet", "--quiet")
    code, shown = on_a_terminal("train", DATA, *FLAGS[:-1], "sancus-h:1", *quiet, env={})
    assert (code, shown) == (0, "")
    _check_records(tmp_path / "quiet")


def _check_records(directory: Path) -> None:
    """What a run keeps for its report: drift of every owner, waiting as a part of communication, the gap."""
    with np.load(directory / "decisions.npz") as arrays:
        decisions, drift = arrays["decisions"], arrays["drift"]
    assert drift.shape == decisions.shape
    assert np.isfinite(drift[1:, :, 0]).all(), "every owner measures after the first epoch"
    assert np.isnan(drift[0]).all() and np.isnan(drift[:, :, 1]).all()
    assert (decisions[1:, :, 0][drift[1:, :, 0] > 0.01] == 1).all(), "beyond the gap an owner sends"
    for epoch in metrics(directory):
        assert 0 <= epoch["waiting_seconds"] <= epoch["comm_seconds"]
        assert 0 <= epoch["hidden_seconds"] <= epoch["seconds"]
        assert min(epoch[part] for part in PARTS) >= 0
        assert sum(epoch[part] for part in PARTS) == pytest.approx(epoch["seconds"], rel=1e-9)
    communication = read_run(directory)["communication"]
    assert communication["policies"]["forward"] == {"max_age": 20, "norm": "mean", "gap": 0.01}
    assert sum(map(sum, communication["payload_matrix"])) == communication["total"]["wire_bytes"]


def test_a_failure_is_in_the_log_of_its_rank(tmp_path: Path) -> None:
    result = run("train", DATA, *FLAGS, "--lr", "1e30", "--optimizer", "sgd", "--out", tmp_path / "run")
    assert result.code == 2, result
    logs = [(tmp_path / "run" / "logs" / f"rank-{rank}.log").read_text() for rank in range(2)]
    assert any(" ERROR " in log and "; lower --lr" in log for log in logs), logs


def test_a_codec_that_is_too_coarse_is_told_once(tmp_path: Path) -> None:
    """Attention over rows in one bit, and the same in four; the exact run measures nothing."""
    flags = ("--ranks", "2", "--epochs", "6", "--model", "gat", "--hidden", "64", "--layers", "3")
    told, noise = {}, {}
    for codec in ("int1", "int4", "fp32"):
        out = tmp_path / codec
        result = run("train", DATA, *flags, "--partitioner", "random", "--codec", codec, "--out", out)
        assert result.code == 0, result
        told[codec] = [line for line in result.err.splitlines() if "rounding errors" in line]
        noise[codec] = read_run(out)["communication"]["codec_noise"]
    assert len(told["int1"]) == 1 and told["int1"][0].startswith("sancus: --codec int1: in epoch 0 "), told
    assert told["int4"] == told["fp32"] == [] and noise["int4"] < 1 < noise["int1"] and noise["fp32"] is None
    page = (tmp_path / "int1" / "report.html").read_text()
    assert "rounding errors were up to" in page and "Error of the codec" in page


def test_a_tracker_that_is_not_installed_is_a_mistake(tmp_path: Path) -> None:
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    (blocked / "sitecustomize.py").write_text("import sys\nsys.modules['tensorboard'] = None\n")
    path = f"{blocked}{os.pathsep}{environment()['PYTHONPATH']}"
    out = tmp_path / "run"
    flags = (*FLAGS, "--track", "tensorboard", "--out", out)
    result = run("train", DATA, *flags, env={"PYTHONPATH": path}, fresh=True)
    assert result.code == 2 and "pip install 'sancus[tensorboard]'" in result.err, result
    assert len(result.err.splitlines()) == 1 and not out.exists(), result


def test_tensorboard_gets_every_epoch(tmp_path: Path) -> None:
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    result = run("train", DATA, *FLAGS, "--track", "tensorboard", "--out", tmp_path / "run")
    assert result.code == 0 and "warning" not in result.out, result
    found = events.EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    found.Reload()
    losses = [json.loads(line)["loss"] for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [event.value for event in found.Scalars("loss")] == pytest.approx(losses)
    assert {"score/val", "bytes/wire_bytes", "staleness/max_age"} <= set(found.Tags()["scalars"])
