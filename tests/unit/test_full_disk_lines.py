"""Lines that a full disk refuses count all the same, and are written as soon as there is room."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from sancus.metrics import writer
from sancus.metrics.writer import EpochLines
from sancus.report.rank_logs import read_rows


def line_of(epoch: int) -> dict[str, object]:
    return {"epoch": epoch, "streams": [[0, "forward", "SEND", 0, None]]}


def fill_after(monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    """The disk takes so many bytes, and is then full."""
    left = [room]

    def write(file: int, content: bytes) -> int:
        if not left[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = os.write(file, content[: left[0]])
        left[0] -= taken
        return taken

    monkeypatch.setattr(writer, "os", _With(write))


class _With:
    """The module `os` with another `write`."""

    def __init__(self, write: object) -> None:
        self.write = write

    def __getattr__(self, name: str) -> object:
        return getattr(os, name)


@pytest.mark.parametrize("room", [0, 10, 75, 10_000])
def test_rows_hold_what_found_no_room(room: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the disk was full in the middle of a line."""
    path = tmp_path / "rank-1.jsonl"
    lines = EpochLines(path)
    fill_after(monkeypatch, room)
    for epoch in range(3):
        lines.append(line_of(epoch))
    assert (lines.trouble is None) == (room == 10_000)
    rows = read_rows(path, 1, lines.unwritten())
    assert rows["epoch"].tolist() == [0, 1, 2] and set(rows["owner"].tolist()) == {1}


def test_a_checkpoint_asks_again_whether_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rank-0.jsonl"
    lines = EpochLines(path)
    with monkeypatch.context() as full:
        fill_after(full, 20)
        lines.append(line_of(0))
    assert len(read_rows(path, 0)) == 0
    lines.sync()
    assert len(read_rows(path, 0)) == 1
