"""Staleness policies: the contract of the table, the bounds, the paper's examples, and what users get wrong.

`drive` runs p virtual ranks through epochs and layers with the real `Agreement` and `Decisions`, one thread a
rank, and notes what each of them decided.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sancus.comm.errors import CommError, DisagreementError
from sancus.comm.group import Group
from sancus.comm.ledger import DIRECTIONS, Direction, Stream
from sancus.errors import UserError
from sancus.exchange.agreement import Agree, Agreement
from sancus.exchange.decisions import Decisions
from sancus.plugins import build
from sancus.staleness import POLICIES
from sancus.staleness.base import LATER, SEND, SKIP, Answer, Policy, Replicated, View
from tests.helpers.threads import results, run_threads

Drift = Callable[[int, Stream, int], float]  # epoch, stream, version that the receivers hold


def policy_of(spec: str) -> Policy:
    policy: Policy = build("policy", POLICIES, spec)
    return policy


@dataclass
class Course:
    """What one virtual rank saw."""

    sends: dict[tuple[int, Stream], Answer] = field(default_factory=dict)
    ages: dict[tuple[int, Stream], int] = field(default_factory=dict)  # of what was used on SKIP and LATER
    max_ages: list[int] = field(default_factory=list)

    def epochs_of(self, stream: Stream) -> list[int]:
        """The epochs in which a stream was sent."""
        return [epoch for (epoch, other), send in self.sends.items() if send and other == stream]


def walk(
    group: Group,
    policies: dict[Direction, Policy],
    *,
    epochs: int,
    layers: int,
    needed: dict[Direction, list[bool]],
    drift: Drift,
    agree: Agree,
) -> Course:
    decisions, course = Decisions(group.size, group.clock), Course()
    agreement = Agreement(policies, group, decisions, needed, agree=agree, configuration=b"test")
    held: dict[Stream, int] = {}
    places: list[tuple[int, Direction]] = [(layer, "forward") for layer in range(layers)]
    places += [(layer, "backward") for layer in reversed(range(layers))]
    for epoch in range(epochs):
        group.clock.begin_epoch(epoch)
        decisions.begin_epoch()
        agreement.begin_epoch()
        for layer, direction in places:
            mine = Stream(layer, direction, group.rank)
            measured = drift(epoch, mine, held[mine]) if agreement.needs_drift(layer, direction) else 0.0
            for owner, send in enumerate(agreement.decide(layer, direction, measured)):
                stream = Stream(layer, direction, owner)
                course.sends[epoch, stream] = send
                if send != SEND and stream in held:
                    course.ages[epoch, stream] = epoch - held[stream]
                if send:
                    held[stream] = epoch
        course.max_ages.append(decisions.max_age)
    return course


def drive(
    forward: Policy | str,
    backward: Policy | str = "always",
    *,
    ranks: int,
    epochs: int = 9,
    layers: int = 2,
    needed: list[bool] | None = None,
    drift: Drift = lambda epoch, stream, held: 0.0,
    agree: Agree = "layer",
) -> list[Course]:
    """The course of every rank; they must not differ."""
    chosen = [policy_of(p) if isinstance(p, str) else p for p in (forward, backward)]
    policies: dict[Direction, Policy] = dict(zip(DIRECTIONS, chosen, strict=True))
    wanted: dict[Direction, list[bool]] = {side: needed or [True] * ranks for side in DIRECTIONS}

    def run(group: Group) -> Course:
        return walk(group, policies, epochs=epochs, layers=layers, needed=wanted, drift=drift, agree=agree)

    courses: list[Course] = results(run_threads(ranks, run))
    return courses


views = st.builds(
    View,
    epoch=st.integers(1, 500),
    layer=st.integers(0, 9),
    direction=st.sampled_from(DIRECTIONS),
    owner=st.integers(0, 15),
    ranks=st.just(16),
    age=st.integers(1, 300),
    since_first=st.integers(1, 500),
    needed=st.booleans(),
    drift=st.floats(0.0, 1e6) | st.just(math.inf),
)
specs = st.one_of(
    st.sampled_from(["always", "never", "drop"]),
    st.integers(0, 4).map("pipelined:sync_every={}".format),
    st.integers(0, 4).map("epoch-fixed:bound={}".format),
    st.integers(0, 4).map("epoch-adaptive:bound={}".format),
    st.integers(1, 5).map("periodic:period={}".format),
    st.integers(0, 5).map("never:max_age={}".format),
    st.builds(
        "variation-gap:gap={},norm={},max_age={}".format,
        st.sampled_from([0, 0.1, 0.5, 2]),
        st.sampled_from(["mean", "relative"]),
        st.integers(0, 5),
    ),
)


@dataclass(frozen=True)
class Whim(Replicated):
    """Any rule at all, as long as it is a function of its view."""

    seed: int
    max_age: int

    def decide(self, view: View) -> Answer | bool:
        return hash((self.seed, view.epoch, view.layer, view.owner, view.direction == "forward")) % 3 == 0


policies_of_any_kind = specs.map(policy_of) | st.builds(Whim, st.integers(0, 99), st.integers(0, 5))


def some_drift(epoch: int, stream: Stream, held: int) -> float:
    """Differs by owner, layer and epoch, and is sometimes nothing."""
    return (epoch * 7 + stream.layer * 3 + stream.owner * 5 + held) % 11 / 10


# The contract


@pytest.mark.parametrize("name", POLICIES)
def test_contract(name: str) -> None:
    policy = policy_of(name)
    assert isinstance(policy.max_age, int) and policy.max_age >= 0
    assert policy.drift_norm in (None, "mean", "relative")
    assert isinstance(policy.absent, bool)
    assert policy == policy_of(name) and hash(policy) == hash(policy_of(name))


@given(spec=specs, view=views)
def test_a_decision_is_a_pure_answer(spec: str, view: View) -> None:
    policy, before = policy_of(spec), repr(policy_of(spec))
    answer = policy.decide(view)
    assert isinstance(answer, bool | Answer)
    assert policy.decide(view) == answer == policy_of(spec).decide(dataclasses.replace(view))
    assert repr(policy) == before


@pytest.mark.parametrize("name", [name for name in POLICIES if not name.endswith("-gap")])
@given(view=views, other=st.floats(0.0, 1e6))
def test_a_replicated_policy_does_not_look_at_drift(name: str, view: View, other: float) -> None:
    policy = policy_of(name)
    assert policy.drift_norm is None
    assert policy.decide(view) == policy.decide(dataclasses.replace(view, drift=other))


# The bounds


@given(
    forward=policies_of_any_kind,
    backward=policies_of_any_kind,
    ranks=st.integers(1, 4),
    epochs=st.integers(1, 9),
    layers=st.integers(1, 3),
    agree=st.sampled_from(["layer", "epoch"]),
)
def test_ages_stay_bounded_first_use_sends_and_ranks_agree(
    forward: Policy, backward: Policy, ranks: int, epochs: int, layers: int, agree: Agree
) -> None:
    courses = drive(
        forward, backward, ranks=ranks, epochs=epochs, layers=layers, drift=some_drift, agree=agree
    )
    policies = {"forward": forward, "backward": backward}
    assert all(course == courses[0] for course in courses)
    for (_, stream), age in courses[0].ages.items():
        assert age <= policies[stream.direction].max_age
    assert all(age <= max(p.max_age for p in policies.values()) for age in courses[0].max_ages)
    for (epoch, stream), send in courses[0].sends.items():
        if policies[stream.direction].absent:
            assert not send
        elif epoch == 0:
            assert send


@given(bound=st.integers(0, 4), ranks=st.integers(1, 4), epochs=st.integers(1, 12))
def test_epoch_fixed_sends_exactly_every_bound_plus_one_epochs(bound: int, ranks: int, epochs: int) -> None:
    course = drive(f"epoch-fixed:bound={bound}", f"epoch-fixed:bound={bound}", ranks=ranks, epochs=epochs)[0]
    assert course.sends == {key: key[0] % (bound + 1) == 0 for key in course.sends}


@given(bound=st.integers(0, 4), ranks=st.integers(1, 7))
def test_epoch_adaptive_spreads_the_sends(bound: int, ranks: int) -> None:
    epochs = 3 * (bound + 1) + 2
    course = drive(f"epoch-adaptive:bound={bound}", ranks=ranks, epochs=epochs, layers=2)[0]
    for layer in range(2):
        for epoch in range(1, epochs):
            sent = sum(course.sends[epoch, Stream(layer, "forward", owner)] for owner in range(ranks))
            started = epoch > bound
            assert sent <= math.ceil(ranks / (bound + 1))
            assert sent >= ranks // (bound + 1) or not started
    assert max(course.ages.values(), default=0) <= bound


def test_epoch_adaptive_does_take_turns() -> None:
    course = drive("epoch-adaptive:bound=2", ranks=4, epochs=7, layers=1)[0]
    by_owner = [course.epochs_of(Stream(0, "forward", owner)) for owner in range(4)]
    assert by_owner == [[0, 3, 6], [0, 1, 4], [0, 2, 5], [0, 3, 6]]


@given(bound=st.integers(1, 3), ranks=st.integers(2, 4), data=st.data())
def test_an_owner_that_nobody_needs_sends_once(bound: int, ranks: int, data: st.DataObject) -> None:
    needed = data.draw(st.lists(st.booleans(), min_size=ranks, max_size=ranks))
    course = drive(f"epoch-adaptive:bound={bound}", ranks=ranks, needed=needed)[0]
    for owner in range(ranks):
        sent = course.epochs_of(Stream(1, "forward", owner))
        assert (len(sent) > 1) if needed[owner] else (sent == [0])
    assert max(course.max_ages) <= bound  # what nobody needs has no age that counts


def test_never_sends_once_and_drop_not_at_all() -> None:
    course = drive("never", "drop", ranks=3)[0]
    assert {epoch for (epoch, _), send in course.sends.items() if send} == {0}
    assert all(stream.direction == "forward" for (_, stream), send in course.sends.items() if send)


@dataclass(frozen=True)
class Stubborn(Replicated):
    """A user's policy that never wants to send."""

    max_age: ClassVar[int] = 3

    def decide(self, view: View) -> Answer | bool:
        return SKIP


