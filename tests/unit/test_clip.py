"""`--clip` on every way that gradients take back: sums, rows of others, and attention in blocks.

GRADIENT_CLIP of Algorithm 3, in words: with `th_i = √p · th`, the gradient of what a model's call returned on
rank `i` is scaled to the L2 norm `th_i` where it is longer, and left alone where it is not; then all that
follows from it is computed and sent.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from sancus.comm.group import Group
from sancus.config.settings import Config, FactorSettings
from sancus.exchange.full_graph import FullGraph
from sancus.models.gat import AdditiveScore
from sancus.models.settings import ModelSettings
from sancus.training.settings import TrainingSettings
from tests.helpers.graphs import awkward_graph, shards_of
from tests.helpers.reference import dense_adjacency
from tests.helpers.threads import open_own, results, run_threads, thread_trainer

RANKS, THRESHOLD, HEADS, WIDTH = 3, 0.7, 2, 3
GRAPH = awkward_graph()
A = dense_adjacency(GRAPH, "symmetric")
LONG, SHORT = 5.0, 0.001  # how long the gradients of a rank are


def clipped(gradient: torch.Tensor) -> torch.Tensor:
    """Algorithm 3's GRADIENT_CLIP."""
    limit, norm = math.sqrt(RANKS) * THRESHOLD, gradient.norm().item()
    return gradient / norm * limit if norm > limit else gradient


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shards_of(GRAPH, "random", RANKS, tmp_path_factory.mktemp("shards"))


def exchange_of(group: Group, folder: Path, plan: str, **factors: Any) -> FullGraph:
    config = Config(
        model="gcn" if plan == "prepost" else "gat",
        factors=FactorSettings(plan=plan, clip=THRESHOLD, kernel="torch", broadcast="library", **factors),
        shape=ModelSettings(hidden=4, heads=2),
        training=TrainingSettings(dtype="float64"),
    )
    exchange = thread_trainer(config, open_own(folder, group), group).exchange
    exchange.begin_epoch(0)
    return exchange


def values_of(nodes: torch.Tensor) -> torch.Tensor:
    """Rows that depend on the node alone `[n, heads·d]`."""
    return torch.sin(nodes.double()[:, None] + torch.arange(HEADS * WIDTH).double() * 1.7)


def sent_of(rank: int, rows: torch.Tensor) -> torch.Tensor:
    """The gradient of a rank's result: long on ranks 0 and 2, short on rank 1."""
    return torch.cos(rows.detach() * 3.0) * (SHORT if rank == 1 else LONG)


def gradients(
    folder: Path, plan: str, forward: Callable[[FullGraph, torch.Tensor], torch.Tensor], **factors: Any
) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
    """On all ranks: their nodes, the gradient of their result, and what came of it for their rows."""

    def run(group: Group) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        exchange = exchange_of(group, folder, plan, **factors)
        h = values_of(exchange.nodes).requires_grad_()
        result = forward(exchange, h)
        gradient = sent_of(group.rank, result)
        result.backward(gradient)
        assert h.grad is not None
        return exchange.nodes, gradient, h.grad

    nodes, sent, back = zip(*results(run_threads(RANKS, run)), strict=True)
    return list(nodes), list(sent), list(back)


@pytest.mark.parametrize("plan", ["block", "halo", "prepost"])
@pytest.mark.parametrize("order", ["auto", "aggregate-first"])
def test_sums(folder: Path, plan: str, order: str) -> None:
    """`T = Â H W`: what returns is `Âᵀ clip(dT)`; in CAGNET's order `δ` itself is clipped."""
    weight = torch.eye(HEADS * WIDTH).double() * 2

    def forward(exchange: FullGraph, h: torch.Tensor) -> torch.Tensor:
        return exchange.propagate(h, 1, weight)

    nodes, sent, back = gradients(folder, plan, forward, order=order)
    whole = torch.zeros(GRAPH.nodes, HEADS * WIDTH).double()
    for own, gradient in zip(nodes, sent, strict=True):
        whole[own] = clipped(gradient) @ weight if order == "aggregate-first" else clipped(gradient @ weight)
    if order == "auto":  # the square weight goes first, so that the gradient that crosses is that of Â (H W)
        for own, gradient in zip(nodes, sent, strict=True):
            whole[own] = clipped(gradient) @ weight
    for own, gradient in zip(nodes, back, strict=True):
        torch.testing.assert_close(gradient, (A.T @ whole)[own])


