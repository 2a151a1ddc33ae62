"""The cases of the law, and what a rank does for them; shared by the law's tests."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sancus.comm.group import Group
from sancus.config.settings import Config, FactorSettings
from sancus.graphs.graph import Graph
from sancus.models import MODELS
from sancus.models.settings import ModelSettings
from sancus.partitioners import PARTITIONERS
from sancus.plans import PLANS, changes
from sancus.plugins import load, parse
from sancus.runs.build import make_trainer
from sancus.training.settings import TrainingSettings
from tests.helpers import reference
from tests.helpers.graphs import awkward_graph, with_train_nodes
from tests.helpers.processes import TOP
from tests.helpers.threads import CPU, open_own

EPOCHS = 2
TRAINING = TrainingSettings(epochs=EPOCHS, optimizer="sgd", lr=0.5, weight_decay=0.01, dtype="float64")
CAGNET = FactorSettings(plan="block", reuse_input=False, order="aggregate-first", skip_input_gradient=False)
SHAPE = ModelSettings(hidden=6, heads=2, output_heads=2, dropout=0.0)
DEEP = replace(SHAPE, layers=3, norm="batch", residual=True, jumping="cat")
NOISY = replace(SHAPE, norm="layer", dropout=0.4, attention_dropout=0.4)
WEIGHS_EDGES = ("gat", "gatv2")
PLAN_CLASSES = {plan: load("plan", parse("plan", PLANS, plan)) for plan in PLANS}
STEADY_PLANS = [plan for plan, kind in PLAN_CLASSES.items() if not changes(kind)]  # all rows, in every epoch
SUMS_INPUT = ("gcn", "sage", "gin")  # the first graph layer sums the features themselves


@dataclass(frozen=True)
class Case:
    """One setting under which p ranks must equal one process."""

    name: str
    graph: dict[str, Any] = field(default_factory=dict)
    partitioner: str = "metis"
    model: str = "gcn"
    factors: FactorSettings = field(default_factory=FactorSettings)
    shape: ModelSettings = field(default_factory=lambda: ModelSettings(hidden=5, dropout=0.0))
    training: TrainingSettings = TRAINING
    train_nodes: tuple[int, ...] = ()

    def make_graph(self) -> Graph:
        graph = awkward_graph(**self.graph)
        return with_train_nodes(graph, list(self.train_nodes)) if self.train_nodes else graph

    def config(self) -> Config:
        return Config(model=self.model, factors=self.factors, shape=self.shape, training=self.training)


def cases() -> list[Case]:
    """Model × plan × partition, and each saving, depth, task and kind of graph."""
    found = []
    for plan in STEADY_PLANS:
        factors = FactorSettings(plan=plan)
        for partitioner in (*PARTITIONERS, "with-empty-block"):
            found.append(Case(f"gcn-{plan}-{partitioner}", {}, partitioner, "gcn", factors))
        found.append(Case(f"gcn-{plan}-undirected", {"directed": False}, "random", "gcn", factors))
        for model in ("gcn", "sage"):
            deep = ModelSettings(layers=4, hidden=6, dropout=0.0, norm="layer", residual=True)
            found += [
                Case(f"{model}-{plan}-cagnet", {}, "with-empty-block", model, replace(CAGNET, plan=plan)),
                Case(f"{model}-{plan}-deep", {}, "metis", model, factors, deep),
                Case(f"{model}-{plan}-sparse", {"sparse": True}, "metis", model, factors),
                Case(f"{model}-{plan}-weighted", {"weighted": True}, "random", model, factors),
                Case(f"{model}-{plan}-few", {}, "contiguous", model, factors, train_nodes=(0, 3)),
            ]
    for order in ("auto", "aggregate-first", "aggregate-kept", "transform-first"):
        for reuse in (True, False):
            for skip in (True, False):
                for sparse in (True, False):
                    factors = FactorSettings(order=order, reuse_input=reuse, skip_input_gradient=skip)
                    name = f"order-{order}-reuse-{reuse}-skip-{skip}-sparse-{sparse}"
                    found.append(Case(name, {"sparse": sparse}, "random", "sage", factors))
    widening = ModelSettings(layers=3, hidden=11, dropout=0.0)
    found += [
        Case("widening", {}, "random", "gcn", shape=widening),
        Case("widening-cagnet", {}, "random", "gcn", CAGNET, widening),
        Case("one-layer", {}, "random", "gcn", shape=ModelSettings(layers=1, dropout=0.0)),
    ]
    return found + model_cases() + task_cases()


def model_cases() -> list[Case]:
    """Every model × every plan that it can use, on a directed graph; norms, jumps, noise, sparse rows."""
    found = []
    for model in MODELS:
        for plan in plans_of(model):
            saving, plain = FactorSettings(plan=plan), replace(CAGNET, plan=plan)
            found += [
                Case(f"{model}-{plan}", {"weighted": True}, "random", model, saving, SHAPE),
                Case(f"{model}-{plan}-batch", {}, "with-empty-block", model, plain, DEEP),
            ]
        found += [
            Case(f"{model}-sparse", {"sparse": True}, "metis", model, shape=replace(SHAPE, jumping="max")),
            Case(f"{model}-noisy-halo", {"sparse": True}, "random", model, shape=NOISY),
            Case(f"{model}-noisy-block", {}, "random", model, CAGNET, NOISY, train_nodes=(0, 3)),
        ]
    bare = replace(SHAPE, edge_weights=False)
    found += [
        Case(f"{model}-edges-count-1", {"weighted": True}, "random", model, shape=bare)
        for model in ("gcn", "sage", "gin")
    ]
    own = f"{TOP / 'examples' / 'my_model.py'}:Net"
    found += [
        Case(f"own-model-{plan}", {}, "random", own, FactorSettings(plan=plan), NOISY)
        for plan in STEADY_PLANS
    ]
    return found


def task_cases() -> list[Case]:
    """Several labels a node, class weights, smoothing, and training on the training subgraph."""
    balanced = replace(TRAINING, class_weights="balanced", label_smoothing=0.2)
    given = replace(TRAINING, class_weights="1,0.5,2")
    inductive = replace(TRAINING, inductive=True)
    several = {"multilabel": True}
    found = [
        Case("multilabel", several, "metis", "sage"),
        Case("multilabel-auc", several, "metis", "gcn", training=replace(TRAINING, metric="roc-auc")),
        Case("multilabel-balanced", several, "random", "gcn", training=balanced),
        Case("balanced", {}, "random", "gcn", training=balanced),
        Case("class-weights", {}, "metis", "gcn", training=given),
        Case("smooth", {}, "metis", "gcn", training=replace(TRAINING, label_smoothing=0.3)),
        Case("inductive-few", {}, "contiguous", "gcn", training=inductive, train_nodes=(0, 1, 3)),
        Case("inductive-sparse", {"sparse": True}, "random", "gat", CAGNET, SHAPE, inductive),
    ]
    return found + [
        Case(f"inductive-{model}", {"weighted": True}, "metis", model, shape=DEEP, training=inductive)
        for model in ("gcn", "sage", "gat", "gcnii")
    ]


def plans_of(model: str) -> list[str]:
    """The plans that a model can use: what weighs edges by content needs rows, not sums."""
    return [plan for plan in STEADY_PLANS if model not in WEIGHS_EDGES or PLAN_CLASSES[plan].picks_rows]


def train_cases(group: Group, folders: dict[str, str]) -> dict[str, dict[str, Any]]:
    """On one rank: the initial weights, losses, logits, gradients and nodes of every case."""
    return {case.name: train_case(group, case, Path(folders[case.name])) for case in cases()}


def train_case(group: Group, case: Case, folder: Path, device: torch.device = CPU) -> dict[str, Any]:
    """Train one case by the product's own trainer, noting everything the law speaks of."""
    shard = open_own(folder, group)
    trainer = make_trainer(case.config(), shard, group, device)
    note: dict[str, Any] = {
        "nodes": torch.from_numpy(shard.nodes.copy()),
        "weights": {name: tensor.cpu().clone() for name, tensor in trainer.model.state_dict().items()},
        "losses": [],
        "logits": [],
        "gradients": [],
        "scores": [],
    }
    for epoch in range(EPOCHS):
        note["logits"].append(trainer.logits().cpu())
        if trainer.task.auc:
            note["scores"].append(trainer.evaluate())
        note["losses"].append(trainer.train_epoch(epoch))
        named = trainer.model.named_parameters()
        note["gradients"].append({name: p.grad.cpu().clone() for name, p in named if p.grad is not None})
    return note