@dataclass(frozen=True)
class StubbornMeasurer(Stubborn):
    drift_norm: ClassVar[Any] = "mean"


@pytest.mark.parametrize("policy", [Stubborn(), StubbornMeasurer()], ids=["replicated", "drift"])
@pytest.mark.parametrize("agree", ["layer", "epoch"])
def test_the_cap_is_hard(policy: Policy, agree: Agree) -> None:
    course = drive(policy, ranks=2, epochs=13, agree=agree, drift=some_drift)[0]
    assert course.epochs_of(Stream(0, "forward", 1)) == [0, 4, 8, 12]
    assert max(course.max_ages) == 3


# Variation gap


def sends_on(trace: list[list[float]], gap: float, max_age: int = 1000) -> list[int]:
    """Epochs in which one owner sends a payload that follows a trace of entries."""

    def drift(epoch: int, stream: Stream, held: int) -> float:
        pairs = zip(trace[epoch], trace[held], strict=True)
        return sum(abs(now - then) for now, then in pairs) / len(trace[epoch])

    spec = f"variation-gap:gap={gap},max_age={max_age}"
    course = drive(spec, ranks=1, epochs=len(trace), layers=1, drift=drift)[0]
    return course.epochs_of(Stream(0, "forward", 0))


@given(view=views, gaps=st.tuples(st.floats(0, 1e6), st.floats(0, 1e6)).map(sorted))
def test_a_larger_gap_never_turns_a_skip_into_a_send(view: View, gaps: list[float]) -> None:
    small, large = (policy_of(f"variation-gap:gap={gap!r}").decide(view) for gap in gaps)
    assert small or not large