@pytest.mark.parametrize("plan", ["block", "halo"])
@pytest.mark.parametrize("policy", ["always", "epoch-fixed:bound=1"])
def test_rows(folder: Path, plan: str, policy: str) -> None:
    """`rows` of own and other nodes: their gradients are clipped together, then returned and added up."""
    columns: dict[int, torch.Tensor] = {}

    def forward(exchange: FullGraph, h: torch.Tensor) -> torch.Tensor:
        columns[exchange.group.rank] = exchange.noise.columns()
        return exchange.rows(h, 1)

    nodes, sent, back = gradients(folder, plan, forward, staleness=policy)
    whole = torch.zeros(GRAPH.nodes, HEADS * WIDTH).double()
    for rank, gradient in enumerate(sent):
        whole.index_add_(0, columns[rank], clipped(gradient))
    for own, gradient in zip(nodes, back, strict=True):
        torch.testing.assert_close(gradient, whole[own])


@pytest.mark.parametrize("plan", ["block", "halo"])
@pytest.mark.parametrize("policy", ["always", "epoch-fixed:bound=1"], ids=["again", "kept"])
def test_attention(folder: Path, plan: str, policy: str) -> None:
    """A rank's gradient of its result is clipped, `δ_i`: so what becomes of it, through the query too."""
    torch.manual_seed(3)
    scorer = AdditiveScore(1, HEADS, WIDTH).double()
    identity = torch.eye(HEADS * WIDTH).double()

    def query(values: torch.Tensor) -> torch.Tensor:
        return torch.sin(values[:, :HEADS] * torch.tensor([0.3, 0.9]).double())

    def forward(exchange: FullGraph, h: torch.Tensor) -> torch.Tensor:
        return exchange.attend(h, 1, identity, query, scorer)

    nodes, sent, back = gradients(folder, plan, forward, staleness=policy)
    whole = torch.zeros(GRAPH.nodes, HEADS * WIDTH).double()
    for own, gradient in zip(nodes, sent, strict=True):
        values = values_of(torch.arange(GRAPH.nodes)).requires_grad_()
        result = dense_attention(query(values[own]), values, scorer, A[own])
        whole += torch.autograd.grad(result, values, clipped(gradient))[0]
    for own, gradient in zip(nodes, back, strict=True):
        torch.testing.assert_close(gradient, whole[own])


def dense_attention(
    queries: torch.Tensor, values: torch.Tensor, scorer: AdditiveScore, a: torch.Tensor
) -> torch.Tensor:
    """Head after head over a dense matrix `[n_i, N]`."""
    outs = []
    for head, v in enumerate(values.split(WIDTH, dim=1)):
        scores = F.leaky_relu(queries[:, head, None] + v @ scorer.source[head].detach(), 0.2)
        outs.append(torch.softmax(scores.masked_fill(a == 0, -math.inf), dim=1) @ v)
    return torch.cat(outs, dim=1)


def test_plans_clip_alike(folder: Path) -> None:
    """GAT in two layers, whose query is made of the own values: the same updates by both plans."""

    def run(group: Group, plan: str) -> list[torch.Tensor]:
        config = Config(
            model="gat",
            factors=FactorSettings(
                plan=plan, clip=0.01, reuse_input=False, kernel="torch", broadcast="library"
            ),
            shape=ModelSettings(hidden=4, heads=2, dropout=0.0),
            training=TrainingSettings(dtype="float64", optimizer="sgd", lr=0.5),
        )
        trainer = thread_trainer(config, open_own(folder, group), group)
        for epoch in range(3):
            trainer.train_epoch(epoch)
        return [parameter.detach().clone() for parameter in trainer.model.parameters()]

    block, halo = (
        results(run_threads(RANKS, lambda group, plan=plan: run(group, plan))) for plan in ("block", "halo")
    )
    torch.testing.assert_close(block, halo)
