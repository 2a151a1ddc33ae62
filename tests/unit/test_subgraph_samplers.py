"""Samplers of subgraphs: clusters and random walks, and what makes up for what a subgraph lacks."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sancus.comm.alone import Alone
from sancus.comm.group import Group
from sancus.kernels.native.library import available
from sancus.kernels.native.sampling import NativeSampler
from sancus.kernels.sample_torch import TorchSampler
from sancus.kernels.subgraph import subgraph, walks
from sancus.kernels.topology import Topology
from sancus.plugins import build
from sancus.sampling import OF_SUBGRAPHS, SAMPLERS
from sancus.sampling.base import SampleKey
from sancus.sampling.batch_source import Ground, SubgraphBatches, SubgraphSampler
from tests.helpers.topologies import ALL, dense_of, hop_of, topology

NODES = 12


def ground(whole: Topology, size: int = 4, training: int = 9) -> Ground:
    """A batch of `size` of the first `training` nodes."""
    return Ground(whole, torch.arange(training), size, (ALL, ALL), 3, torch.float64)


def prepared(spec: str, where: Ground) -> SubgraphSampler:
    sampler: Any = build("sampler", SAMPLERS, spec)
    sampler.prepare(where, Group(Alone()))
    return sampler  # type: ignore[no-any-return]


def dense_row_matrix(sampler: SubgraphSampler, members: torch.Tensor, nodes: int) -> torch.Tensor:
    """The subgraph's `Â` over all nodes `[N, N]`."""
    dense = torch.zeros(nodes, nodes, dtype=torch.float64)
    dense[members[:, None], members] = dense_of(sampler.subgraph(members))
    return dense


def test_a_subgraph_is_rows_and_columns_of_the_whole() -> None:
    members = torch.tensor([0, 3, 4, 5, 30, 39])
    for settings in ({}, {"weighted": True, "diagonal": True}, {"mean": True, "wide": True}):
        whole = topology(**settings)  # type: ignore[arg-type]
        expected = dense_of(whole)[members][:, members]
        torch.testing.assert_close(dense_of(subgraph(whole, members)), expected, rtol=1e-13, atol=0)
    assert subgraph(whole, members[:0]).nodes == 0


def test_walks_go_along_edges_and_are_of_key_and_root() -> None:
    whole = topology(diagonal=True)
    near = dense_of(whole) != 0
    keys = SampleKey(0, 0, 0).of_hops(3)
    makers = [NativeSampler, TorchSampler] if available() else [TorchSampler]
    for root in (0, 1, 7, 20):
        paths = [walks(make(whole, torch.float64), torch.tensor([root]), keys) for make in makers]
        assert all(torch.equal(path, paths[0]) for path in paths), "the library walks where torch walks"
        (path,) = paths[:1]
        assert root in path.tolist() and len(path) <= 4
        reached = torch.matrix_power(near.double(), 3)[root]
        assert bool((reached[path] > 0).all())
        assert (len(path) > 1) == bool(whole.degrees[root] > 0), root
        together = walks(makers[-1](whole, torch.float64), torch.arange(40), keys)
        assert set(path.tolist()) <= set(together.tolist())
    ends = {
        node
        for step in range(200)
        for node in walks(
            makers[0](whole, torch.float64), torch.tensor([7]), SampleKey(0, 0, step).of_hops(1)
        ).tolist()
    }
    assert ends == {7, *near[7].nonzero().flatten().tolist()}, "every neighbour, in time"


@pytest.mark.parametrize("name", sorted(OF_SUBGRAPHS))
def test_the_contract_of_a_sampler_of_subgraphs(name: str) -> None:
    """Shares of an epoch are 1 together, seeds are the members that train, hops are the subgraph's rows."""
    where = ground(topology(weighted=True, diagonal=True), training=30)
    sampler = prepared(name, where)
    source = SubgraphBatches(build("sampler", SAMPLERS, name), where, Group(Alone()))
    for epoch in range(2):
        drawn, again = sampler.of_epoch(epoch), source.of_epoch(epoch)
        assert sum(batch.share for batch in drawn) == pytest.approx(1)
        for batch, other in zip(drawn, again, strict=True):
            assert batch.members is not None and other.members is not None
            assert torch.equal(batch.members, other.members), "of seed and epoch alone"
            assert batch.members.tolist() == sorted(set(batch.members.tolist()))
            assert batch.seeds.tolist() == [node for node in batch.members.tolist() if node < 30]
            sampled = source.sample(batch, batch.seeds[1:3], SampleKey(3, epoch, 0))
            rows = hop_of(sampled, 0, 40)[batch.seeds[1:3]]
            expected = dense_row_matrix(sampler, batch.members, 40)[batch.seeds[1:3]]
            torch.testing.assert_close(rows, expected, rtol=1e-12, atol=1e-15)
    one, two = sampler.of_epoch(0)[0].members, sampler.of_epoch(1)[0].members
    assert one is not None and two is not None and one.tolist() != two.tolist(), "another order every epoch"


