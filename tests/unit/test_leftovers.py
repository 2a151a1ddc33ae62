"""What is left of a run that ended badly: shared memory of MPI; and how its end is told where names lack."""

from __future__ import annotations

import errno
import mmap
import os
import pty
import signal
import sys
from pathlib import Path

import pytest

from sancus.comm.mpi import SHARED_MEMORY
from sancus.console.terminal import Terminal, outlive_terminal
from sancus.launch.exit_codes import signal_name
from sancus.watch.leftovers import PATTERN, remove_leftovers


def test_only_shared_memory_that_nobody_uses_is_removed(tmp_path: Path) -> None:
    held, mapped, left, other = (
        tmp_path / name for name in ("mpich_shm_a", "mpich_shm_b", "mpich_shm_c", "mine")
    )
    for path in (held, mapped, left, other):
        path.write_bytes(bytes(mmap.PAGESIZE))
    with mapped.open("r+b") as file:
        memory = mmap.mmap(file.fileno(), mmap.PAGESIZE)
    with held.open("rb"):
        remove_leftovers(tmp_path)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "mpich_shm_a", "mpich_shm_b"]
    remove_leftovers(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "mpich_shm_b"]
    memory.close()
    remove_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_shared_memory_of_another_user_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mpich_shm_a").touch()
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    remove_leftovers(tmp_path)
    assert (tmp_path / "mpich_shm_a").exists()


def test_both_look_for_the_same_names() -> None:
    assert Path(SHARED_MEMORY).name + "*" == PATTERN


def test_a_signal_without_a_name_has_a_number() -> None:
    assert signal_name(signal.SIGKILL) == "SIGKILL"
    assert signal_name(signal.SIGRTMIN + 6) == f"signal {signal.SIGRTMIN + 6}"


def test_what_is_written_to_a_terminal_that_is_gone_is_lost_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A hang-up reaches the processes of a terminal after the terminal has gone."""
    master, slave = pty.openpty()
    with os.fdopen(os.dup(slave), "w", buffering=1) as out, open(os.devnull, "w") as file:
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", file)
        outlive_terminal()
        guarded = sys.stdout
        assert sys.stderr is file, "no terminal"
        print("there")
        assert os.read(master, 100) == b"there\r\n"
        os.close(slave)
        os.close(master)
        for _ in range(2):
            print("gone")
        guarded.flush()
        assert os.readlink(f"/proc/self/fd/{guarded.fileno()}") == os.devnull
        guarded.detach()


def test_other_errors_of_a_terminal_are_told(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file:
        number = os.open("/dev/full", os.O_WRONLY)
        os.dup2(number, file.fileno())
        os.close(number)
        with pytest.raises(OSError, match="No space left") as error:
            Terminal(file.fileno(), "w", closefd=False).write(b"x")
    assert error.value.errno == errno.ENOSPC