def expected_of(case: Case, weights: dict[str, torch.Tensor]) -> reference.History:
    """What the independent reference says of a case that starts with these weights."""
    graph, training = case.make_graph(), case.training
    class_weights = training.weights_of_classes()
    if training.class_weights == "balanced":
        labels = np.asarray(graph.labels)[graph.train_mask]
        if graph.multilabel:
            class_weights = [(len(labels) - n) / n for n in labels.sum(axis=0)]
        else:
            class_weights = [
                len(labels) / (graph.classes * n) for n in np.bincount(labels, minlength=graph.classes)
            ]
    keeps_product = case.factors.reuse_input and not case.graph.get("sparse") and case.model in SUMS_INPUT
    return reference.train(
        reference.Problem(
            graph,
            case.model,
            case.shape,
            EPOCHS,
            training.lr,
            training.weight_decay,
            None if class_weights is None else tuple(class_weights),
            training.label_smoothing,
            training.inductive,
            training.seed,
            keeps_product,
        ),
        weights,
    )


def assert_law(case: Case, notes: list[dict[str, Any]], expected: reference.History) -> None:
    """Loss, logits and gradients of all ranks' notes are the expected ones, elementwise."""
    nodes = torch.cat([note["nodes"] for note in notes])
    for epoch in range(EPOCHS):
        loss = sum(note["losses"][epoch] for note in notes)
        assert abs(loss - expected.losses[epoch]) <= 1e-12 * abs(expected.losses[epoch]), case.name
        logits = torch.cat([note["logits"][epoch] for note in notes])
        torch.testing.assert_close(logits, expected.logits[epoch][nodes], rtol=1e-9, atol=1e-12)
        for note in notes:
            assert note["gradients"][epoch].keys() == expected.gradients[epoch].keys()
            for parameter, gradient in expected.gradients[epoch].items():
                torch.testing.assert_close(
                    note["gradients"][epoch][parameter], gradient, rtol=1e-9, atol=1e-12, msg=parameter
                )
