"""Mini-batches: all neighbours of all seeds are the full graph; p ranks compute what one process computes."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sancus.comm.group import Group
from sancus.config.resolve import make_config
from sancus.config.settings import Config
from sancus.errors import UserError
from sancus.kernels.picked import PickedRows
from sancus.models import MODELS
from sancus.partitioners import PARTITIONERS
from sancus.plugins import build
from tests.helpers.graphs import awkward_graph, shards_of, with_train_nodes
from tests.helpers.processes import TOP
from tests.helpers.threads import open_own, results, run_threads, thread_trainer

EPOCHS = 2
ALL: dict[str, Any] = {"batch_size": 1000, "fanout": "all"}
BASE: dict[str, Any] = {
    "epochs": EPOCHS,
    "optimizer": "sgd",
    "lr": 0.3,
    "dtype": "float64",
    "hidden": 6,
    "heads": 2,
    "reuse_input": False,  # dropout of the features falls on them, not on their sums
}
NOISY = {"dropout": 0.4, "attention_dropout": 0.3, "norm": "layer", "residual": True, "jumping": "cat"}
SAMPLE = [
    "neighbour",
    "neighbour:by=weight",
    "neighbour:replace=true",
    "neighbour:replace=true,by=weight",
    "labor",
    "labor:by=weight",
]
OWN = f"{TOP / 'examples' / 'my_model.py'}:Net"
SHAPES: dict[str, dict[str, Any]] = {
    "plain": {"dropout": 0.0},
    "noisy": NOISY | {"layers": 3},
    "labels": {"dropout": 0.2, "class_weights": "balanced", "label_smoothing": 0.1},
}
GRAPHS: dict[str, dict[str, Any]] = {
    "directed": {},
    "weighted": {"weighted": True, "directed": False},
    "sparse": {"sparse": True, "multilabel": True},
}


def run(group: Group, folder: Path, config: Config) -> dict[str, Any]:
    """On one rank: losses, evaluated logits by the user's ids, and weights, after some epochs."""
    shard = open_own(folder, group)
    trainer = thread_trainer(config, shard, group)
    records = list(trainer.epochs())
    return {
        "losses": [record["loss"] for record in records],
        "weights": {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()},
        "records": records,
        "ledger": group.ledger,
    }


def train(tmp_path: Path, ranks: int, how: str, graph: Any, **settings: Any) -> list[dict[str, Any]]:
    """Every rank's `run` on a graph that is cut in `ranks` parts."""
    config = make_config(**(BASE | settings))
    folder = tmp_path / f"{len(list(tmp_path.iterdir()))}"
    folder.mkdir()
    shards = shards_of(graph, how, ranks, folder)
    return results(run_threads(ranks, lambda group: run(group, shards, config)))


def assert_equal(some: list[dict[str, Any]], other: list[dict[str, Any]]) -> None:
    for rank in some:
        assert rank["losses"] == pytest.approx(other[0]["losses"], rel=1e-9)
        for name, tensor in other[0]["weights"].items():
            torch.testing.assert_close(rank["weights"][name], tensor, rtol=1e-9, atol=1e-12, msg=name)


PLACES = {"directed": ("random", 1), "weighted": ("with-empty-block", 3), "sparse": ("metis", 2)}


@pytest.mark.parametrize("model", [*MODELS, OWN])
def test_all_neighbours_of_all_seeds_are_the_full_graph(model: str, tmp_path: Path) -> None:
    """The full graph's losses and weights: shapes × graphs × partitions, dropout included."""
    for (shape, settings), (name, (how, ranks)) in itertools.product(SHAPES.items(), PLACES.items()):
        if model == OWN and shape == "noisy":
            continue  # it has two layers, whatever one asks for
        graph = awkward_graph(**GRAPHS[name])
        whole = train(tmp_path, 1, "contiguous", graph, model=model, **settings)
        batch = train(tmp_path, ranks, how, graph, model=model, **settings, **ALL)
        assert_equal(batch, whole)
        assert batch[0]["records"][0]["steps"] == 1, f"{model} {shape} {name}"


@pytest.mark.parametrize("sampler", SAMPLE)
@pytest.mark.parametrize("model", ["sage", "gat", "gcnii", OWN])
def test_ranks_equal_one_process_at_any_fan_out(model: str, sampler: str, tmp_path: Path) -> None:
    """Of few drawn neighbours and small batches, with a rank that has no seeds and one that has no rows."""
    few = {"model": model, "sampler": sampler, "batch_size": 4, "fanout": "3,2", "dropout": 0.3}
    graph = awkward_graph(weighted=True)
    alone = train(tmp_path, 1, "contiguous", graph, **few)
    assert alone[0]["records"][0]["steps"] == 3, "11 training nodes in fours"
    assert_equal(train(tmp_path, 2, "random", graph, **few), alone)
    assert_equal(train(tmp_path, 3, "with-empty-block", graph, **few), alone)
    whole = train(tmp_path, 1, "contiguous", graph, **few | {"fanout": "all"})
    assert whole[0]["losses"] != pytest.approx(alone[0]["losses"], rel=1e-6), "nothing was drawn"


