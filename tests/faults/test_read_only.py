"""Directories that can be read but not written: what needs them for writing says so in one line."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.faults.record import record
from tests.faults.sessions import GRAPH
from tests.helpers.command import Result, losses, run

pytestmark = pytest.mark.slow
PROTECT = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"'


def protected(folder: Path) -> list[str]:
    """A command prefix under which a folder is read-only, for root too."""
    prefix = ["unshare", "--mount", "sh", "-c", PROTECT, str(folder)]
    probe = subprocess.run([*prefix, "true"], capture_output=True, text=True, check=False)
    if probe.returncode:
        pytest.skip(f"no folder can be made read-only here: {probe.stderr.strip()}")
    return prefix


def refused(result: Result, line: str) -> None:
    assert (result.code, result.err) == (2, f"sancus: {line}\n"), result


def test_a_read_only_directory_is_told_in_one_line(tmp_path: Path) -> None:
    out, folder = tmp_path / "run", tmp_path / "folder"
    folder.mkdir()
    short = ("train", GRAPH, "--epochs", "2")
    assert run(*short, "--out", out, launcher="local", ranks=2).code == 0
    why = "is not writable; choose another directory with --out"
    for where, flags in {
        folder: [*short, "--out", folder / "run"],
        out: ["train", "--resume", out, "--epochs", "3"],
    }.items():
        result = run(*flags, launcher="local", ranks=2, prefix=protected(where))
        refused(result, f"cannot write a run to {flags[-1] if where == folder else out}: {where} {why}")
    result = run("partition", GRAPH, "--parts", "2", "--out", folder / "shards", prefix=protected(folder))
    why = "Read-only file system; free space or choose another directory"
    refused(result, f"cannot write shards to {folder / 'shards'}: {why}")
    record("a directory that cannot be written: one line", "gloo", 3, 3)


def test_what_only_reads_needs_no_rights(tmp_path: Path) -> None:
    """A run is gone on with elsewhere, and shards that are in the cache are found there."""
    first, home = tmp_path / "first", tmp_path / "home"
    flags, env = ("train", GRAPH, "--epochs", "3", "--out"), {"SANCUS_HOME": str(home)}
    assert run(*flags, first, launcher="local", ranks=2, env=env).code == 0
    warm = run(*flags, tmp_path / "warm", launcher="local", ranks=2, env=env, prefix=protected(home))
    assert warm.code == 0 and losses(tmp_path / "warm") == losses(first), warm
    cold = run(*flags, tmp_path / "cold", launcher="local", ranks=3, env=env, prefix=protected(home))
    why = "Read-only file system; set SANCUS_HOME to a directory you can write"
    refused(cold, f"cannot write to {home}: {why}")
    other = ("--resume", first, "--epochs", "4", "--out", tmp_path / "other")
    result = run("train", *other, launcher="local", ranks=2, prefix=protected(first))
    assert result.code == 0 and losses(tmp_path / "other")[:3] == losses(first), result


def test_a_run_goes_on_where_its_checkpoints_cannot_be_written(tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert run("train", GRAPH, "--epochs", "2", "--out", out, launcher="local", ranks=2).code == 0
    prefix = protected(out / "checkpoint")
    result = run("train", "--resume", out, "--epochs", "3", launcher="local", ranks=2, prefix=prefix)
    why = "no checkpoint of epoch 3 (rank 0: Read-only file system); the one before is kept"
    assert (result.code, result.err) == (0, f"sancus: {why}\n"), result
    assert len(losses(out)) == 3 and [path.name for path in out.glob("checkpoint/*")] == ["epoch-00000002"]
