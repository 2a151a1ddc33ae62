"""Rows that arrive, but no gradient of them returns: constants, which meet the `W` of now (DIGEST eq. 5-6).

For every model, p ranks have the gradients that autograd gives in one process where each block sees the rows
of the others as detached constants, as they last crossed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from sancus.comm.group import Group
from sancus.config.settings import Config, FactorSettings
from sancus.graphs.graph import Graph
from sancus.graphs.shards import open_shard
from sancus.models import MODELS
from sancus.models.settings import ModelSettings
from sancus.runs.build import make_trainer
from sancus.training.settings import TrainingSettings
from tests.helpers.graphs import awkward_graph, shards_of
from tests.helpers.masks import Masks
from tests.helpers.processes import run_ranks
from tests.helpers.reference import NORMALISATIONS, Forward, Weights, dense_adjacency, dense_features
from tests.ranks.law import DEEP, NOISY, SHAPE, WEIGHS_EDGES, plans_of

EPOCHS, PERIOD = 5, 2
TRAINING = TrainingSettings(epochs=EPOCHS, optimizer="sgd", lr=0.5, weight_decay=0.01, dtype="float64")
STALE = {"staleness": f"periodic:period={PERIOD}", "backward": "drop", "kernel": "torch"}
WIDENING = ModelSettings(layers=3, hidden=12, heads=2, output_heads=2, dropout=0.0)


@dataclass(frozen=True)
class Case:
    """A model under a policy whose rows travel one way."""

    model: str
    shape: ModelSettings = SHAPE
    factors: dict[str, Any] = field(default_factory=dict)

    def config(self) -> Config:
        factors = FactorSettings(**STALE | self.factors)
        return Config(model=self.model, factors=factors, shape=self.shape, training=TRAINING)


def cases() -> list[Case]:
    """Models × plans; orders, savings, norms and depth; dropout where rows are only summed."""
    found = [Case(model, factors={"plan": plan}) for model in MODELS for plan in plans_of(model)]
    for model in MODELS:
        plain = {"plan": "halo", "reuse_input": False, "skip_input_gradient": False}
        found += [
            Case(model, WIDENING, {"plan": "halo", "order": "transform-first"}),
            Case(model, SHAPE, {"plan": "block", "order": "aggregate-first"}),
            Case(model, DEEP, plain),
            Case(model, SHAPE, {"plan": "block", "staleness": "always"}),
        ]
    noisy = replace(NOISY, attention_dropout=0.0)
    return found + [
        Case(model, noisy, {"plan": "halo", "reuse_input": False})
        for model in MODELS
        if model not in WEIGHS_EDGES
    ]


class OneWay(Forward):
    """A training pass of p blocks: others' rows are those that crossed last, without gradients."""

    blocks: list[torch.Tensor]
    held: dict[int, torch.Tensor]  # by layer, what crossed last
    pushed: dict[int, torch.Tensor]  # what crosses in this epoch

    def seen(self, h: torch.Tensor, layer: int, block: torch.Tensor) -> torch.Tensor:
        """What the rank of a block sees: its own rows, and constants."""
        self.pushed[layer] = h.detach()
        own = torch.zeros(len(h), 1, dtype=torch.bool)
        own[block] = True
        return torch.where(own, h, self.held.setdefault(layer, h.detach()))

    def aggregate(self, h: torch.Tensor, layer: int) -> torch.Tensor:
        dropped = self.drop(h, layer)
        parts = [self.a[block] @ self.seen(dropped, layer, block) for block in self.blocks]
        return self.in_place(parts)

    def gat(self, h: torch.Tensor, layer: int) -> torch.Tensor:
        parts = [super(OneWay, self).gat(self.seen(h, layer, block), layer)[block] for block in self.blocks]
        return self.in_place(parts)

    def in_place(self, parts: list[torch.Tensor]) -> torch.Tensor:
        """Rows of all blocks in the order of nodes."""
        return torch.cat(parts)[torch.cat(self.blocks).argsort()]


