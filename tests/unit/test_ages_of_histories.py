"""What ages and drifts a run reports, and what `--agree epoch` decides by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sancus.comm.group import Group
from sancus.comm.ledger import Stream
from sancus.config.settings import Config, FactorSettings
from sancus.models.settings import ModelSettings
from sancus.training.settings import TrainingSettings
from tests.helpers.graphs import awkward_graph, shards_of
from tests.helpers.threads import open_own, results, run_threads, thread_trainer

RANKS, EPOCHS = 2, 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shards_of(awkward_graph(), "random", RANKS, tmp_path_factory.mktemp("shards"))


def run(folder: Path, **factors: Any) -> list[tuple[list[Any], Any, list[dict[Stream, float]]]]:
    """On every rank: the records, the decisions, and the drift that was measured in every epoch."""
    config = Config(
        factors=FactorSettings(plan="halo", kernel="torch", **factors),
        shape=ModelSettings(hidden=4, layers=2, dropout=0.0),
        training=TrainingSettings(epochs=EPOCHS, lr=0.05),
    )

    def on_rank(group: Group) -> tuple[list[Any], Any, list[dict[Stream, float]]]:
        trainer = thread_trainer(config, open_own(folder, group), group)
        crossing, records, drifts = trainer.exchange.crossing, [], []
        for record in trainer.epochs():
            records.append(record)
            drifts.append(dict(crossing.agreement.drifts))
        return records, crossing.decisions.as_array(), drifts

    return results(run_threads(RANKS, on_rank))


@pytest.mark.parametrize(
    "policy, ages",
    [
        ("always", [0, 0, 0, 0, 0, 0]),
        ("epoch-fixed:bound=2", [0, 1, 2, 0, 1, 2]),
        ("epoch-adaptive:bound=1", [0, 1, 1, 1, 1, 1]),
        ("pipelined", [0, 1, 1, 1, 1, 1]),
        ("pipelined:sync_every=3", [0, 1, 1, 0, 1, 1]),
        ("periodic:period=2", [0, 1, 2, 1, 2, 1]),
        ("never", [0, 1, 2, 3, 4, 5]),
        ("drop", [0, 0, 0, 0, 0, 0]),
    ],
)
def test_the_oldest_history_of_an_epoch(folder: Path, policy: str, ages: list[int]) -> None:
    for records, _, _ in run(folder, staleness=policy):
        assert [record["max_age"] for record in records] == ages


@pytest.mark.parametrize("plan", ["block", "halo"])
def test_drift_adds_up_while_an_owner_skips(folder: Path, plan: str) -> None:
    """Rows grow by 0.4 an epoch and the gap is 1: every third epoch sends, though no step passes the gap."""
    factors = FactorSettings(
        plan=plan, staleness="variation-gap:gap=1.0", kernel="torch", broadcast="library"
    )

    def on_rank(group: Group) -> list[int]:
        exchange = thread_trainer(Config(factors=factors), open_own(folder, group), group).exchange
        for epoch in range(7):
            exchange.begin_epoch(epoch)
            exchange.propagate(torch.full((len(exchange.nodes), 3), 0.4 * (1 + epoch)), 1)
        answers: list[int] = exchange.crossing.decisions.as_array()[:, 1, 0, group.rank].tolist()
        return answers

    assert results(run_threads(RANKS, on_rank)) == [[1, 0, 0, 1, 0, 0, 1]] * RANKS


def test_agreement_an_epoch_ahead_goes_by_the_drift_since_the_last_send(folder: Path) -> None:
    """An owner that sent has nothing to make up for: it skips next, whatever it had drifted before."""
    gap = 0.01
    everyone = run(folder, staleness=f"variation-gap:gap={gap}", agree="epoch")
    seen = set()
    for rank, (_, decisions, drifts) in enumerate(everyone):
        for stream in (stream for stream in drifts[0] if stream.direction == "forward"):
            answers = decisions[:, stream.layer, 0, rank].tolist()
            for epoch in range(1, EPOCHS):
                drifted = drifts[epoch - 1].get(stream, 0.0) if not answers[epoch - 1] else 0.0
                assert bool(answers[epoch]) == (drifted > gap), (rank, stream, epoch)
                seen.add((bool(answers[epoch]), bool(answers[epoch - 1])))
    assert seen >= {(True, False), (False, True)}