steps = st.integers(0, 100)  # hundredths: sums of them are exact enough to compare


@given(
    signs=st.lists(st.sampled_from([-1, 1]), min_size=1, max_size=3),
    data=st.data(),
    gaps=st.tuples(st.integers(0, 300), st.integers(0, 300)).map(sorted),
)
def test_sends_never_rise_with_the_gap_where_entries_move_one_way(
    signs: list[int], data: st.DataObject, gaps: list[int]
) -> None:
    moves = data.draw(st.lists(st.tuples(*[steps] * len(signs)), min_size=1, max_size=15))
    trace = [[0.0] * len(signs)]
    for move in moves:
        trace.append([at + sign * step for at, sign, step in zip(trace[-1], signs, move, strict=True)])
    small, large = (len(sends_on(trace, gap)) for gap in gaps)
    assert large <= small


def test_sends_may_rise_with_the_gap_where_entries_turn_back() -> None:
    """Why the test above asks for entries that move one way: "sends never rise" is false in general.

    The larger gap sends later, at a value from which the way back is far.
    """
    trace = [[0.0], [0.5], [0.7], [0.15]]
    assert sends_on(trace, 0.4) == [0, 1]
    assert sends_on(trace, 0.52) == [0, 2, 3]


@given(st.lists(st.tuples(steps, steps), min_size=1, max_size=10))
def test_gap_zero_sends_whatever_has_changed(moves: list[tuple[int, int]]) -> None:
    trace = [[float(a), float(b)] for a, b in moves]
    changed = [epoch for epoch in range(1, len(trace)) if trace[epoch] != trace[epoch - 1]]
    assert sends_on(trace, 0) == [0, *changed]


