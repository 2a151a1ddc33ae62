"""Where the seconds of a rank go, by a clock of our own: each moment in one activity, hidden ones once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from sancus.comm.alone import Alone
from sancus.comm.desk import Desk
from sancus.comm.errors import CommError
from sancus.comm.group import Group
from sancus.comm.handle import Handle
from sancus.comm.ledger import AGREEMENT, PARAMETER, Entry, Stream
from sancus.comm.overlap import disjoint, uncovered
from sancus.comm.stopwatch import Stopwatch, message_of
from sancus.comm.transport import Transfer
from sancus.exchange.timing import time_way_back
from sancus.training.times import MEASURED, PARTS, measured, split_of_rank, split_of_run

PAYLOAD = Entry("payload", Stream(0, "forward", 0))


class Time:
    """A clock that goes only when it is told to."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def pass_until(self, moment: float) -> None:
        assert moment >= self.now
        self.now = moment


def desk_at(time: Time) -> Desk:
    return Desk(stopwatch=Stopwatch(time))


def transfer(time: Time, until: float, ended: float | None) -> Transfer:
    """One that makes us wait until a moment, and says that it ended at another."""
    return Transfer(lambda: time.pass_until(max(time.now, until)), lambda: ended)


def test_every_moment_belongs_to_one_activity() -> None:
    time = Time(5.0)
    stopwatch = Stopwatch(time)
    start = stopwatch.read()
    time.pass_until(6)
    with stopwatch.at("dense"):
        time.pass_until(8)
        with stopwatch.at("aggregation"):
            time.pass_until(11)
            with stopwatch.at("codec"):
                time.pass_until(11.5)
        time.pass_until(12)
    time.pass_until(20)
    lap = stopwatch.since(start)
    assert lap.seconds == {"other": 9, "dense": 2.5, "aggregation": 3, "codec": 0.5}
    assert lap.total == 15


def test_an_error_inside_a_block_leaves_it() -> None:
    time = Time()
    stopwatch = Stopwatch(time)

    def fail() -> None:
        with stopwatch.at("dense"), stopwatch.at("codec"):
            time.pass_until(1)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    time.pass_until(3)
    assert stopwatch.read().seconds == {"codec": 1, "dense": 0, "other": 2}


def test_messages_are_told_apart_by_what_they_are_for() -> None:
    backward = Entry("payload", Stream(3, "backward", 1))
    entries = [PAYLOAD, backward, PARAMETER, AGREEMENT, Entry("evaluation", Stream(0, "backward", 0))]
    assert [message_of(entry) for entry in entries] == [
        "forward",
        "backward",
        "parameter",
        "agreement",
        "evaluation",
    ]


def test_a_group_times_what_it_sends() -> None:
    """Starting a transfer and waiting for it are both time in the transport."""
    time = Time()

    class Slow(Alone):
        def broadcast(self, tensor: object, owner: int, *, background: bool) -> Transfer:
            time.pass_until(2)
            return transfer(time, 7, 7)

    group = Group(Slow(), desk=desk_at(time))
    handle = group.broadcast(torch.zeros(1), 0, Entry("payload", Stream(0, "backward", 0)))
    time.pass_until(4)
    handle.wait()
    lap = group.stopwatch.read()
    assert lap.seconds == {"backward": 2 + 3, "other": 2} and lap.hidden == 2


@pytest.mark.parametrize(
    "ended, hidden",
    [(15.0, 5.0), (20.0, 10.0), (22.0, 10.0), (None, 10.0), (9.0, 0.0)],
    ids=["before-the-wait", "as-it-begins", "while-we-wait", "unknown", "before-it-was-known"],
)
def test_hidden_time_ends_with_the_transfer(ended: float | None, hidden: float) -> None:
    """Begun at 10; we wait from 20 to 23, which is exposed; it was hidden until it ended, or until 20."""
    for entry, expected in ((PAYLOAD, hidden), (Entry("evaluation", PAYLOAD.stream), 0.0)):
        time = Time(10.0)
        desk = desk_at(time)
        handle = Handle(transfer(time, 23, ended), desk, entry, "a transfer")
        time.pass_until(20)
        handle.wait()
        lap = desk.stopwatch.read()
        assert lap.hidden == expected
        assert lap.seconds[message_of(entry)] == 3.0


