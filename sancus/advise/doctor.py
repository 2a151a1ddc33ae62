"""`sancus doctor`: is everything here that a run needs, and what to do where it is not.

Every check is one line: *ok*, *missing* (something optional, or slower without) or *broken*. The last check
trains on two real ranks for a few seconds, through the same launcher as any run.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from sancus.advise.trial_run import trial
from sancus.datasets.home import home
from sancus.errors import UserError
from sancus.launch.backend import choose_backend
from sancus.launch.world import cores
from sancus.report.units import bytes_text, seconds_text

State = Literal["ok", "missing", "broken"]
SELF_TEST = "synthetic:nodes=300,features=8,classes=3,degree=6"
SELF_TEST_SECONDS = 120.0
LITTLE_DISK, LITTLE_MEMORY = 2e9, 1e9  # bytes
PACKAGES = ("torch", "numpy", "scipy", "pymetis", "safetensors", "plotly")
EXTRAS = {"tensorboard": "--track tensorboard", "torch_geometric": "PyG layers and pyg: datasets"}


@dataclass(frozen=True)
class Finding:
    """The result of a check; `advice` says what to do, where there is anything to do."""

    what: str
    state: State
    summary: str
    advice: str = ""


def examine(*, self_test: bool = True) -> Iterator[Finding]:
    """Make the checks one by one, and give the result of each as soon as it is there."""
    checks: list[Callable[[], Finding]] = [
        _packages,
        _kernel,
        _gloo,
        _mpi,
        _cuda,
        _threads,
        _memory,
        _cache,
        _extras,
    ]
    if self_test:
        checks.append(_two_ranks)
    for check in checks:
        yield check()


def _packages() -> Finding:
    """Python and what every run imports."""
    versions, lacking = [f"python {platform.python_version()}"], []
    for package in PACKAGES:
        try:
            versions.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            lacking.append(package)
    advice = f"pip install {' '.join(lacking)}" if lacking else ""
    return Finding("packages", "broken" if lacking else "ok", ", ".join(versions), advice)


def _kernel() -> Finding:
    """The native kernel; without it torch's is used."""
    from sancus.kernels.native.library import UnavailableError, library

    try:
        description = library().describe()
    except UnavailableError as error:
        reason = str(error).splitlines()[0]
        advice = "install a C compiler, then: pip install --force-reinstall --no-deps sancus"
        return Finding("kernel native", "missing", f"{reason}; torch's is used, several times slower", advice)
    return Finding("kernel native", "ok", f"{description}; --kernel auto uses it")


def _gloo() -> Finding:
    from sancus.comm.torch_dist import gloo_is_here

    if gloo_is_here():
        return Finding("backend gloo", "ok", "in this torch")
    return Finding("backend gloo", "broken", "not in this torch", "install torch from PyPI or pytorch.org")


def _mpi() -> Finding:
    """mpi4py, a library that it loads, and mpiexec."""
    try:
        choose_backend("mpi", None, "cpu")
    except UserError as error:
        return Finding("backend mpi", "missing", str(error).partition(";")[0], "pip install 'sancus[mpi]'")
    probe = [sys.executable, "-c", "from mpi4py import MPI; print(MPI.Get_library_version())"]
    done = subprocess.run(probe, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["mpi4py does not load"])[-1]
        return Finding("backend mpi", "broken", last, "pip install --force-reinstall mpi4py mpich")
    return Finding("backend mpi", "ok", " ".join(done.stdout.split()[:3]))


def _cuda() -> Finding:
    import torch

    if torch.cuda.is_available():
        count = torch.cuda.device_count()
        return Finding("backend nccl", "ok", f"{count} GPUs; sancus doctor --device cuda tries them")
    return Finding("backend nccl", "missing", "no CUDA device; everything runs on the CPU without it")


def _threads() -> Finding:
    threads = os.environ.get("OMP_NUM_THREADS")
    summary = f"{cores()} cores" + (f", OMP_NUM_THREADS={threads}" if threads else "")
    return Finding("threads", "ok", f"{summary}; a rank takes its share, or --threads N")


def _memory() -> Finding:
    free = _free_memory()
    if free is None:
        return Finding("memory", "ok", "unknown on this system")
    advice = "" if free > LITTLE_MEMORY else "use fewer ranks; sancus estimate tells what a run needs"
    return Finding("memory", "missing" if advice else "ok", f"{bytes_text(free)} free", advice)


def _free_memory() -> float | None:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return float(line.split()[1]) * 1024
    except OSError:
        pass
    return None


def _cache() -> Finding:
    """The directory of shards and downloads: can be written, and has room."""
    place = home()
    existing = next(path for path in (place.absolute(), *place.absolute().parents) if path.exists())
    if not os.access(existing, os.W_OK | os.X_OK):
        return Finding(
            "cache", "broken", f"{place} cannot be written", "set SANCUS_HOME to another directory"
        )
    free = shutil.disk_usage(existing).free
    advice = "" if free > LITTLE_DISK else "set SANCUS_HOME to a larger disk, or remove old shards there"
    return Finding("cache", "missing" if advice else "ok", f"{place}, {bytes_text(free)} free", advice)


def _extras() -> Finding:
    """Optional packages."""
    from importlib.util import find_spec

    here = [name for name in EXTRAS if find_spec(name) is not None]
    lacking = [f"{name} ({use})" for name, use in EXTRAS.items() if name not in here]
    if not lacking:
        return Finding("extras", "ok", ", ".join(here))
    return Finding("extras", "missing", ", ".join(lacking), "pip install 'sancus[all]', if wanted")


def _two_ranks() -> Finding:
    """A tiny run on two ranks, as any user starts one."""
    started = time.perf_counter()
    flags = ["--ranks", "2", "--epochs", "3", "--hidden", "8", "--backend", "gloo", "--threads", "1"]
    failure = trial(SELF_TEST, flags, SELF_TEST_SECONDS).failure
    if failure:
        advice = "GLOO_SOCKET_IFNAME=lo, and a firewall that lets 127.0.0.1 through, are the usual cure"
        return Finding("two ranks", "broken", failure, advice)
    took = seconds_text(time.perf_counter() - started)
    return Finding("two ranks", "ok", f"trained, exchanged and reported in {took}")