def test_gap_agreed_once_an_epoch_lags_by_one() -> None:
    def drift(epoch: int, stream: Stream, held: int) -> float:
        return 1.0 if epoch >= 2 and held < 2 and stream.owner == 1 else 0.0

    by_layer = drive("variation-gap:gap=0.5", ranks=2, epochs=5, drift=drift)[0]
    by_epoch = drive("variation-gap:gap=0.5", ranks=2, epochs=5, drift=drift, agree="epoch")[0]
    assert by_layer.epochs_of(Stream(0, "forward", 1)) == [0, 2]
    assert by_epoch.epochs_of(Stream(0, "forward", 1)) == [0, 3]
    assert by_epoch.epochs_of(Stream(0, "forward", 0)) == [0]


# Figure 14 of the paper: four workers, bounds of 1


def test_figure_14a_skips_every_other_epoch() -> None:
    course = drive("epoch-fixed:bound=1", ranks=4, epochs=6)[0]
    for owner in range(4):
        assert course.epochs_of(Stream(0, "forward", owner)) == [0, 2, 4]


def test_figure_14b_designates_by_version() -> None:
    """The paper checks when an epoch ends, and who is designated sends in the next one."""
    policy = policy_of("epoch-adaptive:bound=1")
    version = {1: 8, 2: 7, 3: 9, 4: 9}
    designated = {}
    for epoch in (9, 10, 11):
        designated[epoch] = {
            worker
            for worker, made in version.items()
            if policy.decide(View(epoch, 0, "forward", worker - 1, 4, epoch - made, epoch, needed=True))
        }
        version |= dict.fromkeys(designated[epoch], epoch + 1)
    assert designated == {9: {2}, 10: {1}, 11: {3, 4}}


def test_figure_14c_sends_after_adaptive_numbers_of_epochs() -> None:
    speed = [0.0, 0.02, 0.05, 0.3]

    def drift(epoch: int, stream: Stream, held: int) -> float:
        return speed[stream.owner] * (epoch - held)

    course = drive("variation-gap:gap=0.1", ranks=4, epochs=13, drift=drift, layers=1)[0]
    sent = [course.epochs_of(Stream(0, "forward", owner)) for owner in range(4)]
    assert sent == [[0], [0, 6, 12], [0, 3, 6, 9, 12], list(range(13))]


# What users get wrong


