"""Stale ranks equal a hand-written simulation in one process, for every policy, plan, direction and p."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sancus.comm.group import Group
from sancus.config.settings import Config, FactorSettings
from sancus.exchange.figures import run_log
from sancus.graphs.graph import Graph
from sancus.graphs.shards import open_shard
from sancus.models.settings import ModelSettings
from sancus.runs.build import make_trainer
from sancus.training.settings import TrainingSettings
from tests.helpers.graphs import awkward_graph, shards_of
from tests.helpers.processes import run_ranks
from tests.helpers.reference import dense_adjacency, dense_features
from tests.helpers.simulation import Rule, Simulation, train_gcn

EPOCHS = 7
TRAINING = TrainingSettings(
    epochs=EPOCHS, optimizer="sgd", lr=0.5, weight_decay=0.01, dtype="float64", eval_every=EPOCHS
)
SHAPE = ModelSettings(layers=3, hidden=5, dropout=0.0)
RULES = {
    "always": Rule("always"),
    "epoch-fixed:bound=1": Rule("epoch-fixed", 1),
    "epoch-fixed:bound=2": Rule("epoch-fixed", 2),
    "epoch-adaptive:bound=1": Rule("epoch-adaptive", 1),
    "epoch-adaptive:bound=2": Rule("epoch-adaptive", 2),
    "variation-gap:gap=0": Rule("variation-gap", 0.0),
    "variation-gap:gap=0.05": Rule("variation-gap", 0.05),
    "variation-gap:gap=0.002": Rule("variation-gap", 0.002),
    "never": Rule("never"),
    "drop": Rule("drop"),
}
PAIRS = [
    *((policy, "always") for policy in RULES),
    *(("always", policy) for policy in RULES if policy != "always"),
    ("epoch-fixed:bound=2", "epoch-adaptive:bound=1"),
    ("variation-gap:gap=0.05", "variation-gap:gap=0.002"),
    ("epoch-adaptive:bound=2", "drop"),
    ("drop", "drop"),
]


@dataclass(frozen=True)
class Setting:
    """One combination of policies, plan and savings."""

    forward: str
    backward: str
    plan: str
    savings: bool
    clip: float | None = None

    def config(self) -> Config:
        order = "auto" if self.savings else "aggregate-first"
        factors = FactorSettings(
            plan=self.plan,
            staleness=self.forward,
            backward=self.backward,
            reuse_input=self.savings,
            order=order,
            skip_input_gradient=self.savings,
            clip=self.clip,
        )
        return Config(factors=factors, shape=SHAPE, training=TRAINING)


SETTINGS = [
    Setting(forward, backward, plan, savings)
    for forward, backward in PAIRS
    for plan, savings in (("block", False), ("halo", True))
] + [Setting("epoch-fixed:bound=1", "epoch-fixed:bound=1", plan, True, 0.01) for plan in ("block", "halo")]


def train_settings(group: Group, folder: str, settings: list[Setting]) -> list[dict[str, Any]]:
    """Losses, decisions, ages and initial weights of every setting, on one rank."""
    notes = []
    for setting in settings:
        shard = open_shard(Path(folder), group.rank)
        trainer = make_trainer(setting.config(), shard, group, torch.device("cpu"))
        weights = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
        records = list(trainer.epochs())
        notes.append(
            {
                "weights": weights,
                "losses": [record["loss"] for record in records],
                "ages": [record["max_age"] for record in records],
                "decisions": run_log(trainer.exchange.crossing).decisions,
                "history": trainer.exchange.crossing.figures().history_bytes,
            }
        )
    return notes


@pytest.fixture(scope="module")
def graph() -> Graph:
    return awkward_graph(nodes=29, seed=3)


@pytest.fixture(scope="module", params=[(b, p) for b in ("gloo", "mpi") for p in (2, 3, 4)], ids=str)
def outcome(
    request: pytest.FixtureRequest, graph: Graph, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[list[dict[str, Any]]]]:
    """All settings, trained by one group of ranks."""
    backend, ranks = request.param
    folder = shards_of(graph, "random", ranks, tmp_path_factory.mktemp("shards"))
    function = "tests.ranks.test_staleness:train_settings"
    notes = run_ranks(function, ranks, backend=backend, folder=str(folder), settings=SETTINGS)
    return folder, notes


@pytest.mark.parametrize("place", range(len(SETTINGS)), ids=[str(s)[8:-1] for s in SETTINGS])
def test_ranks_equal_the_simulation(outcome: Any, graph: Graph, place: int) -> None:
    folder, notes = outcome
    setting, by_rank = SETTINGS[place], [rank_notes[place] for rank_notes in notes]
    ranks = len(by_rank)
    simulation = Simulation(
        dense_adjacency(graph, "symmetric"),
        [torch.from_numpy(open_shard(folder, rank).nodes.copy()) for rank in range(ranks)],
        {"forward": RULES[setting.forward], "backward": RULES[setting.backward]},
        setting.plan,
        setting.clip,
    )
    expected = train_gcn(
        simulation,
        dense_features(graph),
        torch.from_numpy(np.array(graph.labels)),
        torch.from_numpy(np.flatnonzero(graph.train_mask)),
        by_rank[0]["weights"],
        savings=setting.savings,
        epochs=EPOCHS,
        lr=TRAINING.lr,
        weight_decay=TRAINING.weight_decay,
    )
    for note in by_rank:
        np.testing.assert_allclose(note["losses"], expected, rtol=1e-10)
        np.testing.assert_array_equal(note["decisions"], by_rank[0]["decisions"])
    for (epoch, layer, direction, owner), send in simulation.log.items():
        logged = by_rank[0]["decisions"][epoch, layer, ["forward", "backward"].index(direction), owner]
        assert logged == int(send), (epoch, layer, direction, owner)


def test_gap_zero_is_bit_identical_to_always(outcome: Any) -> None:
    _, notes = outcome
    for plan, savings in (("block", False), ("halo", True)):
        always = SETTINGS.index(Setting("always", "always", plan, savings))
        gap = SETTINGS.index(Setting("variation-gap:gap=0", "always", plan, savings))
        for rank_notes in notes:
            assert rank_notes[gap]["losses"] == rank_notes[always]["losses"]


def test_some_settings_do_skip_and_differ(outcome: Any) -> None:
    _, notes = outcome
    always = SETTINGS.index(Setting("always", "always", "halo", True))
    for policy in (
        "epoch-fixed:bound=2",
        "epoch-adaptive:bound=2",
        "variation-gap:gap=0.05",
        "never",
        "drop",
    ):
        place = SETTINGS.index(Setting(policy, "always", "halo", True))
        assert (notes[0][place]["decisions"] == 0).any()
        assert notes[0][place]["losses"] != notes[0][always]["losses"]


def hold_still(group: Group, folder: str) -> list[np.ndarray]:
    """Weights that never move under heavy dropout: the decisions of every epoch, by plan."""
    found = []
    for plan, savings in (("block", False), ("halo", True)):
        setting = Setting("variation-gap:gap=0.0001", "always", plan, savings)
        still = TrainingSettings(epochs=6, optimizer="sgd", lr=0.0, dtype="float64")
        noisy = ModelSettings(layers=3, hidden=5, dropout=0.5)
        config = Config(factors=setting.config().factors, shape=noisy, training=still)
        shard = open_shard(Path(folder), group.rank)
        trainer = make_trainer(config, shard, group, torch.device("cpu"))
        trainer.run()
        found.append(run_log(trainer.exchange.crossing).decisions)
    return found


def test_dropout_is_noise_and_not_drift(graph: Graph, tmp_path: Path) -> None:
    """Nothing is learnt, so nothing may be sent again, whatever the masks of the layers below do.

    The first epoch's rows were sent with the masks of the layers below in them. So each hidden layer crosses
    once more, and the layer above it once more after that, as other rows have come.
    """
    folder = shards_of(graph, "random", 2, tmp_path)
    for decisions in run_ranks("tests.ranks.test_staleness:hold_still", 2, folder=str(folder))[0]:
        hidden = decisions[:, 1:, 0]  # forward, above the input
        assert (hidden[0] == 1).all()
        for depth in range(hidden.shape[1]):
            assert (hidden[depth + 2 :, depth] == 0).all(), decisions
