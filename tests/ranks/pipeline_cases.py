"""The cases of the pipeline's law, and what a rank does for them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from sancus.comm.group import Group
from sancus.config.resolve import make_config
from sancus.config.settings import Config
from sancus.graphs.graph import Graph
from sancus.graphs.shards import open_shard
from sancus.runs.build import make_trainer
from sancus.runs.layout import make_schedule
from sancus.training.stage import Stage
from tests.helpers.graphs import awkward_graph
from tests.helpers.processes import TOP

EPOCHS = 3
OWN = f"{TOP / 'examples' / 'staged_model.py'}:Net"
MODELS = ("gcn", "sage", "gin", "gat", "gatv2", "gcnii", "resgcn+")


@dataclass(frozen=True)
class Case:
    """A setting under which any number of stages must compute what one process computes."""

    name: str
    model: str = "gcn"
    chunks: int = 4
    graph: dict[str, Any] = field(default_factory=dict)
    partitioner: str = "random"
    flags: dict[str, Any] = field(default_factory=dict)

    def make_graph(self) -> Graph:
        return awkward_graph(**self.graph)

    def config(self, stages: int, **flags: Any) -> Config:
        common = {"layers": 4, "hidden": 6, "heads": 2, "dropout": 0.0, "dtype": "float64", "lr": 0.3}
        training = {"optimizer": "sgd", "epochs": EPOCHS, "model": self.model, "schedule": "pipeline"}
        return make_config(
            **common | training | self.flags | {"stages": stages, "chunks": self.chunks} | flags
        )


def cases() -> list[Case]:
    """Every model, and each setting of the pipeline, on directed graphs with an isolated node and a hub."""
    noisy = {"dropout": 0.4, "attention_dropout": 0.4, "plan": "halo"}
    found = [Case(model, model, flags={"plan": "halo"}) for model in MODELS]
    found += [Case(f"{model}-noisy", model, flags=noisy) for model in ("sage", "gat", "gcnii", "resgcn+")]
    found += [
        Case("own-model", OWN),
        Case("one-chunk", "gcnii", 1, flags={"dropout": 0.4, "norm": "batch"}),
        Case("empty-chunks", "resgcn+", 30),
        Case("fixed", chunks=3, flags={"chunk_order": "fixed", "history_every": 2, "dropout": 0.3}),
        Case("alternate", "gcnii", flags={"chunk_order": "alternate", "history_start": "zeros"}),
        Case("stale-gradients", "gat", flags={"stale_gradients": True, "plan": "halo"}),
        Case("stale-gradients-linear", "sage", flags={"stale_gradients": True, "history_every": 3}),
        Case("sparse", "gat", graph={"sparse": True}, flags=noisy),
        Case("sparse-sums", "gcn", graph={"sparse": True, "weighted": True}, flags={"plan": "prepost"}),
        Case("undirected", "gin", graph={"directed": False}, flags={"plan": "prepost"}),
        Case("block", "gatv2", flags={"plan": "block", "dropout": 0.3}),
        Case("published", "gcn", flags={"reuse_input": False, "skip_input_gradient": False}),
        Case("inductive", "sage", flags={"inductive": True}),
        Case("multilabel", "gcn", graph={"multilabel": True}, flags={"class_weights": "balanced"}),
        Case("recomputed", "gat", flags=noisy | {"recompute": True, "history_every": 2}),
        Case("recomputed-linear", "gcn", flags={"recompute": True, "stale_gradients": True}),
        Case("first-recomputed", "gcnii", flags=noisy | {"recompute_first": True}),
        Case("all-recomputed", "gcnii", flags=noisy | {"recompute_first": True, "recompute": True}),
        Case("by-cost", "resgcn+", flags={"balance": "cost"}),
        Case("empty-block", "gcn", partitioner="with-empty-block", flags={"plan": "halo"}),
    ]
    return found


def train_cases(group: Group, folders: dict[str, str], stages: int) -> dict[str, dict[str, Any]]:
    """On one rank: what the law speaks of, of every case."""
    return {case.name: train_case(group, case, folders[case.name], stages) for case in cases()}


def train_case(group: Group, case: Case, folder: str, stages: int, **flags: Any) -> dict[str, Any]:
    """Losses, logits, gradients and weights that the rank trains, records, and bytes."""
    config = case.config(stages, **flags)
    place = make_schedule(config).layout(group.size).place(group.rank)
    shard = open_shard(Path(folder), place.part)
    seen: list[dict[str, torch.Tensor]] = []
    trainer = make_trainer(config, shard, group, torch.device("cpu"))

    def note(stage: Stage) -> None:
        named = trainer.model.named_parameters()
        seen.append({name: p.grad.clone() for name, p in named if p.requires_grad and p.grad is not None})

    note_health = Stage._agree

    def noted(stage: Stage) -> None:
        note_health(stage)
        trainer._work.step.sync.before_update(trainer.model)  # the sum over the ranks of the stage
        note(stage)
        trainer._work.step.sync = Summed()

    sync = trainer._work.step.sync
    records, logits = [], []
    with mock.patch.object(Stage, "_agree", noted):
        for record in trainer.epochs():
            trainer._work.step.sync = sync
            records.append(record)
            logits.append(trainer.logits())
    return {
        "place": place,
        "nodes": torch.from_numpy(shard.nodes.copy()),
        "records": records,
        "logits": logits,
        "gradients": seen,
        "weights": {
            name: value for name, value in trainer.model.state_dict().items() if trainer.schedule.owns(name)
        },
        "boundary": group.ledger.wire_of("boundary"),
    }


class Summed:
    """In the place of the sum over the ranks of a stage, which was made already."""

    replicated = True

    def before_update(self, model: torch.nn.Module) -> None:
        """Gradients are sums."""

    def after_update(self, model: torch.nn.Module) -> None:
        """Nothing."""
