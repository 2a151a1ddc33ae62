"""Sampled neighbourhoods: the library and torch pick alike, draws are of nodes alone, sums unbiased."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from sancus.kernels.native.library import available
from sancus.kernels.native.sampling import NativeSampler
from sancus.kernels.sample import HopSampler, hop_sampler
from sancus.kernels.sample_torch import TorchSampler
from sancus.kernels.topology import LEAST_OF_PAIR, LEAST_OF_SOURCE, REPEATED, UNIFORM, Sampled, Topology
from tests.helpers.topologies import ALL, dense_of, draw, hop_of, topology

WAYS = [
    (way, heavy) for way in (UNIFORM, REPEATED, LEAST_OF_PAIR, LEAST_OF_SOURCE) for heavy in (False, True)
]
WAYS.remove((UNIFORM, True))
needs_library = pytest.mark.skipif(not available(), reason="the native library was not compiled")
ways = pytest.mark.parametrize(("way", "by_weight"), WAYS)


def samplers(whole: Topology) -> list[HopSampler]:
    """Every implementation that is here."""
    makers = [NativeSampler, TorchSampler] if available() else [TorchSampler]
    return [make(whole, torch.float64) for make in makers]


def assert_same(one: Sampled, other: Sampled) -> None:
    assert one.counts == other.counts and torch.equal(one.nodes, other.nodes)
    for (crow, col, value), (crow_, col_, value_) in zip(one.entries, other.entries, strict=True):
        assert torch.equal(crow, crow_) and torch.equal(col, col_)
        assert value.dtype == value_.dtype
        torch.testing.assert_close(value, value_, rtol=1e-13, atol=0)


@needs_library
@ways
@given(
    nodes=st.integers(2, 90),
    seed=st.integers(0, 999),
    fanouts=st.lists(st.sampled_from([ALL, 0, 1, 3, 7, 40]), max_size=4),
    weighted=st.booleans(),
    diagonal=st.booleans(),
    wide=st.booleans(),
    mean=st.booleans(),
    count=st.integers(0, 6),
)
@settings(max_examples=15, deadline=None)
def test_the_library_picks_what_torch_picks(
    way: int,
    by_weight: bool,
    nodes: int,
    seed: int,
    fanouts: list[int],
    weighted: bool,
    diagonal: bool,
    wide: bool,
    mean: bool,
    count: int,
) -> None:
    whole = topology(nodes, seed=seed, weighted=weighted, diagonal=diagonal, wide=wide, mean=mean)
    seeds = torch.randperm(nodes, generator=torch.Generator().manual_seed(seed))[:count]
    native, plain = samplers(whole)
    for key in (seed, seed + 1):  # twice, so that nothing is left of the first sample
        wanted = draw(way, *fanouts, key=key, by_weight=by_weight)
        assert_same(native.sample(seeds, wanted), plain.sample(seeds, wanted))


@needs_library
def test_values_of_float32_are_those_of_float64_rounded() -> None:
    whole = topology(weighted=True, diagonal=True)
    wanted, seeds = draw(LEAST_OF_PAIR, 3, 3, by_weight=True), torch.arange(8)
    narrow, wide = (NativeSampler(whole, t).sample(seeds, wanted) for t in (torch.float32, torch.float64))
    for (*_, few), (*_, many) in zip(narrow.entries, wide.entries, strict=True):
        assert few.dtype == torch.float32
        torch.testing.assert_close(few, many.float())


@ways
def test_a_row_is_that_of_its_node_whoever_asks(way: int, by_weight: bool) -> None:
    """Of the same key, a node draws the same neighbours alone, among others and in any place."""
    whole = topology(weighted=True, diagonal=True)
    for sampler in samplers(whole):
        wanted = draw(way, 4, 3, by_weight=by_weight)
        together = sampler.sample(torch.arange(39, -1, -1), wanted)
        for node in (0, 1, 7, 39):
            alone = sampler.sample(torch.tensor([node]), wanted)
            for hop in range(2):
                mine, theirs = (hop_of(sample, hop, 40) for sample in (alone, together))
                targets = alone.nodes[: alone.counts[hop]]
                torch.testing.assert_close(mine[targets], theirs[targets], rtol=1e-12, atol=0)


@ways
def test_targets_come_first_and_rows_are_as_long_as_the_fan_out(way: int, by_weight: bool) -> None:
    whole = topology(diagonal=True)
    for sampler in samplers(whole):
        sampled = sampler.sample(torch.tensor([5, 0, 1]), draw(way, 3, 35, ALL, by_weight=by_weight))
        assert sampled.nodes[:3].tolist() == [5, 0, 1] and len(sampled.nodes.unique()) == sampled.counts[-1]
        for hop, fanout in enumerate((3, 35, ALL)):
            crow, col, _ = sampled.entries[hop]
            targets = sampled.nodes[: sampled.counts[hop]]
            degree = whole.degrees[targets]
            repeated = torch.where(degree > 0, fanout, 0) if way == REPEATED else degree.clamp(max=fanout)
            assert torch.equal(crow.diff(), 1 + (degree if fanout == ALL else repeated))
            assert torch.equal(col[crow[:-1]].long(), torch.arange(len(targets))), "the diagonal is first"
            ends = [row.tolist() for row in col.split(crow.diff().tolist())]
            assert way == REPEATED or all(len(set(row)) == len(row) for row in ends)


@ways
def test_everything_is_the_whole_matrix(way: int, by_weight: bool) -> None:
    whole = topology(weighted=True, diagonal=True)
    for sampler in samplers(whole):
        sampled = sampler.sample(torch.arange(40), draw(way, ALL, by_weight=by_weight))
        torch.testing.assert_close(hop_of(sampled, 0, 40), dense_of(whole), rtol=1e-13, atol=0)


@needs_library
@ways
def test_sums_are_right_on_average(way: int, by_weight: bool) -> None:
    """4 000 draws of two hops: the mean of the first, and of their product, within 5 standard errors."""
    draws, nodes = 4000, 12
    whole = topology(nodes, seed=3, weighted=True, diagonal=True)
    exact, sampler = dense_of(whole), NativeSampler(whole, torch.float64)
    h = torch.arange(1.0, nodes + 1, dtype=torch.float64)
    one = torch.empty(draws, nodes, nodes, dtype=torch.float64)
    two = torch.empty(draws, nodes, dtype=torch.float64)
    for key in range(draws):
        sampled = sampler.sample(torch.arange(nodes), draw(way, 2, 3, key=key + 1, by_weight=by_weight))
        first, second = (hop_of(sampled, hop, nodes) for hop in range(2))
        one[key], two[key] = first, first @ second @ h
    for drawn, right in ((one, exact), (two, exact @ exact @ h)):
        error = drawn.std(dim=0) / draws**0.5
        off = (drawn.mean(dim=0) - right).abs()
        assert bool((off <= 5 * error + 1e-12).all()), (off / error).max()
        assert float(error.max()) > 0, "nothing was drawn"


@needs_library
@pytest.mark.parametrize(("way", "k"), [(UNIFORM, 2), (UNIFORM, 5), (LEAST_OF_PAIR, 3), (LEAST_OF_SOURCE, 3)])
def test_all_sets_are_equally_likely(way: int, k: int) -> None:
    """χ² over all sets of k of the 7 neighbours of one node."""
    whole = topology(8, diagonal=True)
    assert whole.degrees[0] == 7
    sets = dict.fromkeys(itertools.combinations(range(1, 8), k), 0)
    draws, sampler = 200 * len(sets), NativeSampler(whole, torch.float64)
    for key in range(draws):
        sampled = sampler.sample(torch.tensor([0]), draw(way, k, key=key))
        _, col, _ = sampled.entries[0]
        sets[tuple(sorted(sampled.nodes[col[1:].long()].tolist()))] += 1
    expected = draws / len(sets)
    statistic = sum((count - expected) ** 2 / expected for count in sets.values())
    assert chi2.sf(statistic, len(sets) - 1) > 1e-6


@needs_library
def test_targets_that_share_sources_agree_on_them() -> None:
    """What LABOR is for: two hubs with the same neighbours draw the same ones, and by pairs they do not."""
    col = torch.arange(2, 42, dtype=torch.int32).repeat(2)
    crow = torch.cat([torch.tensor([0, 40]), torch.full((41,), 80)])
    ones = torch.ones(42, dtype=torch.float64)
    sampler = NativeSampler(Topology(crow, col, None, ones, ones), torch.float32)
    found = {
        way: sampler.sample(torch.arange(2), draw(way, 5)).counts[1] for way in (LEAST_OF_SOURCE, UNIFORM)
    }
    assert found[LEAST_OF_SOURCE] == 2 + 5 and found[UNIFORM] > 2 + 5


@needs_library
def test_the_table_of_nodes_starts_anew_when_its_stamps_are_used_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sancus.kernels.native.sampling._LAST_STAMP", 2)
    native, plain = samplers(topology())
    for seed in range(6):
        seeds, wanted = torch.tensor([seed]), draw(UNIFORM, 3, 2)
        assert_same(native.sample(seeds, wanted), plain.sample(seeds, wanted))


@needs_library
def test_the_library_is_taken_where_it_loads() -> None:
    assert isinstance(hop_sampler(topology(), torch.float32), NativeSampler)
