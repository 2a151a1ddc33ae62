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
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from sancus import __version__
from sancus.config.settings import OutputSettings
from sancus.errors import UserError
from sancus.launch.world import cores
from sancus.runs import belongings
from sancus.runs.belongings import CHECKPOINTS, METRICS_FILE, OWNER_FILE, RUN_FILE, Belongings

if TYPE_CHECKING:
    import torch

PACKAGES = ("torch", "numpy", "scipy", "pymetis", "safetensors", "mpi4py", "mpich")
DEFAULT_PARENT = Path("runs")
Publish = Callable[[Path, Path], None]  # gives a file that is written its name
LAST_ATTEMPT_SECONDS = 10.0  # for which a restarted rank waits for the end of the one before


def holds_run(directory: Path) -> bool:
    """Whether a run, finished or broken, has left its files there."""
    return any((directory / name).exists() for name in (RUN_FILE, METRICS_FILE, CHECKPOINTS))


def check_directory(output: OutputSettings) -> None:
    """Refuse a directory that holds another run or somebody's files, or that cannot be written.

    So is a run to go on with that is still at work: it removes checkpoints while they are read. Creates
    nothing, and removes nothing.
    """
    out = _place_of(output) or DEFAULT_PARENT
    kept = output.overwrite or output.automatic or _same(out, output.resume)
    if output.out is not None and not kept:
        if holds_run(out):
            raise UserError(f"--out {out} holds a run already; choose another directory, or add --overwrite")
        _refuse(out, next((name for name in belongings.TAKEN if os.path.lexists(out / name)), None))
    if output.out is not None or output.resume is not None:
        goes_on = _same(out, output.resume) or (output.automatic and has_checkpoint(out))
        _refuse(out, belongings.in_the_way(out, kept=goes_on))
    if output.resume is not None and not output.automatic and _at_work(output.resume):
        raise UserError(f"--resume {output.resume}: another run is at work there; wait for its end")
    if _at_work(out):
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
    """Make the directory of `run`: what is proven to be another run's is removed, files of `source` are kept.

    Also gives the file that keeps all other runs out as long as it is open.
    """
    place = _place_of(output)
    if place is None or not _belongs(place, run):
        check_directory(output)
    try:
        directory = _choose(place, data, preset)
        goes_on = _same(directory, source)
        _refuse(directory, belongings.in_the_way(directory, kept=goes_on))
        claim = _claim(directory, run)
        if not goes_on:
            belongings.remove(directory)
            if source is not None and (source / METRICS_FILE).exists():
                shutil.copyfile(source / METRICS_FILE, directory / METRICS_FILE)
        Belongings.begin(directory)
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


def _at_work(directory: Path) -> bool:
    """Whether a run holds the lock of a directory; no where the file system has no locks."""
    with contextlib.suppress(OSError), (directory / OWNER_FILE).open() as file:
        return not _lock(file)
    return False


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


def _refuse(directory: Path, name: str | None) -> None:
    """The end of a run that would replace the file `name`, of which nothing proves that a run wrote it."""
    if name is not None:
        raise UserError(
            f"--out {directory} holds {name}, which no run there has written as it is; "
            "choose another directory, or move it away"
        )


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


def write_json(path: Path, content: Any, publish: Publish = os.replace) -> None:
    """Write a JSON file under another name and then `publish` it, so that no reader sees a part of it."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(json.dumps(content, indent=1) + "\n")
    publish(partial, path)


def write_arrays(
    path: Path, arrays: Mapping[str, np.ndarray[Any, Any]], publish: Publish = os.replace
) -> None:
    """Write a compressed `.npz`, and `publish` it when complete, so that no reader sees a part of it."""
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)
    publish(partial, path)


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


def peak_memory(device: torch.device) -> int:
    """Most bytes that tensors took of a GPU so far; on the host, the largest resident size of this process.

    Not `ru_maxrss` where it can be helped: a process inherits that of the one that started it.
    """
    if device.type != "cpu":
        import torch

        return int(torch.get_device_module(device).max_memory_allocated(device))
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