@pytest.mark.parametrize("sampler", ["cluster:parts=6", "cluster:parts=9,by=random", "saint:coverage=4"])
def test_ranks_equal_one_process_in_subgraphs(sampler: str, tmp_path: Path) -> None:
    few = {"model": "sage", "sampler": sampler, "batch_size": 4, "fanout": "all", "dropout": 0.3}
    for settings in ({}, {"inductive": True, "model": "gcn"}):
        graph = awkward_graph(weighted=True)
        alone = train(tmp_path, 1, "contiguous", graph, **few | settings)
        assert_equal(train(tmp_path, 3, "with-empty-block", graph, **few | settings), alone)
        whole = train(tmp_path, 1, "contiguous", graph, **few | settings | {"sampler": "neighbour"})
        assert whole[0]["losses"] != pytest.approx(alone[0]["losses"], rel=1e-6), "nothing was drawn"


@pytest.mark.parametrize("name", GRAPHS)
def test_a_subgraph_of_all_nodes_is_the_full_graph(name: str, tmp_path: Path) -> None:
    """All clusters in one step; walks from all nodes, which all train."""
    how, ranks = PLACES[name]
    graph = awkward_graph(**GRAPHS[name])
    for sampler in ("cluster:parts=4", "saint:coverage=3"):
        shared = {"model": "gcn", **SHAPES["labels"], "inductive": sampler != "cluster:parts=4"}
        whole = train(tmp_path, 1, "contiguous", graph, **shared)
        assert_equal(train(tmp_path, ranks, how, graph, **shared, sampler=sampler, **ALL), whole)


def test_losses_of_batches_are_means_over_their_seeds(tmp_path: Path) -> None:
    """With weights that stand still, those of an epoch add up to the loss of the full graph."""
    still = {"model": "sage", "lr": 0.0, "dropout": 0.0}
    whole = train(tmp_path, 1, "contiguous", awkward_graph(), **still)
    batches = train(tmp_path, 2, "random", awkward_graph(), **still, batch_size=4, fanout="all")
    assert batches[0]["losses"] == pytest.approx(whole[0]["losses"], rel=1e-12)


def test_a_rank_without_seeds_and_a_training_subgraph(tmp_path: Path) -> None:
    few = {"model": "sage", "batch_size": 1, "fanout": "2"}
    graph = with_train_nodes(awkward_graph(), [0, 3])
    alone = train(tmp_path, 1, "contiguous", graph, **few)
    assert_equal(train(tmp_path, 3, "contiguous", graph, **few), alone)
    few |= {"inductive": True, "batch_size": 5}
    alone = train(tmp_path, 1, "contiguous", awkward_graph(), **few)
    assert_equal(train(tmp_path, 2, "random", awkward_graph(), **few), alone)
    whole = {"model": "sage", "inductive": True}
    full = train(tmp_path, 1, "contiguous", awkward_graph(), **whole)
    assert_equal(train(tmp_path, 2, "random", awkward_graph(), **whole, **ALL), full)


def test_pulled_bytes_are_a_hand_count(tmp_path: Path) -> None:
    """Rows of other ranks that a batch of all seeds and all neighbours reads, 7 float64 features each."""
    graph, ranks = awkward_graph(), 3
    settings = {"model": "sage", "epochs": 1, "layers": 1, **ALL}
    noted = train(tmp_path, ranks, "contiguous", graph, **settings)
    part = build("partitioner", PARTITIONERS, "contiguous").assign(graph.adjacency, ranks)
    seeds = [np.flatnonzero(graph.train_mask & (part == rank)) for rank in range(ranks)]
    near = [np.union1d(own, graph.adjacency[own].indices) for own in seeds]
    expected = {
        (owner, rank): int((part[near[rank]] == owner).sum())
        for owner in range(ranks)
        for rank in range(ranks)
    }
    rows = sum(count for (owner, rank), count in expected.items() if owner != rank)
    record = noted[0]["records"][0]
    assert record["pulled_rows"] == rows and record["input_rows"] == sum(expected.values())
    assert record["wire_bytes"] == record["raw_bytes"] == rows * 7 * 8
    for owner, note in enumerate(noted):
        pulled = {
            receiver: wire
            for (entry, receiver), wire in note["ledger"].wire.items()
            if entry.purpose == "payload"
        }
        sizes = {rank: expected[owner, rank] * 56 for rank in range(ranks) if rank != owner}
        assert pulled == {rank: size for rank, size in sizes.items() if size}


