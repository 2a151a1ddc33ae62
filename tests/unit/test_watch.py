"""The watch alone: statuses, the board, whom it blames, and when it speaks."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sancus.comm.alone import Alone
from sancus.comm.errors import CommError
from sancus.comm.group import Group
from sancus.comm.ledger import Stream
from sancus.errors import UserError
from sancus.watch import blame, board, poster, watch
from sancus.watch.board import Board, FileNotes, folder_of
from sancus.watch.deaths import DeathWatch
from sancus.watch.poster import Poster
from sancus.watch.proc import birth_of, state_of
from sancus.watch.status import Status
from sancus.watch.watch import Watch, patience_of

DEADLINE = 120.0


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def status(rank: int, **fields: object) -> Status:
    found = Status(rank, "here", os.getpid(), birth_of(os.getpid()))
    for name, value in fields.items():
        setattr(found, name, value)
    return found


@pytest.fixture
def shared(tmp_path: Path) -> Board:
    return Board(FileNotes(tmp_path), 4)


def test_what_is_posted_is_read(shared: Board) -> None:
    posted = status(1, epoch=5, number=12, what="all-to-all", layer=1, direction="forward", awaited=12)
    shared.post(posted)
    assert shared.read() == {1: posted}
    assert posted.doing() == "waiting in epoch 5, collective 12, all-to-all (forward, layer 1)"


def test_a_live_status_needs_no_post(shared: Board) -> None:
    mine = status(2)
    slot = shared.open_live(2)
    assert slot is not None
    shared.post(mine)
    mine.epoch, mine.number, mine.what, mine.since = 7, 99, "broadcast from rank 3", 1.5
    mine.layer, mine.direction, mine.awaited = 3, "backward", None
    mine.write_live(slot)
    assert shared.read() == {2: mine}
    assert (
        mine.doing() == "computing in epoch 7, after collective 99, broadcast from rank 3 (backward, layer 3)"
    )


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"rank": 1}', b"\xff\xfe"])
def test_what_is_no_status_is_passed_over(content: bytes, shared: Board, tmp_path: Path) -> None:
    (tmp_path / "rank-0.status").write_bytes(content)
    assert shared.read() == {}


def test_a_board_that_cannot_be_written_stops_nobody(tmp_path: Path) -> None:
    notes = FileNotes(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    Board(notes, 2).post(status(0))
    assert Board(notes, 2).read() == {}


def test_every_attempt_has_a_board_of_its_own() -> None:
    assert folder_of({}) is None
    assert folder_of({"SANCUS_RENDEZVOUS": "/x/store-2"}) == Path("/x/store-2.watch")
    assert folder_of({"SANCUS_WATCH": "/x"}) == Path("/x")


def test_what_an_earlier_run_left_is_passed_over(shared: Board, tmp_path: Path) -> None:
    left = status(1, ending="error", error="of yesterday")
    shared.post(left)
    notes = FileNotes(tmp_path)
    assert Board(notes, 4, "here", left.posted + 1).read() == {}
    tomorrow = status(1, posted=time.monotonic() + 86400.0)
    notes.put("rank-1", tomorrow.to_bytes())
    assert Board(notes, 4, "here", 1.0).read() == {}, "the host was started anew since"
    assert list(Board(notes, 4, "there", left.posted + 1).read()) == [1], (
        "clocks of two hosts are not compared"
    )


def test_a_poster_posts_when_opened_and_at_every_beat_until_it_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poster, "BEAT_SECONDS", 0.01)
    mine, beats = status(1), []
    posts = Poster(mine, 2)
    posts.post()
    assert mine.beat == 0, "there is no board yet"
    posts.open(FileNotes(tmp_path), lambda: beats.append(mine.beat))
    until(lambda: len(beats) > 2)
    mine.epoch = 3
    posts.write()
    read = Board(FileNotes(tmp_path), 2).read()[1]
    assert read.epoch == 3, "the live part needs no post"
    posts.stop()
    last = mine.beat
    posts.post()
    assert mine.beat == last + 1 and beats[0] == 2, "the first beat comes after the post of the opening"


# Whom it blames


def blamed(shared: Board, *others: Status, waiting: bool = True) -> str:
    for other in others:
        shared.post(other)
    suspects = blame.find_suspects(shared, status(0, number=10, awaited=10), waiting)
    return blame.describe(suspects) if suspects else ""


def test_nobody_is_blamed_where_nothing_points_at_anyone(shared: Board) -> None:
    assert blamed(shared, status(1, number=10, awaited=10)) == ""
    assert blamed(shared, status(1, number=9), waiting=False) == ""


def test_who_failed_comes_before_who_is_late(shared: Board) -> None:
    failed = status(3, ending="error", error="ZeroDivisionError: no")
    assert blamed(shared, status(1, number=3), failed) == "rank 3 failed: ZeroDivisionError: no"


def test_who_only_lost_the_others_is_not_blamed(shared: Board) -> None:
    lost = status(1, number=3, ending="lost", error="CommError: peer")
    assert blamed(shared, lost) == ""


def test_who_has_not_come_is_named_with_what_it_does(shared: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    monkeypatch.setattr(board.time, "monotonic", lambda: now)
    late = status(2, number=9, epoch=4, what="all-gather", since=now - 33)
    line = blamed(shared, status(1, number=10, awaited=10), late)
    assert line == "rank 2 has been computing in epoch 4, after collective 9, all-gather for 33 s"


def test_several_that_have_not_come_are_all_named(shared: Board) -> None:
    line = blamed(shared, status(1, number=8), status(2, number=9), status(3, number=7))
    assert line.startswith("rank 1 ") and line.endswith(" (and 2 more: rank 2, rank 3)")


def test_who_computes_meanwhile_is_named_where_all_have_come(shared: Board) -> None:
    """Under MPI a rank must help messages along."""
    line = blamed(shared, status(1, number=11), status(2, number=10, awaited=10))
    assert line.startswith("rank 1 has been computing")


def test_a_beat_that_stands_still_is_a_rank_that_does_not_run(shared: Board, tmp_path: Path) -> None:
    stopped = status(1, number=10, awaited=10)
    shared.post(stopped)
    stopped.posted -= 31
    FileNotes(tmp_path).put("rank-1", stopped.to_bytes())
    suspects = blame.find_suspects(shared, status(0, number=10, awaited=10))
    line = blame.describe(suspects)
    assert line.startswith(
        "rank 1 does not run (it is stopped, swapped out or cut off): last seen 31 s ago on here"
    )


def test_on_another_host_a_beat_stands_still_for_the_reader(
    shared: Board, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clocks of two hosts are not compared."""
    far = status(1, host="there", number=10, awaited=10)
    shared.post(far)
    far.posted += 1000.0
    FileNotes(tmp_path).put("rank-1", far.to_bytes())
    assert blamed(shared) == ""
    now = time.monotonic() + 5.0
    monkeypatch.setattr(board.time, "monotonic", lambda: now)
    assert blamed(shared).startswith("rank 1 does not run")


