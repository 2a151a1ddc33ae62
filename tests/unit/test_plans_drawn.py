"""Plan `drawn`: both sides know the draw, sums are right on average, rate 1 is `halo` bit for bit."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st

from sancus.config.kinds import try_spec
from sancus.config.settings import FactorSettings
from sancus.errors import UserError
from sancus.plans import PLANS, changes, drawn
from sancus.plans.drawn import Drawn, DrawnRows, draw
from sancus.plans.maps import Pick
from sancus.plugins import build
from sancus.runs.check import check_memory_of_draws
from tests.helpers import draws
from tests.unit.test_plans import BENCH, Cut, cut, cuts, dense_of, leg_of, plans_of

KEYS = st.integers(-(2**63), 2**63 - 1)
RATES = st.floats(0.01, 1.0)


def at(graph: Cut, rate: float, key: int) -> list[DrawnRows]:
    """The plan of one update on every rank."""
    spec = f"drawn:rate={rate!r}"
    plans = [build("plan", PLANS, spec, operator=operator, bench=BENCH) for operator in graph.operators]
    return [plan.at(key) for plan in plans]


def operator_of(plans: list[Any], graph: Cut, direction: str) -> torch.Tensor:
    """What all ranks together multiply by, `[N, N]`."""
    legs = [leg_of(plan, direction) for plan in plans]
    dense = torch.zeros_like(graph.dense)
    for i, leg in enumerate(legs):
        dense[graph.rows(i), graph.rows(i)] = dense_of(leg.diagonal)
        for j, owner in enumerate(legs):
            if i != j:
                dense[graph.rows(i), graph.rows(j)] = dense_of(leg.add[j]) @ dense_of(owner.make[i])
    return dense


# The draw


@given(key=KEYS, receiver=st.integers(0, 500), rate=RATES)
def test_a_draw_is_a_pure_function_of_row_receiver_and_update(key: int, receiver: int, rate: float) -> None:
    rows = torch.arange(1000, 9000)
    mask = draw(rows, receiver=receiver, key=key, rate=rate)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))[:50]
    assert torch.equal(draw(rows[order], receiver=receiver, key=key, rate=rate), mask[order])
    deviation = (rate * (1 - rate) / len(rows)) ** 0.5
    assert abs(mask.double().mean().item() - rate) < 6 * deviation + 1e-12
    more = draw(rows, receiver=receiver, key=key, rate=min(1.0, 1.5 * rate))
    assert bool((mask <= more).all()), "a larger rate draws the same rows and others"


@given(key=KEYS, other=KEYS, receiver=st.integers(0, 500), apart=st.integers(1, 500))
def test_draws_of_other_receivers_and_updates_are_independent(
    key: int, other: int, receiver: int, apart: int
) -> None:
    rows = torch.arange(8000)
    first = draw(rows, receiver=receiver, key=key, rate=0.5)
    elsewhere = draw(rows, receiver=receiver + apart, key=key, rate=0.5)
    later = draw(rows, receiver=receiver, key=other, rate=0.5)
    for second in (elsewhere, *([later] if other != key else [])):
        assert (first & second).double().mean().item() == pytest.approx(0.25, abs=0.035)


def test_the_draw_is_that_of_plain_integers() -> None:
    from sancus.exchange.current_plan import DRAW
    from sancus.exchange.dropout import DropoutKey

    for seed, epoch, receiver in product((0, 7), (0, 3), (0, 1, 5)):
        key = DropoutKey(seed, epoch, DRAW).mixed()
        mask = draw(torch.arange(60), receiver=receiver, key=key, rate=0.3)
        assert mask.tolist() == [draws.drawn(seed, epoch, receiver, row, 0.3) for row in range(60)]
        assert 5 < int(mask.sum()) < 40


# The plan of one update


@given(graph=cuts(), key=KEYS, rate=RATES)
def test_owner_and_receiver_mean_the_same_rows(graph: Cut, key: int, rate: float) -> None:
    plans, start = at(graph, rate, key), graph.offsets
    for i, j in product(range(graph.ranks), repeat=2):
        if i == j:
            continue
        halo = torch.from_numpy(graph.operators[i].halo(j))
        expected = halo[draw(halo + int(start[j]), receiver=i, key=key, rate=rate)]
        sent = plans[j].forward.make[i]
        assert isinstance(sent, Pick) and torch.equal(sent.index, expected)
        assert sent.rows_out == plans[i].forward.add[j].rows_in
        assert plans[i].backward.make[j].rows_out == plans[j].backward.add[i].rows_in == sent.rows_out


@given(graph=cuts(), key=KEYS, rate=RATES)
def test_drawn_columns_are_scaled_and_others_gone(graph: Cut, key: int, rate: float) -> None:
    plans = at(graph, rate, key)
    expected = graph.dense.clone()
    for i, j in product(range(graph.ranks), repeat=2):
        if i != j:
            columns = torch.arange(int(graph.offsets[j]), int(graph.offsets[j + 1]))
            factor = draw(columns, receiver=i, key=key, rate=rate).double() / rate
            expected[graph.rows(i), graph.rows(j)] *= factor
    found = operator_of(plans, graph, "forward")
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(operator_of(plans, graph, "backward"), found.T)


@given(graph=cuts(), key=KEYS)
def test_rate_1_is_the_plan_halo_bit_for_bit(graph: Cut, key: int) -> None:
    h = torch.from_numpy(np.random.default_rng(0).standard_normal((len(graph.dense), 3)))
    for mine, halo in zip(at(graph, 1.0, key), plans_of("halo", graph), strict=True):
        for direction in ("forward", "backward"):
            ours, theirs = leg_of(mine, direction), leg_of(halo, direction)
            for maps, others in ((ours.make, theirs.make), (ours.add, theirs.add)):
                for one, other in zip(maps, others, strict=True):
                    assert torch.equal(one.apply(h[: one.rows_in]), other.apply(h[: other.rows_in]))
            assert all(torch.equal(a, b) for a, b in zip(ours.weight, theirs.weight, strict=True))


@given(graph=cuts(), key=KEYS, rate=RATES)
def test_local_rows_are_those_of_own_and_drawn_rows(graph: Cut, key: int, rate: float) -> None:
    plans = at(graph, rate, key)
    sampled = operator_of(plans, graph, "forward")
    h = torch.from_numpy(np.random.default_rng(1).standard_normal((len(graph.dense), 2)))
    for i, plan in enumerate(plans):
        others = [j for j in range(graph.ranks) if j != i]
        received = [plans[j].forward.make[i].apply(h[graph.rows(j)]) for j in others]
        whole = [plan.whole.forward.add[j].rows_in for j in others]
        rows = torch.cat([h[graph.rows(i)], *received])
        torch.testing.assert_close(plan.local_rows().multiply(rows), sampled[graph.rows(i)] @ h)
        every = torch.cat([h[graph.rows(i)], *(h[graph.rows(j)][graph.operators[i].halo(j)] for j in others)])
        assert len(every) == len(h[graph.rows(i)]) + sum(whole)
        assert torch.equal(every[plan.columns], rows)


@given(graph=cuts(), key=KEYS, rate=RATES)
def test_weights_are_the_squares_of_what_receivers_multiply_with(graph: Cut, key: int, rate: float) -> None:
    legs = [plan.forward for plan in at(graph, rate, key)]
    for i, j in product(range(graph.ranks), repeat=2):
        if i != j:
            squares = dense_of(legs[i].add[j]).square().sum(dim=0)
            torch.testing.assert_close(legs[j].weight[i].double(), squares, rtol=1e-5, atol=1e-6)


def test_an_update_has_one_plan_and_the_next_another() -> None:
    plan = build("plan", PLANS, "drawn:rate=0.5", operator=small_cut().operators[0], bench=BENCH)
    assert plan.at(3) is plan.at(3)
    assert plan.at(4) is not plan.at(3)


# Right on average


def small_cut() -> Cut:
    """Three ranks, seven rows of halos in all."""
    edges = [(0, 1), (0, 2), (1, 3), (2, 3), (3, 0), (4, 0), (4, 2), (2, 4), (1, 4)]
    weights = np.zeros((5, 5), np.float32)
    for place, (target, source) in enumerate(edges):
        weights[target, source] = place + 1
    return cut(sp.csr_array(weights), np.array([0, 0, 1, 1, 2]), 3, "mean")


@pytest.mark.parametrize("rate", [0.1, 0.7])
def test_the_mean_over_all_draws_is_the_product(rate: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every possible outcome of the draw, weighed by its probability."""
    graph = small_cut()
    places = [
        (i, int(graph.offsets[j]) + int(row))
        for i, j in product(range(graph.ranks), repeat=2)
        if i != j
        for row in graph.operators[i].halo(j)
    ]
    assert 6 <= len(places) <= 10
    mean, total = torch.zeros_like(graph.dense), 0.0
    for outcome in product((False, True), repeat=len(places)):
        chosen = {place for place, taken in zip(places, outcome, strict=True) if taken}

        def given_draw(rows: torch.Tensor, *, receiver: int, key: int, rate: float, chosen: Any = chosen):
            return torch.tensor([(receiver, row) in chosen for row in rows.tolist()], dtype=torch.bool)

        monkeypatch.setattr(drawn, "draw", given_draw)
        probability = rate ** len(chosen) * (1 - rate) ** (len(places) - len(chosen))
        mean += probability * operator_of(at(graph, rate, 0), graph, "forward")
        total += probability
    assert total == pytest.approx(1.0)
    torch.testing.assert_close(mean, graph.dense)