def test_hidden_time_of_transfers_that_overlap_is_their_union() -> None:
    """Three of four seconds each within six; a wait of another message covers one of them."""
    time = Time()
    desk = desk_at(time)
    handles = []
    for begun in range(3):
        time.pass_until(begun)
        handles.append(Handle(transfer(time, 0, begun + 4.0), desk, PAYLOAD, ""))
    time.pass_until(3)
    Handle(transfer(time, 4, 4), desk, AGREEMENT, "").wait()
    time.pass_until(10)
    for handle in handles:
        handle.wait()
    assert desk.stopwatch.read().hidden == 6 - 1


def test_hidden_time_belongs_to_the_epoch_in_which_it_passed() -> None:
    """In the background from 1 to 8; epochs end at 4 and 12, and it is waited for at 10."""
    time, moments = Time(), list[float]()
    desk = desk_at(time)
    time.pass_until(1)
    handle = Handle(Transfer(lambda: None, lambda: moments[0] if moments else None), desk, PAYLOAD, "")
    time.pass_until(4)
    first = desk.stopwatch.read()
    time.pass_until(8)
    moments.append(8.0)
    time.pass_until(10)
    handle.wait()
    time.pass_until(12)
    assert (first.hidden, desk.stopwatch.since(first).hidden) == (3, 4)


def test_a_transfer_that_fails_is_no_time_of_others() -> None:
    time = Time()
    desk = desk_at(time)

    def fail() -> None:
        time.pass_until(3)
        raise RuntimeError("gone")

    with pytest.raises(CommError, match=r"failed after 3\.0 s: gone"):
        Handle(Transfer(fail, lambda: None), desk, PAYLOAD, "a transfer").wait()
    time.pass_until(5)
    assert desk.stopwatch.read().seconds == {"other": 2, "forward": 3}


INTERVALS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=8)


@given(INTERVALS, INTERVALS)
def test_a_union_is_what_counting_every_moment_gives(
    intervals: list[tuple[int, int]], covers: list[tuple[int, int]]
) -> None:
    def moments(pairs: list[tuple[int, int]]) -> set[int]:
        return {moment for start, stop in pairs for moment in range(start, stop)}

    assert uncovered(intervals, covers) == len(moments(intervals) - moments(covers))
    union = disjoint(intervals)
    assert moments(union) == moments(intervals)  # type: ignore[arg-type]
    assert all(before[1] < after[0] for before, after in pairwise(union))


STEP = st.sampled_from(["work", "send", "end", "wait", "agree", "epoch"])


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(STEP, st.integers(0, 5)), max_size=40))
def test_hidden_seconds_are_a_union_within_the_epoch(steps: list[tuple[str, int]]) -> None:
    """Whatever a rank does: by counting every moment, never below 0, never above the epoch's seconds."""
    time = Time()
    desk = desk_at(time)
    flights: list[dict[str, float]] = []  # begun, and perhaps ended
    open_handles: list[tuple[Handle, dict[str, float]]] = []
    unattended: set[int] = set()  # moments at which something travelled behind other work
    laps, start = [], desk.stopwatch.read()

    def go(seconds: int, busy: bool) -> None:
        for _ in range(seconds):
            if not busy and any("ended" not in flight and "awaited" not in flight for flight in flights):
                unattended.add(int(time.now))
            time.now += 1

    def ended_of(flight: dict[str, float]) -> Callable[[], float | None]:
        return lambda: flight.get("ended")

    def waited(seconds: int) -> Callable[[], None]:
        return lambda: go(seconds, busy=True)

    for kind, seconds in steps:
        if kind == "work":
            go(seconds, busy=False)
        elif kind == "send":
            flight = {"begun": time.now}
            flights.append(flight)
            open_handles.append(
                (Handle(Transfer(waited(seconds), ended_of(flight)), desk, PAYLOAD, ""), flight)
            )
        elif kind == "end" and open_handles:
            open_handles[-1][1].setdefault("ended", time.now)
        elif kind == "wait" and open_handles:
            handle, flight = open_handles.pop(0)
            flight["awaited"] = time.now
            handle.wait()
        elif kind == "agree":
            Handle(Transfer(waited(seconds), lambda: None), desk, AGREEMENT, "").wait()
        elif kind == "epoch":
            laps.append(desk.stopwatch.since(start))
            start = desk.stopwatch.read()
    laps.append(desk.stopwatch.since(start))
    assert sum(lap.hidden for lap in laps) == len(unattended)
    assert all(0 <= lap.hidden <= lap.total for lap in laps)
    assert sum(lap.total for lap in laps) == time.now