def test_a_process_that_has_ended_is_seen(shared: Board) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    there = status(1, pid=child.pid, birth=birth_of(child.pid), number=9)
    assert state_of(there) != "Z"
    os.kill(child.pid, signal.SIGSTOP)
    until(lambda: state_of(there) == "T")
    child.kill()
    until(lambda: state_of(there) == "Z")
    line = blamed(shared, there, waiting=False)
    child.wait()
    assert line.startswith("rank 1 has ended without a word, killed; it was last computing before the first")
    assert state_of(there) == "Z"
    assert state_of(status(1, birth=1)) == "Z", "another process has the same number now"


# When it speaks


class Clock:
    """A watch whose time is the test's."""

    def __init__(self, folder: Path, rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.said: list[str] = []
        self.now = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        self.watch = Watch(rank, 3, 10.0, self.said.append)
        self.watch.status.host = "here"
        self.watch._poster.board = Board(FileNotes(folder), 3)

    def waited(self, seconds: float, *others: Status) -> list[str]:
        """What is said after so many seconds more, when the others do this."""
        self.now += seconds
        board = self.watch._poster.board
        assert board is not None
        for other in others:
            board.post(other)
        self.said.clear()
        self.watch._look()
        return list(self.said)


def test_it_speaks_after_its_patience_and_at_growing_intervals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(tmp_path, 0, monkeypatch)
    late = status(2, number=4, since=clock.now)
    clock.watch.started(5, "all-gather", None)
    clock.watch.waits(5)
    assert clock.waited(9, late) == []
    (line,) = clock.waited(2, late)
    assert line.startswith("waiting for 11 s in collective 5: rank 2 has been computing")
    assert clock.waited(5, late) == []
    assert len(clock.waited(7, late)) == 1
    clock.watch.goes_on()
    assert clock.waited(1, late) == ["rank 2 is back; the run goes on"]
    assert clock.waited(30, late) == []


@pytest.mark.parametrize("jump", [86400.0, -86400.0], ids=["forwards", "backwards"])
def test_a_clock_that_is_set_blames_nobody(
    jump: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(tmp_path, 0, monkeypatch)
    wall = 1e9
    monkeypatch.setattr(time, "time", lambda: wall)
    clock.watch._poster.board = Board(FileNotes(tmp_path), 3, "here", clock.now)
    late, stopped = (status(rank, number=number) for rank, number in ((2, 4), (1, 5)))
    stopped.awaited = 5
    late.since = clock.now
    clock.watch.started(5, "all-gather", None)
    clock.watch.waits(5)
    assert clock.waited(5, late, stopped) == []
    wall += jump
    assert clock.waited(2) == [], "not a day has passed, nor has a rank been silent for one"
    (line,) = clock.waited(5, late, stopped)
    assert line == "waiting for 12 s in collective 5: rank 2 has been computing before the first epoch, " + (
        "after collective 4, the start for 12 s"
    )


def test_no_wall_clock_decides_anything() -> None:
    """It can be set while a run is at work: it may only name files and date lines."""
    root = Path(__file__).parents[2]
    wall = re.compile(r"time\.time\(|time_ns\(|datetime\.(now|utcnow|today)|time\.(localtime|gmtime)\(")
    for package in ("sancus", "staleness", "partitioners"):
        for path in (root / package).rglob("*.py"):
            assert not wall.search(path.read_text()), path


def test_a_rank_that_trains_is_known_to_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a board is no shared memory, it would else be known at the next beat."""
    watch = Clock(tmp_path, 1, monkeypatch).watch
    watch.begin_epoch(6)
    assert Board(FileNotes(tmp_path), 3).read()[1].epoch == 6


def test_the_lowest_rank_that_waits_speaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(tmp_path, 1, monkeypatch)
    late = status(2, number=4, since=clock.now)
    clock.watch.started(5, "broadcast from rank 0", Stream(1, "forward", 0))
    clock.watch.waits(5)
    assert clock.waited(20, late, status(0, number=5, awaited=5)) == []
    assert len(clock.waited(1, late, status(0, number=4))) == 1, "rank 0 does not wait, so it cannot speak"


@pytest.mark.parametrize(
    ("error", "ending", "says"),
    [
        (UserError("--lr is bad"), "error", "--lr is bad"),
        (ZeroDivisionError("no\nno"), "error", "ZeroDivisionError: no no"),
        (CommError("peer"), "lost", "CommError: peer"),
        (None, "done", ""),
    ],
)
def test_the_others_learn_how_a_rank_ended(
    error: Exception | None, ending: str, says: str, tmp_path: Path
) -> None:
    def run() -> None:
        with Watch(1, 2, 10.0, print) as mine:
            mine.use_folder(tmp_path)
            if error is not None:
                raise error

    if error is None:
        run()
    else:
        with pytest.raises(type(error)):
            run()
    found = Board(FileNotes(tmp_path), 2).read()[1]
    assert (found.ending, found.error) == (ending, says)


def test_a_failed_collective_is_explained_by_what_the_others_post(tmp_path: Path) -> None:
    with Watch(0, 2, 10.0, print) as mine:
        mine.use_folder(tmp_path)
        other = status(1, ending="error", error="ZeroDivisionError: no")
        other.host = mine.status.host
        Board(FileNotes(tmp_path), 2).post(other)
        assert mine.explain("it broke") == "it broke; rank 1 failed: ZeroDivisionError: no"


def test_a_single_rank_needs_no_board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "EXPLAIN_SECONDS", 0.1)
    with Watch(0, 1, 10.0, print) as mine:
        mine.follow(Group(Alone()), None)
        mine.use_folder(tmp_path)
        assert mine.explain("it broke") == "it broke"
    assert list(tmp_path.iterdir()) == []


def test_patience_is_shorter_than_the_timeout() -> None:
    assert (patience_of(120.0), patience_of(8.0), patience_of(1e6)) == (30.0, 2.0, 30.0)


# Which rank ended first


def test_the_first_death_is_the_one_that_is_named(tmp_path: Path) -> None:
    children = [subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) for _ in range(3)]
    posts = Board(FileNotes(tmp_path), 3)
    for rank, child in enumerate(children):
        posts.post(status(rank, pid=child.pid, birth=birth_of(child.pid), epoch=4, what="all-gather"))
    try:
        with DeathWatch(tmp_path, 3) as deaths:
            children[1].kill()
            until(lambda: bool(deaths._first))
            children[0].kill()
            children[2].kill()
    finally:
        for child in children:
            child.kill()
            child.wait()
    named = deaths.who_failed()
    assert named == "rank 1 was killed; it was last computing in epoch 4, after collective 0, all-gather"


def test_a_rank_that_ended_before_the_watch_is_named_once(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    post = status(0, pid=child.pid, birth=birth_of(child.pid), epoch=4, what="all-gather")
    Board(FileNotes(tmp_path), 2).post(post)
    child.kill()
    until(lambda: state_of(post) == "Z")
    with DeathWatch(tmp_path, 2) as deaths:
        until(lambda: bool(deaths._first))
    child.wait()
    named = deaths.who_failed()
    assert named == "rank 0 was killed; it was last computing in epoch 4, after collective 0, all-gather"


def test_a_posted_error_says_more_than_a_death(tmp_path: Path) -> None:
    Board(FileNotes(tmp_path), 2).post(status(1, ending="error", error="ZeroDivisionError: no"))
    with DeathWatch(tmp_path, 2) as deaths:
        pass
    assert deaths.who_failed() == "rank 1 failed: ZeroDivisionError: no"


def test_where_nobody_posted_nobody_is_named(tmp_path: Path) -> None:
    with DeathWatch(tmp_path, 2) as deaths:
        pass
    assert deaths.who_failed() is None