def test_counted_subgraphs_of_walks_give_whole_rows_and_losses() -> None:
    """Over the very subgraphs that were counted, means are exact, not only on average."""
    where = ground(topology(NODES, seed=3, weighted=True, diagonal=True))
    sampler, coverage = prepared("saint:coverage=40", where), 40
    rows, there = torch.zeros(NODES, NODES, dtype=torch.float64), torch.zeros(NODES, dtype=torch.float64)
    loss, steps = torch.zeros(NODES, dtype=torch.float64), 0
    for epoch in range(-coverage, 0):
        for batch in sampler.of_epoch(epoch):
            assert batch.members is not None and batch.weight is not None
            rows += dense_row_matrix(sampler, batch.members, NODES)
            there[batch.members] += 1
            loss[batch.seeds] += batch.weight
            steps += 1
    mean, exact = rows / there.clamp(min=1)[:, None], dense_of(where.topology)
    seen = mean != 0
    assert int(seen.sum()) > 0.9 * int((exact != 0)[there > 0].sum()), "most edges were met"
    torch.testing.assert_close(mean[seen], exact[seen], rtol=1e-12, atol=0)
    torch.testing.assert_close(loss[:9] / steps, torch.ones(9, dtype=torch.float64), rtol=1e-12, atol=0)


def test_sums_over_walks_are_right_on_average() -> None:
    """Subgraphs of epochs to come, against counts of others: within 5 standard errors of both."""
    where, coverage = ground(topology(NODES, seed=3, diagonal=True)), 300
    sampler = prepared(f"saint:coverage={coverage}", where)
    rows, losses = [], []
    for epoch in range(coverage):
        for batch in sampler.of_epoch(epoch):
            assert batch.members is not None and batch.weight is not None
            dense = torch.full((NODES, NODES), torch.nan, dtype=torch.float64)
            dense[batch.members] = dense_row_matrix(sampler, batch.members, NODES)[batch.members]
            rows.append(dense)
            losses.append(torch.zeros(NODES, dtype=torch.float64).index_add_(0, batch.seeds, batch.weight))
    drawn, loss = torch.stack(rows), torch.stack(losses)
    often = (~drawn[:, :, 0].isnan()).sum(0)
    mean = drawn.nanmean(0)
    error = ((drawn - mean).nan_to_num() ** 2).sum(0).sqrt() / often[:, None]
    exact = dense_of(where.topology)
    common = (often > 100)[:, None] & (exact != 0)
    assert bool(common[:9].any(1).any()) and float(error[common].max()) > 0
    off = ((mean - exact).abs() / (2**0.5 * error + 1e-12))[common]
    assert float(off.max()) <= 5, off
    spread = 2**0.5 * loss.std(0) / len(loss) ** 0.5 + 1e-12
    assert float(((loss.mean(0) - 1).abs() / spread)[:9].max()) <= 5


def test_clusters_cover_the_graph_once_an_epoch_and_keep_the_sums_of_rows() -> None:
    where = ground(topology(weighted=True, mean=True), size=10, training=30)
    sampler = prepared("cluster:parts=8,by=random", where)
    drawn = sampler.of_epoch(0)
    assert len(drawn) == 3
    met = torch.cat([batch.members for batch in drawn if batch.members is not None])
    assert sorted(met.tolist()) == list(range(40))
    for batch in drawn:
        assert batch.members is not None and batch.weight is None
        part = sampler.subgraph(batch.members)
        sums, whole = part.sums() * part.left, where.topology.sums() * where.topology.left
        there = part.sums() > 0
        torch.testing.assert_close(sums[there], whole[batch.members][there], rtol=1e-12, atol=0)
    (all_of_it,) = prepared("cluster", ground(where.topology, size=30, training=30)).of_epoch(5)
    assert all_of_it.members is not None and len(all_of_it.members) == 40
    torch.testing.assert_close(
        dense_of(sampler.subgraph(all_of_it.members)), dense_of(where.topology), rtol=1e-12, atol=0
    )


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("saint:length=0", "length=0 must be at least 1"),
        ("saint:coverage=-1", "coverage=-1 must be at least 1"),
        ("cluster:parts=-2", "parts=-2 must not be negative"),
    ],
)
def test_settings_that_cannot_be(spec: str, said: str) -> None:
    with pytest.raises(Exception, match=said):
        build("sampler", SAMPLERS, spec)
