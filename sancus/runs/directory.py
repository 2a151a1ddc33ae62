"""The directory of a run: where it is, which run owns it, and how rank 0 writes the files in it.

`docs/design.md`, "Files of a run", lists the files.

Imports no torch: the directory is checked before any rank starts.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import resource
import shutil
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from sancus import __version__
from sancus.config.settings import OutputSettings
from sancus.errors import UserError
from sancus.launch.world import cores

if TYPE_CHECKING:
    import torch

PACKAGES = ("torch", "numpy", "scipy", "pymetis", "safetensors", "mpi4py", "mpich")
RUN_FILE = "run.json"
METRICS_FILE = "metrics.jsonl"
CHECKPOINTS = "checkpoint"
LOGS = "logs"
DEFAULT_PARENT = Path("runs")
OWNER_FILE = ".run"  # which run the directory belongs to, and locked while that run is at work there
LAST_ATTEMPT_SECONDS = 10.0  # for which a restarted rank waits for the end of the one before
ALL_FILES = (
    RUN_FILE,
    METRICS_FILE,
    CHECKPOINTS,
    "decisions.npz",
    "predictions.npz",
    "report.html",
    LOGS,
    "tensorboard",
)


def holds_run(directory: Path) -> bool:
    """Whether a run, finished or broken, has left its files there."""
    return any((directory / name).exists() for name in (RUN_FILE, METRICS_FILE, CHECKPOINTS))


def check_directory(output: OutputSettings) -> None:
    """Refuse a directory that holds another run, or that cannot be written; creates nothing."""
    out = _place_of(output) or DEFAULT_PARENT
    kept = output.overwrite or output.automatic or _same(out, output.resume)
    if output.out is not None and not kept and holds_run(out):
        raise UserError(f"--out {out} holds a run already; choose another directory, or add --overwrite")
    with contextlib.suppress(OSError), (out / OWNER_FILE).open() as file:
        if not _lock(file):
            raise _busy(out)
    existing = next(path for path in (out.absolute(), *out.absolute().parents) if path.exists())
    if not existing.is_dir():
        raise unwritable(out, f"{existing} is a file")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise unwritable(out, f"{existing} is not writable")


def source_of(output: OutputSettings, run: str, attempt: int) -> Path | None:
    """The directory of the run to go on with; None where the run starts at the beginning.

    A run that its launcher starts again (`attempt` > 0) goes on from its own checkpoint; else `--resume`
    says where.
    """
    directory = _place_of(output)
    if directory is not None and attempt and _belongs(directory, run) and has_checkpoint(directory):
        return directory
    if output.automatic:
        assert output.out is not None
        return output.out if has_checkpoint(output.out) else None
    return output.resume


def open_directory(
    output: OutputSettings, data: str, preset: str, source: Path | None, run: str
) -> tuple[Path, IO[str]]:
    """Make the directory of `run`: another run's files there are removed, those of `source` kept.

    Also gives the file that keeps all other runs out as long as it is open.
    """
    place = _place_of(output)
    if place is None or not _belongs(place, run):
        check_directory(output)
    try:
        directory = _choose(place, data, preset)
        claim = _claim(directory, run)
        if not _same(directory, source):
            _clear(directory)
            if source is not None and (source / METRICS_FILE).exists():
                shutil.copyfile(source / METRICS_FILE, directory / METRICS_FILE)
    except OSError as error:
        raise unwritable(place or DEFAULT_PARENT, error.strerror or str(error)) from error
    return directory, claim


def _claim(directory: Path, run: str) -> IO[str]:
    """Lock the directory for `run` and write its name there; refused where another run is at work."""
    until = time.monotonic() + (LAST_ATTEMPT_SECONDS if _belongs(directory, run) else 0.0)
    file = (directory / OWNER_FILE).open("a+")
    while not _lock(file):
        if time.monotonic() > until:
            raise _busy(directory)
        time.sleep(0.05)
    file.truncate(0)
    file.write(run)
    file.flush()
    return file


def _lock(file: IO[str]) -> bool:
    """Lock a file until it is closed or its process ends; False where another process has it locked."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        pass
    return True


def _busy(directory: Path) -> UserError:
    return UserError(f"--out {directory}: another run is at work there; choose another directory, or wait")


def _place_of(output: OutputSettings) -> Path | None:
    """`--out`, else the directory of the run that is resumed."""
    return output.out or (None if output.automatic else output.resume)


def _belongs(directory: Path, run: str) -> bool:
    """Whether an earlier attempt of this run has opened the directory."""
    try:
        return (directory / OWNER_FILE).read_text() == run
    except OSError:
        return False


def has_checkpoint(directory: Path) -> bool:
    """Whether there is anything that a run could go on from."""
    return any((directory / CHECKPOINTS).glob("epoch-*"))


def unwritable(directory: Path, reason: str) -> UserError:
    """The error for a user whose run cannot be written to `directory`."""
    return UserError(f"cannot write a run to {directory}: {reason}; choose another directory with --out")


def _same(directory: Path, other: Path | None) -> bool:
    return other is not None and directory.resolve() == other.resolve()


def _clear(directory: Path) -> None:
    """Remove the files of an earlier run, and nothing else."""
    for name in ALL_FILES:
        path = directory / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _choose(out: Path | None, data: str, preset: str) -> Path:
    """`--out`, or a new directory under `runs/` that no other run has."""
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        return out
    name = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in Path(data).stem)
    stamp = f"{DEFAULT_PARENT}/{name}-{preset.replace(':', '-')}-{time.strftime('%Y%m%d-%H%M%S')}"
    for suffix in ("", *(f"-{number}" for number in range(2, 1000))):
        try:
            Path(stamp + suffix).mkdir(parents=True)
            return Path(stamp + suffix)
        except FileExistsError:
            continue
    raise AssertionError("a thousand runs in one second")


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file under another name and then rename it, so that no reader sees a part of it."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(json.dumps(content, indent=1) + "\n")
    os.replace(partial, path)


def write_arrays(path: Path, **arrays: np.ndarray[Any, Any]) -> None:
    """Write a compressed `.npz`, renamed when it is complete, so that no reader sees a part of it."""
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)
    os.replace(partial, path)


def versions() -> dict[str, str]:
    """The versions of Python, Sancus and the installed packages of `PACKAGES`, for `run.json`."""
    packages = {"python": platform.python_version(), "sancus": __version__}
    for package in PACKAGES:
        try:
            packages[package] = version(package)
        except PackageNotFoundError:
            continue
    return packages


def hardware(
    ranks: int, threads: int, backend: str, broadcast: str | None, device: torch.device
) -> dict[str, Any]:
    """What `run.json` says of the machine of rank 0, and of how its ranks use it.

    `broadcast` is what `--broadcast` came to, None where the plan broadcasts nothing.
    """
    import torch

    return {
        "host": platform.node(),
        "cpu": cpu_name(),
        "cores": cores(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "ranks": ranks,
        "threads": threads,
        "backend": backend,
        "broadcast": broadcast,
    }


def peak_memory() -> int:
    """Largest resident size of this process so far, in bytes.

    Not `ru_maxrss` where it can be helped: a process inherits that of the one that started it.
    """
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def cpu_name() -> str:
    """The model of the processor."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
