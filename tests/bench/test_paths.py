"""The hot paths above the kernels under pytest-benchmark: to compare a change with the last stored run."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from sancus.config.presets import PRESETS
from sancus.datasets.open import open_graph
from sancus.graphs.graph import Graph
from sancus.kernels import masks
from sancus.partitioners import PARTITIONERS
from sancus.plans import PLANS
from sancus.plans.cover import minimum_cover
from sancus.plugins import build
from sancus.training.trainer import Trainer
from tests.bench.ranks import GRAPH, Ranks

ROUNDS = {"rounds": 5, "warmup_rounds": 1}
WIDTH = 128


@cache
def graph() -> Graph:
    return open_graph(GRAPH)


@pytest.fixture
def ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    made = Ranks(**request.param)
    yield made
    made.close()


def propagated(trainer: Trainer, epoch: int) -> torch.Tensor:
    """A hidden layer's aggregation."""
    exchange = trainer.exchange
    exchange.begin_epoch(epoch)
    h = torch.ones(len(exchange.nodes), WIDTH, requires_grad=True)
    return exchange.propagate(h, 1)


@pytest.mark.parametrize("ranks", [{"plan": plan} for plan in PLANS], ids=list(PLANS), indirect=True)
def test_propagate_forward(benchmark: Any, ranks: Ranks) -> None:
    benchmark.pedantic(ranks.step, (propagated,), **ROUNDS)


@pytest.mark.parametrize("ranks", [{"plan": plan} for plan in PLANS], ids=list(PLANS), indirect=True)
def test_propagate_backward(benchmark: Any, ranks: Ranks) -> None:
    def forward() -> tuple[tuple[list[Any]], dict[str, Any]]:
        return ([lambda z=z: z.backward(torch.ones_like(z)) for z in ranks.step(propagated)],), {}

    benchmark.pedantic(ranks.together, setup=forward, rounds=5, warmup_rounds=1)


@pytest.mark.parametrize(
    "ranks", [{"preset": preset} for preset in PRESETS], ids=list(PRESETS), indirect=True
)
def test_epoch(benchmark: Any, ranks: Ranks) -> None:
    benchmark.pedantic(ranks.step, (Trainer.train_epoch,), **ROUNDS)


@pytest.mark.parametrize("ranks", [{"preset": "sancus-h:1"}], ids=["variation-gap"], indirect=True)
def test_agreement(benchmark: Any, ranks: Ranks) -> None:
    """One gathered decision of a policy that measures drift."""

    def decide(trainer: Trainer, epoch: int) -> Any:
        trainer.exchange.begin_epoch(epoch)
        return trainer.exchange.crossing.agreement.decide(1, "forward", 0.02)

    benchmark.pedantic(ranks.step, (decide,), rounds=50, warmup_rounds=2)


@pytest.mark.parametrize("name", PARTITIONERS)
def test_partition(benchmark: Any, name: str) -> None:
    partitioner = build("partitioner", PARTITIONERS, name)
    benchmark.pedantic(partitioner.assign, (graph().adjacency, 4), rounds=3)


def test_vertex_cover(benchmark: Any) -> None:
    adjacency = graph().adjacency
    part = build("partitioner", PARTITIONERS, "metis").assign(adjacency, 2)
    first, second = (np.flatnonzero(part == rank) for rank in (0, 1))
    block = sp.csr_array(adjacency[first][:, second])
    benchmark.pedantic(minimum_cover, (block,), rounds=5)


def test_dropout(benchmark: Any) -> None:
    h = torch.randn(20_000, 256)
    keys = torch.arange(20_000, dtype=torch.int32), torch.arange(256, dtype=torch.int32)
    benchmark.extra_info["bytes"] = h.nbytes
    benchmark(masks.drop, h, keys, 0.5)
