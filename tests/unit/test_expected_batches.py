"""What `sancus estimate` expects of batches is what they read, within what correlated draws make of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sancus.advise.estimate import Machine
from sancus.advise.estimate_batches import foresee
from sancus.advise.expected_batches import expected_batches
from sancus.comm.group import Group
from sancus.config.resolve import make_config
from sancus.datasets.open import open_graph
from sancus.errors import UserError
from sancus.partitioners import PARTITIONERS
from sancus.plugins import build
from tests.helpers.graphs import awkward_graph, shards_of
from tests.helpers.threads import open_own, results, run_threads, thread_trainer

MACHINE = Machine(link=1e9, latency=1e-5, spmm=1e9, gemm=1e10)
GRAPH = "synthetic:nodes=1500,features=8,classes=3,degree=8,seed=2"
CASES: list[dict[str, Any]] = [
    {"model": "sage"},
    {"model": "gcn", "feature_cache": "vip:share=0.3"},
    {"model": "gcn", "feature_codec": "int8", "layers": 3, "fanout": "4,3,2"},
]


@pytest.mark.parametrize("case", CASES)
def test_expected_rows_edges_and_bytes_are_those_of_a_run(case: dict[str, Any], tmp_path: Path) -> None:
    graph, ranks = open_graph(GRAPH), 2
    config = make_config(
        **({"fanout": "5,3", "batch_size": 60, "epochs": 3, "hidden": 8, "partitioner": "random"} | case)
    )
    folder = shards_of(graph, "random", ranks, tmp_path)

    def run(group: Group) -> list[Any]:
        return list(thread_trainer(config, open_own(folder, group), group).epochs())

    records = results(run_threads(ranks, run))[0][1:]  # before the first epoch the cache is filled
    assignment = build("partitioner", PARTITIONERS, "random").assign(graph.adjacency, ranks)
    expected = expected_batches(graph, config, ranks, assignment)
    needed = foresee(graph, config, ranks, MACHINE)
    steps = records[0]["steps"]
    assert expected.steps == steps

    def mean(name: str) -> float:
        return float(sum(record[name] for record in records) / len(records))

    assert expected.edges * steps == pytest.approx(mean("sampled_edges"), rel=0.15)
    assert expected.rows * steps == pytest.approx(mean("input_rows"), rel=0.35)
    assert expected.pulled * steps == pytest.approx(mean("pulled_rows"), rel=0.35)
    assert needed.wire_bytes == pytest.approx(mean("wire_bytes"), rel=0.35)
    assert needed.parameter_bytes == mean("parameter_bytes")
    assert needed.agreement_bytes == pytest.approx(mean("agreement_bytes"), rel=0.2)


def test_the_full_graph_is_advised_where_a_step_reads_most_of_it() -> None:
    many = {"model": "sage", "fanout": "all", "layers": 3}
    advice = foresee(awkward_graph(), make_config(**many, batch_size=100), 2, MACHINE).advice
    assert "the full graph is the better choice, leave --batch-size out" in advice
    few = make_config(model="sage", fanout="2,2", batch_size=4)
    assert "batches make" in foresee(open_graph(GRAPH), few, 1, MACHINE).advice


def test_what_cannot_be_foreseen_is_refused() -> None:
    for settings, said in (
        ({"sampler": "labor"}, "--sampler labor: only neighbour can be estimated"),
        ({"model": "gat"}, "--model gat: only gcn, sage can be estimated in batches"),
    ):
        with pytest.raises(UserError, match=said):
            foresee(awkward_graph(), make_config(batch_size=4, **settings), 2, MACHINE)
