"""The cases of the law, and what a rank does for them; shared by the law's tests."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from partitioners import PARTITIONERS
from sancus.comm.base import Transport
from sancus.config import Config, FactorSettings
from sancus.graphs.graph import Graph
from sancus.graphs.shards import open_shard
from sancus.models import MODELS
from sancus.models.settings import ModelSettings
from sancus.plans import PLANS
from sancus.run import make_trainer
from sancus.training.settings import TrainingSettings
from tests.graphs import awkward_graph, with_train_nodes

EPOCHS = 3
TRAINING = TrainingSettings(epochs=EPOCHS, optimizer="sgd", lr=0.5, weight_decay=0.01, dtype="float64")
CAGNET = FactorSettings(plan="block", reuse_input=False, order="aggregate-first", skip_input_gradient=False)


@dataclass(frozen=True)
class Case:
    """One setting under which p ranks must equal one process."""

    name: str
    graph: dict[str, Any] = field(default_factory=dict)
    partitioner: str = "metis"
    model: str = "gcn"
    factors: FactorSettings = field(default_factory=FactorSettings)
    shape: ModelSettings = field(default_factory=lambda: ModelSettings(hidden=5, dropout=0.0))
    train_nodes: tuple[int, ...] = ()

    def make_graph(self) -> Graph:
        graph = awkward_graph(**self.graph)
        return with_train_nodes(graph, list(self.train_nodes)) if self.train_nodes else graph

    def config(self) -> Config:
        return Config(model=self.model, factors=self.factors, shape=self.shape, training=TRAINING)


def cases() -> list[Case]:
    """Model × plan × partition, and each saving, depth and kind of graph."""
    found = []
    for model in MODELS:
        for plan in PLANS:
            for partitioner in (*PARTITIONERS, "with-empty-block"):
                name = f"{model}-{plan}-{partitioner}"
                found.append(Case(name, {}, partitioner, model, FactorSettings(plan=plan)))
            factors = FactorSettings(plan=plan)
            deep = ModelSettings(layers=4, hidden=6, dropout=0.0, norm="layer", residual=True)
            found += [
                Case(f"{model}-{plan}-cagnet", {}, "metis", model, replace(CAGNET, plan=plan)),
                Case(f"{model}-{plan}-deep", {}, "metis", model, factors, deep),
                Case(f"{model}-{plan}-sparse", {"sparse": True}, "metis", model, factors),
                Case(f"{model}-{plan}-weighted", {"weighted": True}, "random", model, factors),
                Case(f"{model}-{plan}-undirected", {"directed": False}, "random", model, factors),
                Case(f"{model}-{plan}-few", {}, "contiguous", model, factors, train_nodes=(0, 3)),
            ]
    for order in ("auto", "aggregate-first", "transform-first"):
        for reuse in (True, False):
            for skip in (True, False):
                for sparse in (True, False):
                    factors = FactorSettings(order=order, reuse_input=reuse, skip_input_gradient=skip)
                    name = f"order-{order}-reuse-{reuse}-skip-{skip}-sparse-{sparse}"
                    found.append(Case(name, {"sparse": sparse}, "random", "sage", factors))
    widening = ModelSettings(layers=3, hidden=11, dropout=0.0)
    found += [
        Case("multilabel", {"multilabel": True}, "metis", "sage"),
        Case("widening", {}, "random", "gcn", shape=widening),
        Case("widening-cagnet", {}, "random", "gcn", CAGNET, widening),
        Case("one-layer", {}, "random", "gcn", shape=ModelSettings(layers=1, dropout=0.0)),
    ]
    return found


def train_cases(transport: Transport, folders: dict[str, str]) -> dict[str, dict[str, Any]]:
    """On one rank: the initial weights, losses, logits, gradients and nodes of every case."""
    return {case.name: train_case(transport, case, Path(folders[case.name])) for case in cases()}


def train_case(transport: Transport, case: Case, folder: Path) -> dict[str, Any]:
    """Train one case by the product's own trainer, noting everything the law speaks of."""
    shard = open_shard(folder, transport.rank)
    trainer = make_trainer(case.config(), shard, transport, torch.device("cpu"))
    note: dict[str, Any] = {
        "nodes": torch.from_numpy(shard.nodes.copy()),
        "weights": {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()},
        "losses": [],
        "logits": [],
        "gradients": [],
    }
    for epoch in range(EPOCHS):
        note["logits"].append(trainer.logits())
        note["losses"].append(trainer.train_epoch(epoch))
        named = trainer.model.named_parameters()
        note["gradients"].append({name: p.grad.clone() for name, p in named if p.grad is not None})
    return note