class Tick(torch.autograd.Function):
    """Passes its input on; its way back takes some seconds."""

    @staticmethod
    def forward(ctx: Any, time: Time, seconds: float, x: torch.Tensor) -> torch.Tensor:
        ctx.time, ctx.seconds = time, seconds
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, None, torch.Tensor]:
        ctx.time.now += ctx.seconds
        return None, None, gradient


@pytest.mark.parametrize("needs_gradient", [True, False])
def test_the_way_back_of_an_aggregation_is_aggregation(needs_gradient: bool) -> None:
    time = Time()
    stopwatch = Stopwatch(time)
    x = torch.ones(2, requires_grad=True)
    inner = Tick.apply(time, 4.0, x) if needs_gradient else x.detach()
    out = Tick.apply(time, 2.0, inner)
    time_way_back(stopwatch, inner, out)
    loss = Tick.apply(time, 1.0, out + x).sum()
    with stopwatch.at("dense"):
        loss.backward()
    aggregation = {"aggregation": 2.0} if needs_gradient else {}
    dense = 1.0 + (4.0 if needs_gradient else 0.0)
    assert stopwatch.read().seconds == {"dense": dense, "other": 0.0} | aggregation


# The split of an epoch

TIMES = st.fixed_dictionaries({name: st.floats(0, 1e3) for name in MEASURED})


@given(st.lists(st.tuples(TIMES, st.floats(0, 1e3)), min_size=1, max_size=5))
def test_the_parts_of_an_epoch_add_up_to_its_seconds(rows: list[tuple[dict[str, float], float]]) -> None:
    """Of every rank, and of the run, whose seconds are the slowest rank's; and none is below 0."""
    everyone = [times | {"seconds": sum(times.values()) + rest} for times, rest in rows]
    for own in everyone:
        parts = split_of_rank(own, everyone)
        assert tuple(parts) == PARTS and min(parts.values()) >= 0
        assert sum(parts.values()) == pytest.approx(own["seconds"], rel=1e-12)
    run = split_of_run(everyone)
    assert tuple(run) == PARTS and min(run.values()) >= 0
    assert sum(run.values()) == pytest.approx(max(times["seconds"] for times in everyone), rel=1e-12)


def test_waiting_is_what_is_above_the_least_in_messages_of_one_kind() -> None:
    """Rank 1 is late forward, rank 0 backward: in the sum of all messages they would look alike."""
    early = dict.fromkeys(MEASURED, 0.0) | {"forward_seconds": 5.0, "backward_seconds": 1.0}
    late = dict.fromkeys(MEASURED, 0.0) | {"forward_seconds": 2.0, "backward_seconds": 4.0}
    late |= {"agreement_seconds": 1.0, "dense_seconds": 2.0}
    ranks = [early | {"seconds": 6.0, "agreement_seconds": 0.5}, late | {"seconds": 10.0}]
    parts = split_of_rank(ranks[0], ranks)
    assert parts["transfer_seconds"] == 3.0 and parts["waiting_seconds"] == 3.0
    assert parts["agreement_seconds"] == 0.5
    run = split_of_run(ranks)
    assert run["waiting_seconds"] == (3.0 + 3.5) / 2 and run["transfer_seconds"] == 3.0
    assert run["other_seconds"] == 10.0 - 3.0 - 3.25 - 0.5 - 1.0


def test_what_a_rank_measured() -> None:
    time = Time()
    stopwatch = Stopwatch(time)
    start = stopwatch.read()
    for activity in ("aggregation", "dense", "codec", "forward", "backward", "parameter", "agreement"):
        with stopwatch.at(activity):  # type: ignore[arg-type]
            time.now += 1
    time.now += 3
    figures = measured(stopwatch.since(start))
    assert Counter(figures) == Counter(dict.fromkeys(MEASURED, 1.0)) | Counter(
        {"seconds": 10.0, "comm_seconds": 4.0, "hidden_seconds": 0.0}
    )
