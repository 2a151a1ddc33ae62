"""A real Slurm, started and ended by the tests: what `sancus launch slurm` prints is submitted."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sancus
from tests.helpers import slurm as throwaway
from tests.helpers.clusters import only_in_full
from tests.helpers.command import environment, losses, metrics, read_run, run
from tests.helpers.slurm import Slurm
from tests.helpers.strike import SOON

GRAPH = "synthetic:nodes=301,features=12,classes=4,degree=6"
FLAGS = {"dtype": "float64", "hidden": 8, "preset": "exact"}
EPOCHS, ENDLESS = 6, 1_000_000
TIGHT = 1e-9
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    """A cluster of two nodes; jobs see what every command of the tests sees."""
    reason = throwaway.unavailable()
    if reason is not None:
        pytest.skip(reason)
    folder = Path(tempfile.mkdtemp(prefix="sancus-slurm-"))  # munge's socket wants a short path
    try:
        with Slurm(folder) as slurm:
            slurm.use(environment({"GLOO_SOCKET_IFNAME": "lo"}))
            yield slurm
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """Losses of one process."""
    out = tmp_path_factory.mktemp("alone") / "run"
    flags = [word for name, value in FLAGS.items() for word in (f"--{name}", str(value))]
    result = run("train", GRAPH, *flags, "--epochs", str(EPOCHS), "--out", out)
    assert result.code == 0, result
    return losses(out)


def submit(slurm: Slurm, folder: Path, ranks: int, nodes: int = 2, **settings: Any) -> str:
    """The script of a job, as it is printed, handed to sbatch; its output goes into the folder."""
    options = [f"output={folder}/said"]
    given = FLAGS | {"out": folder / "run", "cpus": 1, "checkpoint_every": 2} | settings
    return slurm.submit(sancus.job("slurm", GRAPH, ranks, nodes, options=options, **given).text)


def said(folder: Path) -> str:
    file = folder / "said"
    return file.read_text() if file.exists() else ""


def wait_for(folder: Path, text: str, slurm: Slurm, job: str, file: str = "said") -> None:
    """Wait until a job has said something."""
    deadline, path = time.monotonic() + 2 * SOON, folder / file
    while not (path.exists() and text in path.read_text()):
        assert time.monotonic() < deadline, f"no {text!r}: {slurm.state(job)}\n{said(folder)}\n{slurm.logs()}"
        time.sleep(0.1)


def goes_on(slurm: Slurm, job: str, folder: Path) -> None:
    """Wait until a job was queued again, have it start at once, and go on from a checkpoint."""
    deadline = time.monotonic() + 2 * SOON
    while (state := slurm.state(job))["Restarts"] == "0" or state["JobState"] not in ("PENDING", "RUNNING"):
        assert time.monotonic() < deadline, f"{state}\n{said(folder)}\n{slurm.logs()}"
        time.sleep(0.1)
    slurm.call("scontrol", "update", f"JobId={job}", "StartTime=now", check=False)
    wait_for(folder, "resumed from", slurm, job)


def assert_unbroken(folder: Path, alone: list[float]) -> None:
    """Every epoch is there once, and the first are those of one process."""
    epochs = metrics(folder / "run")
    assert [epoch["epoch"] for epoch in epochs] == list(range(len(epochs)))
    np.testing.assert_allclose(losses(folder / "run")[:EPOCHS], alone, rtol=0, atol=TIGHT)


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=only_in_full())])
def test_a_job_computes_what_one_process_does(
    ranks: int, slurm: Slurm, alone: list[float], tmp_path: Path
) -> None:
    job = submit(slurm, tmp_path, ranks, epochs=EPOCHS)
    assert slurm.wait_until(job, timeout=2 * SOON) == "COMPLETED", said(tmp_path) + slurm.logs()
    np.testing.assert_allclose(losses(tmp_path / "run"), alone, rtol=0, atol=TIGHT)
    hardware = read_run(tmp_path / "run")["hardware"]
    assert (hardware["ranks"], hardware["backend"]) == (ranks, "gloo")


@only_in_full()
def test_the_work_is_saved_before_the_time_limit_and_the_job_goes_on(
    slurm: Slurm, alone: list[float], tmp_path: Path
) -> None:
    job = submit(slurm, tmp_path, 2, epochs=ENDLESS, time="00:02:00", grace=60)
    goes_on(slurm, job, tmp_path)
    slurm.call("scancel", job)
    assert slurm.wait_until(job) == "CANCELLED"
    assert_unbroken(tmp_path, alone)


@only_in_full()
def test_a_job_that_is_cancelled_saves_its_work_stays_so_and_goes_on_elsewhere(
    slurm: Slurm, alone: list[float], tmp_path: Path
) -> None:
    job = submit(slurm, tmp_path, 2, epochs=ENDLESS, checkpoint_every=ENDLESS)
    wait_for(tmp_path, f'"epoch": {EPOCHS}', slurm, job, "run/metrics.jsonl")
    slurm.call("scancel", job)
    assert slurm.wait_until(job) == "CANCELLED"
    assert slurm.state(job)["Restarts"] == "0"
    reached = len(losses(tmp_path / "run"))
    job = submit(slurm, tmp_path, 3, nodes=1, epochs=reached + 2)
    assert slurm.wait_until(job, timeout=2 * SOON) == "COMPLETED", said(tmp_path) + slurm.logs()
    assert "resumed from" in said(tmp_path) and "made by 2 ranks" in said(tmp_path)
    assert len(losses(tmp_path / "run")) == reached + 2
    assert_unbroken(tmp_path, alone)


@only_in_full()
def test_a_node_that_dies_costs_the_epochs_since_the_last_checkpoint(
    slurm: Slurm, alone: list[float], tmp_path: Path
) -> None:
    job = submit(slurm, tmp_path, 2, epochs=ENDLESS)
    wait_for(tmp_path, f'"epoch": {EPOCHS}', slurm, job, "run/metrics.jsonl")
    slurm.kill_node("n1")
    try:
        deadline = time.monotonic() + SOON
        while slurm.state(job)["Restarts"] == "0":
            assert time.monotonic() < deadline, slurm.logs()
            time.sleep(0.2)
    finally:
        slurm.start_node("n1")
    goes_on(slurm, job, tmp_path)
    slurm.call("scancel", job)
    assert slurm.wait_until(job) == "CANCELLED"
    assert_unbroken(tmp_path, alone)
