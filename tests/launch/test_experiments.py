"""Experiments in their smallest form: real ranks over real, slow links, from settings to a table."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from experiments.engine import results, runner, tables
from experiments.engine.experiment import NO_LINK, Case, Experiment, Place, names, read
from experiments.engine.figures import COUNTED_BYTES
from experiments.network.hosts import INTERFACE, Network, unavailable
from experiments.network.launch import run_ranks
from sancus.errors import UserError
from tests.helpers.command import TIMEOUT, TOP, environment, losses, read_run, run

REASON = unavailable()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(REASON is not None, reason=str(REASON)),
]
TINY = "synthetic:nodes=200,features=16,classes=4,degree=6"
GRAPH = "synthetic:nodes=1500,features=64,classes=4,degree=8"
SETTINGS = f"""
title = "Smallest"
tolerance = 0.2
baseline = {{ preset = "cagnet" }}
[common]
data = "{GRAPH}"
link = "200mbit"
ranks = 3
epochs = 5
hidden = 32
broadcast = "ring"
[axes]
seed = [0]
preset = ["cagnet", "lean"]
[[tables]]
rows = ["preset"]
figures = ["test", "all_mb", "fewer", "wire_mb", "payload_fewer", "link_ratio", "sooner", "columns"]
"""
FEW_PERCENT = 0.06


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    folder = tmp_path_factory.mktemp("experiments") / "smallest"
    folder.mkdir()
    (folder / "experiment.toml").write_text(SETTINGS)
    return read(folder, quick=False)


@pytest.fixture(scope="module")
def found(experiment: Experiment) -> Iterator[list[dict[str, Any]]]:
    """What every case found, over links, by mpiexec."""
    patch = pytest.MonkeyPatch()
    for name, value in environment().items():
        patch.setenv(name, value)
    patch.chdir(TOP)
    yield runner.run(experiment, lambda line: None)
    patch.undo()


def test_a_shell_that_does_not_look_for_tc_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    with Network(1, "1gbit") as network:
        assert len(network.hosts) == 1


@pytest.mark.mpi
def test_the_kernel_counts_what_we_count(found: list[dict[str, Any]]) -> None:
    """Around each epoch, all links together: our bytes and a few percent of TCP, IP and Ethernet."""
    epochs, links = found[0]["epochs"], found[0]["link_bytes"]
    assert len(epochs) == len(links) == 5
    for epoch, link in list(zip(epochs, links, strict=True))[1:]:
        counted = sum(epoch[name] for name in COUNTED_BYTES)
        assert counted > 1e6
        assert 0 <= link / counted - 1 < FEW_PERCENT, (epoch["epoch"], counted, link)


@pytest.mark.mpi
def test_a_case_is_what_sancus_train_makes_of_its_flags(
    experiment: Experiment, found: list[dict[str, Any]], tmp_path: Path
) -> None:
    case = experiment.cases[1]
    assert case.labels["preset"] == "lean"
    result = run(*case.command().split()[1:], "--out", tmp_path / "run")
    assert result.code == 0, result
    assert losses(tmp_path / "run") == [epoch["loss"] for epoch in found[1]["epochs"]]
    theirs, mine = read_run(tmp_path / "run")["communication"], found[1]["communication"]
    counted = [{name: row[name] for name in mine["streams"][0]} for row in theirs["streams"]]
    assert counted == mine["streams"]


@pytest.mark.mpi
def test_results_become_a_table(experiment: Experiment, found: list[dict[str, Any]], tmp_path: Path) -> None:
    summary = results.summarise(experiment, found, "python -m experiments smallest")
    results.write(tmp_path / "results.json", summary)
    summary = results.read(tmp_path / "results.json")
    cagnet, lean = (case["figures"] for case in summary["cases"])
    assert cagnet["fewer"] == cagnet["payload_fewer"] == cagnet["sooner"] == 1
    assert lean["fewer"] == pytest.approx(cagnet["all_mb"] / lean["all_mb"], rel=1e-4)
    assert 1 < lean["fewer"] < lean["payload_fewer"]  # the gradients of the weights cross all the same
    assert lean["payload_fewer"] == pytest.approx(cagnet["wire_mb"] / lean["wire_mb"], rel=1e-4)
    assert [case["columns"] for case in summary["cases"]] == ["64, 32 / 32, 4", "4 / 4"]
    lines = tables.section(summary, experiment.tables).splitlines()
    assert sum(line.startswith("| cagnet |") for line in lines) == 1
    assert "    python -m experiments smallest" in lines


@pytest.mark.mpi
def test_an_experiment_that_was_stopped_goes_on(
    experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cases that are complete are not trained again; what has lost a rank's file is."""
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(TOP)
    cases = [
        Case(case.labels, TINY, Place(2, NO_LINK, "mpiexec"), case.flags | {"epochs": 2})
        for case in experiment.cases
    ]
    small = Experiment("small", "Small", cases, [], {}, 0.0, False)
    lines: list[str] = []
    first = runner.run(small, lines.append, tmp_path)
    files = sorted(tmp_path.glob("case-*"))
    assert len(files) == 4 and lines == ["small: 2 cases, 2 ranks over loopback"]
    before = {path: path.stat().st_mtime_ns for path in files}
    files[0].unlink()
    second = runner.run(small, lines.append, tmp_path)
    assert lines[1:] == ["small: 1 cases, 2 ranks over loopback"]
    assert [one["test"] for one in first] == [one["test"] for one in second]
    assert sum(path.stat().st_mtime_ns != before[path] for path in files) == 2