def train_cases(group: Group, folder: str) -> list[dict[str, Any]]:
    """Initial weights, losses and summed gradients of every case, on one rank."""
    notes = []
    for case in cases():
        shard = open_shard(Path(folder), group.rank)
        trainer = make_trainer(case.config(), shard, group, torch.device("cpu"))
        weights = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
        losses, gradients = [], []
        for epoch in range(EPOCHS):
            losses.append(trainer.train_epoch(epoch))
            named = trainer.model.named_parameters()
            gradients.append({name: p.grad.clone() for name, p in named if p.grad is not None})
        trainer.exchange.crossing.drain()
        notes.append({"weights": weights, "losses": losses, "gradients": gradients})
    return notes


def expected_of(
    case: Case, graph: Graph, blocks: list[torch.Tensor], weights: Weights
) -> list[tuple[float, Weights]]:
    """Loss and gradients of every epoch, in one process."""
    a = dense_adjacency(graph, NORMALISATIONS.get(case.model, "symmetric"))
    x, labels = dense_features(graph), torch.from_numpy(np.array(graph.labels))
    train = torch.from_numpy(np.flatnonzero(graph.train_mask))
    weights = {name: tensor.clone() for name, tensor in weights.items()}
    trained = [name for name in weights if "running" not in name]
    masks_of = _masks(case, graph)
    held: dict[int, torch.Tensor] = {}
    found = []
    for epoch in range(EPOCHS):
        for name in trained:
            weights[name] = weights[name].detach().requires_grad_()
        forward = OneWay(case.model, case.shape, weights, a, True, masks_of(epoch))
        forward.blocks, forward.pushed = blocks, {}
        forward.held = {} if case.factors.get("staleness") == "always" else held
        loss = F.cross_entropy(forward.logits(x)[train], labels[train])
        gradients = torch.autograd.grad(loss, [weights[name] for name in trained])
        found.append((loss.item(), dict(zip(trained, gradients, strict=True))))
        if epoch % PERIOD == 0:
            held |= forward.pushed
        with torch.no_grad():
            for name, gradient in zip(trained, gradients, strict=True):
                weights[name] -= TRAINING.lr * (gradient + TRAINING.weight_decay * weights[name])
    return found


def _masks(case: Case, graph: Graph) -> Any:
    if not case.shape.dropout:
        return lambda epoch: None
    nodes = list(range(graph.nodes))
    return lambda epoch: Masks(TRAINING.seed, epoch, nodes, case.shape.dropout, 0.0)


@pytest.fixture(scope="module")
def graph() -> Graph:
    return awkward_graph(nodes=26, seed=5)


@pytest.fixture(scope="module", params=[2, 3])
def outcome(request: pytest.FixtureRequest, graph: Graph, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = shards_of(graph, "random", request.param, tmp_path_factory.mktemp("shards"))
    return folder, run_ranks("tests.ranks.test_one_way:train_cases", request.param, folder=str(folder))


@pytest.mark.parametrize("place", range(len(cases())), ids=[str(case)[5:-1] for case in cases()])
def test_gradients_are_those_of_constant_rows(outcome: Any, graph: Graph, place: int) -> None:
    folder, notes = outcome
    by_rank = [rank_notes[place] for rank_notes in notes]
    blocks = [torch.from_numpy(open_shard(folder, rank).nodes.copy()) for rank in range(len(notes))]
    expected = expected_of(cases()[place], graph, blocks, by_rank[0]["weights"])
    for epoch, (loss, gradients) in enumerate(expected):
        assert sum(note["losses"][epoch] for note in by_rank) == pytest.approx(loss, rel=1e-10)
        for note in by_rank:
            assert note["gradients"][epoch].keys() == gradients.keys()
            for name, gradient in gradients.items():
                torch.testing.assert_close(
                    note["gradients"][epoch][name], gradient, rtol=1e-9, atol=1e-11, msg=name
                )
