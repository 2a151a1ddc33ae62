"""Evaluation is exact: whatever training drops, ages or rounds, scores are those of the whole graph.

Logits after some epochs under a policy and a codec equal those of the independent reference with the weights
of that moment; scores are those of these logits.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sancus.comm.group import Group
from sancus.config.settings import Config, FactorSettings
from sancus.models.settings import ModelSettings
from sancus.training.settings import TrainingSettings
from sancus.training.trainer import Trainer
from tests.helpers.graphs import awkward_graph, shards_of
from tests.helpers.reference import NORMALISATIONS, Forward, dense_adjacency, dense_features
from tests.helpers.threads import open_own, results, run_threads, thread_trainer

pytestmark = pytest.mark.slow
RANKS, EPOCHS = 3, 3
SHAPE = ModelSettings(hidden=6, layers=3, heads=2, dropout=0.3, attention_dropout=0.2)
CASES: dict[str, dict[str, Any]] = {
    "drop": {"staleness": "drop", "backward": "drop"},
    "drop-sent": {"staleness": "drop", "reuse_input": False},
    "never": {"staleness": "never", "backward": "never"},
    "pipelined": {"staleness": "pipelined", "backward": "pipelined"},
    "gap": {"staleness": "variation-gap:gap=0.5", "agree": "epoch"},
    "int1": {"codec": "int1"},
    "auto-feedback": {"codec": "auto", "error_feedback": True, "reuse_input": False},
    "stale-int2": {"staleness": "epoch-fixed:bound=2", "codec": "int2", "backward_codec": "fp16"},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    return {
        sparse: shards_of(awkward_graph(sparse=sparse), "random", RANKS, tmp_path_factory.mktemp("shards"))
        for sparse in (False, True)
    }


def trainer_of(group: Group, folder: Path, model: str, plan: str, **factors: Any) -> Trainer:
    training = {"inductive": factors.pop("inductive", False), "eval_every": factors.pop("eval_every", 1)}
    config = Config(
        model=model,
        factors=FactorSettings(plan=plan, kernel="torch", broadcast="library", **factors),
        shape=SHAPE,
        training=TrainingSettings(epochs=EPOCHS, dtype="float64", optimizer="sgd", lr=0.3, **training),
    )
    return thread_trainer(config, open_own(folder, group), group)


def check(folder: Path, sparse: bool, model: str, plan: str, **factors: Any) -> None:
    graph = awkward_graph(sparse=sparse)
    a, x = dense_adjacency(graph, NORMALISATIONS.get(model, "symmetric")), dense_features(graph)

    def run(group: Group) -> tuple[torch.Tensor, torch.Tensor, Any, Any]:
        trainer = trainer_of(group, folder, model, plan, **factors)
        records = list(trainer.epochs())
        weights = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
        return trainer.evaluation.exchange.nodes, trainer.logits(), weights, records[-1]

    everyone = results(run_threads(RANKS, run))
    expected = Forward(model, SHAPE, everyone[0][2], a, False).logits(x)
    for nodes, logits, _, _ in everyone:
        torch.testing.assert_close(logits, expected[nodes], rtol=1e-9, atol=1e-12)
    for split, mask in (("train", graph.train_mask), ("val", graph.val_mask), ("test", graph.test_mask)):
        hits = expected.argmax(dim=1).numpy()[mask] == np.asarray(graph.labels)[mask]
        assert everyone[0][3][split] == pytest.approx(hits.mean()), split


@pytest.mark.parametrize("plan", ["block", "halo", "prepost"])
@pytest.mark.parametrize("name", CASES)
def test_scores_are_of_the_whole_graph(folders: dict[bool, Path], name: str, plan: str) -> None:
    check(folders[False], False, "gcn", plan, **CASES[name])


@pytest.mark.parametrize("plan", ["block", "halo"])
@pytest.mark.parametrize("name", ["drop", "never", "int1", "stale-int2"])
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_attention_is_scored_on_the_whole_graph(
    folders: dict[bool, Path], name: str, plan: str, sparse: bool
) -> None:
    check(folders[sparse], sparse, "gat", plan, **CASES[name])


@pytest.mark.parametrize("name", ["drop", "stale-int2"])
@pytest.mark.parametrize("model", ["sage", "gcnii"])
def test_sparse_features_are_scored_on_the_whole_graph(
    folders: dict[bool, Path], model: str, name: str
) -> None:
    check(folders[True], True, model, "halo", **CASES[name])


def test_inductive_training_is_scored_on_the_whole_graph(folders: dict[bool, Path]) -> None:
    check(folders[False], False, "gcn", "halo", inductive=True, staleness="drop", codec="int4")


@pytest.mark.parametrize("name", ["drop", "never", "pipelined", "stale-int2", "auto-feedback"])
def test_training_does_not_notice_that_it_is_evaluated(folders: dict[bool, Path], name: str) -> None:
    def losses(every: int) -> list[float]:
        def run(group: Group) -> list[Any]:
            trainer = trainer_of(group, folders[False], "gcn", "halo", eval_every=every, **CASES[name])
            return [record["loss"] for record in trainer.epochs()]

        found: list[float] = results(run_threads(RANKS, run))[0]
        return found

    assert losses(1) == losses(EPOCHS)
