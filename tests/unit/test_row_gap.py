"""Policy `row-gap`: which rows cross, what it costs to the byte, and that nothing else changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sancus.comm.group import Group
from sancus.comm.header import PAYLOAD_HEADER, PLAIN_HEADER
from sancus.comm.ledger import Stream
from sancus.config.resolve import make_config
from sancus.config.settings import Config
from sancus.errors import UserError
from sancus.runs.check import check_settings
from tests.helpers.graphs import awkward_graph, shards_of
from tests.helpers.threads import open_own, results, run_threads, thread_trainer

RANKS, EPOCHS, WIDTH = 2, 7, 3
PLANS = ["block", "halo", "prepost"]
LAYER = 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shards_of(awkward_graph(), "random", RANKS, tmp_path_factory.mktemp("shards"))


def config_of(**flags: Any) -> Config:
    around: dict[str, Any] = {"kernel": "torch", "broadcast": "library", "hidden": 4, "dropout": 0.0}
    return make_config(preset="exact", **(around | {"epochs": EPOCHS, "lr": 0.05} | flags))


def records(folder: Path, **flags: Any) -> list[dict[str, Any]]:
    """The epochs of a training, which are the same on all ranks."""
    config = config_of(**flags)

    def on_rank(group: Group) -> list[Any]:
        return list(thread_trainer(config, open_own(folder, group), group).epochs())

    first, second = results(run_threads(RANKS, on_rank))
    assert first == second
    return list(first)


def losses(lines: list[dict[str, Any]]) -> list[Any]:
    return [(line["loss"], line["train"], line["val"], line["test"]) for line in lines]


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize(
    "spec", ["row-gap:gap=5,max_age=0", "row-gap:gap=0,max_age=3", "row-gap:gap=0,norm=mean"]
)
def test_rows_that_are_fresh_or_have_not_changed_give_the_numbers_of_always(
    folder: Path, plan: str, spec: str
) -> None:
    flags: dict[str, Any] = {"plan": plan, "layers": 3, "dtype": "float64", "reuse_input": False}
    stale = records(folder, staleness=spec, backward=spec, **flags)
    assert losses(stale) == losses(records(folder, **flags))
    assert max(line["max_age"] for line in stale) == (
        0 if "max_age=0" in spec else 3 if "max_age" in spec else 6
    )


def growing(exchange: Any, epoch: int) -> torch.Tensor:
    """`[n_i, 3]`: the row of node `v` grows by `v / 10` an epoch; node 0 never moves."""
    return (1.0 + exchange.nodes[:, None] * 0.1 * epoch) * torch.ones(WIDTH)


@pytest.mark.parametrize("plan", ["block", "halo"])
@pytest.mark.parametrize("codec", ["fp32", "int8"])
def test_a_row_crosses_when_it_has_drifted_or_is_too_old_and_costs_this_much(
    folder: Path, plan: str, codec: str
) -> None:
    """By hand: node `v` drifts by `v / 10` an epoch, the gap is 0.95, and no row gets older than 3."""
    config = config_of(plan=plan, staleness="row-gap:gap=0.95,norm=mean,max_age=3", codec=codec)

    def on_rank(group: Group) -> tuple[Any, ...]:
        exchange = thread_trainer(config, open_own(folder, group), group).exchange
        crossing, other = exchange.crossing, 1 - group.rank
        going = crossing_rows(exchange, other)
        bytes_now, saved, ages, held = [], [], [], []
        for epoch in range(EPOCHS):
            before = group.ledger.wire_of("payload"), group.ledger.wire_of("agreement")
            exchange.begin_epoch(epoch)
            plain = group.ledger.wire_of("agreement")
            exchange.propagate(growing(exchange, epoch), LAYER)
            after = group.ledger.wire_of("payload"), group.ledger.wire_of("agreement")
            bytes_now.append((after[0] - before[0], after[1] - plain))
            saved.append(sum(group.ledger.saved.values()))
            ages.append(crossing.decisions.max_age)
            held.append(crossing.memory.history.pull(Stream(LAYER, "forward", other)))
        kept = crossing.memory.drift.sent.pull(Stream(LAYER, "forward", group.rank))
        return going, bytes_now, saved, ages, held[-1], kept

    everyone = results(run_threads(RANKS, on_rank))
    row_bytes = 4 * WIDTH if codec == "fp32" else WIDTH + 8
    for rank, (going, bytes_now, saved, ages, _, _) in enumerate(everyone):
        expected, version = [], dict.fromkeys(going, 0)
        missing = 0
        for epoch in range(EPOCHS):
            due = [
                node
                for node, then in version.items()
                if not epoch or node * 0.1 * (epoch - then) > 0.95 or epoch - then > 3
            ]
            version |= dict.fromkeys(due, epoch)
            missing += row_bytes * (len(going) - len(due))
            bitmap = -(-len(going) // 8) + PLAIN_HEADER if epoch else 0
            expected.append((row_bytes * len(due), bitmap + PAYLOAD_HEADER * bool(due)))
            assert ages[epoch] == max(epoch - then for then in version.values()), (rank, epoch)
        assert bytes_now == expected
        assert saved[-1] == missing > 0
        torch.testing.assert_close(everyone[1 - rank][4], everyone[rank][5], rtol=1e-6, atol=1e-6)


def crossing_rows(exchange: Any, receiver: int) -> list[int]:
    """Numbers of the nodes whose rows this rank sends, in the order of the payload."""
    leg = exchange.mover.plan.forward
    numbers = exchange.nodes[:, None].float()
    make = leg.make[exchange.group.rank if leg.broadcast else receiver]
    return [int(number) for number in make.apply(numbers)[:, 0].tolist()]


def test_a_row_that_never_moves_crosses_when_it_would_be_too_old(folder: Path) -> None:
    lines = records(folder, plan="halo", staleness="row-gap:gap=1000,max_age=2", reuse_input=False)
    assert [line["max_age"] for line in lines] == [0, 1, 2, 0, 1, 2, 0]
    assert [line["wire_bytes"] > 0 for line in lines[:3]] == [True, True, True]  # gradients always cross
    assert lines[1]["wire_bytes"] == lines[2]["wire_bytes"] < lines[3]["wire_bytes"] == lines[0]["wire_bytes"]


def test_the_oldest_row_of_any_rank_is_reported(folder: Path) -> None:
    """Ranks pick for themselves; the record is that of the run."""
    lines = records(folder, plan="halo", staleness="row-gap:gap=0.05", reuse_input=False, dropout=0.5)
    assert max(line["max_age"] for line in lines) > 1 and max(line["saved_bytes"] for line in lines) > 0


@pytest.mark.parametrize(
    "flags, told",
    [
        ({"agree": "epoch"}, "--agree epoch: --staleness row-gap:gap=1 picks rows"),
        ({"codec": "int4", "error_feedback": True}, "--error-feedback: --staleness row-gap:gap=1"),
    ],
)
def test_what_goes_by_whole_payloads_is_refused_before_a_rank_starts(
    flags: dict[str, Any], told: str
) -> None:
    with pytest.raises(UserError, match=told):
        check_settings(config_of(staleness="row-gap:gap=1", **flags), launched=False)


@pytest.mark.parametrize(
    "body, told",
    [
        ("return [True]", "pick returned no yes or no for each of"),
        ("raise ValueError('odd')", "pick raised ValueError: odd"),
    ],
)
def test_a_policy_that_picks_wrongly_stops_all_ranks(
    folder: Path, tmp_path: Path, body: str, told: str
) -> None:
    own = tmp_path / "mine.py"
    own.write_text(
        "from sancus.staleness.row_gap import RowGap\n\n\n"
        f"class Mine(RowGap):\n    def pick(self, drift):\n        {body}\n"
    )
    with pytest.raises(Exception, match=told):
        records(folder, plan="halo", staleness=f"{own}:Mine", reuse_input=False)