def test_the_mean_over_many_epochs_is_near_the_product() -> None:
    graph, rate, epochs = small_cut(), 0.5, 250
    plans = [Drawn(operator, BENCH, rate) for operator in graph.operators]
    mean = sum(operator_of([plan.at(key) for plan in plans], graph, "forward") for key in range(epochs))
    deviation = graph.dense.abs() * ((1 - rate) / rate / epochs) ** 0.5
    assert bool(((mean / epochs - graph.dense).abs() <= 5 * deviation + 1e-12).all())


# Refusals


@pytest.mark.parametrize("rate", ["0", "-0.1", "1.5", "nan", "1e-300", "1e-17"])
def test_a_rate_is_a_share(rate: str) -> None:
    with pytest.raises(
        UserError, match=r"plan 'drawn:rate=.*': rate=.* must be at least 1.1e-16 and at most 1"
    ):
        try_spec("plan", f"drawn:rate={rate}")
    with pytest.raises(UserError, match=r"must be at least 1\.1e-16 and at most 1"):
        build("plan", PLANS, f"drawn:rate={rate}", operator=small_cut().operators[0], bench=BENCH)


def test_which_plans_change() -> None:
    assert changes(Drawn) and not changes(plans_of("halo", small_cut())[0])


@pytest.mark.parametrize(
    "factors, flag",
    [
        ({"staleness": "epoch-fixed:bound=2"}, "--staleness epoch-fixed:bound=2"),
        ({"backward": "pipelined"}, "--backward pipelined"),
        ({"staleness": "variation-gap:gap=0.1"}, "--staleness variation-gap:gap=0.1"),
        ({"error_feedback": True, "codec": "int2"}, "--error-feedback"),
    ],
)
def test_rows_of_an_earlier_epoch_cannot_serve(factors: dict[str, Any], flag: str) -> None:
    settings = FactorSettings(plan="drawn:rate=0.5", **factors)
    with pytest.raises(UserError) as refusal:
        check_memory_of_draws(settings, Drawn)
    assert str(refusal.value).startswith(f"{flag}: --plan drawn:rate=0.5 sends other rows in every epoch")
    check_memory_of_draws(FactorSettings(plan="halo", **factors), object())


def test_what_remembers_nothing_goes_with_a_draw() -> None:
    for policy in ("always", "drop", "epoch-fixed:bound=0"):
        check_memory_of_draws(FactorSettings(plan="drawn", staleness=policy, backward=policy), Drawn)
