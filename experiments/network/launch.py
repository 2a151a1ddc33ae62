"""Start ranks on the hosts of a network, one rank a host, by torchrun or by mpiexec.

Both launchers do what they do on a cluster: torchrun is started on every host and meets at host 0; mpiexec is
started on a head node and reaches the hosts by a remote shell, whose place `nsenter` takes. Bytes cross the
links: gloo is told the interface, and UCX (MPICH's) to use TCP and no shared memory.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from experiments.network.hosts import INTERFACE, Host, Network
from sancus.launch.process import follow_parent

Launcher = Literal["torchrun", "mpiexec"]
PORT = "29500"  # of host 0, which no other process knows
OVER_THE_LINK = {
    "GLOO_SOCKET_IFNAME": INTERFACE,
    "TP_SOCKET_IFNAME": INTERFACE,
    "UCX_TLS": "tcp,self",
    "UCX_NET_DEVICES": INTERFACE,
    "MPIR_CVAR_CH4_NETMOD": "ucx",
}


def run_ranks(
    network: Network,
    program: Sequence[str],
    launcher: Launcher = "torchrun",
    *,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
    log: Path | None = None,
) -> int:
    """Run `python program…` as one rank on every host; the first exit code that is not 0, else 0.

    `log` gets what all ranks print. At the deadline all are ended, and the code is 124.
    """
    with contextlib.ExitStack() as stack:
        output = None if log is None else stack.enter_context(log.open("ab"))
        commands = stack.enter_context(_commands(network, program, launcher))
        children = [
            subprocess.Popen(
                command,
                env=dict(os.environ) | OVER_THE_LINK | dict(env or {}),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                preexec_fn=follow_parent,
            )
            for command in commands
        ]
        stack.callback(_end, children)
        return _wait(children, timeout)


def _wait(children: Sequence[subprocess.Popen[bytes]], timeout: float | None) -> int:
    deadline = None if timeout is None else time.monotonic() + timeout
    while deadline is None or time.monotonic() < deadline:
        codes = [child.poll() for child in children]
        failures = [code for code in codes if code]
        if failures:
            return failures[0]
        if None not in codes:
            return 0
        time.sleep(0.05)
    return 124


def _end(children: Sequence[subprocess.Popen[bytes]]) -> None:
    """Kill the local ends of the ranks; what runs on the hosts is ended by them."""
    for child in children:
        child.kill()
    for child in children:
        child.wait()


@contextlib.contextmanager
def _commands(network: Network, program: Sequence[str], launcher: Launcher) -> Iterator[list[list[str]]]:
    """The command lines to start, all at once."""
    if launcher == "torchrun":
        yield [_torchrun(network, number, program) for number in range(network.size)]
        return
    with tempfile.TemporaryDirectory(prefix="sancus-network-") as folder:
        yield [_mpiexec(network, program, Path(folder))]


def _torchrun(network: Network, number: int, program: Sequence[str]) -> list[str]:
    master = network.hosts[0].address
    meeting = ["--master-addr", master, "--master-port", PORT, "--node-rank", str(number)]
    size = ["--nnodes", str(network.size), "--nproc-per-node", "1"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", *meeting, *size]
    return network.hosts[number].command([*torchrun, *program])


def _mpiexec(network: Network, program: Sequence[str], folder: Path) -> list[str]:
    """mpiexec beside the switch, with a remote shell that enters the host which it is told."""
    names = ",".join(host.address for host in network.hosts)
    launcher = ["-launcher", "ssh", "-launcher-exec", str(remote_shell(network.hosts, folder))]
    assert network.head is not None
    hosts = ["-localhost", network.head.address, "-hosts", names, "-ppn", "1", "-n", str(network.size)]
    mpiexec = [str(Path(sys.executable).with_name("mpiexec")), *launcher, *hosts]
    return network.head.on_its_network([*mpiexec, sys.executable, *program])


def remote_shell(hosts: Sequence[Host], folder: Path) -> Path:
    """A program that is called as ssh is: `shell [-x] host command…`."""
    cases = "\n".join(
        f'  {host.address}) exec {shlex.join(host.command([]))} sh -c "$*" ;;' for host in hosts
    )
    script = folder / "shell"
    script.write_text(
        '#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do shift; done\nhost=$1\nshift\n'
        f'case $host in\n{cases}\n  *) echo "no host $host" >&2; exit 255 ;;\nesac\n'
    )
    script.chmod(0o700)
    return script
