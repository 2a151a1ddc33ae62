"""What `sancus launch` prints is run as it stands: on one host, and on two in network namespaces."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sancus
from experiments.network import hosts, launch
from experiments.network.hosts import Network
from tests.helpers.clusters import only_in_full
from tests.helpers.command import TIMEOUT, Process, environment, home, losses, read_run, run

GRAPH = "synthetic:nodes=301,features=12,classes=4,degree=6"
FLAGS = {"dtype": "float64", "hidden": 8, "preset": "exact", "epochs": 6}
TIGHT = 1e-9
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    """Two hosts."""
    reason = hosts.unavailable()
    if reason is not None:
        pytest.skip(reason)
    with Network(2, "1gbit") as network:
        yield network


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """Losses of one process."""
    out = tmp_path_factory.mktemp("alone") / "run"
    flags = [word for name, value in FLAGS.items() for word in (f"--{name}", str(value))]
    result = run("train", GRAPH, *flags, "--out", out)
    assert result.code == 0, result
    return losses(out)


def started(kind: str, folder: Path, network: Network | None = None, **settings: Any) -> Process:
    """The script of a job in a process of its own; hosts are reached by `nsenter` in place of ssh."""
    where = {} if network is None else {"hosts": [host.address for host in network.hosts]}
    job = sancus.job(kind, GRAPH, nodes=len(network.hosts) if network else 1, **where, **FLAGS | settings)
    job.write(folder / "job")
    env = environment()
    prefix: list[str] = []
    if network is not None:
        assert network.head is not None
        shell = launch.remote_shell(network.hosts, folder)
        env |= launch.OVER_THE_LINK | {"REMOTE_SHELL": str(shell)}
        env |= {"HYDRA_LAUNCHER": "ssh", "HYDRA_LAUNCHER_EXEC": str(shell), "HYDRA_IFACE": hosts.SWITCH}
        prefix = network.head.on_its_network([])
    return Process([*prefix, str(folder / "job")], env, home(), folder)


@pytest.mark.parametrize(
    ("kind", "nodes"),
    [
        ("torchrun", 2),
        pytest.param("torchrun", 1, marks=only_in_full()),
        pytest.param("mpi", 1, marks=[pytest.mark.mpi, only_in_full()]),
        pytest.param("mpi", 2, marks=[pytest.mark.mpi, only_in_full()]),
    ],
)
def test_a_job_computes_what_one_process_does(
    kind: str, nodes: int, alone: list[float], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    network = request.getfixturevalue("network") if nodes == 2 else None
    result = started(kind, tmp_path, network, ranks=2, out=tmp_path / "run").finish()
    assert result.code == 0, result
    np.testing.assert_allclose(losses(tmp_path / "run"), alone, rtol=0, atol=TIGHT)
    assert read_run(tmp_path / "run")["hardware"]["ranks"] == 2


@only_in_full()
def test_the_end_of_the_script_saves_the_work_on_all_hosts_and_it_goes_on_with_other_ranks(
    network: Network, alone: list[float], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    process = started("torchrun", tmp_path, network, ranks=2, out=out, epochs=1_000_000, checkpoint_every=2)
    try:
        process.wait_for(out / "metrics.jsonl", '"epoch": 5')
        os.kill(process.pid, signal.SIGTERM)
        result = process.finish(TIMEOUT)
    finally:
        process.kill()
    assert result.code not in (0, 124), result
    reached = len(losses(out))
    (tmp_path / "again").mkdir()
    again = started("torchrun", tmp_path / "again", network, ranks=4, out=out, epochs=reached + 2).finish()
    assert again.code == 0 and "resumed from" in again.out, again
    assert len(losses(out)) == reached + 2
    np.testing.assert_allclose(losses(out)[: len(alone)], alone, rtol=0, atol=TIGHT)
    assert subprocess.run(network.hosts[1].command(["pgrep", "torchrun"]), check=False).returncode == 1
