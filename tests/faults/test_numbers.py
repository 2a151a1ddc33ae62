"""NaN and infinity, and weights that differ: all ranks stop in the same epoch, with the same words."""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from sancus.comm.errors import DisagreementError
from sancus.comm.group import Group
from sancus.config.settings import Config, FactorSettings
from sancus.errors import UserError
from sancus.graphs.shards import Shard, open_shard
from sancus.models.settings import ModelSettings
from sancus.runs.build import make_trainer
from sancus.training.settings import TrainingSettings
from sancus.training.trainer import Trainer
from tests.faults.plugins import Diverges, NotFinite
from tests.faults.record import record
from tests.helpers.graphs import awkward_graph, shards_of
from tests.helpers.threads import results, run_threads

RANKS, AT, WHO = 3, 2, 1
SAYS = {
    "payload": rf"rank {WHO}, layer 1, forward, epoch {AT}: row \d+ of the payload holds NaN",
    "evaluation": rf"rank {WHO}, layer 1, forward, epoch {AT}: row \d+ of the payload holds NaN",
    "gradient": rf"rank {WHO}, backward, epoch {AT}: the gradient of layers.1.bias holds NaN",
    "loss": rf"the loss of rank {WHO} is nan in epoch {AT}; lower --lr, or look at the features",
}


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> list[Shard]:
    folder = shards_of(awkward_graph(), "random", RANKS, tmp_path_factory.mktemp("shards"))
    return [open_shard(folder, rank) for rank in range(RANKS)]


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULT_RANK", str(WHO))
    monkeypatch.setenv("FAULT_EPOCH", str(AT))


@dataclass
class Ranks:
    """What became of all ranks."""

    outcomes: list[Any]
    trainers: dict[int, Trainer]


def train(shards: list[Shard], kind: type, factors: FactorSettings, check: int = 0) -> Ranks:
    training = TrainingSettings(epochs=AT + 3, check=check)
    config = Config(factors=factors, shape=ModelSettings(layers=2, hidden=4), training=training)
    graph = shards[0].manifest["graph"]
    torch.manual_seed(0)  # threads share torch's generator, so the model is made here
    model = kind(graph["features"], graph["classes"], config.shape)
    models = [copy.deepcopy(model) for _ in range(RANKS)]
    trainers: dict[int, Trainer] = {}

    def rank(group: Group) -> None:
        mine = group.rank
        trainers[mine] = make_trainer(config, shards[mine], group, torch.device("cpu"), models[mine])
        trainers[mine].run()

    return Ranks(run_threads(RANKS, rank), trainers)


@pytest.mark.parametrize("where", SAYS)
@pytest.mark.parametrize(
    "factors",
    [
        FactorSettings(plan="halo"),
        FactorSettings(plan="block", broadcast="library", codec="int2", error_feedback=True),
        FactorSettings(plan="halo", codec="fp16", staleness="variation-gap:gap=0.01", agree="epoch"),
        FactorSettings(plan="prepost", staleness="pipelined", backward="pipelined"),
    ],
    ids=lambda factors: f"{factors.plan}-{factors.codec}",
)
def test_a_number_that_is_not_finite_stops_all_ranks(
    shards: list[Shard], where: str, factors: FactorSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAULT_WHERE", where)
    ranks = train(shards, NotFinite, factors)
    assert all(isinstance(outcome, UserError) for outcome in ranks.outcomes), ranks
    assert len(set(map(str, ranks.outcomes))) == 1, ranks
    assert re.match(SAYS[where], str(ranks.outcomes[0])), ranks
    assert [trainer.next_epoch for trainer in ranks.trainers.values()] == [AT] * RANKS
    weights = [trainer.model.state_dict() for trainer in ranks.trainers.values()]
    assert all(bool(torch.isfinite(tensor).all()) for state in weights for tensor in state.values())
    record(f"NaN in the {where}", "threads", 1, 1)


@pytest.mark.parametrize("kind", [NotFinite, Diverges])
def test_without_a_fault_nothing_stops(
    shards: list[Shard], kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAULT_WHERE", "payload")
    monkeypatch.setenv("FAULT_RANK", "-1")
    assert results(train(shards, kind, FactorSettings(), check=1).outcomes) == [None] * RANKS


@pytest.mark.parametrize("check", [1, 2, 5])
def test_weights_that_differ_are_found(shards: list[Shard], check: int) -> None:
    """At the first check after the fault, which names the rank that most others contradict."""
    ranks = train(shards, Diverges, FactorSettings(), check=check)
    found = AT if (AT + 1) % check == 0 else (AT // check + 1) * check - 1
    line = f"rank {WHO} has other weights than rank 0 after epoch {found}; look at what"
    assert all(isinstance(outcome, DisagreementError) for outcome in ranks.outcomes), ranks
    assert all(str(outcome).startswith(line) for outcome in ranks.outcomes), ranks
    record("weights differ", "threads", 1, 1)


def test_weights_are_not_compared_without_check(shards: list[Shard]) -> None:
    assert results(train(shards, Diverges, FactorSettings()).outcomes) == [None] * RANKS
