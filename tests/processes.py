"""Multi-process tests: one helper that starts ranks, waits with a timeout, and shows what each did.

    results = run_ranks("tests.ranks.test_transport:sums", ranks=3, backend="gloo", seed=1)

calls `sums(transport, seed=1)` in three processes and returns what each returned, by rank. A failure shows
every rank's exit code and traceback. Ranks meet through a file in a temporary folder: no port, no name is
fixed, and only processes that were started here are ever killed.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

TOP = Path(__file__).parent.parent
TIMEOUT = 120.0


def run_ranks(
    function: str, ranks: int, *, backend: str = "gloo", timeout: float = TIMEOUT, **arguments: Any
) -> list[Any]:
    """What `module:function` returned on each rank; `pytest.fail` with everybody's story otherwise."""
    with tempfile.TemporaryDirectory(prefix="sancus-test-") as name:
        folder = Path(name)
        (folder / "arguments").write_bytes(pickle.dumps(arguments))
        entry = [sys.executable, "-m", "tests.rank_entry", function, str(folder), backend, str(timeout / 2)]
        if backend == "mpi":
            mpiexec = Path(sys.executable).with_name("mpiexec")
            codes = _wait([_start([str(mpiexec), "-n", str(ranks), *entry], folder / "mpiexec", {})], timeout)
        else:
            children = []
            for rank in range(ranks):
                env = {"RANK": str(rank), "WORLD_SIZE": str(ranks), "GLOO_SOCKET_IFNAME": "lo"}
                children.append(_start(entry, folder / f"output-{rank}", env))
            codes = _wait(children, timeout)
        if any(codes):
            pytest.fail(_story(folder, codes), pytrace=False)
        return [pickle.loads((folder / f"result-{rank}").read_bytes()) for rank in range(ranks)]


def _start(command: list[str], output: Path, env: dict[str, str]) -> subprocess.Popen[bytes]:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"} | env
    with output.open("wb") as file:
        return subprocess.Popen(
            command,
            cwd=TOP,
            env=environment,
            stdout=file,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )


def _wait(children: list[subprocess.Popen[bytes]], timeout: float) -> list[int | str]:
    """Exit codes; what still runs at the deadline is killed with its whole session."""
    deadline = time.monotonic() + timeout
    codes: list[int | str] = []
    for child in children:
        try:
            codes.append(child.wait(max(0.0, deadline - time.monotonic())))
        except subprocess.TimeoutExpired:
            codes.append(f"killed after {timeout:g} s")
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    return codes


def _story(folder: Path, codes: list[int | str]) -> str:
    lines = [f"exit codes by rank: {codes}"]
    for output in sorted(folder.glob("output-*")) + sorted(folder.glob("mpiexec")):
        lines += [f"--- {output.name}", output.read_text(errors="replace")]
    return "\n".join(lines)
