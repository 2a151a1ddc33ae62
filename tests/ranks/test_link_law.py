"""Link prediction: p ranks compute what one process computes, in batches too; all of it is the full graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.helpers.graphs import awkward_graph
from tests.ranks.test_minibatch import ALL, GRAPHS, NOISY, assert_equal, train

LINK: dict[str, Any] = {"task": "link", "held_out": 0.2, "negatives": 2, "rivals": 3, "dropout": 0.3}
HOW = {"directed": "random", "weighted": "with-empty-block", "sparse": "contiguous"}
SCORES = ("train", "val", "test")


def scores(ranks: list[dict[str, Any]]) -> list[float]:
    """Of every epoch, one after the other."""
    assert all(rank["records"][-1]["test"] == ranks[0]["records"][-1]["test"] for rank in ranks)
    return [record[split] for record in ranks[0]["records"] for split in SCORES]


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("model", ["gcn", "gat"])
def test_ranks_equal_one_process_on_the_full_graph(model: str, name: str, tmp_path: Path) -> None:
    """Losses, weights and scores, with a rank without rows; bytes of embeddings are counted both ways."""
    graph, link = awkward_graph(**GRAPHS[name]), LINK | {"model": model}
    alone = train(tmp_path, 1, "contiguous", graph, **link)
    for metric in ("roc-auc", "mrr"):
        several = train(tmp_path, 3, HOW[name], graph, **link, metric=metric)
        assert_equal(several, alone)
        if metric == "roc-auc":
            assert scores(several) == pytest.approx(scores(alone), abs=1e-9)
    entries = [entry for entry, _ in several[0]["ledger"].wire if entry.stream and entry.stream.layer == 2]
    assert {entry.stream.direction for entry in entries} == {"forward", "backward"}
    labels = train(tmp_path, 1, "contiguous", graph, model=model)
    assert labels[0]["losses"] != pytest.approx(alone[0]["losses"], rel=1e-6)


@pytest.mark.parametrize("name", GRAPHS)
def test_all_edges_in_one_batch_are_the_full_graph(name: str, tmp_path: Path) -> None:
    shape = LINK | NOISY | {"layers": 3, "model": "sage"}
    graph = awkward_graph(**GRAPHS[name])
    whole = train(tmp_path, 1, "contiguous", graph, **shape)
    batch = train(tmp_path, 2, "random", graph, **shape, **ALL, leave_out=False)
    assert_equal(batch, whole)
    assert scores(batch) == pytest.approx(scores(whole), abs=1e-9)


@pytest.mark.parametrize("sampler", ["neighbour", "labor"])
def test_ranks_equal_one_process_in_batches(sampler: str, tmp_path: Path) -> None:
    """Few neighbours, few edges a step, and the edges of a step left out of it."""
    few = LINK | {"model": "sage", "sampler": sampler, "batch_size": 8, "fanout": "3,2"}
    graph = awkward_graph(directed=False)
    alone = train(tmp_path, 1, "contiguous", graph, **few)
    assert alone[0]["records"][0]["steps"] > 2
    assert_equal(train(tmp_path, 3, "with-empty-block", graph, **few), alone)
    kept = train(tmp_path, 1, "contiguous", graph, **few, leave_out=False)
    assert kept[0]["losses"] != pytest.approx(alone[0]["losses"], rel=1e-6)
