"""`FullGraph.rows`: own and received rows, differentiable across ranks, for content-weighted edges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sancus.comm.group import Group
from sancus.config.settings import Config, FactorSettings
from sancus.graphs.shards import open_shard
from sancus.runs.build import make_trainer
from sancus.training.settings import TrainingSettings
from tests.helpers.graphs import awkward_graph, shards_of
from tests.helpers.processes import run_ranks
from tests.helpers.reference import dense_adjacency

HIDDEN = 4


def attention(h: torch.Tensor, own: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """A toy of GAT: weights depend on the content of both ends; `mask [n, m]` are the edges."""
    scores = (own @ h.T).masked_fill(~mask, float("-inf"))
    return torch.softmax(scores, dim=1) @ torch.tanh(h)


def embeddings(nodes: torch.Tensor) -> torch.Tensor:
    """The same rows for the same nodes on any rank, `[n, HIDDEN]`."""
    columns = torch.arange(1, HIDDEN + 1, dtype=torch.float64)
    return torch.sin(nodes[:, None].double() * columns)


def attend(group: Group, folders: dict[str, str]) -> dict[str, dict[str, torch.Tensor]]:
    """Two attention layers over `rows`, and the gradient of a sum with respect to the input."""
    found = {}
    for plan, folder in folders.items():
        config = Config(factors=FactorSettings(plan=plan), training=TrainingSettings(dtype="float64"))
        shard = open_shard(Path(folder), group.rank)
        exchange = make_trainer(config, shard, group, torch.device("cpu")).exchange
        exchange.begin_epoch(0)
        h = embeddings(exchange.nodes).requires_grad_()
        mask = exchange.local_rows.to_dense() != 0
        once = attention(exchange.rows(h, 0), h, mask)
        twice = attention(exchange.rows(once, 1), once, mask)
        (twice**2).sum().backward()
        assert h.grad is not None
        found[plan] = {"nodes": exchange.nodes, "out": twice.detach(), "gradient": h.grad}
    return found


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_rows_equal_one_process(ranks: int, tmp_path: Path) -> None:
    graph = awkward_graph()
    folder = str(shards_of(graph, "random", ranks, tmp_path))
    folders = {"halo": folder, "block": folder}
    results: list[dict[str, Any]] = run_ranks("tests.ranks.test_rows:attend", ranks, folders=folders)
    h = embeddings(torch.arange(graph.nodes)).requires_grad_()
    mask = dense_adjacency(graph, "symmetric") != 0
    once = attention(h, h, mask)
    twice = attention(once, once, mask)
    (twice**2).sum().backward()
    for result in results:
        for plan in folders:
            nodes = result[plan]["nodes"]
            torch.testing.assert_close(result[plan]["out"], twice[nodes].detach(), rtol=1e-10, atol=1e-12)
            torch.testing.assert_close(result[plan]["gradient"], h.grad[nodes], rtol=1e-10, atol=1e-12)


def attend_stale(group: Group, folder: str) -> dict[str, dict[str, torch.Tensor]]:
    """`rows` in two epochs under policies that skip in the second: `Â` of what this rank then sees."""
    found = {}
    for plan in ("halo", "block"):
        for policy in ("epoch-fixed:bound=1", "drop"):
            factors = FactorSettings(plan=plan, staleness=policy)
            config = Config(factors=factors, training=TrainingSettings(dtype="float64"))
            shard = open_shard(Path(folder), group.rank)
            exchange = make_trainer(config, shard, group, torch.device("cpu")).exchange
            h = embeddings(exchange.nodes)
            for epoch in range(2):
                exchange.begin_epoch(epoch)
                seen = exchange.rows(h + epoch, 0)
            found[f"{plan} {policy}"] = {"nodes": exchange.nodes, "sum": exchange.local_rows @ seen}
    return found


def test_rows_of_owners_that_skip_are_the_last_sent(tmp_path: Path) -> None:
    graph, ranks = awkward_graph(), 3
    folder = str(shards_of(graph, "random", ranks, tmp_path))
    a, old = dense_adjacency(graph, "symmetric"), embeddings(torch.arange(graph.nodes))
    for result in run_ranks("tests.ranks.test_rows:attend_stale", ranks, folder=folder):
        for name, note in result.items():
            seen = torch.zeros_like(old) if "drop" in name else old.clone()
            seen[note["nodes"]] = old[note["nodes"]] + 1
            torch.testing.assert_close(note["sum"], (a @ seen)[note["nodes"]], rtol=1e-12, atol=1e-12)
