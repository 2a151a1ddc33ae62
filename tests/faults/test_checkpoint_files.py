"""A checkpoint on disk: whole or not there, whenever its writer is killed; never read when damaged."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from sancus.cli.train import read_flags
from sancus.comm.alone import Alone
from sancus.comm.group import Group
from sancus.runs.checkpoints import reader
from sancus.runs.checkpoints.names import MANIFEST, SHARED, rank_file
from sancus.runs.checkpoints.reader import Files
from sancus.runs.checkpoints.store import Checkpoints, WholeCheckpoint
from tests.faults.counts import at_most
from tests.faults.record import record
from tests.faults.sessions import GRAPH, train

CPU = torch.device("cpu")
EVERY_BYTE = 1 << 30
PIECE = 800  # bytes that a write of the test takes at a time
# Whatever changes the disk: a writer may die between any two of these calls, and within a write.
CALLS = ("open", "mkdir", "write", "fsync", "rename", "unlink", "rmdir")


def checkpoints(folder: Path, keep: int = 2) -> Checkpoints:
    return Checkpoints(folder, Group(Alone()), CPU, keep)


def files_of(epoch: int) -> tuple[Files, bytes]:
    """Contents that tell their epoch."""
    shared = {name: f"{name} of {epoch}".encode() * 50 for name in SHARED}
    return shared, f"rank 0 of {epoch}".encode() * 70


def write(folder: Path, epoch: int, keep: int = 2) -> str | None:
    return checkpoints(folder, keep).write(epoch, *files_of(epoch))


def epoch_of(found: WholeCheckpoint | None) -> int:
    """Which checkpoint it is, by its content; all of it must be of one epoch."""
    assert found is not None and found.own is not None
    epoch = int(found.directory.name.removeprefix("epoch-"))
    assert (found.shared, found.own.read_bytes()) == files_of(epoch)
    return epoch


class Killer:
    """Counts calls that change the disk, and ends this process at one of them; writes are short ones."""

    def __init__(self, place: int, piece: int) -> None:
        self.place, self.piece, self.calls = place, piece, 0

    def wrap(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self.calls += 1
            if self.calls == self.place:
                os.kill(os.getpid(), signal.SIGKILL)
            if name == "write":
                return real(arguments[0], arguments[1][: self.piece])
            return (
                None if name == "fsync" else real(*arguments, **options)
            )  # no power is lost: not waited for

        return call


def killed_at(place: int, piece: int, folder: Path, epoch: int, keep: int) -> bool:
    """Whether a fork that writes a checkpoint came so far that it was killed."""
    child = os.fork()
    if not child:
        code = 1
        try:
            killer = Killer(place, piece)
            with mock.patch.multiple("os", **{name: killer.wrap(name, getattr(os, name)) for name in CALLS}):
                code = 0 if write(folder, epoch, keep) is None else 2
        finally:
            os._exit(code)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert ended in (0, -signal.SIGKILL), ended
    return ended < 0


@pytest.mark.parametrize("keep", [1, 2])
def test_a_killed_writer_always_leaves_a_whole_checkpoint(
    keep: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda number: None)
    before = tmp_path / "before"
    for epoch in (3, 6):
        write(before, epoch, keep)
    tried, found_new, place, alive, seconds = 0, 0, 1, False, []
    while not alive:
        folder = tmp_path / f"{place}"
        shutil.copytree(before, folder)
        alive = not killed_at(place, PIECE // at_most(1, 16), folder, 9, keep)
        begun = time.perf_counter()
        epoch = epoch_of(checkpoints(folder).newest())
        seconds.append(time.perf_counter() - begun)
        assert epoch in ((9,) if alive else (6, 9)), place
        found_new += epoch == 9
        assert write(folder, 12, keep) is None, "what the killed writer left is in nobody's way"
        left = sorted(path.name for path in folder.iterdir())
        assert left == [f"epoch-{epoch:08d}" for epoch in sorted({epoch, 6, 12})[-keep:]], place
        tried += not alive
        place += 1
    assert tried > 25 and 0 < found_new < tried
    record("SIGKILL at every write, fsync and rename of a checkpoint", "-", tried, tried, seconds)


def test_names_are_given_only_to_what_is_synced(tmp_path: Path) -> None:
    """A machine that loses power keeps what was synced, and no more: the order of the calls matters."""
    synced, opened, order = set[Path](), dict[int, Path](), []
    real_open, real_fsync, real_rename = os.open, os.fsync, os.rename

    def note_open(path: Any, *rest: Any, **options: Any) -> int:
        number = real_open(path, *rest, **options)
        opened[number] = Path(path)
        return number

    def note_fsync(number: int) -> None:
        synced.add(opened[number])
        order.append(("fsync", opened[number]))
        real_fsync(number)

    def note_rename(source: Any, target: Any) -> None:
        source = Path(source)
        assert {source, *source.iterdir()} <= synced, "a directory is renamed before all of it is synced"
        order.append(("rename", Path(target)))
        real_rename(source, target)

    with mock.patch.multiple("os", open=note_open, fsync=note_fsync, rename=note_rename):
        assert write(tmp_path, 3) is None
    target = tmp_path / "epoch-00000003"
    assert order[-2:] == [("rename", target), ("fsync", tmp_path)]
    assert {file.name for file in target.iterdir()} == {*SHARED, rank_file(0), MANIFEST}


# Damage


def damages(path: Path, regions: int) -> list[bytes]:
    """The file cut short at several lengths, and with a byte flipped in each of so many regions."""
    content, draws = path.read_bytes(), random.Random(path.name)
    size = len(content)
    regions = min(regions, size)
    cut = [content[:length] for length in sorted({0, 1, size // 3, size // 2, size - 1}) if length < size]
    edges = [size * place // regions for place in range(regions + 1)]
    places = {draws.randrange(a, b) for a, b in itertools.pairwise(edges) if a < b}
    flipped = []
    for place in sorted({0, size - 1, *places}):
        changed = bytearray(content)
        changed[place] ^= draws.randrange(1, 256)
        flipped.append(bytes(changed))
    return [*cut, *flipped]


def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path) -> None:
    for epoch in (3, 6):
        write(tmp_path, epoch)
    newest, tried = tmp_path / "epoch-00000006", 0
    for file in sorted(newest.iterdir()):
        whole = file.read_bytes()
        regions = EVERY_BYTE if file.name == MANIFEST else at_most(20, 300)
        for damaged in damages(file, regions):
            file.write_bytes(damaged)
            found = checkpoints(tmp_path).newest()
            assert epoch_of(found) == 3
            assert found is not None
            assert found.describe().endswith("; epoch-00000006 is damaged and was passed over")
            tried += 1
        file.unlink()
        assert epoch_of(checkpoints(tmp_path).newest()) == 3
        file.write_bytes(whole)
    assert epoch_of(checkpoints(tmp_path).newest()) == 6
    record("damaged file of a checkpoint (cut, flipped, missing)", "-", tried, tried)


def test_predict_refuses_a_damaged_checkpoint(tmp_path: Path) -> None:
    """`sancus predict` reads the shared files alone, by another way."""
    for epoch in (3, 6):
        write(tmp_path, epoch)
    for name in (*SHARED, MANIFEST):
        file = tmp_path / "epoch-00000006" / name
        whole = file.read_bytes()
        for damaged in damages(file, 8):
            file.write_bytes(damaged)
            assert reader.read_newest(tmp_path) == files_of(3)[0]
        file.write_bytes(whole)


def test_a_damaged_checkpoint_supplies_no_settings(tmp_path: Path) -> None:
    """One byte of the newest `state.json`: the run goes on from the one before, with the settings of that."""
    flags = (GRAPH, "--epochs", "4", "--checkpoint-every", "2", "--lr", "0.01", "--out", tmp_path)
    train(Group(Alone()), *flags)
    state = tmp_path / "checkpoint" / "epoch-00000004" / "state.json"
    text = state.read_text()
    assert text.count('"lr": 0.01') == 1
    state.write_text(text.replace('"lr": 0.01', '"lr": 0.91'))
    assert read_flags(["--resume", str(tmp_path)])[1].training.lr == 0.01
