"""What a launcher makes of signals that arrive: passed on once each, and when a user has lost patience."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from sancus.launch import arrivals, interrupt
from sancus.launch.arrivals import Arrivals
from sancus.launch.interrupt import SIGNALS, Interrupt


class Ranks:
    """Ranks that remember what they were told."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def wait(self) -> int:
        return 0

    def signal(self, number: int) -> None:
        self.heard.append(signal.Signals(number).name)

    def kill(self) -> None:
        self.heard.append("the end")


@pytest.fixture(autouse=True)
def now(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """A clock of the test; the handlers of this process are given back afterwards."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    clock = [0.0]
    monkeypatch.setattr(interrupt.time, "monotonic", lambda: clock[0])
    yield clock
    signal.set_wakeup_fd(-1)
    for number, handler in before.items():
        signal.signal(number, handler)


def arrive(*numbers: int) -> None:
    for number in numbers:
        os.kill(os.getpid(), number)


def test_what_arrives_before_there_are_ranks_is_passed_on_to_them() -> None:
    noted, ranks = Arrivals(), Ranks()
    arrive(signal.SIGTERM)
    noted.pass_on(ranks)
    noted.pass_on(ranks)
    assert ranks.heard == ["SIGTERM"]


def test_one_interrupt_that_arrives_twice_counts_once() -> None:
    noted, ranks = Arrivals(), Ranks()
    arrive(signal.SIGINT, signal.SIGINT)
    noted.pass_on(ranks)
    arrive(signal.SIGINT)
    noted.pass_on(ranks)
    assert ranks.heard == ["SIGINT"]


def test_an_interrupt_well_after_the_first_was_answered_ends_all(now: list[float]) -> None:
    noted, ranks = Arrivals(), Ranks()
    arrive(signal.SIGINT)
    now[0] = 100.0  # nobody has heard of the first one yet
    arrive(signal.SIGINT)
    noted.pass_on(ranks)
    assert ranks.heard == ["SIGINT"]
    now[0] += 1.5 * arrivals.SAME_SECONDS
    arrive(signal.SIGINT)
    noted.pass_on(ranks)
    assert ranks.heard == ["SIGINT", "the end"]


def test_a_rank_of_our_launcher_leaves_patience_to_it(now: list[float]) -> None:
    noted = Interrupt(patient=True)
    arrive(signal.SIGINT)
    now[0] += 100.0
    arrive(signal.SIGINT)  # an impatient rank would be gone, and this test with it
    assert noted.received == signal.SIGINT


@pytest.mark.usefixtures("hangups_count")
@pytest.mark.parametrize("make", [Arrivals, Interrupt])
def test_a_hangup_is_noted_unless_nohup_ignores_it(make: type[Arrivals | Interrupt]) -> None:
    noted = make()
    arrive(signal.SIGHUP)
    assert noted.received in ([signal.SIGHUP], signal.SIGHUP)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    ignoring = make()
    arrive(signal.SIGHUP)
    assert not ignoring.received
