"""Plan `drawn`: p ranks train as one process whose `Â` is sampled in every epoch; evaluation is exact."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sancus.codecs import CODECS
from sancus.comm.group import Group
from sancus.comm.ledger import Ledger
from sancus.config.settings import Config, FactorSettings
from sancus.graphs.graph import Graph
from sancus.models import MODELS
from sancus.models.settings import ModelSettings
from sancus.runs.build import make_trainer
from sancus.training.settings import TrainingSettings
from tests.helpers import draws, reference
from tests.helpers.graphs import awkward_graph, shards_of
from tests.helpers.processes import run_ranks
from tests.helpers.threads import open_own, results, run_threads, thread_trainer
from tests.ranks.law import SUMS_INPUT

RANKS, EPOCHS, RATE, SEED = 3, 3, 0.4, 2
TRAINING = TrainingSettings(
    epochs=EPOCHS, optimizer="sgd", lr=0.5, weight_decay=0.01, dtype="float64", seed=SEED
)
QUIET = ModelSettings(layers=3, hidden=6, heads=2, dropout=0.0)
NOISY = replace(QUIET, norm="layer", dropout=0.4, attention_dropout=0.4)
PAPER = {"reuse_input": False, "order": "aggregate-kept"}
CAGNET = {"reuse_input": False, "order": "aggregate-first", "skip_input_gradient": False}


class SampledForward(reference.Forward):
    """A forward pass over a sampled `Â`, whose first product may be that of all rows: it crosses once."""

    first: torch.Tensor | None = None

    def aggregate(self, h: torch.Tensor, layer: int) -> torch.Tensor:
        sampled, self.a = self.a, self.a if layer or self.first is None else self.first
        try:
            return super().aggregate(h, layer)
        finally:
            self.a = sampled


@pytest.fixture(scope="module")
def graph() -> Graph:
    return awkward_graph(nodes=31, weighted=True)


@pytest.fixture(scope="module")
def folder(graph: Graph, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shards_of(graph, "random", RANKS, tmp_path_factory.mktemp("shards"))


def config_of(model: str, shape: ModelSettings, **factors: Any) -> Config:
    settings = FactorSettings(**({"kernel": "torch", "plan": f"drawn:rate={RATE}"} | factors))
    return Config(model=model, factors=settings, shape=shape, training=TRAINING)


def train(group: Group, folder: Path, config: Config) -> dict[str, Any]:
    """Losses, gradients and exact logits of every epoch, as one rank has them."""
    shard = open_own(folder, group)
    trainer = thread_trainer(config, shard, group)
    note: dict[str, Any] = {"nodes": torch.from_numpy(shard.nodes.copy()), "weights": {}}
    note |= {"losses": [], "gradients": [], "logits": []}
    note["weights"] = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
    for epoch in range(EPOCHS):
        note["logits"].append(trainer.logits())
        note["losses"].append(trainer.train_epoch(epoch))
        named = trainer.model.named_parameters()
        note["gradients"].append({name: p.grad.clone() for name, p in named if p.grad is not None})
    return note


@pytest.mark.parametrize("factors", [{}, PAPER, CAGNET], ids=["savings", "paper", "cagnet"])
@pytest.mark.parametrize("shape", [QUIET, NOISY], ids=["quiet", "noisy"])
@pytest.mark.parametrize("model", MODELS)
def test_ranks_equal_one_process_with_the_sampled_matrix(
    model: str, shape: ModelSettings, factors: dict[str, Any], graph: Graph, folder: Path
) -> None:
    config = config_of(model, shape, **factors)
    notes = results(run_threads(RANKS, lambda group: train(group, folder, config)))
    problem = reference.Problem(graph, model, shape, EPOCHS, TRAINING.lr, TRAINING.weight_decay, seed=SEED)
    a = reference.dense_adjacency(graph, reference.NORMALISATIONS.get(model, "symmetric"))
    x, nodes = reference.dense_features(graph), torch.cat([note["nodes"] for note in notes])
    kept = not factors and model in SUMS_INPUT
    train_rows = torch.from_numpy(np.flatnonzero(graph.train_mask))
    labels = torch.from_numpy(graph.labels.copy())[train_rows]
    weights = {name: tensor.clone() for name, tensor in notes[0]["weights"].items()}
    trained = list(notes[0]["gradients"][0])
    for epoch in range(EPOCHS):
        exact = reference.Forward(model, shape, weights, a, False).logits(x).detach()
        found = torch.cat([note["logits"][epoch] for note in notes])
        torch.testing.assert_close(found, exact[nodes], rtol=1e-9, atol=1e-12)
        for name in trained:
            weights[name] = weights[name].detach().requires_grad_()
        sampled = draws.sampled(a, [note["nodes"] for note in notes], SEED, epoch, RATE)
        assert not torch.equal(sampled, a)
        masks = problem.masks(epoch, nodes.sort().values.numpy())
        forward = SampledForward(model, shape, weights, sampled, True, masks, on_product=kept)
        forward.first = a if kept else None
        loss = problem.loss(forward.logits(x)[train_rows], labels)
        gradients = dict(zip(trained, torch.autograd.grad(loss, [weights[n] for n in trained]), strict=True))
        assert sum(note["losses"][epoch] for note in notes) == pytest.approx(loss.item(), rel=1e-12)
        for note, name in ((note, name) for note in notes for name in trained):
            torch.testing.assert_close(
                note["gradients"][epoch][name], gradients[name], rtol=1e-9, atol=1e-12, msg=name
            )
        with torch.no_grad():
            for name in trained:
                weights[name] -= problem.lr * (gradients[name] + problem.weight_decay * weights[name])


@pytest.mark.parametrize("model", ["gcn", "gat"])
def test_rate_1_is_the_plan_halo_bit_for_bit(model: str, folder: Path) -> None:
    """Also with codecs: the same payloads, rounded by the same numbers."""
    for codec in CODECS:
        spec = f"{codec}:budget=3" if codec == "auto" else codec
        configs = [config_of(model, NOISY, plan=plan, codec=spec) for plan in ("drawn:rate=1", "halo")]
        notes = [results(run_threads(RANKS, lambda group, c=c: train(group, folder, c))) for c in configs]
        for one, other in zip(*notes, strict=True):
            assert one["losses"] == other["losses"], codec
            for mine, theirs in zip(one["gradients"], other["gradients"], strict=True):
                assert all(torch.equal(mine[name], theirs[name]) for name in mine), codec


def bytes_of(group: Group, folder: str) -> dict[str, list[float]]:
    """Wire bytes of training and of evaluation in every epoch, under both plans."""
    found = {}
    for plan in ("drawn:rate=0.25", "halo"):
        config = config_of("sage", QUIET, plan=plan, kernel="auto", **PAPER)
        trainer = make_trainer(config, open_own(Path(folder), group), group, torch.device("cpu"))
        group.ledger = Ledger()
        records = list(trainer.epochs())
        found[plan] = [record["wire_bytes"] for record in records]
        found[f"{plan}, evaluation"] = [record["evaluation_bytes"] for record in records]
    return found


@pytest.mark.parametrize("backend", ["gloo", "mpi"])
def test_the_ledger_counts_what_was_drawn(backend: str, folder: Path) -> None:
    """Between processes: training sends fewer bytes, other ones in every epoch; evaluation sends all rows."""
    found = run_ranks("tests.ranks.test_drawn:bytes_of", RANKS, backend=backend, folder=str(folder))[0]
    drawn, halo = found["drawn:rate=0.25"], found["halo"]
    assert len(set(halo)) == 1 and len(set(drawn)) > 1
    assert 0.05 * halo[0] < sum(drawn) / EPOCHS < 0.5 * halo[0]
    assert found["drawn:rate=0.25, evaluation"] == found["halo, evaluation"]