@pytest.mark.parametrize(
    "spec, words",
    [
        ("epoch-fixed:bound=-1", "bound=-1 must be a whole number that is not negative"),
        ("periodic:period=0", "period=0 must be a whole number from 1 on"),
        ("epoch-adaptive:bound=-1", "bound=-1 must be a whole number that is not negative"),
        ("epoch-fixed:bound=1.5", "bound='1.5' is not a whole number"),
        ("epoch-fixed:bound=x", "bound='x' is not a whole number"),
        ("epoch-fixed:bound=", "'bound=' is not key=value"),
        ("never:max_age=-2", "max_age=-2 must be a whole number"),
        ("variation-gap:gap=nan", "gap=nan must be a number that is not negative"),
        ("variation-gap:gap=inf", "gap=inf must be a number that is not negative"),
        ("variation-gap:gap=-1", "gap=-1.0 must be a number that is not negative"),
        ("variation-gap:gap=much", "gap='much' is not a number"),
        ("variation-gap:max_age=-1", "max_age=-1 must be a whole number"),
        ("variation-gap:norm=max", "norm='max' is not one of mean, relative"),
        ("epoch-fixed:bond=1", "has no setting 'bond'; its settings: bound (did you mean bound?)"),
        ("always:bound=1", "has no setting 'bound'; its settings: none"),
        ("epoch-fixd", "'epoch-fixd' does not exist; choose from always"),
    ],
)
def test_wrong_settings_are_one_line(spec: str, words: str) -> None:
    with pytest.raises(UserError, match=re.escape(words)) as caught:
        policy_of(spec)
    assert "\n" not in str(caught.value) and spec.partition(":")[0] in str(caught.value)


@dataclass(frozen=True)
class Broken(Replicated):
    """Fails in epoch 2, in one of several ways."""

    how: str = "raises"
    max_age: ClassVar[int] = 9

    def decide(self, view: View) -> Answer | bool:
        if view.epoch == 2 and view.layer == 1:
            if self.how == "raises":
                raise KeyError("lost")
            return {"none": None, "number": 1, "text": "SEND"}[self.how]  # type: ignore[return-value]
        return SKIP


@pytest.mark.parametrize("norm", [None, "mean"])
@pytest.mark.parametrize(
    "how, words",
    [
        ("raises", "decide raised KeyError: 'lost'"),
        ("none", "returned None"),
        ("number", "returned 1"),
        ("text", "returned 'SEND'"),
    ],
)
def test_a_policy_that_fails_is_named_with_its_place(how: str, words: str, norm: Any) -> None:
    policy = type("Broken", (Broken,), {"drift_norm": norm})(how)
    with pytest.raises(UserError, match=f"^policy Broken, epoch 2, layer 1, forward: .*{words}"):
        drive(policy, ranks=2)


@dataclass(frozen=True)
class Local:
    """Measures drift, and breaks on the rank where it is large."""

    max_age: ClassVar[int] = 9
    drift_norm: ClassVar[Any] = "mean"
    absent: ClassVar[bool] = False

    def decide(self, view: View) -> Answer | bool:
        if view.drift > 5:
            raise ArithmeticError("too much")
        return SKIP


@pytest.mark.parametrize("agree", ["layer", "epoch"])
def test_a_policy_that_fails_on_one_rank_is_the_same_error_on_all(agree: Agree) -> None:
    policies: dict[Direction, Any] = {"forward": Local(), "backward": policy_of("always")}
    needed: dict[Direction, list[bool]] = {side: [True] * 3 for side in DIRECTIONS}

    def run(group: Group) -> Course:
        return walk(
            group,
            policies,
            epochs=5,
            layers=1,
            needed=needed,
            drift=lambda epoch, stream, held: 9.0 if epoch == 2 and stream.owner == 1 else 0.0,
            agree=agree,
        )

    outcomes = run_threads(3, run)
    epoch = {"layer": 2, "epoch": 3}[agree]
    expected = f"policy Local, epoch {epoch}, layer 0, forward: decide raised ArithmeticError: too much"
    assert [(type(outcome), str(outcome)) for outcome in outcomes] == [(UserError, expected)] * 3


@dataclass
class Rogue(Replicated):
    """Not a function of its view: answers differently on one rank."""

    rank: int
    max_age: ClassVar[int] = 9

    def decide(self, view: View) -> Answer | bool:
        return SEND if view.epoch == 3 and self.rank == 2 else SKIP


