"""Ranks on hosts of their own: a link that is cut, a link that is gone for 2 seconds, a slow link."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from experiments.network import hosts, launch
from experiments.network.hosts import Network
from sancus.comm.group import Group
from sancus.launch.exit_codes import EXIT_PEER
from tests.faults.counts import only_in_full
from tests.faults.record import record
from tests.faults.sessions import assert_same, train
from tests.faults.test_killed import WORK
from tests.helpers.command import TIMEOUT, environment, losses, metrics, started
from tests.helpers.processes import run_ranks
from tests.helpers.strike import SOON, ranks_of

EPOCHS = 40
FLAGS = (*WORK, "--epochs", str(EPOCHS))
RATE = "2mbit"
BLIP_SECONDS = 2.0
BACKENDS = ["gloo", pytest.param("mpi", marks=[pytest.mark.mpi, only_in_full()])]
pytestmark = pytest.mark.slow


@pytest.fixture
def network() -> Iterator[Network]:
    """Two hosts with slow links."""
    reason = hosts.unavailable()
    if reason is not None:
        pytest.skip(reason)
    with hosts.Network(2, RATE) as network:
        yield network


def set_link(network: Network, state: str) -> None:
    """The second host's cable, at the switch."""
    assert network.head is not None
    subprocess.run(network.head.on_its_network(["ip", "link", "set", "port1", state]), check=True)


def disturbed(
    network: Network, backend: str, out: Path, timeout: int, disturb: Callable[[], None]
) -> tuple[list[int], str]:
    """One rank on each host, disturbed in the middle: exit codes, and what all said."""
    run = _by_mpiexec if backend == "mpi" else _by_hand
    flags = [*FLAGS, "--timeout", str(timeout), "--backend", backend, "--out", str(out)]
    return run(network, flags, out / "metrics.jsonl", disturb)


def _by_hand(
    network: Network, flags: list[str], progress: Path, disturb: Callable[[], None]
) -> tuple[list[int], str]:
    """No launcher that ends the others: each rank must find its own end."""
    address = {"MASTER_ADDR": network.hosts[0].address, "MASTER_PORT": launch.PORT, "WORLD_SIZE": "2"}
    with ExitStack() as stack:
        ranks = [
            stack.enter_context(
                started(
                    "train",
                    *flags,
                    prefix=host.command([]),
                    env=launch.OVER_THE_LINK | address | {"RANK": str(number), "LOCAL_WORLD_SIZE": "1"},
                )
            )
            for number, host in enumerate(network.hosts)
        ]
        ranks[0].wait_for(progress, '"epoch": 5')
        disturb()
        results = [rank.finish(TIMEOUT) for rank in ranks]
    return [result.code for result in results], "".join(result.err for result in results)


def _by_mpiexec(
    network: Network, flags: list[str], progress: Path, disturb: Callable[[], None]
) -> tuple[list[int], str]:
    log, program = progress.parent.with_suffix(".log"), ["-m", "sancus", "train", *flags]
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(
            launch.run_ranks, network, program, "mpiexec", env=environment(), timeout=TIMEOUT, log=log
        )
        while not (progress.exists() and '"epoch": 5' in progress.read_text()):
            assert not run.done(), log.read_text()
            time.sleep(0.05)
        disturb()
        code = run.result()
    return [code], log.read_text()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_cut_link_ends_all_ranks(backend: str, network: Network, tmp_path: Path) -> None:
    timeout, seconds = 20, list[float]()

    def cut() -> None:
        set_link(network, "down")
        begun = time.monotonic()
        while left := ranks_of(os.getpid()):
            assert time.monotonic() < begun + timeout + SOON, f"still running: {left}"
            time.sleep(0.05)
        seconds.append(time.monotonic() - begun)
        set_link(network, "up")  # mpiexec waits for its own daemon there

    codes, said = disturbed(network, backend, tmp_path / "run", timeout, cut)
    assert "Traceback" not in said and " failed after " in said, said
    if backend == "gloo":
        assert codes == [EXIT_PEER, EXIT_PEER], said
        assert (
            "sancus: rank 0: " in said
            and "; rank 1 does not run (it is stopped, swapped out or cut off)" in said
        )
        assert "sancus: rank 1: " in said and "; this rank is cut off from the host of rank 0" in said, said
    else:
        assert codes[0] not in (0, 124), said
    assert 5 < len(losses(tmp_path / "run")) < EPOCHS
    record(f"link cut (--timeout {timeout})", backend, 1, 1, seconds)


def undisturbed(group: Group, out: Path) -> None:
    train(group, *FLAGS, "--out", out)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_slow_link_and_a_blip_are_survived(backend: str, network: Network, tmp_path: Path) -> None:
    def blip() -> None:
        set_link(network, "down")
        time.sleep(BLIP_SECONDS)  # how long the blip lasts, not a wait for anything
        set_link(network, "up")

    codes, said = disturbed(network, backend, tmp_path / "run", 60, blip)
    assert set(codes) == {0}, said
    run_ranks(f"{__name__}:undisturbed", 2, backend=backend, out=tmp_path / "whole")
    assert_same(tmp_path / "run", tmp_path / "whole")
    counted = sum(epoch["wire_bytes"] for epoch in metrics(tmp_path / "run"))
    assert sum(host.sent_bytes() for host in network.hosts) > counted, "all of it went over the link"
    record(f"blip of {BLIP_SECONDS:g} s", backend, 1, 1)
    record(f"link limited to {RATE}: same result", backend, 1, 1)
