"""Multi-process tests: one helper that starts ranks, waits with a timeout, and shows what each did.

    results = run_ranks("tests.ranks.test_transport:sums", ranks=3, backend="gloo", seed=1)

calls `sums(transport, seed=1)` in three processes and returns what each returned, by rank. A failure shows
every rank's exit code and traceback. Ranks meet through a file in a temporary folder: no port, no name is
fixed, and only processes that were started here are ever killed. Ranks are forks of one server for gloo and
one for MPI, so that torch is imported once; so are commands (`tests/helpers/command.py`). Every worker of
pytest-xdist has servers of its own.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

TOP = Path(__file__).parents[2]
TIMEOUT = 800.0  # for what hangs; a busy machine may take its time
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "GLOO_SOCKET_IFNAME": "lo"}


def run_ranks(
    function: str, ranks: int, *, backend: str = "gloo", timeout: float = TIMEOUT, **arguments: Any
) -> list[Any]:
    """What `module:function` returned on each rank; `pytest.fail` with everybody's story otherwise."""
    with tempfile.TemporaryDirectory(prefix="sancus-test-") as name:
        folder = Path(name)
        (folder / "arguments").write_bytes(pickle.dumps(arguments))
        start = _run_mpi if backend == "mpi" else _run_forked
        codes = start(function, folder, ranks, timeout)
        if any(codes):
            pytest.fail(_story(folder, codes), pytrace=False)
        return [pickle.loads((folder / f"result-{rank}").read_bytes()) for rank in range(ranks)]


def _run_forked(function: str, folder: Path, ranks: int, timeout: float) -> list[int | str]:
    """Exit codes by rank, of forks of the server."""
    request = {"function": function, "folder": str(folder), "ranks": ranks, "timeout": timeout}
    return _ask(request | {"env": dict(os.environ) | ENVIRONMENT})


def run_command(
    argv: Sequence[str], env: Mapping[str, str], cwd: Path, out: Path, err: Path, timeout: float
) -> int | str:
    """The exit code of `sancus argv` in a fork of the server, or why it has none; its output is in files."""
    streams = {"out": str(out), "err": str(err)}
    (code,) = _ask(streams | {"argv": argv, "env": dict(env), "cwd": str(cwd), "timeout": timeout})
    return code


def _ask(request: Mapping[str, Any]) -> list[int | str]:
    server = _server()
    assert server.stdin is not None and server.stdout is not None
    server.stdin.write(json.dumps(request) + "\n")
    server.stdin.flush()
    answer = server.stdout.readline()
    assert answer, f"the server of ranks ended with exit code {server.wait()}"
    codes: list[int | str] = json.loads(answer)
    return codes


@functools.cache
def _server() -> subprocess.Popen[str]:
    """Lives as long as the test run: it ends with its stdin, or with its parent."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.helpers.rank_server"],
        cwd=TOP,
        env=os.environ | ENVIRONMENT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@functools.cache
def _mpi_server() -> Path:
    """The address of a server that lives as long as the test run; it ends with its parent."""
    folder = tempfile.mkdtemp(prefix="sancus-test-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    address = Path(folder) / "socket"
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.helpers.mpi_server", str(address)],
        cwd=TOP,
        env=os.environ | ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert server.stdout is not None and server.stdout.readline() == b"ready\n"
    return address


def _run_mpi(function: str, folder: Path, ranks: int, timeout: float) -> list[int | str]:
    """The exit code of mpiexec; at the deadline it is killed with its whole session."""
    mpiexec = Path(sys.executable).with_name("mpiexec")
    request = {"function": function, "folder": str(folder), "timeout": timeout / 2}
    stub = TOP / "tests" / "helpers" / "mpi_stub.py"
    entry = [sys.executable, "-S", str(stub), str(_mpi_server()), json.dumps(request)]
    with (folder / "mpiexec").open("wb") as file:
        child = subprocess.Popen(
            [str(mpiexec), "-n", str(ranks), *entry],
            cwd=TOP,
            env=os.environ | ENVIRONMENT,
            stdout=file,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    try:
        return [child.wait(timeout)]
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        return [f"killed after {timeout:g} s"]


def _story(folder: Path, codes: list[int | str]) -> str:
    lines = [f"exit codes by rank: {codes}"]
    for output in sorted(folder.glob("output-*")) + sorted(folder.glob("mpiexec")):
        lines += [f"--- {output.name}", output.read_text(errors="replace")]
    return "\n".join(lines)
