"""Plans × policies × codecs together equal a hand-written simulation, payload by payload, elementwise."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sancus.comm.group import Group
from sancus.config.settings import Config, FactorSettings
from sancus.graphs.graph import Graph
from sancus.graphs.shards import open_shard
from sancus.models.settings import ModelSettings
from sancus.runs.build import make_trainer
from sancus.training.settings import TrainingSettings
from tests.helpers.graphs import awkward_graph, shards_of
from tests.helpers.payloads import PayloadSimulation, plans_of
from tests.helpers.processes import run_ranks
from tests.helpers.reference import dense_adjacency, dense_features
from tests.helpers.simulation import Rule, train_gcn

EPOCHS, SEED = 6, 5
TRAINING = TrainingSettings(
    epochs=EPOCHS, optimizer="sgd", lr=0.5, weight_decay=0.01, dtype="float64", eval_every=2, seed=SEED
)
SHAPE = ModelSettings(layers=3, hidden=5, dropout=0.0)
RULES = {
    "always": Rule("always"),
    "epoch-fixed:bound=1": Rule("epoch-fixed", 1),
    "epoch-adaptive:bound=1": Rule("epoch-adaptive", 1),
    "pipelined": Rule("pipelined"),
    "pipelined:sync_every=3": Rule("pipelined", 3),
    "periodic:period=2": Rule("periodic", 2),
    "periodic:period=3": Rule("periodic", 3),
    "drop": Rule("drop"),
}


@dataclass(frozen=True)
class Mix:
    """One combination of factors."""

    plan: str
    forward: str = "always"
    backward: str = "always"
    codec: str = "fp32"
    backward_codec: str | None = None
    feedback: bool = False
    savings: bool = True

    def config(self) -> Config:
        factors = FactorSettings(
            plan=self.plan,
            staleness=self.forward,
            backward=self.backward,
            codec=self.codec,
            backward_codec=self.backward_codec,
            error_feedback=self.feedback,
            reuse_input=self.savings,
            order="auto" if self.savings else "aggregate-first",
            skip_input_gradient=self.savings,
        )
        return Config(factors=factors, shape=SHAPE, training=TRAINING)


MIXES = [
    *(Mix(plan, codec=codec) for plan in ("block", "halo", "prepost") for codec in ("int1", "int8", "bf16")),
    *(Mix("halo", codec=codec) for codec in ("fp16", "int2", "int4", "auto:budget=3")),
    Mix("block", codec="auto:budget=2,ramp=1"),
    Mix("prepost", codec="auto:budget=2.5", feedback=True),
    *(Mix(plan, "pipelined", "pipelined") for plan in ("block", "halo", "prepost")),
    Mix("halo", "pipelined:sync_every=3", "pipelined:sync_every=3", "int1"),
    Mix("block", "pipelined", "always", "int2", "bf16", savings=False),
    Mix("prepost", "always", "pipelined:sync_every=3", feedback=True, codec="int4"),
    Mix("halo", "epoch-fixed:bound=1", "drop", "int2", feedback=True),
    Mix("prepost", "epoch-adaptive:bound=1", "epoch-fixed:bound=1", "int1", "int8", feedback=True),
    Mix("block", "epoch-adaptive:bound=1", "always", "int1", feedback=True, savings=False),
    Mix("prepost", "epoch-fixed:bound=1", "always"),
    Mix("drawn:rate=0.5", codec="int2"),
    Mix("drawn:rate=0.3", codec="auto:budget=3", backward_codec="int4", savings=False),
    Mix("drawn:rate=0.5", backward="drop", codec="bf16"),
    Mix("halo", "periodic:period=3", "drop"),
    Mix("block", "periodic:period=2", "drop", "int4", savings=False),
    Mix("prepost", "periodic:period=2", "periodic:period=3", "int8", feedback=True),
]


def train_mixes(group: Group, folder: str) -> list[dict[str, Any]]:
    """Losses and initial weights of every mix, on one rank."""
    notes = []
    for mix in MIXES:
        shard = open_shard(Path(folder), group.rank)
        trainer = make_trainer(mix.config(), shard, group, torch.device("cpu"))
        weights = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
        records = list(trainer.epochs())
        notes.append(
            {"weights": weights, "losses": [record["loss"] for record in records], "last": records[-1]}
        )
    return notes


@pytest.fixture(scope="module")
def graph() -> Graph:
    return awkward_graph(nodes=29, seed=3)


@pytest.fixture(scope="module", params=[("gloo", 2), ("gloo", 3), ("mpi", 3)], ids=str)
def outcome(
    request: pytest.FixtureRequest, graph: Graph, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[list[dict[str, Any]]]]:
    """All mixes, trained by one group of ranks."""
    backend, ranks = request.param
    folder = shards_of(graph, "random", ranks, tmp_path_factory.mktemp("shards"))
    function = "tests.ranks.test_composition:train_mixes"
    return folder, run_ranks(function, ranks, backend=backend, folder=str(folder))


@pytest.mark.parametrize("place", range(len(MIXES)), ids=[str(mix)[4:-1] for mix in MIXES])
def test_ranks_equal_the_simulation(outcome: Any, graph: Graph, place: int) -> None:
    folder, notes = outcome
    mix, by_rank = MIXES[place], [rank_notes[place] for rank_notes in notes]
    ranks = len(by_rank)
    simulation = PayloadSimulation(
        dense_adjacency(graph, "symmetric"),
        [torch.from_numpy(open_shard(folder, rank).nodes.copy()) for rank in range(ranks)],
        {"forward": RULES[mix.forward], "backward": RULES[mix.backward]},
        mix.plan,
        plans=plans_of(folder, ranks, mix.plan, "symmetric"),
        codecs={"forward": mix.codec, "backward": mix.backward_codec or mix.codec},
        feedback=mix.feedback,
        epochs=EPOCHS,
        seed=SEED,
    )
    expected = train_gcn(
        simulation,
        dense_features(graph),
        torch.from_numpy(np.array(graph.labels)),
        torch.from_numpy(np.flatnonzero(graph.train_mask)),
        by_rank[0]["weights"],
        savings=mix.savings,
        epochs=EPOCHS,
        lr=TRAINING.lr,
        weight_decay=TRAINING.weight_decay,
    )
    for note in by_rank:
        np.testing.assert_allclose(note["losses"], expected, rtol=1e-9)


def test_mixes_differ(outcome: Any) -> None:
    """No factor is parsed and ignored: plans may compute the same bits, but then they send other bytes."""
    figures = {(*note["losses"], note["last"]["wire_bytes"]) for note in outcome[1][0]}
    assert len(figures) == len(MIXES)


def test_pipelined_epochs_use_what_is_one_epoch_old(outcome: Any) -> None:
    for mix, note in zip(MIXES, outcome[1][0], strict=True):
        if mix.forward == mix.backward == "pipelined":
            assert note["last"]["max_age"] == 1
            assert note["last"]["skips"] == 0
