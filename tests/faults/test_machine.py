"""A machine that has no port, no memory, no space, or another run at work."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sancus.comm.alone import Alone
from sancus.comm.group import Group
from sancus.errors import UserError
from sancus.launch.process import follow_parent
from sancus.runs import directory
from sancus.runs.checkpoints import durable
from tests.faults.counts import only_in_full
from tests.faults.greedy import MARK
from tests.faults.record import record
from tests.faults.sessions import GRAPH, assert_same, train
from tests.faults.test_killed import STALE, WORK
from tests.helpers.command import TOP, Process, losses, run, started
from tests.helpers.processes import run_ranks
from tests.helpers.strike import SOON

ENDLESS = ("train", *WORK, "--epochs", "1000000")


def first_of_two(port: int) -> dict[str, str]:
    """What a launcher tells rank 0 of two."""
    return {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


@pytest.mark.slow
def test_a_port_in_use_and_a_missing_rank(tmp_path: Path) -> None:
    flags = ("train", GRAPH, "--backend", "gloo", "--timeout", "3", "--out")
    with socket.socket() as taken, socket.socket() as probe:
        for place in (taken, probe):
            place.bind(("127.0.0.1", 0))
        taken.listen()
        port, free = taken.getsockname()[1], probe.getsockname()[1]
        probe.close()
        with (
            started(*flags, tmp_path / "a", env=first_of_two(port)) as blocked,
            started(*flags, tmp_path / "b", env=first_of_two(free)) as lonely,
        ):
            first, second = blocked.finish(), lonely.finish()
    message = f"sancus: port {port} of 127.0.0.1 is in use; set MASTER_PORT to a free one\n"
    assert (first.code, first.err) == (2, message), first
    assert second.code == 2 and second.err.count("\n") == 1, second
    assert f"sancus: rank 0 cannot meet the others at 127.0.0.1:{free}: " in second.err, second
    assert second.err.endswith("that all ranks were started\n"), second
    record("port in use", "gloo", 1, 1, [first.seconds])
    record("a rank that never starts (--timeout 3)", "gloo", 1, 1, [second.seconds])


# Two runs at once


@pytest.mark.slow
def test_two_runs_at_once_do_not_meet(tmp_path: Path) -> None:
    """Beside each other in two directories; in one directory the second is refused and does no harm."""
    first, second = tmp_path / "first", tmp_path / "second"
    with started(*ENDLESS, "--out", first, launcher="local", ranks=2) as endless:
        endless.wait_for(first / "metrics.jsonl", '"epoch": 3')
        beside = run("train", *WORK, "--epochs", "40", "--out", second, launcher="local", ranks=2)
        assert beside.code == 0, beside
        refused = "another run is at work there; "
        for flags in (["--overwrite"], ["--resume", "auto"]):
            result = run("train", *STALE, "--out", first, *flags, launcher="local", ranks=2)
            line = f"sancus: --out {first}: {refused}choose another directory, or wait\n"
            assert (result.code, result.err) == (2, line), result
        for launcher in ("local", "torchrun"):
            result = run("train", "--resume", first, launcher=launcher, ranks=2)
            line = f"sancus: --resume {first}: {refused}wait for its end\n"
            assert result.code and line in result.err, result
            assert launcher == "torchrun" or (result.code, result.err) == (2, line), result
        os.kill(endless.pid, signal.SIGTERM)
        ended = endless.finish(SOON)
    assert ended.code == 143, ended
    assert losses(second) == losses(first)[:40]
    epochs = len(losses(first))
    assert f"stopped by SIGTERM after epoch {epochs}; " in ended.err, ended
    assert durable.read_manifest(first / "checkpoint" / f"epoch-{epochs:08d}") is not None
    record("two runs at once, also into one directory", "gloo", 5, 5)


def test_a_run_at_work_is_not_gone_on_with(tmp_path: Path) -> None:
    """Also not in another directory: its checkpoints go while they are read."""
    first, other = tmp_path / "first", tmp_path / "other"
    tried = []

    def attempt(epoch: int) -> None:
        for flags in ([], ["--out", other]) if epoch == 2 else ():
            with pytest.raises(UserError, match=f"^--resume {first}: another run is at work there; wait"):
                train(Group(Alone()), "--resume", first, *flags)
            tried.append(flags)

    flags = ("--epochs", "4", "--checkpoint-every", "1", "--out")
    train(Group(Alone()), GRAPH, *flags, first, before_epoch=attempt)
    assert len(tried) == 2 and not other.exists()
    train(Group(Alone()), "--resume", first, "--epochs", "5", "--out", other)
    assert len(losses(other)) == 5


def test_a_directory_is_free_again_after_its_run(tmp_path: Path) -> None:
    def attempt() -> None:
        with pytest.raises(UserError, match=f"--out {tmp_path / 'run'}: another run is at work there"):
            train(Group(Alone()), GRAPH, "--epochs", "2", "--out", tmp_path / "run", "--overwrite")

    train(
        Group(Alone()),
        GRAPH,
        "--epochs",
        "2",
        "--out",
        tmp_path / "run",
        before_epoch=lambda epoch: attempt(),
    )
    train(Group(Alone()), GRAPH, "--epochs", "2", "--out", tmp_path / "run", "--overwrite")


# Memory


def test_a_run_that_cannot_fit_is_refused_beforehand(tmp_path: Path) -> None:
    result = run(
        "train", GRAPH, "--hidden", str(10**11), "--out", tmp_path / "run", launcher="local", ranks=2
    )
    assert result.code == 2 and result.err.count("\n") == 1, result
    assert " on 2 ranks of this host needs at least 120,000.0 GB of memory, but " in result.err, result
    assert not (tmp_path / "run").exists()
    record("a run that needs more memory than there is", "gloo", 1, 1, [result.seconds])


@contextlib.contextmanager
def memory_limit(limit: int) -> Iterator[list[str]]:
    """A command prefix under which all processes together get so many bytes."""
    top, name = Path("/sys/fs/cgroup"), "memory.max"
    if not (top / "cgroup.controllers").exists() or "memory" not in (top / "cgroup.controllers").read_text():
        top, name = top / "memory", "memory.limit_in_bytes"
    folder = None
    try:
        folder = Path(tempfile.mkdtemp(prefix="sancus-test-", dir=top))
        (folder / name).write_text(str(limit))
    except OSError as error:
        if folder is not None:
            folder.rmdir()
        pytest.skip(f"no cgroup with a limit of memory can be made here: {error}")
    try:
        yield ["sh", "-c", f'echo $$ > {folder}/cgroup.procs && exec "$@"', "sh"]
    finally:
        deadline = time.monotonic() + SOON
        while (folder / "cgroup.procs").read_text() and time.monotonic() < deadline:
            time.sleep(0.05)
        folder.rmdir()


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["gloo", pytest.param("mpi", marks=[pytest.mark.mpi, only_in_full()])])
def test_a_rank_that_eats_all_memory_is_named(backend: str, tmp_path: Path) -> None:
    flags = ("--model", "tests.faults.greedy:Eats", "--backend", backend, "--out", tmp_path / "run")
    mark = tmp_path / "mark"
    with (
        memory_limit(2 << 30) as prefix,
        started(
            "train", GRAPH, *flags, launcher="local", ranks=2, env={MARK: str(mark)}, prefix=prefix
        ) as process,
    ):
        result = process.finish()
        seconds = time.time() - mark.stat().st_mtime
    assert result.code == 1, result
    if backend == "gloo":
        assert result.err == "sancus: rank 1 was killed by SIGKILL; all ranks were ended\n", result
    else:
        assert f"PID {mark.read_text()} RUNNING AT" in result.out and "rank 1 " in result.err, result
    record("out of memory in a cgroup: the rank is named", backend, 1, 1, [seconds])


# Disk


@contextlib.contextmanager
def small_disk(size: int, folder: Path) -> Iterator[tuple[list[str], Path]]:
    """A disk of so many bytes at `folder`: a command prefix that sees it, and where the test finds it."""
    script = f'mount -t tmpfs -o size={size} sancus-test "{folder}" && echo ready && exec sleep infinity'
    holder = subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", script],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=follow_parent,
    )
    try:
        assert holder.stdout is not None and holder.stderr is not None
        if holder.stdout.readline() != b"ready\n":
            pytest.skip(f"no private disk can be mounted here: {holder.stderr.read().decode().strip()}")
        enter = ["nsenter", "--target", str(holder.pid), "--mount", f"--wd={TOP}", "--"]
        yield enter, Path(f"/proc/{holder.pid}/root{folder}")
    finally:
        holder.kill()
        holder.wait()


def fill(path: Path) -> None:
    """A file that takes all the space there is."""
    with path.open("wb", buffering=0) as file:
        for piece in (1 << 16, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while file.write(b"x" * piece):
                    pass


def wait_until(process: Process, done: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + SOON
    while not done():
        assert process.alive() and time.monotonic() < deadline, f"no {what}: {process.finish(0)}"
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["gloo", pytest.param("mpi", marks=[pytest.mark.mpi, only_in_full()])])
def test_a_full_disk_is_survived(backend: str, tmp_path: Path) -> None:
    out = tmp_path / "disk" / "run"
    out.parent.mkdir()
    with small_disk(3 << 20, out.parent) as (prefix, disk):
        run_dir, filler = disk / "run", disk / "filler"
        flags = ("--backend", backend, "--out", out)
        with started(*ENDLESS, *flags, launcher="local", ranks=2, prefix=prefix) as process:

            def newest() -> str:
                return max((path.name for path in run_dir.glob("checkpoint/epoch-*")), default="")

            wait_until(process, newest, "checkpoint")
            fill(filler)
            wait_until(process, lambda: "no checkpoint of epoch" in process.errors(), "warning")
            kept = newest()
            sums = durable.read_manifest(run_dir / "checkpoint" / kept)
            assert sums, "the checkpoint from before is intact"
            for name, expected in sums.items():
                assert durable.read_checked(run_dir / "checkpoint" / kept / name, expected) is not None
            filler.unlink()
            wait_until(process, lambda: newest() > kept, "newer checkpoint")
            os.kill(process.pid, signal.SIGTERM)
            result = process.finish(SOON)
        assert result.code == 143, result
        assert "(rank 0: No space left on device); the one before is kept" in result.err or (
            "(rank 1: No space left on device); the one before is kept" in result.err
        ), result
        found = losses(run_dir)
        assert f"after epoch {len(found)}; go on with: " in result.err, "no epoch was lost"
    run_ranks("tests.faults.test_killed:undisturbed", 2, backend=backend, out=tmp_path / "whole")
    whole = losses(tmp_path / "whole")
    assert found[: len(whole)] == whole[: len(found)]
    record("disk full while checkpointing", backend, 1, 1)


@pytest.mark.slow
@pytest.mark.parametrize("pages", [0, 1], ids=["full", "room for the first file"])
def test_a_disk_that_is_full_at_the_start_is_told_in_one_line(pages: int, tmp_path: Path) -> None:
    with small_disk(1 << 16, tmp_path) as (prefix, disk):
        fill(disk / "filler")
        os.truncate(disk / "filler", (disk / "filler").stat().st_size - pages * mmap.PAGESIZE)
        flags = ("--out", tmp_path / "run")
        with started(*ENDLESS, *flags, launcher="local", ranks=2, prefix=prefix) as process:
            result = process.finish(SOON)
    assert result.code == 2, result
    why = f"cannot write a run to {tmp_path / 'run'}: No space left on device; choose another directory"
    assert result.err == f"sancus: {why} with --out\n", result
    record("disk full at the start", "gloo", 1, 1)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["gloo", pytest.param("mpi", marks=pytest.mark.mpi)])
def test_a_full_folder_for_temporary_files_is_told_in_one_line(backend: str, tmp_path: Path) -> None:
    """There is room for one page: Python takes the folder, and no rank could leave its last words there."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    with small_disk(1 << 16, folder) as (prefix, disk):
        fill(disk / "filler")
        os.truncate(disk / "filler", (disk / "filler").stat().st_size - mmap.PAGESIZE)
        flags = ("--backend", backend, "--out", tmp_path / "run")
        env = {"TMPDIR": str(folder)}
        result = run(*ENDLESS, *flags, launcher="local", ranks=2, prefix=prefix, env=env, timeout=SOON)
    why = f"no room for temporary files in {folder} (No space left on device); free space or set TMPDIR"
    assert (result.code, result.err) == (2, f"sancus: {why}\n"), result
    record("TMPDIR full at the start", backend, 1, 1, [result.seconds])


def test_a_disk_that_is_full_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(*_: object, **arrays: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    flags = (GRAPH, "--epochs", "4", "--out", tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(directory, "write_arrays", no_space)
        with pytest.raises(UserError, match=r"last files to .*: No space left on device; free space, then"):
            train(Group(Alone()), *flags)
    train(Group(Alone()), "--resume", tmp_path / "run")
    train(Group(Alone()), *flags[:-1], tmp_path / "whole")
    assert_same(tmp_path / "run", tmp_path / "whole")
