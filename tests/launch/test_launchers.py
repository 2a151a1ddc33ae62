"""The real thing: one training, however it is launched, stopped, resumed or broken."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from sancus.datasets.open import open_graph
from sancus.launch.proxy import KILLED, PROXY
from sancus.metrics.declared import METRICS
from sancus.runs.checkpoints import names
from sancus.watch.proc import name_of
from tests.helpers.command import Launcher, losses, metrics, read_run, run, started
from tests.helpers.strike import LONG, SOON, assert_all_gone, children_of, strike

NODES, FEATURES, CLASSES, HIDDEN, LAYERS, EPOCHS = 301, 12, 4, 8, 3, 10
GRAPH = f"synthetic:nodes={NODES},features={FEATURES},classes={CLASSES},degree=6"
FLAGS = f"--layers {LAYERS} --hidden {HIDDEN} --dtype float64".split()
TIGHT = 1e-9

Train = Callable[..., Path]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Train:
    """Trains once for every set of arguments, and gives the run's directory."""
    folder, runs = tmp_path_factory.mktemp("runs"), dict[tuple[object, ...], Path]()

    def train(
        *flags: str, epochs: int = EPOCHS, launcher: Launcher = "local", ranks: int = 3, fresh: bool = False
    ) -> Path:
        key = (*flags, epochs, launcher, ranks)
        if key not in runs:
            out = folder / str(len(runs))
            preset = () if "--preset" in flags else ("--preset", "exact")
            asked = (
                *FLAGS,
                *preset,
                *flags,
                "--epochs",
                str(epochs),
                "--checkpoint-every",
                "5",
                "--out",
                out,
            )
            result = run("train", GRAPH, *asked, launcher=launcher, ranks=ranks, fresh=fresh)
            assert result.code == 0, result
            assert not result.err or launcher != "local", result
            runs[key] = out
        return runs[key]

    return train


def assert_same_training(one: Path, other: Path) -> None:
    np.testing.assert_allclose(losses(one), losses(other), rtol=0, atol=TIGHT)
    assert len(losses(one)) == EPOCHS
    assert read_run(one)["result"]["test"] == read_run(other)["result"]["test"]
    assert [epoch["val"] for epoch in metrics(one)] == [epoch["val"] for epoch in metrics(other)]


@pytest.mark.parametrize(
    ("launcher", "flags", "backend"),
    [
        ("local", ("--backend", "gloo"), "gloo"),
        ("torchrun", (), "gloo"),
        pytest.param("mpiexec", (), "mpi", marks=pytest.mark.mpi),
        pytest.param("local", ("--backend", "mpi"), "mpi", marks=pytest.mark.mpi),
    ],
)
def test_launchers_give_the_same_numbers(
    launcher: Launcher, flags: tuple[str, ...], backend: str, train: Train
) -> None:
    ours, theirs = train(), train(*flags, launcher=launcher, fresh=True)
    assert_same_training(ours, theirs)
    assert read_run(theirs)["hardware"]["backend"] == backend
    assert read_run(theirs)["hardware"]["ranks"] == 3
    bills = [read_run(directory)["communication"]["streams"] for directory in (ours, theirs)]
    assert bills[0] == bills[1]


def test_one_rank_and_three_give_the_same_numbers(train: Train) -> None:
    """With dropout: a mask belongs to a node, not to a rank."""
    assert read_run(train())["config"]["shape"]["dropout"] > 0
    assert_same_training(train(ranks=1), train())


def test_cagnet_and_exact_give_the_same_numbers(train: Train) -> None:
    assert_same_training(train("--dropout", "0", "--preset", "cagnet"), train("--dropout", "0"))


def test_cagnet_moves_what_the_formula_says(train: Train) -> None:
    ranks, itemsize = 3, 8
    widths = [FEATURES, *[HIDDEN] * (LAYERS - 1), CLASSES]
    values = (ranks - 1) * NODES * sum(a + b for a, b in pairwise(widths))
    directory = train("--dropout", "0", "--preset", "cagnet", ranks=ranks)
    assert read_run(directory)["hardware"]["broadcast"] in ("ring", "library"), "what the probe found"
    epochs = metrics(directory)
    assert [epoch["wire_bytes"] for epoch in epochs] == [values * itemsize] * EPOCHS
    assert [epoch["raw_bytes"] for epoch in epochs] == [values * itemsize] * EPOCHS


