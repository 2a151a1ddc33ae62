"""What every sampler of the table promises, and which seeds a step has."""

from __future__ import annotations

import pytest
import torch

from sancus.kernels.sample import hop_sampler
from sancus.plugins import build
from sancus.sampling import OF_SUBGRAPHS, SAMPLERS
from sancus.sampling.base import SampleKey, Sampler, batches
from sancus.sampling.settings import SamplingSettings
from tests.helpers.topologies import dense_of, hop_of, topology


@pytest.mark.parametrize("name", [name for name in SAMPLERS if name not in OF_SUBGRAPHS])
def test_the_contract_of_a_sampler(name: str) -> None:
    """Rows are of key and node alone; the mean of 1 500 draws is the whole row, within 5 standard errors."""
    sampler: Sampler = build("sampler", SAMPLERS, name)
    nodes, draws = 12, 1500
    whole = topology(nodes, seed=4, weighted=True, diagonal=True)
    hops = hop_sampler(whole, torch.float64)
    drawn = torch.empty(draws, nodes, nodes, dtype=torch.float64)
    for step in range(draws):
        keys = SampleKey(0, 0, step).of_hops(2)
        sampled = sampler.sample(hops, torch.arange(nodes), (2, 3), keys)
        assert sampled.counts[0] == nodes and len(sampled.entries) == 2
        drawn[step] = hop_of(sampled, 0, nodes)
        if step < 5:
            alone = sampler.sample(hops, torch.tensor([3]), (2, 3), keys)
            torch.testing.assert_close(hop_of(alone, 0, nodes)[3], drawn[step, 3], rtol=1e-12, atol=0)
    error = drawn.std(dim=0) / draws**0.5
    assert bool(((drawn.mean(dim=0) - dense_of(whole)).abs() <= 5 * error + 1e-12).all())


def test_keys_differ_by_seed_epoch_step_and_hop() -> None:
    keys = [
        key for place in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)) for key in SampleKey(*place).of_hops(3)
    ]
    assert len(set(keys)) == len(keys)
    assert SampleKey(0, 0, 0).of_hops(2) == SampleKey(0, 0, 0).of_hops(3)[:2]


def test_batches_are_the_training_nodes_in_an_order_of_the_epoch() -> None:
    nodes = torch.arange(0, 90, 4)
    cut = batches(nodes, 5, 7, 0)
    assert [len(batch) for batch in cut] == [5, 5, 5, 5, 3]
    joined = torch.cat(cut)
    assert torch.equal(joined.sort().values, nodes)
    again = torch.cat(batches(nodes.flip(0), 5, 7, 0))
    assert torch.equal(again, joined), "whoever holds which node"
    others = [torch.cat(batches(nodes, 5, seed, epoch)) for seed, epoch in ((7, 1), (8, 0))]
    assert not any(torch.equal(other, joined) for other in others)
    assert len(batches(nodes, 1000, 7, 0)) == 1
    assert [len(batch) for batch in batches(nodes[:0], 5, 7, 0)] == [0], "a step without seeds"


def test_fan_outs_are_read_from_the_seeds_outward() -> None:
    assert SamplingSettings(fanout="15,10,5").fanouts(3) == (15, 10, 5)
    assert SamplingSettings(fanout="7").fanouts(3) == (7, 7, 7)
    assert SamplingSettings(fanout="all,3").fanouts(2) == (-1, 3)