def test_input_is_not_copied_where_it_is_summed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A linear model without dropout reads features of neighbours where they stand."""

    def refuse(rows: PickedRows) -> None:
        raise AssertionError(f"{rows.shape} rows are copied")

    monkeypatch.setattr(PickedRows, "to_rows", refuse)
    for ranks, how in ((1, "contiguous"), (2, "random")):
        train(tmp_path, ranks, how, awkward_graph(), model="gcn", dropout=0.0, batch_size=4, fanout="2")


KEPT = ["vip:share=0.4", "degree:share=0.4", "vip:share=1"]


@pytest.mark.parametrize("name", ["directed", "sparse"])
def test_a_cache_changes_no_bit(name: str, tmp_path: Path) -> None:
    """Losses and weights are those without one; what the cache has is not pulled."""
    few = {"model": "sage", "batch_size": 4, "fanout": "3,2", "dropout": 0.0}
    graph = awkward_graph(**GRAPHS[name])
    for how, ranks in (("random", 2), ("with-empty-block", 3)):
        plain = train(tmp_path, ranks, how, graph, **few)
        before = [record["pulled_rows"] for record in plain[0]["records"]]
        for cache in KEPT:
            cached = train(tmp_path, ranks, how, graph, **few, feature_cache=cache)
            assert cached[0]["losses"] == plain[0]["losses"], "bit for bit"
            for key, tensor in plain[0]["weights"].items():
                assert torch.equal(cached[0]["weights"][key], tensor), key
            records = cached[0]["records"]
            both = [record["pulled_rows"] + record["cached_rows"] for record in records]
            assert both == before and all(record["cached_rows"] > 0 for record in records)
            assert cache != "vip:share=1" or not any(record["pulled_rows"] for record in records)


def test_cached_bytes_are_a_hand_count(tmp_path: Path) -> None:
    """Kept rows cross once, before the first epoch; after that only the others, 7 float64 features each."""
    few = {"model": "sage", "batch_size": 4, "fanout": "2", "epochs": 2, "feature_cache": "degree:share=0.5"}
    graph, ranks = awkward_graph(), 2
    noted = train(tmp_path, ranks, "random", graph, **few)
    part = build("partitioner", PARTITIONERS, "random").assign(graph.adjacency, ranks)
    degree = np.diff(graph.adjacency.tocsc().indptr)
    kept = sum(
        min(int(0.5 * (part != rank).sum()), int((degree[part != rank] > 0).sum())) for rank in range(ranks)
    )
    first, second = noted[0]["records"]
    assert first["wire_bytes"] == (kept + first["pulled_rows"]) * 56
    assert second["wire_bytes"] == second["pulled_rows"] * 56 and second["cached_rows"] > 0


@pytest.mark.parametrize(("codec", "width"), [("int4", 4 + 8), ("fp16", 14), ("int2:tail=short", 2 + 4)])
def test_coded_features_are_a_hand_count(codec: str, width: int, tmp_path: Path) -> None:
    """7 features in so many bytes a row; raw bytes are float64, and the topology is neither."""
    few = {"model": "sage", "batch_size": 4, "fanout": "3,2", "dropout": 0.0, "feature_codec": codec}
    graph = awkward_graph()
    plain = train(tmp_path, 3, "random", graph, **few | {"feature_codec": "fp32"})
    coded = train(tmp_path, 3, "random", graph, **few)
    for record, exact in zip(coded[0]["records"], plain[0]["records"], strict=True):
        assert record["wire_bytes"] == record["pulled_rows"] * width
        assert record["raw_bytes"] == exact["wire_bytes"] == record["pulled_rows"] * 56
        assert record["loss"] != exact["loss"], "nothing was rounded"
        assert record["loss"] == pytest.approx(exact["loss"], rel=0.5)
    assert coded[0]["records"][0]["topology_bytes"] > 0 == coded[0]["records"][1]["topology_bytes"]


def test_kept_rows_are_exact_whatever_the_codec(tmp_path: Path) -> None:
    few = {"model": "sage", "batch_size": 4, "fanout": "3,2", "dropout": 0.0}
    graph = awkward_graph()
    plain = train(tmp_path, 2, "random", graph, **few)
    kept = train(tmp_path, 2, "random", graph, **few, feature_codec="int1", feature_cache="vip:share=1")
    assert kept[0]["losses"] == plain[0]["losses"]


def test_sparse_features_have_no_codec(tmp_path: Path) -> None:
    graph = awkward_graph(sparse=True)
    with pytest.raises(UserError, match="--feature-codec codes dense features, and these are sparse"):
        train(tmp_path, 2, "random", graph, batch_size=4, feature_codec="int8")


SPREAD = ["neighbour", "neighbour:replace=true,by=weight", "labor", "labor:by=weight"]


@pytest.mark.parametrize("sampler", SPREAD)
def test_edges_at_their_owners_change_no_bit(sampler: str, tmp_path: Path) -> None:
    """Owners draw what the rank would draw that asks: losses and weights are those of mapped edges."""
    few = {"sampler": sampler, "batch_size": 4, "fanout": "3,2", "dropout": 0.2}
    for model, graph, (how, ranks) in (
        ("gcn", awkward_graph(weighted=True), ("random", 3)),
        ("sage", awkward_graph(), ("with-empty-block", 3)),
        ("gat", awkward_graph(), ("contiguous", 1)),
    ):
        mapped = train(tmp_path, ranks, how, graph, model=model, **few)
        for cache in ("none", "vip:share=0.3"):
            spread = train(
                tmp_path, ranks, how, graph, model=model, **few, topology="owner", feature_cache=cache
            )
            assert spread[0]["losses"] == mapped[0]["losses"], f"{model} {cache}"
            for key, tensor in mapped[0]["weights"].items():
                assert torch.equal(spread[0]["weights"][key], tensor), key


def test_bytes_of_requests_for_edges_are_a_hand_count(tmp_path: Path) -> None:
    """Two hops with all neighbours: what is asked for are the rows of others' nodes next to own seeds."""
    graph, ranks = awkward_graph(), 3
    settings = {"model": "sage", "epochs": 2, "layers": 2, "topology": "owner", **ALL}
    noted = train(tmp_path, ranks, "contiguous", graph, **settings)
    part = build("partitioner", PARTITIONERS, "contiguous").assign(graph.adjacency, ranks)
    degree = np.diff(graph.adjacency.indptr)
    counts = 2 * ranks * (ranks - 1) * ranks * 8  # two hops: everyone tells everyone what it wants of each
    asked = answered = 0
    for rank in range(ranks):
        seeds = np.flatnonzero(graph.train_mask & (part == rank))
        near = np.union1d(seeds, graph.adjacency[seeds].indices)
        others = near[part[near] != rank]
        asked += len(others) * 4
        answered += len(others) * 4 + int(degree[others].sum()) * (4 + 8)
    assert noted[0]["records"][1]["topology_bytes"] == counts + asked + answered


