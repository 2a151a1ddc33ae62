"""Link prediction: the split, the drawn pairs, the score of pairs, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from sancus.comm.alone import Alone
from sancus.comm.group import Group
from sancus.config.resolve import make_config
from sancus.errors import UserError
from sancus.graphs.normalise import row_sums
from sancus.graphs.shards import open_shard
from sancus.kernels.pairs import PairScores
from sancus.kernels.sample import hop_sampler
from sancus.kernels.topology import UNIFORM
from sancus.runs.tasks import ask_of
from sancus.training.edge_split import SCORED, drawn_pairs
from sancus.training.link_asker import without
from sancus.training.link_task import LinkTask
from tests.helpers.graphs import awkward_graph, shards_of
from tests.helpers.topologies import ALL, draw, hop_of, topology

CPU = torch.device("cpu")


def asked(graph: Any, folder: Path, **settings: Any) -> tuple[Any, LinkTask]:
    """On one process: the shard that is left, and the task."""
    folder.mkdir()
    shard = open_shard(shards_of(graph, "contiguous", 1, folder), 0)
    kept, task = ask_of(make_config(task="link", **settings), shard, Group(Alone()), CPU)
    assert isinstance(task, LinkTask)
    return kept, task


def pairs_of(edges: torch.Tensor) -> set[tuple[int, int]]:
    return {(int(a), int(b)) for a, b in edges.tolist()}


@pytest.mark.parametrize("directed", [True, False])
def test_edges_are_split_with_their_reverses_and_held_out_of_the_graph(
    directed: bool, tmp_path: Path
) -> None:
    graph = awkward_graph(weighted=True, directed=directed)
    kept, task = asked(graph, tmp_path / "a", held_out=0.2)
    split = {name: pairs_of(edges) for name, edges in task.split.edges.items()}
    left = kept.edges("incoming").toarray() != 0
    target, source = np.nonzero(graph.adjacency.toarray())
    everything = {(int(u), int(v)) for u, v in zip(source, target, strict=True) if u != v}
    if not directed:
        everything = {(u, v) for u, v in everything if u < v}
    assert set.union(*split.values()) == everything and sum(map(len, split.values())) == len(everything)
    place = {int(node): row for row, node in enumerate(kept.nodes)}
    for name, pairs in split.items():
        assert pairs, name
        for u, v in pairs:
            assert left[place[v], place[u]] == (name == "train"), "held-out edges are not aggregated"
            assert (v, u) not in everything or (v, u) in pairs, "a reverse is in the same split"
            assert directed or left[place[u], place[v]] == (name == "train")
    sums = kept.row_sums(np.arange(graph.nodes))
    np.testing.assert_allclose(sums.plain, row_sums(kept.edges("incoming"), 0).plain)
    assert pairs_of(task.split.shown) < split["train"]
    _, again = asked(graph, tmp_path / "b", held_out=0.2)
    _, other = asked(graph, tmp_path / "c", held_out=0.2, seed=1)
    assert pairs_of(again.split.edges["val"]) == split["val"] != pairs_of(other.split.edges["val"])


def test_a_drawn_pair_has_one_end_of_its_edge_and_any_other_node() -> None:
    edges = torch.stack([torch.arange(500), torch.arange(500, 1000)], dim=1)
    drawn = drawn_pairs(edges, 20, 1000, 3, 0)
    assert drawn.shape == (500, 20, 2)
    first = drawn[:, 0, 0]
    assert torch.equal(drawn[:, :, 0], first[:, None].expand(-1, 20))
    assert 150 < int((first == edges[:, 0]).sum()) < 350, "either end is kept, as a rule as often"
    assert bool(((first == edges[:, 0]) | (first == edges[:, 1])).all())
    counts = np.bincount(drawn[:, :, 1].flatten().numpy() // 10, minlength=100)
    assert len(counts) == 100 and chisquare(counts).pvalue > 1e-6
    assert torch.equal(drawn_pairs(edges[7:9], 20, 1000, 3, 0), drawn[7:9]), "of the edge alone"
    for other in ((3, 1), (4, 0), (3, SCORED)):
        assert not torch.equal(drawn_pairs(edges, 20, 1000, *other), drawn)


def test_the_score_of_a_pair_is_a_product_and_has_its_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sancus.kernels.pairs.PIECE", 4)
    z = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    pairs = torch.tensor([[0, 1], [1, 1], [4, 0], [2, 0], [0, 4], [3, 2]])
    torch.testing.assert_close(PairScores.apply(z, pairs), (z[pairs[:, 0]] * z[pairs[:, 1]]).sum(1))
    assert torch.autograd.gradcheck(lambda rows: PairScores.apply(rows, pairs), (z,))
    assert PairScores.apply(z, pairs[:0]).shape == (0,)


def test_loss_and_scores_are_those_of_a_hand_count(tmp_path: Path) -> None:
    """Binary cross entropy, area under the ROC curve pair by pair, reciprocal ranks edge by edge."""
    graph, rivals = awkward_graph(), 7
    torch.manual_seed(0)
    z = torch.randn(graph.nodes, 4, dtype=torch.float64)
    found = {}
    for metric in ("roc-auc", "mrr"):
        kept, task = asked(graph, tmp_path / metric, metric=metric, rivals=rivals, negatives=2, held_out=0.2)
        found[metric] = (task.score(z[torch.from_numpy(np.array(kept.nodes))]).numpy(), task.metric)
    edges = task.split.edges["train"]
    drawn = drawn_pairs(edges, 2, graph.nodes, 0, task.group.clock.epoch).flatten(0, 1)
    of = lambda pairs: (z[pairs[..., 0]] * z[pairs[..., 1]]).sum(-1)  # noqa: E731
    likely = torch.cat([torch.sigmoid(of(edges)), 1 - torch.sigmoid(of(drawn))])
    loss = task.loss(z[torch.from_numpy(np.array(kept.nodes))])
    torch.testing.assert_close(loss, -likely.log().mean())
    held = task.split.edges["test"]
    mine, others = of(held), of(drawn_pairs(held, rivals, graph.nodes, 0, SCORED))
    above = ((mine[:, None, None] > others) + 0.5 * (mine[:, None, None] == others)).mean()
    (auc, one), metric = found["roc-auc"][0][2], found["roc-auc"][1]
    assert auc == pytest.approx(float(above)) and one == 1 and metric == "ROC-AUC"
    ranks = 1 + ((others > mine[:, None]) + 0.5 * (others == mine[:, None])).sum(1)
    (total, count), metric = found["mrr"][0][2], found["mrr"][1]
    assert total == pytest.approx(float((1 / ranks).sum())) and count == len(held) and metric == "MRR"


def test_edges_of_a_batch_are_left_out_both_ways() -> None:
    whole = topology()
    sampled = hop_sampler(whole, torch.float64).sample(torch.arange(6), draw(UNIFORM, ALL, 3))
    edges = torch.tensor([[7, 0], [0, 9], [30, 5]])
    left = without(sampled, edges, 40)
    for hop in range(2):
        expected = hop_of(sampled, hop, 40)
        assert float(expected[0, [7, 9]].abs().sum()) > 0 or hop
        for u, v in edges.tolist():
            expected[v, u] = expected[u, v] = 0
        torch.testing.assert_close(hop_of(left, hop, 40), expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"held_out": 0.2}, "--held-out 0.2 is of --task link; add it"),
        ({"leave_out": False}, "--no-leave-out is of --task link"),
        ({"metric": "mrr"}, "--metric mrr is of --task link"),
        ({"task": "link", "metric": "accuracy"}, "--metric accuracy: --task link has auto"),
        ({"task": "link", "held_out": 0.5}, "--held-out 0.5: must be above 0 and below 0.5"),
        ({"task": "link", "negatives": 0}, "--negatives 0: must be at least 1"),
        ({"task": "link", "rivals": 0}, "--rivals 0: must be at least 1"),
        ({"task": "link", "inductive": True}, "--inductive is about labels of nodes"),
        ({"task": "link", "label_rate": 0.5}, "--label-rate 0.5 is about labels of nodes"),
        ({"task": "link", "class_weights": "balanced"}, "--class-weights balanced is about labels"),
        ({"task": "link", "schedule": "pipeline"}, "--task link has no --schedule pipeline"),
        (
            {"task": "link", "batch_size": 9, "fanout": "all", "sampler": "saint"},
            "--task link draws hop by hop; choose --sampler neighbour or labor",
        ),
        ({"task": "links"}, "links"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as caught:
        make_config(**settings)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_a_share_that_leaves_a_split_empty_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--held-out 0.0001 of .* edges leaves none to val; choose another"):
        asked(awkward_graph(), tmp_path / "few", held_out=0.0001)
