"""The law with dropout: p ranks equal the independent reference, which has the masks from its own formulas.

Every model, dense and sparse features, every plan, with and without reuse of the input; attention weights are
dropped too. Parts are random, so a row's place on its rank says nothing about its node.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from sancus.comm.group import Group
from sancus.config.settings import Config, FactorSettings
from sancus.exchange.full_graph import FullGraph
from sancus.models import MODELS
from sancus.runs.build import make_trainer
from tests.helpers.graphs import awkward_graph, shards_of
from tests.helpers.masks import Masks
from tests.helpers.reference import dense_adjacency, dense_features
from tests.helpers.threads import open_own, results, run_threads
from tests.ranks.law import CAGNET, SHAPE, TRAINING, Case, assert_law, expected_of, plans_of, train_case

RANKS = 3
NOISE = replace(SHAPE, layers=3, dropout=0.4, attention_dropout=0.3)
SEEDED = replace(TRAINING, seed=5)


def noisy_cases() -> list[Case]:
    """Every model by every plan; dense features kept as `Â X`, sent in every epoch, and sparse ones."""
    plain = {"kernel": "torch", "broadcast": "library"}
    found = []
    for model in MODELS:
        for plan in plans_of(model):
            reuse, cagnet = FactorSettings(plan=plan, **plain), replace(CAGNET, plan=plan, **plain)
            found += [
                Case(f"{model}-{plan}-dense", {}, "random", model, reuse, NOISE, SEEDED),
                Case(f"{model}-{plan}-sparse", {"sparse": True}, "random", model, reuse, NOISE, SEEDED),
                Case(f"{model}-{plan}-sent", {}, "random", model, cagnet, NOISE, SEEDED),
            ]
        jumping = replace(NOISE, layers=2, jumping="cat", residual=True, norm="batch")
        inductive = replace(SEEDED, inductive=True)
        factors = FactorSettings(plan="halo", **plain)
        found += [
            Case(f"{model}-jumping", {}, "random", model, factors, jumping, SEEDED),
            Case(f"{model}-inductive", {"sparse": True}, "random", model, factors, NOISE, inductive),
        ]
    return found


CASES = {case.name: case for case in noisy_cases()}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """Shards of the dense and of the sparse graph; no part is a range of node ids."""
    return {
        sparse: shards_of(awkward_graph(sparse=sparse), "random", RANKS, tmp_path_factory.mktemp("shards"))
        for sparse in (False, True)
    }


@pytest.mark.parametrize("name", CASES)
def test_ranks_drop_what_the_reference_drops(folders: dict[bool, Path], name: str) -> None:
    case = CASES[name]
    folder = folders[case.graph.get("sparse", False)]
    notes: list[dict[str, Any]] = results(run_threads(RANKS, lambda group: train_case(group, case, folder)))
    assert_law(case, notes, expected_of(case, notes[0]["weights"]))


@pytest.mark.parametrize("plan", ["block", "halo", "prepost"])
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("reuse", [False, True], ids=["sent", "kept"])
def test_the_input_is_dropped_where_no_weight_is_given(
    folders: dict[bool, Path], plan: str, sparse: bool, reuse: bool
) -> None:
    """`propagate` and `rows` without a weight; a dense input that is kept is dropped as `Â X`."""
    graph = awkward_graph(sparse=sparse)
    a, x = dense_adjacency(graph, "symmetric"), dense_features(graph)
    masks = Masks(SEEDED.seed, 1, range(graph.nodes), 0.4)
    dropped = masks.drop(x, 0)
    product = masks.drop(a @ x, 0) if reuse and not sparse else a @ dropped

    def run(group: Group) -> None:
        exchange = _exchange(group, folders[sparse], plan, reuse)
        nodes = exchange.nodes
        assert not torch.equal(nodes, nodes[0] + torch.arange(len(nodes))), "a range of ids shows nothing"
        torch.testing.assert_close(exchange.propagate(exchange.input, 0, None, 0.4), product[nodes])
        if exchange.plan.picks_rows:
            rows = exchange.rows(exchange.input, 1, 0.4)
            expected = masks.drop(x, 1)[exchange.noise.columns()]
            torch.testing.assert_close(rows, expected)

    results(run_threads(RANKS, run))


def _exchange(group: Group, folder: Path, plan: str, reuse: bool) -> FullGraph:
    factors = FactorSettings(plan=plan, reuse_input=reuse, kernel="torch", broadcast="library")
    config = Config(factors=factors, training=SEEDED)
    exchange = make_trainer(config, open_own(folder, group), group, torch.device("cpu")).exchange
    exchange.begin_epoch(1)
    return exchange