def test_different_answers_are_found_when_the_epoch_begins() -> None:
    reached: list[list[int]] = [[] for _ in range(4)]

    def run(group: Group) -> None:
        decisions = Decisions(4, group.clock)
        policies: dict[Direction, Any] = dict.fromkeys(DIRECTIONS, Rogue(group.rank))
        needed: dict[Direction, list[bool]] = {side: [True] * 4 for side in DIRECTIONS}
        agreement = Agreement(policies, group, decisions, needed)
        for epoch in range(5):
            group.clock.begin_epoch(epoch)
            decisions.begin_epoch()
            agreement.begin_epoch()
            reached[group.rank].append(epoch)
            agreement.decide(0, "forward")

    outcomes = run_threads(4, run)
    for outcome in outcomes:
        assert isinstance(outcome, DisagreementError)
        assert str(outcome).startswith("rank 2 disagrees with rank 0 in epoch 3: its answers is ")
    assert reached == [[0, 1, 2]] * 4


@pytest.mark.parametrize(
    "left_out, words",
    [
        ("max_age", "max_age=None"),
        ("drift_norm", "drift_norm=''"),
        ("absent", "absent=None"),
        ("decide", "decide"),
    ],
)
def test_a_policy_that_breaks_the_contract_is_refused(left_out: str, words: str) -> None:
    content: dict[str, Any] = {"max_age": 2, "drift_norm": None, "absent": False, "decide": lambda s, v: SEND}
    content.pop(left_out)
    with pytest.raises(UserError, match=f"policy Mine: .*{words}"):
        drive(type("Mine", (), content)(), ranks=1)


@pytest.mark.parametrize("wrong", [-1, 1.5, True, None, "3"])
def test_a_cap_that_is_no_bound_is_refused(wrong: Any) -> None:
    with pytest.raises(UserError, match="policy Mine: max_age="):
        drive(type("Mine", (Stubborn,), {"max_age": wrong})(), ranks=1)


def test_a_rank_that_left_is_not_waited_for() -> None:
    """The helper itself: whoever waits for a rank that has returned gets an error, not a hang."""
    outcomes = run_threads(2, lambda t: None if t.rank else t.all_gather(torch.zeros(1)))
    assert isinstance(outcomes[0], CommError) and outcomes[1] is None


# `pipelined`


@pytest.mark.parametrize("ranks", [2, 3])
def test_pipelined_alone_is_always_one_epoch_behind(ranks: int) -> None:
    course = drive("pipelined", "pipelined", ranks=ranks, epochs=6)[0]
    for (epoch, _), answer in course.sends.items():
        assert answer == (LATER if epoch else SEND)
    assert course.max_ages == [0, 1, 1, 1, 1, 1]


@given(every=st.integers(1, 6), epochs=st.integers(1, 20))
def test_pipelined_synchronises_as_told_and_sends_nothing_that_nobody_uses(every: int, epochs: int) -> None:
    stream = Stream(0, "forward", 0)
    course = drive(f"pipelined:sync_every={every}", ranks=2, epochs=epochs, layers=1)[0]
    answers = [course.sends[epoch, stream] for epoch in range(epochs)]
    for epoch, answer in enumerate(answers):
        if epoch % every == 0:
            assert answer == SEND
        elif epoch % every == every - 1:
            assert answer == SKIP
        else:
            assert answer == LATER
    assert max(course.max_ages) <= 1


# Periodic


@given(period=st.integers(1, 6), ranks=st.integers(1, 3), epochs=st.integers(1, 20))
def test_periodic_pushes_every_period_for_the_epochs_after(period: int, ranks: int, epochs: int) -> None:
    """DIGEST: what epoch e made is used in e + 1 … e + N; the first epoch, with nothing to pull, is fresh."""
    course = drive(f"periodic:period={period}", f"periodic:period={period}", ranks=ranks, epochs=epochs)[0]
    for (epoch, _), answer in course.sends.items():
        assert answer == (SEND if epoch == 0 else LATER if epoch % period == 0 else SKIP)
    assert course.max_ages == [0, *(1 + (epoch - 1) % period for epoch in range(1, epochs))][:epochs]


@given(view=views)
def test_a_period_of_one_is_pipelined(view: View) -> None:
    assert policy_of("periodic:period=1").decide(view) == policy_of("pipelined").decide(view) == LATER
