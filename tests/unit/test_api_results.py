"""What `sancus.train` and its pieces give: best weights, scores of all ranks, shards of this very graph."""

from __future__ import annotations

import copy
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch

import sancus
from sancus import api
from sancus.comm.group import Group
from sancus.config.settings import Config
from sancus.graphs.graph import Graph
from sancus.graphs.origin import Origin
from sancus.models.gcn import GCN
from sancus.models.settings import ModelSettings
from sancus.training.node_task import NodeTask
from tests.helpers.graphs import awkward_graph, shards_of
from tests.helpers.threads import open_own, results, run_threads


def changed(graph: Graph, name: str) -> Graph:
    """The same graph but for one field; a mask changes by a node that moves to no split."""
    value = getattr(graph, name)
    if name.endswith("_mask"):
        other: Any = value.copy()
        other[np.flatnonzero(value)[0]] = False
    elif name == "adjacency":
        other = sp.csr_array(value)
        other.data = other.data.copy()
        other.data[0] += 1
    elif name == "origin":
        other = Origin(ids=np.array([f"node {i}" for i in range(graph.nodes)]))
    elif name == "name":
        other = value + "-2"
    elif name == "classes":
        other = value + 1
    else:
        other = value.copy()
        other.flat[0] = other.flat[0] + 1 if name == "features" else (other.flat[0] + 1) % graph.classes
    return replace(graph, **{name: other})


@pytest.mark.parametrize("name", [item.name for item in fields(Graph) if item.init])
def test_the_fingerprint_is_of_everything_in_a_graph(name: str) -> None:
    graph = awkward_graph()
    assert api.fingerprint(changed(graph, name)) != api.fingerprint(graph)
    assert api.fingerprint(awkward_graph()) == api.fingerprint(graph)


def test_shards_are_of_the_graph_with_its_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANCUS_HOME", str(tmp_path))
    graph = awkward_graph()
    other = replace(graph, train_mask=graph.val_mask, val_mask=graph.train_mask)

    def run(group: Group) -> list[list[int]]:
        found = []
        for one in (graph, other):
            shard = api.partition(one, group, "contiguous")
            found.append(shard.nodes[np.asarray(shard.mask("train"))].tolist())
        return found

    (found,) = results(run_threads(1, run))
    assert [sorted(nodes) for nodes in found] == [
        np.flatnonzero(one.train_mask).tolist() for one in (graph, other)
    ]


def test_train_gives_the_best_weights_not_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANCUS_HOME", str(tmp_path))
    graph = awkward_graph()
    torch.manual_seed(0)
    model = GCN(graph.features.shape[1], graph.classes, ModelSettings(hidden=8, dropout=0.0))
    states: list[dict[str, torch.Tensor]] = []
    result = sancus.train(
        graph,
        model,
        epochs=30,
        lr=0.3,
        dropout=0.0,
        after_epoch=lambda record: states.append(copy.deepcopy(model.state_dict())),
    )
    val = [record["val"] for record in result.epochs]
    best = int(np.argmax([float(score or 0.0) for score in val]))
    assert result.best_epoch == best < len(states) - 1, "the last epoch must not be the best one here"
    assert (result.val, result.test) == (val[best], result.epochs[best]["test"])
    last = states[-1]
    for name, tensor in result.model.state_dict().items():
        assert torch.equal(tensor, states[best][name])
    assert any(not torch.equal(tensor, last[name]) for name, tensor in result.model.state_dict().items())
    assert result.logits is not None
    for mask, score in ((graph.val_mask, result.val), (graph.test_mask, result.test)):
        hits = result.logits.argmax(axis=1)[mask] == np.asarray(graph.labels)[mask]
        assert hits.mean() == pytest.approx(score)


def test_scores_are_of_all_ranks(tmp_path: Path) -> None:
    graph = awkward_graph()
    folder = shards_of(graph, "random", 3, tmp_path)
    logits = torch.from_numpy(np.random.default_rng(1).standard_normal((graph.nodes, graph.classes)))

    def run(group: Group) -> dict[str, float]:
        shard = open_own(folder, group)
        task, exchange = api.make_task(shard, group), api.make_exchange(shard, group, Config())
        assert isinstance(task, NodeTask)
        return api.score(task, logits[exchange.nodes], exchange)

    hits = logits.argmax(dim=1).numpy() == np.asarray(graph.labels)
    masks = {"train": graph.train_mask, "val": graph.val_mask, "test": graph.test_mask}
    expected = {split: pytest.approx(hits[mask].mean()) for split, mask in masks.items()}
    for found in results(run_threads(3, run)):
        assert found == expected


def test_logits_come_in_the_order_of_the_user(tmp_path: Path) -> None:
    graph = awkward_graph()
    folder = shards_of(graph, "random", 3, tmp_path)

    def run(group: Group) -> torch.Tensor:
        shard = open_own(folder, group)
        rows = torch.from_numpy(np.array(shard.nodes)).double()[:, None] * torch.tensor([1.0, -2.0])
        return api.gather_rows(rows, shard, group)

    for rows in results(run_threads(3, run)):
        assert torch.equal(rows, torch.arange(graph.nodes).double()[:, None] * torch.tensor([1.0, -2.0]))
