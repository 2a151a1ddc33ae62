"""What a run leaves behind (design §5): `run.json`, `decisions.npz`, `predictions.npz`, as files of rank 0."""

from __future__ import annotations

import json
import os
import platform
import resource
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sancus.launch import cores

PACKAGES = ("sancus", "torch", "numpy", "scipy", "pymetis", "safetensors", "mpi4py", "mpich")
RUN_FILE = "run.json"


def choose_directory(out: Path | None, data: str, preset: str) -> Path:
    """`--out`, or a new directory under `runs/` that no other run has."""
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        return out
    name = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in Path(data).stem)
    stamp = f"runs/{name}-{preset}-{time.strftime('%Y%m%d-%H%M%S')}"
    for suffix in ("", *(f"-{number}" for number in range(2, 1000))):
        try:
            Path(stamp + suffix).mkdir(parents=True)
            return Path(stamp + suffix)
        except FileExistsError:
            continue
    raise AssertionError("a thousand runs in one second")


def write_json(path: Path, content: Any) -> None:
    """All or nothing."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(json.dumps(content, indent=1) + "\n")
    os.replace(partial, path)


def write_arrays(path: Path, **arrays: np.ndarray[Any, Any]) -> None:
    """A compressed `.npz`, all or nothing."""
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("wb") as file:
        np.savez_compressed(file, **arrays)
    os.replace(partial, path)


def versions() -> dict[str, str]:
    """Python and the packages that matter."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def hardware(ranks: int, threads: int, backend: str, device: torch.device) -> dict[str, Any]:
    """The machine of rank 0."""
    return {
        "host": platform.node(),
        "cpu": _cpu_name(),
        "cores": cores(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "ranks": ranks,
        "threads": threads,
        "backend": backend,
    }


def peak_memory() -> int:
    """Largest resident size of this process so far, in bytes (Linux counts it in KiB)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