def test_a_run_is_complete(train: Train) -> None:
    directory, ranks = train(), 3
    written = read_run(directory)
    expected = {
        "config": {"data", "preset", "factors", "model", "shape", "training", "sampling", "launch", "output"},
        "versions": {"python", "sancus", "torch", "numpy", "scipy"},
        "hardware": {"host", "cpu", "cores", "memory_bytes", "device", "ranks", "threads", "backend"},
        "graph": {"nodes", "edges", "features", "classes", "train", "val", "test"},
        "partition": {"partitioner", "edge_cut", "rows", "nonzeros", "payload_rows"},
        "result": {"best_epoch", "val", "test", "metric", "epochs", "seconds_total", "seconds_per_epoch"},
        "communication": {"per_epoch", "total", "streams"},
        "cache": {"history_bytes", "share_of_peak"},
        "memory": {"peak_bytes"},
    }
    assert set(written) >= {*expected, "command"}
    for section, keys in expected.items():
        assert set(written[section]) >= keys, section
    figures = {"wire_bytes", "raw_bytes", "agreement_bytes", "parameter_bytes", "sends", "skips"}
    assert set(written["communication"]["per_epoch"]) >= figures
    assert set(written["communication"]["total"]) >= figures
    split = {"layer", "direction", "owner", "wire_bytes", "raw_bytes", "sends", "skips"}
    assert all(set(stream) >= split for stream in written["communication"]["streams"])
    assert written["command"].startswith("sancus train ") and GRAPH in written["command"]
    assert (written["graph"]["nodes"], sum(written["partition"]["rows"])) == (NODES, NODES)
    assert len(written["memory"]["peak_bytes"]) == len(written["cache"]["history_bytes"]) == ranks
    assert written["hardware"]["threads"] == max(1, len(os.sched_getaffinity(0)) // ranks)
    assert written["hardware"]["broadcast"] is None, "only plan block broadcasts"
    assert written["result"]["epochs"] == EPOCHS


def test_metrics_are_what_was_declared(train: Train) -> None:
    epochs = metrics(train())
    assert [epoch["epoch"] for epoch in epochs] == list(range(EPOCHS))
    assert all(list(epoch) == list(METRICS) for epoch in epochs)
    per_epoch = ["loss", "train", "val", "test", "seconds", "compute_seconds", "comm_seconds", "wire_bytes"]
    assert all(isinstance(epoch[name], float | int) for epoch in epochs for name in per_epoch)
    total = read_run(train())["communication"]["total"]
    for name in ("wire_bytes", "raw_bytes", "parameter_bytes", "sends", "skips"):
        assert sum(epoch[name] for epoch in epochs) == total[name], name


def test_a_run_leaves_arrays_checkpoint_and_report(train: Train) -> None:
    directory = train()
    decisions = np.load(directory / "decisions.npz")["decisions"]
    assert decisions.shape == (EPOCHS, LAYERS, 2, 3)
    assert (decisions == 1).sum() == read_run(directory)["communication"]["total"]["sends"]
    newest = directory / "checkpoint" / f"epoch-{EPOCHS:08d}"
    tensors = {"weights.safetensors", "best.safetensors", "optimizer.safetensors"}
    ranks = {names.rank_file(rank) for rank in range(3)}
    assert {file.name for file in newest.iterdir()} == {*tensors, *ranks, "state.json", "manifest.json"}
    page = (directory / "report.html").read_text()
    assert page.lstrip().lower().startswith("<!doctype html") and 'src="http' not in page


def test_every_rank_leaves_its_log(train: Train) -> None:
    directory = train()
    decisions = np.load(directory / "decisions.npz")["decisions"]
    logs = [
        [json.loads(line) for line in (directory / "logs" / f"rank-{rank}.jsonl").read_text().splitlines()]
        for rank in range(3)
    ]
    for epoch, line in enumerate(metrics(directory)):
        mine = [log[epoch] for log in logs]
        assert [part["epoch"] for part in mine] == [epoch] * 3
        assert sum(part["wire_bytes"] for part in mine) == line["wire_bytes"]
        assert sum(part["loss"] for part in mine) == pytest.approx(line["loss"], abs=TIGHT)
        for rank, part in enumerate(mine):
            answers = {(layer, direction): answer for layer, direction, answer, *_ in part["streams"]}
            assert len(answers) == (decisions[epoch, :, :, rank] >= 0).sum() == len(part["streams"])
            assert set(answers.values()) == {"SEND"}
    assert [len(log) for log in logs] == [EPOCHS] * 3


def test_predictions_are_in_the_order_of_the_user(train: Train) -> None:
    graph = open_graph(GRAPH)
    prediction = np.load(train() / "predictions.npz")["prediction"]
    correct = prediction[graph.test_mask] == graph.labels[graph.test_mask]
    assert correct.mean() == pytest.approx(read_run(train())["result"]["test"], abs=1e-12)


def test_config_repeats_a_run(train: Train, tmp_path: Path) -> None:
    first, again = train(ranks=1), tmp_path / "again"
    result = run("train", "--config", first / "run.json", "--out", again)
    assert result.code == 0, result
    assert losses(again) == losses(first)
    old, new = (read_run(directory)["config"] for directory in (first, again))
    assert old | {"output": None} == new | {"output": None}


def test_resume_equals_an_uninterrupted_run(train: Train, tmp_path: Path) -> None:
    stopped = tmp_path / "stopped"
    shutil.copytree(train("--dropout", "0", "--preset", "cagnet", epochs=5), stopped)
    result = run("train", "--resume", stopped, "--epochs", str(EPOCHS))
    assert result.code == 0, result
    assert "resumed from" in result.out and "epoch-00000005" in result.out, result
    whole = train("--dropout", "0", "--preset", "cagnet")
    assert losses(stopped) == losses(whole)
    resumed, uninterrupted = (read_run(directory) for directory in (stopped, whole))
    assert resumed["result"]["best_epoch"] == uninterrupted["result"]["best_epoch"]
    assert resumed["communication"]["streams"] == uninterrupted["communication"]["streams"]
    assert resumed["communication"]["total"]["sends"] == uninterrupted["communication"]["total"]["sends"]
    decisions = [np.load(directory / "decisions.npz")["decisions"] for directory in (stopped, whole)]
    np.testing.assert_array_equal(*decisions)


def test_resume_into_another_directory_with_other_ranks(train: Train, tmp_path: Path) -> None:
    stopped = train("--dropout", "0", "--preset", "cagnet", epochs=5)
    result = run(
        "train", "--resume", stopped, "--epochs", str(EPOCHS), "--ranks", "1", "--out", tmp_path / "new"
    )
    assert result.code == 0, result
    assert "the checkpoint was made by 3 ranks" in result.out, result
    whole = train("--dropout", "0", "--preset", "cagnet")
    np.testing.assert_allclose(losses(tmp_path / "new"), losses(whole), rtol=0, atol=TIGHT)
    assert len(losses(stopped)) == 5, "the run that was resumed elsewhere is left as it was"


def test_a_damaged_checkpoint_is_passed_over(train: Train, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(train(ranks=1), damaged)
    newest = damaged / "checkpoint" / f"epoch-{EPOCHS:08d}" / "weights.safetensors"
    content = bytearray(newest.read_bytes())
    content[-1] ^= 1
    newest.write_bytes(content)
    result = run("train", "--resume", damaged)
    assert result.code == 0, result
    (line,) = [line for line in result.out.splitlines() if "resumed from" in line]
    assert "epoch-00000005" in line and f"epoch-{EPOCHS:08d} is damaged and was passed over" in line
    assert losses(damaged) == losses(train(ranks=1))


def test_overwrite_removes_all_of_the_earlier_run(train: Train, tmp_path: Path) -> None:
    out = tmp_path / "run"
    shutil.copytree(train(ranks=1), out)
    (out / "notes.txt").write_text("mine")
    result = run("train", GRAPH, *FLAGS, "--epochs", "1", "--out", out, "--overwrite", "--quiet")
    assert (result.code, result.out, result.err) == (0, "", ""), result
    assert [folder.name for folder in (out / "checkpoint").iterdir()] == ["epoch-00000001"]
    assert len(losses(out)) == 1
    assert (out / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("launcher", ["torchrun", pytest.param("mpiexec", marks=pytest.mark.mpi)])
def test_other_ranks_than_the_launcher_has_are_refused(launcher: Launcher) -> None:
    result = run("train", GRAPH, "--ranks", "2", launcher=launcher, ranks=3)
    said = [line for line in result.err.splitlines() if line.startswith("sancus: ")]
    assert said == [
        f"sancus: --ranks 2, but {launcher} started 3 ranks; leave --ranks out, or make them equal"
    ], result
    if launcher == "torchrun":  # which has an exit code of its own
        assert "exitcode  : 2 (" in result.err, result
    else:
        assert (result.code, result.err.count("\n")) == (2, 1), result


def test_a_killed_rank_is_named_and_ends_all(tmp_path: Path) -> None:
    result = strike(signal.SIGKILL, tmp_path, rank=1)
    assert result.code == 1, result
    assert result.err == "sancus: rank 1 was killed by SIGKILL; all ranks were ended\n", result


@pytest.mark.mpi
def test_a_killed_rank_ends_all_under_mpi(tmp_path: Path) -> None:
    result = strike(signal.SIGKILL, tmp_path, "--backend", "mpi", rank=1)
    assert result.code == 1, result
    assert re.search(r"sancus: rank 1 was killed; it was last .*; all ranks were ended\n$", result.err), (
        result
    )


@pytest.mark.mpi
def test_a_killed_proxy_of_mpi_ends_all(tmp_path: Path) -> None:
    """mpiexec does not notice it, and would wait for ever for ranks that nobody hears any more."""
    flags = (*LONG, "--backend", "mpi", "--out", tmp_path / "run")
    with started(*flags, launcher="local", ranks=2) as process:
        process.wait_for(tmp_path / "run" / "metrics.jsonl", '"epoch": 3')
        below = children_of(process.pid)
        os.kill(next(pid for pid in below if name_of(pid) == PROXY), signal.SIGKILL)
        result = process.finish(SOON)
        assert_all_gone(below)
    assert result.code == 1, result
    assert result.err.endswith(f"sancus: {KILLED}; all ranks were ended\n"), result


def test_a_killed_rank_ends_all_under_torchrun(tmp_path: Path) -> None:
    result = strike(signal.SIGKILL, tmp_path, rank=1, launcher="torchrun")
    assert result.code == 1, result
    assert "exitcode  : -9 (" in result.err and "rank      : 1 (local_rank: 1)" in result.err, result


@pytest.mark.parametrize(
    ("backend", "number"),
    [
        ("gloo", signal.SIGINT),
        ("gloo", signal.SIGKILL),
        pytest.param("mpi", signal.SIGTERM, marks=pytest.mark.mpi),
        pytest.param("mpi", signal.SIGKILL, marks=pytest.mark.mpi),
    ],
)
def test_ranks_end_with_their_launcher(backend: str, number: int, tmp_path: Path) -> None:
    result = strike(number, tmp_path, "--backend", backend)
    if number == signal.SIGKILL:
        assert result.code == -number, result
    else:
        assert result.code == 128 + number, result
        *_, last = result.err.splitlines()
        assert last.startswith(f"sancus: stopped by {signal.Signals(number).name} after epoch "), result
        assert last.endswith(f"; go on with: sancus train --resume {tmp_path / 'run'}"), result
        assert "Traceback" not in result.err, result


@pytest.mark.parametrize(
    ("launcher", "flags"),
    [
        ("local", ()),
        pytest.param("local", ("--backend", "mpi"), marks=pytest.mark.mpi),
    ],
)
def test_an_error_on_one_rank_ends_all(launcher: Launcher, flags: tuple[str, ...], tmp_path: Path) -> None:
    model = ("--model", "tests.launch.plugins:RaisesOnOne")
    result = run("train", GRAPH, *model, *flags, "--out", tmp_path, launcher=launcher, ranks=2)
    assert result.code == 1, result
    assert "ZeroDivisionError: I cannot stand this rank\n" in result.err, result
    assert "sancus: rank 1: failed with the error above\n" in result.err, result
    if flags == () and launcher == "local":
        assert result.err.endswith("sancus: rank 1 failed with exit code 1; all ranks were ended\n"), result


@pytest.mark.parametrize("launcher", ["local", "torchrun"])
def test_a_finished_gloo_rank_leaves_at_once(launcher: Launcher, tmp_path: Path) -> None:
    """While Python takes a process apart, gloo's threads can abort it: a run that ended well would fail."""
    model = ("--model", "tests.launch.plugins:SeesTheEnd")
    result = run("train", GRAPH, *model, "--epochs", "1", "--out", tmp_path, launcher=launcher, ranks=2)
    assert result.code == 0, result
    assert "taken apart" not in result.out, result


def test_an_error_on_all_ranks_is_shown_once(tmp_path: Path) -> None:
    model = ("--model", "tests.launch.plugins:RaisesEverywhere")
    result = run("train", GRAPH, *model, "--out", tmp_path, launcher="torchrun", ranks=2)
    assert result.code == 1, result
    assert result.err.count("ZeroDivisionError: I have a bug\n") == 1, result
    assert "sancus: rank 0: failed with the error above\n" in result.err, result


def test_ctrl_c_of_a_single_process(tmp_path: Path) -> None:
    with started(*LONG, "--out", tmp_path / "run") as process:
        process.wait_for(tmp_path / "run" / "metrics.jsonl", '"epoch": 3')
        os.kill(process.pid, signal.SIGINT)
        result = process.finish(SOON)
    assert result.code == 130 and result.err.count("\n") == 1, result
    assert result.err.startswith("sancus: stopped by SIGINT after epoch "), result
