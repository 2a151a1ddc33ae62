"""The folder in which local ranks meet: gone with its launcher, or when the next one starts."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import tempfile
from pathlib import Path

import pytest

from sancus.launch import meeting
from sancus.launch.meeting import LOCK, PREFIX, meeting_folder, remove_abandoned


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def launcher() -> int:
    """A process that has made a folder, and does nothing more until it is killed."""
    told, tell = os.pipe()
    child = os.fork()
    if not child:
        with meeting_folder() as folder:
            (folder / "0").mkdir()
            os.write(tell, b".")
            signal.pause()
        os._exit(1)
    os.read(told, 1)
    os.close(told)
    os.close(tell)
    return child


def test_a_folder_is_gone_after_its_use(place: Path) -> None:
    def fail() -> None:
        with meeting_folder() as folder:
            assert folder.parent == place and folder.name.startswith(PREFIX)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not [*place.iterdir()]


def test_the_folder_of_a_launcher_that_was_killed_goes_when_the_next_one_starts(place: Path) -> None:
    killed, alive = launcher(), launcher()
    assert len([*place.iterdir()]) == 2
    os.kill(killed, signal.SIGKILL)
    os.waitpid(killed, 0)
    with meeting_folder():
        assert len([*place.iterdir()]) == 2, "its own, and that of the one that lives"
    os.kill(alive, signal.SIGKILL)
    os.waitpid(alive, 0)
    remove_abandoned(place)
    assert not [*place.iterdir()]


def test_what_is_not_proven_to_be_a_launchers_stays(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a lock, behind a link, or of another user; nor is a link followed to what it points at."""
    mine, elsewhere = place / f"{PREFIX}mine", place / "elsewhere"
    for folder in (mine, elsewhere):
        folder.mkdir()
    (elsewhere / LOCK).touch()
    (place / f"{PREFIX}link").symlink_to(elsewhere)
    (place / f"{PREFIX}other").mkdir()
    (place / f"{PREFIX}other" / LOCK).symlink_to(elsewhere / LOCK)
    before = sorted(place.rglob("*"))
    remove_abandoned(place)
    assert sorted(place.rglob("*")) == before
    (mine / LOCK).touch()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getuid", lambda: 12345)
        remove_abandoned(place)
        assert mine.exists()
    remove_abandoned(place)
    assert not mine.exists()


def test_where_there_are_no_locks_nobody_is_thought_to_be_gone(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(meeting.fcntl, "flock", refuse)
    with meeting_folder() as folder, meeting_folder():
        assert folder.exists() and not (folder / LOCK).exists()
    assert fcntl.flock is refuse and not [*place.iterdir()]