@pytest.mark.mpi
def test_every_case_of_every_experiment_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their flags, on a tiny graph, two epochs each."""
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(TOP)
    tiny = {"epochs": 2, "hidden": 8, "seed": 0}
    cases: dict[str, Case] = {}
    for name in names(TOP / "experiments"):
        for case in read(TOP / "experiments" / name, quick=False).cases:
            flags = case.flags | tiny
            labels = {"experiment": name, **case.labels}
            cases.setdefault(json.dumps(flags), Case(labels, TINY, Place(2, NO_LINK, "mpiexec"), flags))
    assert len(cases) > 50
    experiment = Experiment("all", "All", list(cases.values()), [], {}, 0.0, False)
    found = runner.run(experiment, lambda line: None)
    for case, outcome in zip(experiment.cases, found, strict=True):
        assert [epoch["epoch"] for epoch in outcome["epochs"]] == [0, 1], case
        assert outcome["link_bytes"] == [0, 0], case


def test_torchrun_starts_a_rank_on_every_host(tmp_path: Path) -> None:
    out, log = tmp_path / "run", tmp_path / "log"
    command = ["-m", "sancus", "train", GRAPH, "--preset", "cagnet", "--broadcast", "ring"]
    command += ["--epochs", "3", "--threads", "1", "--out", str(out)]
    with Network(2, "1gbit") as network:
        code = run_ranks(network, command, "torchrun", env=environment(), timeout=TIMEOUT, log=log)
        sent = sum(host.sent_bytes() for host in network.hosts)
    assert code == 0, log.read_text()
    described = read_run(out)
    assert described["hardware"]["host"] == "host0" and described["hardware"]["backend"] == "gloo"
    total = described["communication"]["total"]
    counted = sum(total[name] for name in (*COUNTED_BYTES, "probe_bytes"))
    assert counted < sent < counted * (1 + FEW_PERCENT) + 100_000  # the rendezvous and the last gathers


def test_a_link_keeps_its_rate() -> None:
    """The token bucket at its end has the rate that was asked for, and held packets back that came sooner."""
    size, rate = 2_000_000, "20mbit"
    serve = "import socket; c = socket.create_server(('', 5000)).accept()[0]\nwhile c.recv(65536): pass"
    send = """if True:
        import socket, sys, time
        while True:
            try:
                c = socket.create_connection((sys.argv[1], 5000))
                break
            except ConnectionRefusedError:
                time.sleep(0.01)
        c.sendall(bytes(int(sys.argv[2])))
        c.shutdown(socket.SHUT_WR)
        c.recv(1)"""
    with Network(2, rate) as network:
        one, other = network.hosts
        server = subprocess.Popen(other.command([sys.executable, "-c", serve]))
        program = one.command([sys.executable, "-c", send, other.address, str(size)])
        subprocess.run(program, timeout=TIMEOUT, check=True)
        server.wait(TIMEOUT)
        assert size < one.sent_bytes() < size * (1 + FEW_PERCENT)
        show = one.command(["tc", "-s", "qdisc", "show", "dev", INTERFACE])
        bucket = subprocess.run(show, capture_output=True, text=True, check=True).stdout
    assert re.search(r"qdisc tbf .* rate 20Mbit burst ", bucket), bucket
    held_back = re.search(r"overlimits (\d+)", bucket)
    assert held_back and int(held_back[1]) > 0, bucket


def test_nothing_is_left_after_a_kill() -> None:
    program = (
        "import subprocess, time\nfrom experiments.network.hosts import Network\n"
        "with Network(2, '1gbit') as network:\n"
        "  inside = subprocess.Popen(network.hosts[0].command(['sleep', '1000']))\n"
        "  print(*(host.holder for host in network.hosts), network.head.holder, inside.pid, flush=True)\n"
        "  time.sleep(1000)\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, cwd=TOP, env=environment(), text=True
    )
    try:
        assert child.stdout is not None
        pids = [int(word) for word in child.stdout.readline().split()]
        assert len(pids) == 4 and all(_alive(pid) for pid in pids)
    finally:
        child.kill()
        child.wait()
    deadline = time.monotonic() + TIMEOUT
    while any(_alive(pid) for pid in pids):
        assert time.monotonic() < deadline, [pid for pid in pids if _alive(pid)]
        time.sleep(0.02)


def _alive(pid: int) -> bool:
    """Whether it runs: a zombie that nobody has waited for yet holds no namespace."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


@pytest.mark.parametrize("rate", ["fast", "10", "-1mbit", "0gbit", "mbit"])
def test_a_rate_that_is_none_is_refused(rate: str) -> None:
    with pytest.raises(UserError, match="link rate"):
        Network(1, rate)
