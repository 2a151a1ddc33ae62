"""Label propagation: what is input, what carries the loss, what is scored; on p ranks as on one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sancus.comm.group import Group
from sancus.config.settings import Config, FactorSettings
from sancus.errors import UserError
from sancus.exchange.labels import LabelDraw
from sancus.graphs.shards import Shard, open_shard
from sancus.models.settings import ModelSettings
from sancus.runs.build import make_trainer
from sancus.training.settings import TrainingSettings
from tests.helpers.graphs import awkward_graph, shards_of
from tests.helpers.reference import dense_adjacency, dense_features
from tests.helpers.threads import results, run_threads

RATE, EPOCHS = 0.4, 4
TRAINING = TrainingSettings(
    epochs=EPOCHS, optimizer="sgd", lr=0.5, weight_decay=0.0, dtype="float64", label_rate=RATE
)


def shards_in(folder: Path, ranks: int) -> list[Shard]:
    """Opened one after another: threads must not parse the headers of arrays at the same time."""
    return [open_shard(folder, rank) for rank in range(ranks)]


def trainer_of(group: Group, shards: list[Shard], **factors: Any) -> Any:
    shape = ModelSettings(hidden=5, dropout=0.0)
    config = Config(factors=FactorSettings(kernel="torch", **factors), shape=shape, training=TRAINING)
    trainer = make_trainer(config, shards[group.rank], group, torch.device("cpu"))
    for number, parameter in enumerate(trainer.model.parameters()):  # threads share torch's generator
        noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))
        parameter.data.copy_(0.5 * noise)
    return trainer


def losses_of(group: Group, shards: list[Shard], **factors: Any) -> list[float]:
    return [record["loss"] for record in trainer_of(group, shards, **factors).epochs()]


def test_draws_are_of_the_node_and_anew_every_epoch() -> None:
    nodes = torch.arange(20_000)
    draws = [LabelDraw(0.3, 1, epoch).shown(nodes) for epoch in range(3)]
    for draw in draws:
        assert abs(draw.double().mean().item() - 0.3) < 0.02
    assert (draws[0] & draws[1]).double().mean().item() == pytest.approx(0.09, abs=0.01)
    assert torch.equal(LabelDraw(0.3, 1, 0).shown(nodes[50:60]), draws[0][50:60])
    assert LabelDraw(1.0, 1, 0).shown(nodes).all()


@pytest.mark.parametrize("draw, epochs", [("once", {0}), ("epoch", {0, 1, 2})])
def test_labels_are_drawn_before_training_or_in_every_epoch(
    draw: str, epochs: set[int], tmp_path: Path
) -> None:
    """SuperGCN draws once; the input and the loss must mean the same nodes."""
    shards = shards_in(shards_of(awkward_graph(nodes=60), "random", 1, tmp_path), 1)

    def shown_in(group: Group) -> list[tuple[list[bool], list[bool]]]:
        training = replace(TRAINING, label_draw=draw)
        config = Config(factors=FactorSettings(kernel="torch"), training=training)
        trainer = make_trainer(config, shards[group.rank], group, torch.device("cpu"))
        exchange, notes = trainer.exchange, []
        rows = trainer.task.rows_needed("train")
        for epoch in range(3):
            exchange.begin_epoch(epoch)
            labelled = exchange.labelled(trainer.model.embedding, RATE)
            visible = labelled.y.to_dense().any(dim=1)[rows]
            notes.append((visible.tolist(), trainer.task._shown(rows).tolist()))
        return notes

    notes = results(run_threads(1, shown_in))[0]
    nodes = torch.from_numpy(shards[0].nodes.copy())[np.flatnonzero(shards[0].mask("train"))]
    draws = [LabelDraw(RATE, TRAINING.seed, epoch).shown(nodes).tolist() for epoch in range(3)]
    assert draws[0] != draws[1] != draws[2]
    for epoch, (visible, left_out) in enumerate(notes):
        assert visible == left_out == draws[epoch if epoch in epochs else 0]


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("multilabel", [False, True])
def test_every_way_of_sending_the_input_is_the_same_training(
    sparse: bool, multilabel: bool, tmp_path: Path
) -> None:
    graph = awkward_graph(sparse=sparse, multilabel=multilabel)
    expected = None
    for ranks in (1, 3):
        shards = shards_in(shards_of(graph, "random", ranks, tmp_path / str(ranks)), ranks)
        for plan in ("halo", "block", "prepost"):
            for reuse in (True, False):
                asked = {"plan": plan, "reuse_input": reuse, "broadcast": "library"}
                found = results(run_threads(ranks, lambda t, s=shards, a=asked: losses_of(t, s, **a)))
                expected = expected or found[0]
                for losses in found:
                    np.testing.assert_allclose(losses, expected, rtol=1e-10)


def test_a_gcn_with_labels_equals_its_formula(tmp_path: Path) -> None:
    graph = awkward_graph()
    shards = shards_in(shards_of(graph, "random", 1, tmp_path), 1)

    def first_loss(group: Group) -> tuple[float, dict[str, torch.Tensor], torch.Tensor]:
        trainer = trainer_of(group, shards)
        weights = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
        loss = trainer.train_epoch(0)
        trainer.model.load_state_dict(weights)
        return loss, weights, trainer.logits()

    loss, weights, logits = results(run_threads(1, first_loss))[0]
    nodes = torch.from_numpy(shards[0].nodes.copy())
    a, x = dense_adjacency(graph, "symmetric"), dense_features(graph)
    labels = torch.from_numpy(np.array(graph.labels))
    train = torch.from_numpy(np.array(graph.train_mask))
    shown = train & LabelDraw(RATE, 0, 0).shown(torch.arange(len(x)))
    assert shown.any() and not shown[train].all()

    def expected(visible: torch.Tensor) -> torch.Tensor:
        y = torch.zeros(len(x), weights["embedding"].shape[0], dtype=x.dtype)
        y[visible, labels[visible]] = 1.0
        h = a @ ((x + y @ weights["embedding"]) @ weights["model.layers.0.weight"])
        h = torch.relu(h + weights["model.layers.0.bias"])
        return a @ (h @ weights["model.layers.1.weight"]) + weights["model.layers.1.bias"]

    scored = train & ~shown
    total = torch.nn.functional.cross_entropy(expected(shown)[scored], labels[scored], reduction="sum")
    assert loss == pytest.approx(total.item() / (train.sum().item() * (1 - RATE)), rel=1e-10)
    torch.testing.assert_close(logits, expected(train)[nodes])


def test_the_score_of_training_nodes_never_sees_their_labels(tmp_path: Path) -> None:
    """Evaluation shows all training labels; the training score is that of nodes that did not show theirs."""
    shards = shards_in(shards_of(awkward_graph(), "random", 1, tmp_path), 1)

    def counted(group: Group) -> tuple[float, int, int]:
        trainer = trainer_of(group, shards)
        trainer.train_epoch(0)
        rows = trainer.task.rows_needed("train")
        shown = trainer.exchange.labels.draw(RATE, 0).shown(trainer.exchange.nodes[rows])
        return trainer.evaluate()[0, 1].item(), int((~shown).sum()), len(rows)

    scored, hidden, all_of_them = results(run_threads(1, counted))[0]
    assert scored == hidden < all_of_them


def test_under_drop_remote_labels_are_absent_too(tmp_path: Path) -> None:
    shards = shards_in(shards_of(awkward_graph(), "random", 3, tmp_path), 3)
    whole, alone = (
        results(run_threads(3, lambda t, p=policy: losses_of(t, shards, staleness=p, backward=p)))[0]
        for policy in ("always", "drop")
    )
    assert whole != alone


@pytest.mark.parametrize("rate", [-0.1, 1.0, float("nan")])
def test_a_rate_must_be_a_share(rate: float) -> None:
    with pytest.raises(UserError, match="--label-rate"):
        TrainingSettings(label_rate=rate)