def test_subgraphs_need_all_edges_in_one_place(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match="--topology owner draws hop by hop, and sampler cluster takes subgraphs"
    ):
        train(
            tmp_path,
            2,
            "random",
            awkward_graph(),
            batch_size=4,
            fanout="all",
            sampler="cluster",
            topology="owner",
        )


def test_batches_that_are_made_ahead_change_no_bit(tmp_path: Path) -> None:
    """However many, whoever has the edges, with and without a cache and a codec."""
    few = {"model": "sage", "batch_size": 3, "fanout": "3,2", "dropout": 0.2, "feature_codec": "int8"}
    graph = awkward_graph()
    plain = train(tmp_path, 3, "with-empty-block", graph, **few, prefetch=0)
    for ahead, others in ((1, {}), (2, {"topology": "owner"}), (9, {}), (4, {"feature_cache": "none"})):
        made = train(tmp_path, 3, "with-empty-block", graph, **few, **others, prefetch=ahead)
        assert made[0]["losses"] == plain[0]["losses"], f"{ahead} {others}"
        for key, tensor in plain[0]["weights"].items():
            assert torch.equal(made[0]["weights"][key], tensor), key
        sizes = [[record["wire_bytes"] for record in run[0]["records"]] for run in (plain, made)]
        assert sizes[0] == sizes[1]


def test_a_sampler_that_fails_in_its_thread_is_an_error_of_the_rank(tmp_path: Path) -> None:
    """It ends the run with its own words: nobody waits for a batch that never comes."""
    settings = {"batch_size": 4, "fanout": "3,2", "sampler": f"{__name__}:Failing", "model": "sage"}
    with pytest.raises(RuntimeError, match="no neighbours today"):
        train(tmp_path, 2, "random", awkward_graph(), **settings)


class Failing:
    """A sampler that breaks."""

    def sample(self, hops: Any, seeds: Any, fanouts: Any, keys: Any) -> Any:
        raise RuntimeError("no neighbours today")
